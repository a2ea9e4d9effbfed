"""Completion for unseen users: the users of each part, and the sums of reciprocal ranks."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import corpora
import study
import thesis_queries
from factorcell.completion.replay import Stream
from factorcell.data.counts import POPULARITY, TextCounts
from factorcell.data.preparation import prepare
from factorcell.runs.run import Run


def test_models_with_control_codes_do_not_learn_users(tmp_path: Path) -> None:
    full_config = thesis_queries.EXPERIMENT.config(study.Training("prefix", 0), 1)
    assert (full_config.data.user, full_config.model.adapt, full_config.model.output_bias) == ("user", ("prefix",), ())
    config = full_config.with_options(min_count=1, min_user_count=1)
    texts = [{"text": "fix it", "user": who} for who in ("amy", "ben") * 3]
    corpus = prepare(texts, config)
    run = Run.create(tmp_path / "run", config, corpus.tokenizer, corpus.schema)
    TextCounts.of_corpus(corpus, 1).save(run.folder / POPULARITY)
    row, systems = thesis_queries.build_systems(run, {}, tuple(thesis_queries.RULES), with_blend=False)
    assert row == {}
    assert set(systems) == {"mrr", "mpc"}
    rows = thesis_queries.EXPERIMENT.rows
    assert rows["ngram"] == rows["unadapted"]


def test_no_user_is_in_two_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users with too few or too many texts are trained on; of the others the first texts are used."""
    monkeypatch.setattr(thesis_queries, "DEV_TEXTS_PER_USER", 25)
    monkeypatch.setattr(thesis_queries, "TEST_TEXTS_PER_USER", 30)
    monkeypatch.setattr(thesis_queries, "TEXTS", 200)
    counts = {f"u{n}": 15 + 2 * n for n in range(20)} | {"most": 500}
    pairs = [(user, n) for user, count in counts.items() for n in range(count)]
    rows = [{"text": f"{user} {n}", "user": user, "time": f"{n:04}"} for user, n in pairs]
    others = [{"text": f"other {n}", "user": "other", "time": f"{n:04}"} for n in range(40)]
    for part, texts in (("train", rows), ("dev", others)):
        corpora.write_table(tmp_path / "commits" / f"{part}.parquet", pa.Table.from_pylist(texts))
    tables = {part: corpora.read(path) for part, path in thesis_queries.tables(tmp_path, tmp_path, 1.0).items()}
    users = {part: set(table["user"].to_pylist()) for part, table in tables.items()}
    assert users["train"] | users["dev"] | users["test"] == {*counts, "other"}
    assert "other" in users["test"]
    counts["other"] = 40
    assert users["dev"].isdisjoint(users["test"])
    assert users["train"].isdisjoint(users["dev"] | users["test"])
    assert {"u0", "u1", "u2", "most"} <= users["train"]
    for part, most in (("dev", 25), ("test", 30)):
        assert users[part]
        for user in users[part]:
            user_texts = [text for text in tables[part]["text"].to_pylist() if text.startswith(f"{user} ")]
            assert user_texts == [f"{user} {n}" for n in range(min(most, counts[user]))]


def test_user_sums_give_the_mean_reciprocal_rank_of_all_queries() -> None:
    """Users without queries add 0."""
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
    figures = thesis_queries.reciprocal_ranks(rows, streams, "mrr", thesis_queries.SUBSETS)
    subsets = {
        "mrr": rows,
        "mrr_seen": [row for row in rows if row["seen"]],
        "mrr_unseen": [row for row in rows if not row["seen"]],
        "mrr_late": [row for row in rows if row["position"] >= 50],
        "mrr_after_5": [row for row in rows if 5 <= row["position"] < 10],
        "mrr_after_50": [row for row in rows if row["position"] >= 50],
        "mrr_prefix_25": [row for row in rows if row["position"] >= 50 and row["prefix_length"] >= 25],
        "mrr_query_31": [row for row in rows if row["position"] >= 50 and 31 <= row["query_length"] < 46],
    }
    assert "mrr_after_100" not in figures
    for name in ("after", "prefix", "query"):
        parts = [sums.denominator.sum() for key, sums in figures.items() if key.startswith(f"mrr_{name}_")]
        assert sum(parts) == (400 if name == "after" else figures["mrr_late"].denominator.sum())
    for name, subset in subsets.items():
        mean_rank = np.mean([1 / row["rank"] if row["rank"] else 0 for row in subset])
        assert figures[name].ratio == pytest.approx(mean_rank)
        assert figures[name].denominator.tolist()[3] == 0
        assert figures[name].denominator.sum() == len(subset)
