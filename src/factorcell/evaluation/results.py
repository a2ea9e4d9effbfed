"""Models by their folders, and the results that are saved next to them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from factorcell import inputs
from factorcell.config import Config, DataConfig, UserError
from factorcell.data.tables import name_of, open_table
from factorcell.data.values import category_name, to_number
from factorcell.data.vocabulary import Vocabulary
from factorcell.evaluation import ngram, text_figures
from factorcell.evaluation.bayes_rule import Classification, judged_texts
from factorcell.evaluation.classification import classify
from factorcell.evaluation.ngram import NGram
from factorcell.evaluation.perplexity import Evaluation
from factorcell.evaluation.text_figures import Figures
from factorcell.folders import not_a_run
from factorcell.model import kept_results, model_card
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
        inside = sorted(path.parent for pattern in patterns for path in inputs.visible(folder, pattern))
        models = [folder] if any((folder / name).is_file() for name in ("config.json", *names)) else inside
        if not models:
            raise not_a_run(folder, "a trained run or a folder of trained runs")
        found += models
    return list(dict.fromkeys(found))


def reading(like: Path | None, config: Path | None, text: str | None = None) -> tuple[DataConfig, Vocabulary | None]:
    """Return how the model in `like` reads texts, with its vocabulary, or how the file `config` says, without one.

    `text` replaces the name of the column of texts.
    """
    data, vocabulary = (Config.load(config) if config else Config()).data, None
    if like is not None:
        model = open_model(like)
        data, vocabulary = model.data if isinstance(model, NGram) else model.config.data, model.vocabulary
    return (data if text is None else replace(data, text=text)), vocabulary


def note(run: Scorer, row: Mapping[str, Any], texts: Figures | None = None) -> str | None:
    """Save a result in the folder of the model, for its card and for reports; return a line if that is not possible.

    `texts` is what every text adds to the figures. Results of an anonymous run do not name users.
    """
    if "by" in row and isinstance(run, Run) and run.config.data.anonymous:
        row = {**row, "by": {column: rows for column, rows in row["by"].items() if column != run.config.data.user}}
    try:
        text_figures.keep(run.folder, texts or {})
        kept_results.keep(run.folder, row)
        if isinstance(run, Run):
            model_card.write(run)
    except UserError as error:
        return f"the result is not kept in the run folder: {error}"
    return None


def evaluation_row(run: Scorer, table: Any, found: Evaluation) -> Row:
    row = {"table": name_of(table), **found.row, "texts_key": found.texts["perplexity"].key, **computed(run)}
    return {"kind": "evaluate", "evaluation": row, "by": found.by}


def told_apart(run: Run, table: Any, target: str) -> tuple[Row, Figures]:
    """Classify texts by the variable `target`; return the metrics and what each text adds, and save both in the run.

    Nothing is saved if no text has a value.
    """
    result = classify(run, table, target, unknown="group")
    metrics = result.metrics()
    texts = {"accuracy": judged_texts(result)}
    if result.labelled:
        note(run, classified(run, table, target, result, metrics), texts)
    return metrics, texts


def classified(run: Run, table: Any, target: str | None, result: Classification, metrics: Row, samples: int = 0) -> Row:
    confusion = {"labels": list(result.names), "counts": result.confusion().tolist()}
    about = {"kind": "classify", "table": name_of(table), "target": target, "texts_key": result.key, **computed(run)}
    how = {"priors": "uniform" if result.log_prior is None else "training", "samples": samples}
    return {**about, **how, **metrics, "confusion": confusion}


def computed(model: Scorer) -> Row:
    """Return the precision of a model's matrix products, which decides the last digits of its figures."""
    return {"precision": model.precision} if hasattr(model, "precision") else {}


def kept_texts(folder: Path, key: str | None) -> Figures:
    """Return the saved figures of the texts of `key`, and those of the last classification."""
    rows = [row for row in kept_results.read(folder) if row["kind"] == "classify"]
    judged = rows[-1].get("texts_key") if rows else None
    return {**text_figures.read(folder, key), **text_figures.read(folder, judged)}


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
