"""Open models by their folders, and save and read the results in these folders."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from factorcell.data.tables.tables import table_name
from factorcell.errors import UserError
from factorcell.evaluation import text_figures
from factorcell.evaluation.bayes_rule import Classification, text_accuracies
from factorcell.evaluation.classification import classify
from factorcell.evaluation.diagnostics import training_difference
from factorcell.evaluation.perplexity import Evaluation
from factorcell.evaluation.text_figures import Figures
from factorcell.io import input_files, lock
from factorcell.io.input_files import not_a_run_error
from factorcell.ngram import ngram
from factorcell.ngram.ngram import NGram
from factorcell.nn.devices import AUTO
from factorcell.nn.scoring import Scorer
from factorcell.runs import saved_results
from factorcell.runs.run import Run, describe_running

Row = dict[str, Any]


def open_model(folder: str | Path, device: str = "cpu", precision: str = AUTO) -> Run | NGram:
    """Open the run or n-gram model in a folder; `device` and `precision` apply to runs."""
    if (Path(folder) / ngram.FILE).is_file():
        return NGram.open(folder)
    return Run.open(folder, device=device, precision=precision)


def find_models(folders: Sequence[Path], *names: str) -> list[Path]:
    """Return the folders that contain a run or a file with one of `names`."""
    models: list[Path] = []
    for folder in folders:
        patterns = [f"*/{name}" for name in ("weights.safetensors", *names)]
        subfolders = sorted(path.parent for pattern in patterns for path in input_files.list_visible(folder, pattern))
        is_model = any((folder / name).is_file() for name in ("config.json", *names))
        if not is_model and not subfolders:
            raise not_a_run_error(folder, "a trained run or a folder of trained runs")
        models += [folder] if is_model else subfolders
    return list(dict.fromkeys(models))


def save_result(run: Scorer, row: Mapping[str, Any], texts: Figures | None = None) -> str | None:
    """Save a result in the folder of a model, for reports; return a notice if saving fails.

    `row` is the result, and `texts` has the contribution of every text to the figures. For an anonymous run, the
    groups of `row` by user are not saved. Nothing is saved while the training of the run is running, because its files
    change.
    """
    if lock.is_locked(run.folder):
        return f"{run.folder}: the result was not saved in the run folder, because {describe_running(run.folder)}"
    if "by" in row and isinstance(run, Run) and run.config.data.anonymous:
        row = {**row, "by": {column: rows for column, rows in row["by"].items() if column != run.config.data.user}}
    try:
        text_figures.save(run.folder, texts or {}, row)
        saved_results.append(run.folder, row)
    except UserError as error:
        return f"the result was not saved in the run folder: {error}"
    return None


def evaluation_row(run: Scorer, table: Any, evaluation: Evaluation, baseline: Scorer | None = None) -> Row:
    """Return the row of an evaluation, with the baseline of its gain or None, that `save_result` saves."""
    row = {"kind": "evaluate", "table": table_name(table), **prediction_fields(run)}
    row |= evaluation.row
    if baseline is not None and (difference := training_difference(run, baseline)):
        row["training_difference"] = difference
    return {**row, "by": evaluation.by} if evaluation.by else row


def classify_and_save(run: Run, table: Any, target: str) -> tuple[Row, Figures]:
    """Classify texts by the variable `target`, save the result in the run, and return its row and text figures."""
    result = classify(run, table, target)
    row = classification_row(run, table, target, result, result.metrics())
    figures = {"accuracy": text_accuracies(result)}
    if result.has_labels:
        save_result(run, row, figures)
    return row, figures


def classification_row(run: Run, table: Any, target: str, result: Classification, metrics: Row) -> Row:
    """Return the row of a classification, whose `target` is a column or describes points, that `save_result` saves."""
    confusion = {"labels": list(result.names), "counts": result.confusion().tolist()}
    identity = {"kind": "classify", "table": table_name(table), "target": target, **prediction_fields(run)}
    metrics = {name: value for name, value in metrics.items() if name != "others"}
    return {**identity, "samples": result.samples, **metrics, "confusion": confusion}


def prediction_fields(model: Scorer) -> Row:
    """Return the `precision` of the matrix products of a model, and "mixture" as its `predictor` if it has one."""
    precision = {"precision": model.precision} if hasattr(model, "precision") else {}
    is_mixture = isinstance(model, Run) and model.mixture is not None
    return {**precision, **({"predictor": "mixture"} if is_mixture else {})}
