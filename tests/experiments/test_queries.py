"""Completion for users that no model was trained on: whole users in each part, and what each adds to a mean."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import corpora
import study
import thesis_queries
import thesis_queries_trials
from factorcell.completion.online import Learner
from factorcell.completion.replay.streams import Stream
from factorcell.completion.replay.systems import Unpersonalised
from factorcell.data.cache import prepare
from factorcell.data.counts import POPULARITY
from factorcell.model.run import Run
from tests.small import make_letters


@pytest.mark.parametrize("row", thesis_queries.ROWS)
def test_the_library_knows_every_option(row: str) -> None:
    """The three models adapt what they say, and no softmax bias, as in chapter 5."""
    model = thesis_queries.EXPERIMENT.config(study.Training(row, 1), 1).model
    assert model.adapt == (() if row == "unadapted" else (row,))
    assert model.output_bias == ()


def test_control_codes_learn_of_nobody(tmp_path: Path) -> None:
    """They are replayed as a model that tells nobody apart: one without a vector that could be moved."""
    found = thesis_queries.EXPERIMENT.config(study.Training(thesis_queries.CODES, 0), 1)
    assert (found.data.user, found.model.adapt, found.model.output_bias) == ("user", ("prefix",), ())
    config = replace(found, data=replace(found.data, min_count=1, min_user_count=1))
    said = [{"text": "fix it", "user": who} for who in ("amy", "ben") * 3]
    corpus = prepare(said, config.data)
    run = Run.create(tmp_path / "run", config, corpus.vocabulary, corpus.schema)
    assert corpus.frequent is not None
    corpus.frequent.counted(1, 1).save(run.folder / POPULARITY)
    row, systems = thesis_queries.systems_of(run, {}, tuple(thesis_queries.RULES), beyond=False)
    assert row == {}
    assert isinstance(systems["mrr"], Unpersonalised)
    rows = thesis_queries.EXPERIMENT.rows
    assert rows["ngram"] == rows["unadapted"]


def test_the_user_vector_of_chapter_5_is_the_embedding_itself() -> None:
    """But for that the model is the FactorCell."""
    found = thesis_queries.EXPERIMENT.config(study.Training(thesis_queries.NO_LAYER, 0), 1)
    assert found.model.context_layer == "none"
    factor = thesis_queries.EXPERIMENT.config(study.Training("factor", 0), 1)
    assert replace(found.model, context_layer=factor.model.context_layer) == factor.model


def test_no_user_is_in_two_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users of few texts and of very many are trained on; of the others the first texts are taken, in their order."""
    monkeypatch.setattr(thesis_queries, "TUNED", 25)
    monkeypatch.setattr(thesis_queries, "KEPT", 30)
    monkeypatch.setattr(thesis_queries, "TEXTS", 200)
    counts = {f"u{n}": 15 + 2 * n for n in range(20)} | {"most": 500}
    pairs = [(user, n) for user, count in counts.items() for n in range(count)]
    rows = [{"text": f"{user} {n}", "user": user, "time": f"{n:04}"} for user, n in pairs]
    others = [{"text": f"other {n}", "user": "other", "time": f"{n:04}"} for n in range(40)]
    for part, texts in (("train", rows), ("dev", others)):
        corpora.written(tmp_path / "commits" / f"{part}.parquet", pa.Table.from_pylist(texts))
    made = {part: corpora.read(path) for part, path in thesis_queries.tables(tmp_path, tmp_path, 1.0).items()}
    users = {part: set(table["user"].to_pylist()) for part, table in made.items()}
    assert users["train"] | users["dev"] | users["test"] == {*counts, "other"}
    assert "other" in users["test"]
    counts["other"] = 40
    assert users["dev"].isdisjoint(users["test"])
    assert users["train"].isdisjoint(users["dev"] | users["test"])
    assert {"u0", "u1", "u2", "most"} <= users["train"]
    for part, most in (("dev", 25), ("test", 30)):
        assert users[part]
        for user in users[part]:
            own = [text for text in made[part]["text"].to_pylist() if text.startswith(f"{user} ")]
            assert own == [f"{user} {n}" for n in range(min(most, counts[user]))]


def test_ranks_are_those_of_all_queries() -> None:
    """What users add makes the mean over queries, of each kind of prefix and of late texts; users without any add 0."""
    random = np.random.default_rng(0)
    streams = [Stream(name, (), ()) for name in "abcd"]
    rows: list[dict[str, Any]] = [
        {
            "user": "abc"[random.integers(3)],
            "rank": int(random.integers(1, 11)) if random.random() < 0.7 else None,
            "seen": bool(random.integers(2)),
            "position": int(random.integers(100)),
            "prefix_length": int(random.integers(2, 40)),
            "query_length": int(random.integers(3, 60)),
        }
        for _ in range(400)
    ]
    found = thesis_queries.ranks(rows, streams, "mrr", thesis_queries.KINDS)
    kinds = {
        "mrr": rows,
        "mrr_seen": [row for row in rows if row["seen"]],
        "mrr_unseen": [row for row in rows if not row["seen"]],
        "mrr_late": [row for row in rows if row["position"] >= 50],
        "mrr_after_5": [row for row in rows if 5 <= row["position"] < 10],
        "mrr_after_50": [row for row in rows if row["position"] >= 50],
        "mrr_prefix_25": [row for row in rows if row["position"] >= 50 and row["prefix_length"] >= 25],
        "mrr_query_31": [row for row in rows if row["position"] >= 50 and 31 <= row["query_length"] < 46],
    }
    assert "mrr_after_100" not in found
    for name in ("after", "prefix", "query"):
        parts = [sums.below.sum() for key, sums in found.items() if key.startswith(f"mrr_{name}_")]
        assert sum(parts) == (400 if name == "after" else found["mrr_late"].below.sum())
    for name, some in kinds.items():
        wanted = np.mean([1 / row["rank"] if row["rank"] else 0 for row in some])
        assert found[name].ratio == pytest.approx(wanted)
        assert found[name].below.tolist()[3] == 0
        assert found[name].below.sum() == len(some)


def row(name: str, share: float, seed: int) -> dict[str, Any]:
    """A row whose users find a `share` of their texts at the first place, more of them the later they stand."""
    random = np.random.default_rng((seed, round(100 * share)))
    queries = [
        {
            "user": f"u{n % 60}",
            "position": n // 60,
            "rank": 1 if random.random() < share * (1 + n / 12000 * (name == "factor")) else None,
            "seen": True,
            "prefix_length": 2 + n // 60 % 30,
            "query_length": 40,
        }
        for n in range(9000)
    ]
    figures = thesis_queries.ranks(queries, [Stream(f"u{n}", (), ()) for n in range(60)], "mrr", thesis_queries.KINDS)
    sums = {key: study.grouped(value) for key, value in figures.items()}
    return {"row": name, "seed": seed, "sums": sums, **{key: value.ratio for key, value in figures.items()}}


def test_trials_are_drawn_once_and_for_all() -> None:
    """Of each kind as many, all different, and the library knows their options."""
    rows = thesis_queries_trials.EXPERIMENT.rows
    assert len({repr(options) for options in rows.values()}) == 3 * thesis_queries_trials.TRIALS
    for name, options in rows.items():
        config = thesis_queries_trials.EXPERIMENT.config(study.Training(name, 0), 1)
        assert config.model.adapt == tuple(thesis_queries.ROWS[name.split()[0]]["model"]["adapt"])
        assert config.model.hidden_size == options["model"]["hidden_size"]
        assert config.model.context_size == config.model.variable_size
        assert options == thesis_queries_trials.drawn(name.split()[0], int(name.split()[1]))


def test_what_somebody_new_is_suggested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before and after learning, from one run; the likelier texts are among the frequent ones, by the nats of each."""
    run = make_letters(("fix", "fax", "fib"), data={"context": (), "user": "city"}, adapt=("factor",))
    monkeypatch.setattr(thesis_queries, "PREFIX", "f")
    monkeypatch.setattr(thesis_queries, "WARM", ("fax",) * 9)
    monkeypatch.setattr(thesis_queries, "PAIRS", (("fax", "fax"),))
    monkeypatch.setattr(thesis_queries, "FREQUENT", 3)
    texts = ["fax"] * 5 + ["fix"] * 4 + ["fib"] * 3 + ["rare", "rarer"]
    train = corpora.written(tmp_path / "train.parquet", pa.table({"text": texts}))
    told = thesis_queries.learned(run, train)
    assert all(text.startswith("f") for texts in told["suggested"].values() for text in texts)
    learner = Learner(run)
    user = learner.new()
    for _ in range(2):
        (user,), _ = learner.learn([user], ["fax"])
    frequent = ["fax", "fix", "fib"]
    before, after = (learner.nats(vector[None], frequent) for vector in (learner.unknown, user.vector))
    assert told["risen"] == [[frequent[place] for place in np.argsort(after - before)]]
