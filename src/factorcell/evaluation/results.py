"""Models by their folders, and the results that are saved next to them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from factorcell import input_files
from factorcell.config import Config, UserError
from factorcell.data.tables import open_table, table_name
from factorcell.data.tokenizer import Tokenizer
from factorcell.data.values import category_name, to_number
from factorcell.evaluation import ngram, text_figures
from factorcell.evaluation.bayes_rule import Classification, text_accuracies
from factorcell.evaluation.classification import classify
from factorcell.evaluation.ngram import NGram
from factorcell.evaluation.perplexity import Evaluation
from factorcell.evaluation.text_figures import Figures
from factorcell.folders import not_a_run_error
from factorcell.model import model_card, saved_results
from factorcell.model.run import Run
from factorcell.model.scoring import Scorer

Row = dict[str, Any]


def open_model(folder: str | Path, device: str = "cpu", precision: str = "float32") -> Run | NGram:
    """Open the run or n-gram model in a folder; `device` and `precision` are those of a run (see `Run.open`)."""
    if (Path(folder) / ngram.FILE).is_file():
        return NGram.open(folder)
    return Run.open(folder, device=device, precision=precision)


def find_models(folders: Sequence[Path], *names: str) -> list[Path]:
    """Return the run folders among `folders` and directly below them, and folders with a file of one of `names`."""
    found: list[Path] = []
    for folder in folders:
        patterns = [f"*/{name}" for name in ("weights.safetensors", *names)]
        inside = sorted(path.parent for pattern in patterns for path in input_files.list_visible(folder, pattern))
        models = [folder] if any((folder / name).is_file() for name in ("config.json", *names)) else inside
        if not models:
            raise not_a_run_error(folder, "a trained run or a folder of trained runs")
        found += models
    return list(dict.fromkeys(found))


def reading_options(like: Path | None, config: Path | None, text: str | None = None) -> tuple[Config, Tokenizer | None]:
    """Return how the model in `like` reads texts, with its tokenizer, or how the file `config` says, without one.

    `text` replaces the name of the column of texts.
    """
    if like is not None and config is not None:
        raise UserError("expected either --like or --config, got both")
    reading, tokenizer = Config.load(config) if config else Config(), None
    if like is not None:
        model = open_model(like)
        reading, tokenizer = model.config, model.tokenizer
    return (reading if text is None else reading.with_options(text=text)), tokenizer


def save_result(run: Scorer, row: Mapping[str, Any], texts: Figures | None = None) -> str | None:
    """Save a result in the folder of the model, for its card and for reports; return a line if that is not possible.

    `texts` is what every text adds to the figures. Results of an anonymous run do not name users.
    """
    if "by" in row and isinstance(run, Run) and run.config.data.anonymous:
        row = {**row, "by": {column: rows for column, rows in row["by"].items() if column != run.config.data.user}}
    try:
        text_figures.save(run.folder, texts or {})
        saved_results.append(run.folder, row)
        if isinstance(run, Run):
            model_card.write(run)
    except UserError as error:
        return f"the result is not kept in the run folder: {error}"
    return None


def evaluation_row(run: Scorer, table: Any, found: Evaluation) -> Row:
    row = {"table": table_name(table), **found.row, "texts_key": found.texts["perplexity"].key, **precision_fields(run)}
    return {"kind": "evaluate", "evaluation": row, "by": found.by}


def classify_and_save(run: Run, table: Any, target: str) -> tuple[Row, Figures]:
    """Classify texts by the variable `target`; return the metrics and what each text adds, and save both in the run.

    Nothing is saved if no text has a value.
    """
    result = classify(run, table, target, unknown="group")
    metrics = result.metrics()
    texts = {"accuracy": text_accuracies(result)}
    if result.has_labels:
        save_result(run, classification_row(run, table, target, result, metrics), texts)
    return metrics, texts


def classification_row(
    run: Run, table: Any, target: str | None, result: Classification, metrics: Row, samples: int = 0
) -> Row:
    confusion = {"labels": list(result.names), "counts": result.confusion().tolist()}
    about = {
        "kind": "classify",
        "table": table_name(table),
        "target": target,
        "texts_key": result.key,
        **precision_fields(run),
    }
    how = {"priors": "uniform" if result.log_prior is None else "training", "samples": samples}
    return {**about, **how, **metrics, "confusion": confusion}


def precision_fields(model: Scorer) -> Row:
    """Return the precision of a model's matrix products, which decides the last digits of its figures."""
    return {"precision": model.precision} if hasattr(model, "precision") else {}


def saved_text_figures(folder: Path, key: str | None) -> Figures:
    """Return the saved figures of the texts of `key`, and those of the last classification."""
    rows = [row for row in saved_results.read(folder) if row["kind"] == "classify"]
    judged = rows[-1].get("texts_key") if rows else None
    return {**text_figures.load(folder, key), **text_figures.load(folder, judged)}


def read_points(path: str | Path) -> dict[str, dict[str, float]]:
    """Read named points from a table with a column `name`, whose other columns are numeric context columns."""
    table = open_table(path)
    if "name" not in table.columns or len(table.columns) < 2:
        raise UserError(f"{path}: points need a column `name` and numeric columns; it has {', '.join(table.columns)}")
    points = {}
    for chunk in table.chunks(table.columns):
        for index, name in enumerate(chunk["name"]):
            values = {column: to_number(chunk[column][index]) for column in table.columns if column != "name"}
            bad = [column for column, value in values.items() if value is None]
            if bad:
                raise UserError(f"{path}: {bad[0]} of {name} is not a number")
            points[category_name(name)] = {column: value for column, value in values.items() if value is not None}
    return points
