"""Rows of trials: their order, and how far they are from the best on the same development texts."""

from pathlib import Path
from typing import Any

import pytest
import torch

from factorcell import files
from factorcell.evaluation import text_figures
from factorcell.model.run import Run
from factorcell.training.trials import compared, ranked
from tests.small import ROWS, make_run


def test_rows_are_ranked_by_what_they_are_worth() -> None:
    """Complete ones by perplexity, then pruned ones, then what has failed or still runs."""
    states = [("failed", 1.0), ("pruned", 2.0), ("complete", 9.0), ("running", None), ("complete", 8.0)]
    rows = [{"number": n, "state": state, "perplexity": p} for n, (state, p) in enumerate(states)]
    assert [row["number"] for row in ranked(rows)] == [4, 2, 1, 0, 3]


def trial(folder: Path, number: int) -> dict[str, Any]:
    """A trial and its row; all have the same weights, and cost the more the higher their number."""
    torch.manual_seed(0)
    run: Run = make_run(folder / f"trial-{number}", ("city",))
    corpus = run.prepare(ROWS * 2)
    texts = text_figures.of_nats(run.nats(corpus) + 0.3 * number, corpus)
    text_figures.keep(run.folder, texts)
    files.write_json(run.folder / "training.json", {"development_key": texts["perplexity"].key})
    perplexity = 2.718281828459045 ** texts["perplexity"].ratio
    return {"number": number, "state": "complete", "perplexity": perplexity, "folder": run.folder.name}


def test_trials_are_compared_with_the_best(tmp_path: Path) -> None:
    """In the order given; the best is ahead of the others where all lie beyond; what has no run has no gain."""
    rows = [trial(tmp_path, number) for number in (2, 0, 1)]
    failed = {"number": 3, "state": "failed", "perplexity": None, "folder": "trial-3"}
    found = compared([*rows, failed, {**rows[0], "number": 4, "folder": None}], lambda n: tmp_path / f"trial-{n}")
    assert [row["number"] for row in found] == [2, 0, 1, 3, 4]
    assert [row["ahead"] for row in found] == [[], ["perplexity"], [], [], []]
    best = min(rows, key=lambda row: float(row["perplexity"]))["perplexity"]
    for row in found:
        assert ("gain" in row) == (row["number"] in (1, 2))
        if "gain" in row:
            assert row["gain"] == pytest.approx(1 - row["perplexity"] / best)
            assert row["gain_low"] <= row["gain"] <= row["gain_high"] < 0
