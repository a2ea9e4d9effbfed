"""Pruned trials of a search: when they are stopped, and that their best weights are saved."""

from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from factorcell.runs.run import Run
from factorcell.training import fit as fitting
from factorcell.training import trainer
from factorcell.training.trainer import development_figures
from factorcell.training.tuning import search, search_space
from tests.training.test_search import CONFIG, run_search


def test_pruned_trials_stop_early_and_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranges: search_space.Space = {"learning_rate": (1e-2, 1e-9)}
    config = search_space.with_drawn_options(CONFIG, {"evaluations": 4, "epochs": 3, "warmup": 0})
    rows = run_search(tmp_path / "median", 8, ranges=ranges, pruner="median", config=config)
    pruned = [row for row in rows if row["state"] == "pruned"]
    assert pruned
    assert all(row["number"] >= 5 and row["params"]["learning_rate"] == 1e-9 for row in pruned)
    study, _ = search.open_study(tmp_path / "median", "none")
    for row, trial in zip(rows, study.trials, strict=True):
        run = Run.open(tmp_path / "median" / row["folder"])
        reported = {number: log["perplexity"] for number, log in enumerate(dev_rows(run), start=1)}
        assert trial.intermediate_values == reported
        assert (len(reported) < 4) == (row["state"] == "pruned")
        assert row["perplexity"] == min(reported.values())
    prune_all = optuna.pruners.ThresholdPruner(upper=1.0)
    monkeypatch.setattr(optuna.pruners, "MedianPruner", lambda: prune_all)
    for evaluations, state in ((1, "complete"), (2, "pruned")):
        config = search_space.with_drawn_options(CONFIG, {"evaluations": evaluations})
        assert run_search(tmp_path / state, 1, config=config, pruner="median")[0]["state"] == state


def test_a_pruned_trial_saves_its_best_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated: list[float] = []  # the perplexity of the weights at each evaluation
    finished: list[float] = []  # that of the saved weights

    def report_the_second_as_best(run: Run, dev: Any) -> tuple[dict[str, Any], Any]:
        row, figures = development_figures(run, dev)
        evaluated.append(row["perplexity"])
        return {**row, "perplexity": row["perplexity"] * (1 if len(evaluated) == 2 else 1000)}, figures

    def write_training_facts(run: Run, corpus: Any, dev: Any, *others: Any, **keywords: Any) -> None:
        finished.append(float(np.exp(run.nats(dev).mean(dtype=np.float64))))
        fitting.write_training_facts(run, corpus, dev, *others, **keywords)

    monkeypatch.setattr(trainer, "development_figures", report_the_second_as_best)
    monkeypatch.setattr(search, "write_training_facts", write_training_facts)
    monkeypatch.setattr(
        search.Search, "_report_evaluation", lambda self, trial, row, config: row["perplexity"] > row["best"]
    )
    config = search_space.with_drawn_options(CONFIG, {"evaluations": 6, "epochs": 6})
    (row,) = run_search(tmp_path, 1, ranges={"learning_rate": (0.01,)}, config=config)
    assert row["state"] == "pruned"
    assert len(evaluated) == 3
    assert row["perplexity"] == evaluated[1]
    assert finished == [pytest.approx(evaluated[1], rel=1e-6)]
    assert finished != [pytest.approx(evaluated[2], rel=1e-3)]


def dev_rows(run: Run) -> list[dict[str, Any]]:
    """Return the evaluations in the log of a run."""
    return [row for row in run.log() if row["split"] == "dev"]
