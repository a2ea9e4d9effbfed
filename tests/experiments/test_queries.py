"""Completion for users that no model was trained on: whole users in each part, and what each adds to a mean."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

import corpora
import study
import tables
import thesis_queries
from factorcell.completion.replay.streams import Stream
from results import Results


@pytest.mark.parametrize("row", thesis_queries.ROWS)
def test_the_library_knows_every_option(row: str) -> None:
    """The three models adapt what they say, and no softmax bias, as in chapter 5."""
    model = thesis_queries.EXPERIMENT.config(study.Training(row, 1), 1).model
    assert model.adapt == (() if row == "unadapted" else (row,))
    assert model.output_bias == ()


def test_no_user_is_in_two_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users of few texts and of very many are trained on; of the others the first texts are taken, in their order."""
    monkeypatch.setattr(thesis_queries, "TUNED", 25)
    monkeypatch.setattr(thesis_queries, "KEPT", 30)
    monkeypatch.setattr(thesis_queries, "TEXTS", 200)
    counts = {f"u{n}": 15 + 2 * n for n in range(20)} | {"most": 500}
    pairs = [(user, n) for user, count in counts.items() for n in range(count)]
    rows = [{"text": f"{user} {n}", "user": user, "time": f"{n:04}"} for user, n in pairs]
    (tmp_path / "commits").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "commits" / "train.parquet")
    made = {part: corpora.read(path) for part, path in thesis_queries.tables(tmp_path, tmp_path, 1.0).items()}
    users = {part: set(table["user"].to_pylist()) for part, table in made.items()}
    assert users["train"] | users["dev"] | users["test"] == set(counts)
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
        }
        for _ in range(200)
    ]
    found = thesis_queries.ranks(rows, streams, "mrr")
    kinds = {
        "mrr": rows,
        "mrr_seen": [row for row in rows if row["seen"]],
        "mrr_unseen": [row for row in rows if not row["seen"]],
        "mrr_late": [row for row in rows if row["position"] >= 50],
    }
    for name, some in kinds.items():
        wanted = np.mean([1 / row["rank"] if row["rank"] else 0 for row in some])
        assert found[name].ratio == pytest.approx(wanted)
        assert found[name].below.tolist()[3] == 0
        assert found[name].below.sum() == len(some)


def test_the_table_of_ranks() -> None:
    """Most popular completion comes with the unadapted model; a higher rank is better, and stands as printed or not."""
    random = np.random.default_rng(1)
    streams = [Stream(f"user {n}", (), ()) for n in range(60)]

    def row(name: str, seed: int, share: float) -> dict[str, Any]:
        queries = [
            {"user": f"user {n % 60}", "rank": 1 if random.random() < share else None, "seen": n % 2, "position": n}
            for n in range(3000)
        ]
        figures = thesis_queries.ranks(queries, streams, "mrr")
        figures |= thesis_queries.ranks(queries, streams, "mpc") if name == "unadapted" else {}
        sums = {key: study.grouped(value) for key, value in figures.items()}
        return {"row": name, "seed": seed, "sums": sums, **{key: value.ratio for key, value in figures.items()}}

    shares = {"unadapted": 0.2, "concat": 0.4, "factor": 0.6}
    found = Results.of([row(name, seed, share) for name, share in shares.items() for seed in range(3)])
    printed = {name: [0.1, 0.2, 0.3 + n / 10] for n, name in enumerate(("mpc", *shares))}
    published = {"small": printed, "large": printed}
    text = tables.queries(found, published)
    lines = [line for line in text.splitlines() if line.startswith(("| mpc", "| factor"))]
    assert len(lines) == 2
    assert all(cell.strip() for line in lines for cell in line.strip("|").split("|"))
    assert lines[1].startswith("| factor | 0.6") or lines[1].startswith("| factor | 0.5")
    assert "All: of 3 pairs told apart in print 3 differ here by more than chance, 3 of them as printed." in text
    assert "No row yet." in tables.queries(Results.of([]), published)
