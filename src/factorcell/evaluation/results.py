"""Results of a model, kept in its run folder: the model of a folder, its figures, what it predicted."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from factorcell import files, inputs
from factorcell.config import Config, UserError
from factorcell.data.corpus import Corpus
from factorcell.data.tables import name_of, open_table
from factorcell.data.tokenizer import Tokenizer
from factorcell.data.values import category_name, to_number
from factorcell.evaluation import ngram, perplexity, text_figures
from factorcell.evaluation.bayes_rule import Classification, judged_texts
from factorcell.evaluation.classification import classify
from factorcell.evaluation.groups import column_groups
from factorcell.evaluation.ngram import NGram
from factorcell.evaluation.text_figures import Figures
from factorcell.folders import not_a_run
from factorcell.model import kept_results, model_card
from factorcell.model.run import Run
from factorcell.model.scoring import Scorer, Tally

Row = dict[str, Any]


def open_model(folder: str | Path, device: str = "cpu", precision: str = "float32") -> Run | NGram:
    """The model in a folder; `device` and `precision` as in `Run.open` (an n-gram model has no use for them)."""
    if (Path(folder) / ngram.FILE).is_file():
        return NGram.open(folder)
    return Run.open(folder, device=device, precision=precision)


def find_models(folders: Sequence[Path], *names: str) -> list[Path]:
    """The run folders among `folders` and right below them, as a search or a comparison leaves them.

    Besides runs, folders with a file of one of `names`.
    """
    found: list[Path] = []
    for folder in folders:
        patterns = [f"*/{name}" for name in ("weights.safetensors", *names)]
        inside = sorted(path.parent for pattern in patterns for path in inputs.visible(folder, pattern))
        models = [folder] if any((folder / name).is_file() for name in ("config.json", *names)) else inside
        if not models:
            raise not_a_run(folder, "a trained run or a folder of trained runs")
        found += models
    return list(dict.fromkeys(found))


def reading(like: Path | None, config: Path | None, text: str | None = None) -> tuple[Config, Tokenizer | None]:
    """Return how the model in the folder `like` reads texts, with its tokenizer; or the file `config`, with none.

    `text` names the column of the texts anew.
    """
    if like is not None and config is not None:
        raise UserError("expected either --like or --config, got both")
    reading, tokenizer = Config.load(config) if config else Config(), None
    if like is not None:
        model = open_model(like)
        reading, tokenizer = model.config, model.tokenizer
    return (reading if text is None else reading.with_options(text=text)), tokenizer


def note(run: Scorer, row: Mapping[str, Any], texts: Figures | None = None) -> str | None:
    """Keep a result in the folder, so that the card of a run and reports show it; a line where that is not possible.

    `texts` is what every text adds to its figures: what reports compare runs by. Whoever may only read a run learns
    its results all the same. Of an anonymous run no user is named there.
    """
    try:
        text_figures.keep(run.folder, texts or {})
        kept_results.keep(run.folder, _nameless(run, row))
        if isinstance(run, Run):
            model_card.write(run)
    except UserError as error:
        return f"the result is not kept in the run folder: {error}"
    return None


def evaluate(
    run: Scorer,
    source: Any,
    *,
    by: Sequence[str] = (),
    baseline: Scorer | None = None,
    unknown: str = "error",
    top: bool = False,
) -> tuple[Row, Figures]:
    """Perplexities of a table, whole and by the values of columns: {"evaluation": row, "by": {column: rows}}.

    With columns or a `baseline` there is a gain, over that or over the same model without context (`over` is None).
    With a `baseline` there is also the difference in bits per byte; with one that has another vocabulary, nothing else.
    `top` adds how often the next token is among the most probable ones. The second value is what every text adds;
    `note` keeps both.
    """
    if top and not isinstance(run, Run | NGram):
        raise UserError(f"{run.folder}: only runs and n-gram models tell which tokens are most probable (--top)")
    other_tokens = baseline is not None and list(baseline.tokenizer.tokens) != list(run.tokenizer.tokens)
    if baseline is not None and by:  # first, since one of other tokens may want other columns too
        perplexity.check_vocabularies(run, baseline)
    columns = {column: column_groups(source, column) for column in by}
    corpus = run.prepare(source, unknown=unknown)
    nats = run.nats(corpus)
    texts = text_figures.of_nats(nats, corpus)
    row = {"table": name_of(source), **perplexity.summarised(nats, corpus), "texts_key": texts["perplexity"].key}
    row |= computed(run)
    result: Row = {"kind": "evaluate", "evaluation": row, "by": {}}
    if top and isinstance(run, Run | NGram):
        row |= perplexity.top_accuracy(run, corpus)
    if baseline is not None and other_tokens:
        other = baseline.prepare(source, unknown=unknown)
        row |= against(texts, text_figures.of_nats(baseline.nats(other), other), other, baseline)
    elif by or baseline is not None:
        figures = perplexity.beside(run, corpus, baseline, source, unknown)
        plain = figures["perplexity"]
        row |= perplexity.gain(texts["perplexity"], plain).row("gain")
        row["perplexity_without"] = Tally(float(plain.above.sum()), int(plain.below.sum())).perplexity
        row["over"] = None if baseline is None else baseline.folder.name
        row |= {} if baseline is None else against(texts, figures, corpus, baseline)
        row |= {"strangers": True} if perplexity.strangers(run, corpus) else {}
        for column, groups in columns.items():
            result["by"][column] = perplexity.gains(texts["perplexity"], plain, groups)
    return result, texts


def against(ours: Figures, other: Figures, corpus: Corpus, baseline: Scorer) -> Row:
    """Return the difference in bits per byte over `baseline`, and its own bits per byte: `other`, of `corpus`."""
    difference = perplexity.bits_difference(ours["bits_per_byte"], other["bits_per_byte"])
    if difference is None:
        return {}
    bound = bool((text_figures.lower_bounds(corpus) & other["bits_per_byte"].counted).any())
    return {
        **difference.row("bits_per_byte_difference"),
        "bits_per_byte_baseline": other["bits_per_byte"].ratio,
        "bits_per_byte_baseline_bound": bound,
        "bits_per_byte_over": baseline.folder.name,
    }


def _nameless(run: Scorer, row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A result without the values of the column that an anonymous run does not name."""
    if "by" not in row or not (isinstance(run, Run) and run.config.data.anonymous):
        return row
    return {**row, "by": {column: rows for column, rows in row["by"].items() if column != run.config.data.user}}


def told_apart(run: Run, table: Any, target: str) -> tuple[Row, Figures]:
    """Classify the texts of `table` by the variable `target`; metrics and what texts add, also kept in the run.

    Nothing is kept of texts that all lack a value: there is no figure of them.
    """
    result = classify(run, table, target, unknown="group")
    metrics = result.metrics()
    texts = {"accuracy": judged_texts(result)}
    if result.labelled:
        note(run, classified(run, table, target, result, metrics), texts)
    return metrics, texts


def classified(run: Run, table: Any, target: str | None, result: Classification, metrics: Row, samples: int = 0) -> Row:
    """What `note` keeps of a classification and its metrics, and of how it was made."""
    confusion = {"labels": list(result.names), "counts": result.confusion().tolist()}
    kept = {"kind": "classify", "table": name_of(table), "target": target, "texts_key": result.key, **computed(run)}
    how = {"priors": "uniform" if result.log_prior is None else "training", "samples": samples}
    return {**kept, **how, **metrics, "confusion": confusion}


def computed(model: Scorer) -> Row:
    """Which numbers the products of a model are made of: where the last digits of its figures come from."""
    return {"precision": model.precision} if hasattr(model, "precision") else {}


def kept_texts(folder: Path, key: str | None) -> Figures:
    """What every text of the table of this `key` adds, and those of the last classification, as the run keeps them."""
    classified = [row for row in kept_results.read(folder) if row["kind"] == "classify"]
    judged = classified[-1].get("texts_key") if classified else None
    return {**text_figures.read(folder, key), **text_figures.read(folder, judged)}


def read_points(path: str | Path) -> dict[str, dict[str, float]]:
    """Named points from a table: a column `name`, the others numeric context columns."""
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


def write_predictions(path: Path, result: Classification) -> None:
    """The rows of a classification, a line of JSON each, counted from one."""
    files.write_rows(path, predictions(result))


def predictions(result: Classification) -> list[Row]:
    """The rows of a classification as commands show and keep them: counted from one."""
    return [{**row, "row": row["row"] + 1} for row in result.rows()]
