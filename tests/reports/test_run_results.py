"""The figures of a report: which table they belong to, and which results are compared."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorcell.evaluation import results
from factorcell.evaluation.perplexity import evaluate
from factorcell.io import files
from factorcell.reports import runs
from factorcell.reports.run_results import figures_on, most_frequent_ids, read_model
from factorcell.runs.run import Run
from tests.small_runs import ROWS, make_run


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, Path]:
    """Return a table and copies of it with an empty column, by name."""
    paths = {name: tmp_path / f"{name}.jsonl" for name in ("test", "no-city", "no-stars")}
    for name, path in paths.items():
        files.write_rows(path, [{**row, name.removeprefix("no-"): None} for row in ROWS])
    return paths


def evaluate_and_save(run: Run, table: Path, *by: str) -> dict[str, Any]:
    """Evaluate a run and save the result, as the command `evaluate` does; return the figures."""
    result = evaluate(run, table, by=by)
    assert results.save_result(run, results.evaluation_row(run, table, result), result.figures) is None
    return result.row


def save_run(folder: Path, **model: Any) -> Run:
    run = make_run(folder, **model)
    run.save_weights({})
    return run


def test_models_are_compared_on_the_table_of_most_models(tmp_path: Path, tables: dict[str, Path]) -> None:
    adapted, plain = save_run(tmp_path / "adapted"), save_run(tmp_path / "plain", adapt=[], output_bias=[])
    figures = {name: evaluate_and_save(adapted, path) for name, path in tables.items()}
    evaluate_and_save(plain, tables["test"])
    models = [[read_model(run.folder)] for run in (plain, adapted)]
    evaluation, accuracy = most_frequent_ids(models)
    assert (evaluation, accuracy) == (("test.jsonl", None, len(ROWS)), None)
    for name, row in figures.items():
        metrics, texts = figures_on(models[1][0], (f"{name}.jsonl", None, len(ROWS)), None)
        assert metrics["perplexity"] == row["perplexity"] == pytest.approx(np.exp(texts["perplexity"].ratio), rel=1e-9)
    page = runs.report_page([plain.folder, adapted.folder])
    assert "perplexities and bits per byte are those of test.jsonl" in page
    assert f"{figures['test']['perplexity']:.2f}" in page.partition("<h2>Results")[0]


def test_the_accuracy_of_a_run_is_not_that_of_a_combination() -> None:
    def classified(classifier: str, accuracy: float, **more: Any) -> dict[str, Any]:
        row = {"kind": "classify", "table": "a.csv", "target": "stars", "texts": 9, "classifier": classifier}
        return {**row, "accuracy": accuracy, "majority": 0.5, "linear_accuracy": 0.8, "figures": {}, **more}

    run: dict[str, Any] = {"folder": "a", "title": "a", "config": {}}
    run["results"] = [classified("model", 0.6), classified("combined", 0.9)]
    _, accuracy = most_frequent_ids([[run]])
    metrics, _ = figures_on(run, None, accuracy)
    assert (metrics["accuracy"], metrics["linear_accuracy"]) == (0.6, 0.8)
    assert most_frequent_ids([[{**run, "results": run["results"][1:]}]]) == (None, None)
