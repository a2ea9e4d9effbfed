"""Measurements of a run compared with plain computations: communities, neighbours, ranks, replays."""

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

import communities
import corpora
import thesis_queries
import thesis_sparse
from factorcell.config import OUTPUT_BIASES, Config
from factorcell.data.counts import POPULARITY, TextCounts
from factorcell.data.preparation import prepare
from factorcell.runs.run import Run
from tests.small_runs import ROWS, make_run, nats_of

TEXTS = [
    {"text": "the sun", "subreddit": "sea"},
    {"text": "the cold sea", "subreddit": "snow"},
    {"text": "the sand the sea", "subreddit": "sea"},
    {"text": "new words", "subreddit": "elsewhere"},
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that knows three communities."""
    rows = [
        {"text": row["text"], "subreddit": name} for name, row in zip(["sea", "snow", "sun"] * 9, ROWS, strict=False)
    ]
    config = Config.of(
        context=["subreddit"],
        min_count=1,
        min_context_count=1,
        embedding_size=5,
        hidden_size=6,
        rank=2,
        context_size=3,
        variable_size=2,
    )
    corpus = prepare(rows, config)
    return Run.create(tmp_path_factory.mktemp("runs") / "run", config, corpus.tokenizer, corpus.schema)


def test_perplexities_of_communities_include_unknown_words(run: Run, tmp_path: Path) -> None:
    judged = corpora.write_table(tmp_path / "judged.parquet", pa.Table.from_pylist(TEXTS))
    rows = {row["value"]: row for row in communities.perplexity_by_community(run, {"judged": judged})}
    assert list(rows) == ["elsewhere", "sea", "snow"]
    for name, row in rows.items():
        texts = [text for text in TEXTS if text["subreddit"] == name]
        nats = sum(text["nats"] for text in run.score_rows(texts, unknown="group"))
        targets = sum(len(text["text"].split()) + 1 for text in texts)
        assert (row["count"], row["targets"]) == (len(texts), targets)
        assert row["perplexity"] == pytest.approx(np.exp(nats / targets))


def test_nearest_communities_by_euclidean_distance(run: Run, tmp_path: Path) -> None:
    """Unknown communities and unadapted models have no neighbours."""
    nearest = communities.nearest_communities(run, ["sea", "nowhere"])
    assert run.model.encoder is not None
    values = run.schema.variable("subreddit").values
    table = run.model.encoder.tables[0].detach().numpy()
    distances = {
        name: np.linalg.norm(table[values.index(name)] - table[values.index("sea")]) for name in ("snow", "sun")
    }
    assert nearest == {"sea": sorted(distances, key=lambda name: distances[name])}
    assert (
        communities.nearest_communities(make_run(tmp_path / "run", context=(), adapt=(), output_bias=()), ["sea"]) == {}
    )


@pytest.mark.parametrize("biases", [(), ("sparse",), OUTPUT_BIASES])
def test_top_3_accuracy_equals_step_by_step_ranks(biases: tuple[str, ...], tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", context=("city",), output_bias=biases)
    test = corpora.write_table(tmp_path / "test.parquet", pa.Table.from_pylist(ROWS))
    measurement = thesis_sparse.measure(run, {"test": test})
    is_in_top_3 = [is_among_first_three(run, row) for row in ROWS]
    assert measurement.figures["top_3"].numerator.tolist() == [sum(flags) for flags in is_in_top_3]
    assert measurement.row["top_3"] == pytest.approx(np.mean(np.concatenate(is_in_top_3)))
    assert 0 < measurement.row["top_3"] < 1


def is_among_first_three(run: Run, row: dict[str, object]) -> list[bool]:
    """Return for each target of a text whether it is among the three most probable tokens, step by step."""
    corpus = run.prepare([row])
    conditioning, state, result = run.model.condition(corpus.context(np.array([0]))), None, []
    with torch.no_grad():
        for token, target in itertools.pairwise(corpus.tokens.tolist()):
            logs, state = run.model.step(torch.tensor([token]), conditioning, state)
            result.append(int((logs[0] > logs[0, target]).sum()) < 3)
    return result


def test_the_replayed_perplexity_is_that_of_scoring(tmp_path: Path) -> None:
    """A run that ignores users learns nothing."""
    texts = [(user, text) for user in ("amy", "ben") for text in ("fix the build", "add a test") * 4]
    texts_by_user = [{"text": text, "user": user, "time": f"{n:02}"} for n, (user, text) in enumerate(texts)]
    config = Config.of(
        tokenizer="char",
        context=[],
        user="user",
        min_count=1,
        min_user_count=1,
        embedding_size=5,
        hidden_size=6,
        adapt=[],
        output_bias=[],
    )
    corpus = prepare(texts_by_user, config)
    run = Run.create(tmp_path / "run", config, corpus.tokenizer, corpus.schema)
    TextCounts.of_corpus(corpus, 1).save(run.folder / POPULARITY)
    parts = {
        part: corpora.write_table(tmp_path / f"{part}.parquet", pa.Table.from_pylist(texts_by_user))
        for part in ("train", "test")
    }
    row, streams, rows = thesis_queries.replay_test_users(run, parts, every=1)
    assert [(stream.user, len(stream.rows)) for stream in streams] == [("amy", 8), ("ben", 8)]
    assert set(rows) == {"mrr", "mpc"}
    nats = sum(sum(nats_of(run, text_row)) for text_row in texts_by_user)
    targets = sum(len(text_row["text"]) + 1 for text_row in texts_by_user)
    assert row["perplexity_online"] == pytest.approx(np.exp(nats / targets), rel=1e-5)
