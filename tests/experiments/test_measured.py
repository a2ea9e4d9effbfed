"""What scripts measure of a run, against the same by hand: communities, their neighbours, first guesses, replays."""

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
from factorcell.data.cache import prepare
from factorcell.data.counts import POPULARITY, TextCounts
from factorcell.model.run import Run
from tests.small_runs import ROWS, make_run, nats_of

TEXTS = [
    {"text": "the sun", "subreddit": "sea"},
    {"text": "the cold sea", "subreddit": "snow"},
    {"text": "the sand the sea", "subreddit": "sea"},
    {"text": "new words", "subreddit": "elsewhere"},
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One that knows three communities."""
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


def test_the_perplexity_of_each_community(run: Run, tmp_path: Path) -> None:
    """By the nats of its texts one by one, words that the run does not know among them."""
    judged = corpora.write_table(tmp_path / "judged.parquet", pa.Table.from_pylist(TEXTS))
    found = {row["value"]: row for row in communities.by_community(run, {"judged": judged})}
    assert list(found) == ["elsewhere", "sea", "snow"]
    for name, row in found.items():
        own = [one for one in TEXTS if one["subreddit"] == name]
        nats = sum(one["nats"] for one in run.score(own, unknown="group"))
        targets = sum(len(one["text"].split()) + 1 for one in own)
        assert (row["count"], row["targets"]) == (len(own), targets)
        assert row["perplexity"] == pytest.approx(np.exp(nats / targets))


def test_the_nearest_communities(run: Run, tmp_path: Path) -> None:
    """By Euclidean distance; of one that the run does not know, and of an unadapted model, there are none."""
    found = communities.nearest(run, ["sea", "nowhere"])
    assert run.model.encoder is not None
    values = run.schema.variable("subreddit").values
    table = run.model.encoder.tables[0].detach().numpy()
    away = {name: np.linalg.norm(table[values.index(name)] - table[values.index("sea")]) for name in ("snow", "sun")}
    assert found == {"sea": sorted(away, key=lambda name: away[name])}
    assert communities.nearest(make_run(tmp_path / "run", context=(), adapt=(), output_bias=()), ["sea"]) == {}


@pytest.mark.parametrize("biases", [(), ("sparse",), OUTPUT_BIASES])
def test_top_3_accuracy(biases: tuple[str, ...], tmp_path: Path) -> None:
    """The share of targets that at most two other tokens are more probable than."""
    run = make_run(tmp_path / "run", context=("city",), output_bias=biases)
    test = corpora.write_table(tmp_path / "test.parquet", pa.Table.from_pylist(ROWS))
    found = thesis_sparse.measure(run, {"test": test})
    right = [first_three(run, row) for row in ROWS]
    assert found.figures["top_3"].numerator.tolist() == [sum(one) for one in right]
    assert found.row["top_3"] == pytest.approx(np.mean(np.concatenate(right)))
    assert 0 < found.row["top_3"] < 1


def first_three(run: Run, row: dict[str, object]) -> list[bool]:
    """Of each target of a text whether it is among the first three, step by step."""
    corpus = run.prepare([row])
    conditioning, state, found = run.model.condition(corpus.context(np.array([0]))), None, []
    with torch.no_grad():
        for token, target in itertools.pairwise(corpus.tokens.tolist()):
            logs, state = run.model.step(torch.tensor([token]), conditioning, state)
            found.append(int((logs[0] > logs[0, target]).sum()) < 3)
    return found


def test_the_perplexity_of_texts_that_are_replayed(tmp_path: Path) -> None:
    """Of those that are completed alone, each as it would be scored: a run that tells nobody apart learns nothing."""
    texts = [(who, text) for who in ("amy", "ben") for text in ("fix the build", "add a test") * 4]
    said = [{"text": text, "user": who, "time": f"{n:02}"} for n, (who, text) in enumerate(texts)]
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
    corpus = prepare(said, config)
    run = Run.create(tmp_path / "run", config, corpus.tokenizer, corpus.schema)
    TextCounts.of_corpus(corpus, 1, 1).save(run.folder / POPULARITY)
    parts = {
        part: corpora.write_table(tmp_path / f"{part}.parquet", pa.Table.from_pylist(said))
        for part in ("train", "test")
    }
    row, streams, rows = thesis_queries.replayed(run, parts, every=1)
    assert [(stream.user, len(stream.rows)) for stream in streams] == [("amy", 8), ("ben", 8)]
    assert set(rows) == {"mrr", "mpc"}
    nats = sum(sum(nats_of(run, one)) for one in said)
    targets = sum(len(one["text"]) + 1 for one in said)
    assert row["perplexity_online"] == pytest.approx(np.exp(nats / targets), rel=1e-5)
