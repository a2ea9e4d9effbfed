"""The figures that a report reads from run folders, for tables with the same texts but other contexts."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorcell import files
from factorcell.evaluation import results
from factorcell.evaluation.perplexity import evaluate_by_columns
from factorcell.model import saved_results
from factorcell.model.run import Run
from factorcell.reports.run_results import compared_table, evaluation_on, figures_on, read_model
from factorcell.reports.runs import report_page
from tests.small_runs import ROWS, make_run


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, Path]:
    """Return a table and copies of it with an empty column, by name."""
    paths = {name: tmp_path / f"{name}.jsonl" for name in ("test", "no-city", "no-stars")}
    for name, path in paths.items():
        files.write_rows(path, [{**row, name.removeprefix("no-"): None} for row in ROWS])
    return paths


def evaluate(run: Run, table: Path, *by: str) -> dict[str, Any]:
    """Evaluate a run and save the result, as the command `evaluate` does; return the figures."""
    evaluation = evaluate_by_columns(run, table, by=by)
    assert results.save_result(run, results.evaluation_row(run, table, evaluation), evaluation.texts) is None
    return evaluation.row


def save_run(folder: Path, **model: Any) -> Run:
    run = make_run(folder, **model)
    run.save_weights({})
    return run


@pytest.mark.parametrize("order", list(itertools.permutations(("test", "no-city", "no-stars"))))
def test_figures_of_a_row_are_those_of_the_named_table(
    tmp_path: Path, tables: dict[str, Path], order: tuple[str, ...]
) -> None:
    adapted, plain = save_run(tmp_path / "adapted"), save_run(tmp_path / "plain", adapt=[], output_bias=[])
    figures = {name: evaluate(adapted, tables[name]) for name in order}
    assert len({round(row["perplexity"], 4) for row in figures.values()}) == 3
    evaluate(plain, tables["test"])
    models = [[read_model(run.folder)] for run in (plain, adapted)]
    table = compared_table(models)
    assert table is not None
    assert table[1] == "test.jsonl"
    for name, row in figures.items():
        metrics, texts = figures_on(models[1][0], (table[0], f"{name}.jsonl"), None)
        assert metrics["perplexity"] == row["perplexity"] == pytest.approx(np.exp(texts["perplexity"].ratio), rel=1e-9)
        assert metrics["bits_per_byte"] == row["bits_per_byte"] == pytest.approx(texts["bits_per_byte"].ratio, rel=1e-9)
    assert evaluation_on(models[1][0], (table[0], "other.jsonl")) == {}
    plain_row = evaluation_on(models[0][0], (table[0], "no-city.jsonl"))
    assert plain_row["table"] == "test.jsonl", "without context, all tables with these texts have the same figures"
    assert f"{figures['test']['perplexity']:.2f}" in report_page([plain.folder, adapted.folder]).partition("Results")[0]


def test_values_of_an_older_state_are_omitted(tmp_path: Path, tables: dict[str, Path]) -> None:
    run = save_run(tmp_path / "run")
    evaluate(run, tables["test"], "city")
    title = "Perplexity on test.jsonl by city"
    assert f"<summary>{title}" in report_page([run.folder])
    evaluate(run, tables["no-stars"])
    assert f"<summary>{title}" in report_page([run.folder])
    (*_, latest) = saved_results.read(run.folder)
    changed = {**latest["evaluation"], "table": "test.jsonl"}
    saved_results.append(run.folder, {**latest, "evaluation": changed})
    page = report_page([run.folder])
    assert f"<summary>{title}" not in page
    assert f"{title}, effect of removing the context: omitted, because a model has changed since" in page
