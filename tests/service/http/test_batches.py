"""What is asked of the model alone over HTTP is what the library says."""

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from factorcell.evaluation.classification import classify
from factorcell.generation.generate import GenerationOptions, stream
from factorcell.service.http import operations
from factorcell.service.http.messages import LONGEST_PROMPT
from factorcell.service.http.site import Site

TEXTS = [{"text": "abba", "context": {"city": "Oslo"}}, {"text": "", "context": {"city": "Nice"}}]


def test_scores_are_those_of_the_run(client: TestClient, site: Site) -> None:
    got = client.post("/v1/score", json={"texts": TEXTS}).json()["results"]
    rows = [{"text": one["text"], **one["context"], "who": "ann"} for one in TEXTS]  # type: ignore[dict-item]
    expected = client.post(
        "/v1/score", json={"texts": [{"text": row.pop("text"), "context": row} for row in map(dict, rows)]}
    ).json()["results"]
    of = site.service.model.run.score(rows)
    for one, row in zip(expected, of, strict=True):
        assert one == pytest.approx({"nats": row["nats"], "targets": row["targets"], "perplexity": row["perplexity"]})
    assert [one["targets"] for one in got] == [5, 1]


def test_classes_are_those_of_the_library(client: TestClient, site: Site) -> None:
    texts = [{"text": text, "context": {"who": "ann"}} for text in ("abba", "cab a")]
    got = client.post("/v1/classify", json={"target": "city", "texts": texts}).json()["results"]
    rows = [{"text": one["text"], "who": "ann"} for one in texts]
    found = classify(site.service.model.run, rows, "city")
    assert [one["value"] for one in got] == [found.names[place] for place in found.predicted]
    for one, row in zip(got, found.probabilities, strict=True):
        assert one["probabilities"] == pytest.approx(dict(zip(found.names, row.tolist(), strict=True)))
    (only,) = client.post("/v1/classify", json={"target": "city", "texts": texts[:1], "values": ["Oslo"]}).json()[
        "results"
    ]
    assert only == {"value": "Oslo", "probabilities": {"Oslo": 1.0}, "truncated": False}


def test_lists_are_chosen_from_anew(client: TestClient) -> None:
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


LONG = "abc" * 40  # the run reads 14 characters


def test_long_texts_are_scored_and_rescored_whole(client: TestClient, site: Site) -> None:
    run, texts = site.service.model.run, [LONG + end for end in ("aaaa", "cccc", "bbbb")]
    asked = [{"text": text, "context": {"city": "Oslo", "who": "ann"}} for text in texts]
    got = client.post("/v1/score", json={"texts": asked}).json()["results"]
    expected = run.score([{"text": text, "city": "Oslo", "who": "ann"} for text in texts])
    assert [one["nats"] for one in got] == pytest.approx([row["nats"] for row in expected])
    assert {one["targets"] for one in got} == {len(LONG) + 5}
    best = min(range(3), key=lambda place: float(got[place]["nats"]))
    hypotheses, context = [{"text": text} for text in texts], {"city": "Oslo", "who": "ann"}
    for shift in range(3):
        shifted = [*hypotheses[shift:], *hypotheses[:shift]]
        answer = client.post("/v1/rescore", json={"lists": [{"hypotheses": shifted, "context": context}]}).json()
        assert answer["results"] == [{"text": texts[best], "place": (best - shift) % 3 + 1}]


def events(content: str) -> list[dict[str, Any]]:
    return [json.loads(part.removeprefix("data: ")) for part in content.strip().split("\n\n")]


def test_text_is_streamed(client: TestClient, site: Site) -> None:
    asked = {"context": {"city": "Oslo"}, "prompt": "ab", "seed": 4, "max_tokens": 10, "temperature": 0.8}
    answer = client.post("/v1/generate", json=asked)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *pieces, last = events(answer.text)
    options = GenerationOptions(temperature=0.8, max_tokens=10, seed=4)
    expected = list(stream(site.service.model.run, {"city": "Oslo"}, options=options, prompt="ab", unknown="group"))
    assert [one["text"] for one in pieces] == expected
    assert last == {"text": "", "done": True}


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("score", {"texts": []}),
        ("score", {"texts": [{"text": "a", "context": {"planet": "x"}}]}),
        ("score", {"texts": [{"text": "a", "context": {"city": "Oslo"}}, {"text": "a"}]}),
        ("classify", {"target": "planet", "texts": [{"text": "a"}]}),
        ("classify", {"target": "city", "texts": TEXTS}),
        ("classify", {"target": "city", "texts": [{"text": "a"}], "values": ["Rome"]}),
        ("rescore", {"lists": [{"hypotheses": []}]}),
        ("rescore", {"lists": [{"hypotheses": [{"text": "a", "scores": {"x": 1}}, {"text": "b"}]}]}),
        ("rescore", {"lists": [{"hypotheses": [{"text": "a"}]}], "weights": {"x": 1.0}}),
        ("generate", {"temperature": 0}),
        ("generate", {"context": {"planet": "x"}}),
        ("generate", {"prompt": "\x00" * (LONGEST_PROMPT + 1)}),
    ],
)
def test_what_cannot_be_asked(client: TestClient, path: str, asked: dict[str, Any]) -> None:
    answer = client.post(f"/v1/{path}", json=asked)
    assert (answer.status_code, answer.json()["type"]) == (422, "/docs#invalid")


def test_people_of_training_are_told_to_nobody(client: TestClient) -> None:
    answer = client.post("/v1/classify", json={"target": "who", "texts": [{"text": "a"}]})
    assert answer.status_code == 422
    assert "ann" not in answer.text
    assert "bob" not in answer.text


def test_batches_are_bounded(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "MOST_PAIRS", 3)
    asked = {"target": "city", "texts": [{"text": "a"}, {"text": "b"}]}
    assert client.post("/v1/classify", json=asked).status_code == 422
    lists = [{"hypotheses": [{"text": "a"}, {"text": "b"}]}] * 2
    assert client.post("/v1/rescore", json={"lists": lists[:1]}).status_code == 200
    assert client.post("/v1/rescore", json={"lists": lists}).status_code == 422
