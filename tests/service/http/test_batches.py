"""Requests to the model alone have the same results over HTTP as in the library."""

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from factorcell.evaluation.classification import classify
from factorcell.generation.generate import GenerationOptions, stream
from factorcell.io import files
from factorcell.service.http import operations
from factorcell.service.http.application import Site
from factorcell.service.messages import MAX_PROMPT

TEXTS = [{"text": "abba", "context": {"city": "Oslo"}}, {"text": "", "context": {"city": "Nice"}}]


def test_scores_equal_those_of_the_run(client: TestClient, site: Site) -> None:
    results = client.post("/v1/score", json={"texts": TEXTS}).json()["results"]
    rows = [{"text": item["text"], **item["context"], "who": "ann"} for item in TEXTS]  # type: ignore[dict-item]
    expected = client.post(
        "/v1/score", json={"texts": [{"text": row.pop("text"), "context": row} for row in map(dict, rows)]}
    ).json()["results"]
    library_rows = site.service.model.run.score_rows(rows)
    for item, row in zip(expected, library_rows, strict=True):
        assert item == pytest.approx({"nats": row["nats"], "targets": row["targets"], "perplexity": row["perplexity"]})
    assert [item["targets"] for item in results] == [5, 1]


def test_texts_of_a_request_may_have_different_columns(client: TestClient) -> None:
    texts: list[dict[str, Any]] = [{"text": "abba", "context": {"city": "Oslo"}}, {"text": "abba"}]
    results = client.post("/v1/score", json={"texts": texts}).json()["results"]
    alone = [client.post("/v1/score", json={"texts": [text]}).json()["results"][0] for text in texts]
    assert [result["nats"] for result in results] == pytest.approx([result["nats"] for result in alone])
    assert results[0]["nats"] != pytest.approx(results[1]["nats"])


def test_classes_equal_those_of_the_library(client: TestClient, site: Site) -> None:
    texts = [{"text": text, "context": {"who": "ann"}} for text in ("abba", "cab a")]
    results = client.post("/v1/classify", json={"target": "city", "texts": texts}).json()["results"]
    rows = [{"text": result["text"], "who": "ann"} for result in texts]
    expected = classify(site.service.model.run, rows, "city")
    assert [result["value"] for result in results] == [expected.names[place] for place in expected.predicted]
    for result, row in zip(results, expected.probabilities, strict=True):
        assert result["probabilities"] == pytest.approx(dict(zip(expected.names, row.tolist(), strict=True)))
    (only,) = client.post("/v1/classify", json={"target": "city", "texts": texts[:1], "values": ["Oslo"]}).json()[
        "results"
    ]
    assert only == {"value": "Oslo", "probabilities": {"Oslo": 1.0}, "truncated": False}


def test_classification_reads_no_file_of_the_run(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> None:
        raise AssertionError(path)

    monkeypatch.setattr(files, "load_tensors", fail)
    request = {"target": "city", "texts": [{"text": "abba", "context": {"who": "ann"}}]}
    assert client.post("/v1/classify", json=request).status_code == 200


def test_nbest_lists_are_rescored(client: TestClient) -> None:
    lists = [
        {
            "hypotheses": [
                {"text": "abba", "scores": {"acoustic": -9, "lm": -1}},
                {"text": "cab", "scores": {"acoustic": -5, "lm": -1}},
            ],
            "context": {"city": "Oslo"},
        }
    ]
    for weights, place in (({"acoustic": 1.0}, 2), ({"acoustic": -1.0}, 1)):
        answer = client.post("/v1/rescore", json={"lists": lists, "weights": weights}).json()
        assert answer["results"] == [{"text": ["abba", "cab"][place - 1], "place": place}]
    assert len(client.post("/v1/rescore", json={"lists": lists}).json()["results"]) == 1


LONG = "abc" * 40  # longer than the 14 characters that the run reads


def test_long_texts_are_scored_and_rescored_in_full(client: TestClient, site: Site) -> None:
    run, texts = site.service.model.run, [LONG + end for end in ("aaaa", "cccc", "bbbb")]
    request = [{"text": text, "context": {"city": "Oslo", "who": "ann"}} for text in texts]
    results = client.post("/v1/score", json={"texts": request}).json()["results"]
    expected = run.score_rows([{"text": text, "city": "Oslo", "who": "ann"} for text in texts])
    assert [item["nats"] for item in results] == pytest.approx([row["nats"] for row in expected])
    assert {item["targets"] for item in results} == {len(LONG) + 5}
    best = min(range(3), key=lambda place: float(results[place]["nats"]))
    hypotheses, context = [{"text": text} for text in texts], {"city": "Oslo", "who": "ann"}
    for shift in range(3):
        shifted = [*hypotheses[shift:], *hypotheses[:shift]]
        answer = client.post("/v1/rescore", json={"lists": [{"hypotheses": shifted, "context": context}]}).json()
        assert answer["results"] == [{"text": texts[best], "place": (best - shift) % 3 + 1}]


def events(content: str) -> list[dict[str, Any]]:
    return [json.loads(part.removeprefix("data: ")) for part in content.strip().split("\n\n")]


def test_generated_text_is_streamed(client: TestClient, site: Site) -> None:
    request = {"context": {"city": "Oslo"}, "prompt": "ab", "seed": 4, "max_tokens": 10, "temperature": 0.8}
    answer = client.post("/v1/generate", json=request)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *chunks, last = events(answer.text)
    options = GenerationOptions(temperature=0.8, max_tokens=10, seed=4)
    expected = list(stream(site.service.model.run, {"city": "Oslo"}, options=options, prompt="ab", unknown="group"))
    assert [chunk["text"] for chunk in chunks] == expected
    assert last == {"text": "", "done": True}


@pytest.mark.parametrize(
    ("path", "request_body"),
    [
        ("score", {"texts": []}),
        ("score", {"texts": [{"text": "a", "context": {"planet": "x"}}]}),
        ("classify", {"target": "planet", "texts": [{"text": "a"}]}),
        ("classify", {"target": "city", "texts": TEXTS}),
        ("classify", {"target": "city", "texts": [{"text": "a"}], "values": ["Rome"]}),
        ("rescore", {"lists": [{"hypotheses": []}]}),
        ("rescore", {"lists": [{"hypotheses": [{"text": "a", "scores": {"x": 1}}, {"text": "b"}]}]}),
        ("rescore", {"lists": [{"hypotheses": [{"text": "a"}]}], "weights": {"x": 1.0}}),
        ("generate", {"temperature": 0}),
        ("generate", {"context": {"planet": "x"}}),
        ("generate", {"prompt": "\x00" * (MAX_PROMPT + 1)}),
    ],
)
def test_invalid_requests_are_refused(client: TestClient, path: str, request_body: dict[str, Any]) -> None:
    answer = client.post(f"/v1/{path}", json=request_body)
    assert (answer.status_code, answer.json()["type"]) == (422, "/docs#invalid")


def test_users_of_training_are_never_revealed(client: TestClient) -> None:
    answer = client.post("/v1/classify", json={"target": "who", "texts": [{"text": "a"}]})
    assert answer.status_code == 422
    assert "ann" not in answer.text
    assert "bob" not in answer.text


def test_number_of_pairs_is_bounded(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "MAX_PAIRS", 3)
    request = {"target": "city", "texts": [{"text": "a"}, {"text": "b"}]}
    assert client.post("/v1/classify", json=request).status_code == 422
    lists = [{"hypotheses": [{"text": "a"}, {"text": "b"}]}] * 2
    assert client.post("/v1/rescore", json={"lists": lists[:1]}).status_code == 200
    assert client.post("/v1/rescore", json={"lists": lists}).status_code == 422
