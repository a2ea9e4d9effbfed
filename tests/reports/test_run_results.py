"""The figures of a report: which evaluation they belong to, which are outdated, and which have a remark."""

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorcell import files
from factorcell.evaluation import results
from factorcell.evaluation.perplexity import evaluate_by_columns
from factorcell.model import saved_results
from factorcell.model.run import Run
from factorcell.reports import runs
from factorcell.reports.run_results import compared_table, evaluation_on, figures_on, read_model
from tests.pages import Page
from tests.reports.test_report import HOSTILE, evaluation, two_runs
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
    result = evaluate_by_columns(run, table, by=by)
    assert results.save_result(run, results.evaluation_row(run, table, result), result.texts) is None
    return result.row


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
    assert (
        f"{figures['test']['perplexity']:.2f}"
        in runs.report_page([plain.folder, adapted.folder]).partition("Results")[0]
    )


def test_values_of_an_older_state_are_omitted(tmp_path: Path, tables: dict[str, Path]) -> None:
    run = save_run(tmp_path / "run")
    evaluate(run, tables["test"], "city")
    title = "Perplexity on test.jsonl by city"
    assert f"<summary>{title}" in runs.report_page([run.folder])
    evaluate(run, tables["no-stars"])
    assert f"<summary>{title}" in runs.report_page([run.folder])
    (*_, latest) = saved_results.read(run.folder)
    changed = {**latest["evaluation"], "table": "test.jsonl"}
    saved_results.append(run.folder, {**latest, "evaluation": changed})
    page = runs.report_page([run.folder])
    assert f"<summary>{title}" not in page
    assert f"{title}, effect of removing the context: omitted, because a model has changed since" in page


def test_models_are_compared_on_the_named_table_of_several_with_the_same_texts() -> None:
    plain, adapted = two_runs()
    tables = {"test.csv": 72.0, "norating.csv": 79.0, "nocity.csv": 73.0}
    for names in itertools.permutations(tables):
        evaluations = [evaluation(tables[name], table=name) for name in names]
        content = runs.run_report([plain, {**adapted, "evaluations": evaluations}])
        assert "perplexities and bits per byte are those of test.csv" in content
        comparison, _, results = content[content.index("<h2>Comparison") :].partition("<h2>Results")
        assert {"80.12", "72.00*", "+10.1% "} <= set(re.findall(r"<td[^>]*>([^<]*)<", comparison))
        assert "79.00" not in comparison
        assert "79.00" in results
    only_copy = {**adapted, "evaluations": [evaluation(72.0, table="norating.csv")], "title": "c", "folder": "runs/c"}
    page = Page(runs.run_report([plain, adapted, only_copy]))
    assert "not evaluated on test.csv, so not compared: c" in page.text
    without_context = {**only_copy, "reads_context": False}
    assert "so not compared" not in Page(runs.run_report([plain, adapted, without_context])).text


def test_an_outdated_table_of_values_is_replaced_by_a_note() -> None:
    _, adapted = two_runs()
    city, rating = adapted["by"]
    content = runs.run_report([{**adapted, "by": [city._replace(is_outdated=True), rating]}])
    assert (
        "Perplexity on dev.csv by city, effect of removing the context: omitted, because a model has changed" in content
    )
    assert HOSTILE.split()[-1] + " 3" not in Page(content).text
    assert "<summary>Perplexity on dev.csv by rating" in content


def test_an_accuracy_that_other_columns_determine_has_a_remark_everywhere() -> None:
    plain, adapted = two_runs()
    remark = "the other columns, mainly city, predict rating without the text (accuracy 0.8400)"
    scores = {**adapted["accuracies"][0], "accuracy_without_text": 0.84, "accuracy_remark": remark}
    worse = {**adapted, "accuracies": [{**adapted["accuracies"][0], "accuracy": 0.6}], "folder": "w", "title": "worse"}
    remarkable = {**adapted, "accuracies": [scores]}
    headline = "accuracy of rating: model, uniform priors"
    assert headline in dict(re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)", runs.run_report([adapted])))
    for pages in ([remarkable], [plain, remarkable], [plain, remarkable, worse]):
        content = runs.run_report(pages)
        labels = [label for label, _ in re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)", content) if headline in label]
        assert all(label.endswith(f"{headline}; {remark}") for label in labels if "worse" not in label)
        assert sum(remark in label for label in labels) == 1
        assert f">{remark}</td>" in content[content.index("<h2>Results") :]
        if len(pages) > 1:
            assert f"hotels FactorCell: {remark}" in content
            assert "accuracy without text" in content
