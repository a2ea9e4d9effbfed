"""The results of runs and of n-gram models for a report: what a folder has, and which results can be compared.

Perplexities and bits per byte of several models are compared on one table: the one on which most models were evaluated.
A table is identified by its texts and its name, because a table with the same texts may have other contexts, such as an
empty column. Only models that read no context have the same figures on all tables with the same texts.
Accuracies are compared for one target, one table and one kind of classifier, in the same way.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from factorcell.evaluation import text_figures
from factorcell.evaluation.diagnostics import run_findings, training_texts
from factorcell.evaluation.results import prediction_fields
from factorcell.evaluation.text_figures import DEVELOPMENT, Figures
from factorcell.finite import is_number
from factorcell.model import model_card, ngram, saved_results
from factorcell.model.run import Run, training_facts
from factorcell.model.used_options import unused_options

Row = Mapping[str, Any]
TableId = tuple[str, str]  # an id of the texts of a table, and its name


def read_model(folder: Path) -> Row:
    """Read the results, logs and options of a run or of an n-gram model.

    `evaluations` has the latest perplexities on each table, and `accuracies` the latest accuracy of each classifier on
    each table. A run with a mixture may also have results of its neural model alone, which are omitted.
    """
    results = saved_results.read(folder)
    run = None if (folder / ngram.FILE).is_file() else Run.open(folder)
    predictor = None if run is None else prediction_fields(run).get("predictor")
    results = [row for row in results if row.get("evaluation", row).get("predictor") == predictor]
    unit = "token" if run is None else run.tokenizer.unit
    evaluations = [_with_texts(folder, {"unit": unit, **row}) for row in saved_results.latest_evaluations(results)]
    model: Row = {"folder": str(folder), "title": folder.name, "config": {}, "evaluations": evaluations}
    if run is None:
        return model
    facts = training_facts(folder)
    development = _with_texts(folder, {"unit": unit, "gains": [], **_development_row(run, facts)})
    if "perplexity" in development:
        evaluations.insert(0, development)
    accuracies = [_with_accuracies(folder, row) for row in saved_results.latest_accuracies(results)]
    return {
        **model,
        "config": run.config.to_dict(),
        "is_adapted": run.model.is_adapted,
        "reads_context": run.reads_context,
        "unused": unused_options(run.config, run.schema),
        "schema": [variable.describe() for variable in run.schema.variables],
        "log": run.log(),
        "parameters": run.model.parameter_count(),
        "training_texts": training_texts(run),
        "predictor": predictor,
        "by": saved_results.latest_gains(results),
        "accuracies": accuracies,
        # Trainings on the same texts have equal lists:
        "trained": [facts.get(name) for name in ("development_key", "texts", "source", "finetuned")],
        "cautions": [finding.text for finding in run_findings(run, run.schema.columns())],
    }


def read_mixtures(folder: Path) -> list[Row]:
    """Read the mixtures with the n-gram model in `folder` that `compare` has evaluated, each as in `read_model`."""
    evaluations: dict[str, list[Row]] = {}
    for row in saved_results.latest_evaluations(saved_results.read(folder)):
        if row.get("predictor"):
            evaluations.setdefault(row["predictor"], []).append(_with_texts(folder, row))
    return [
        {
            "folder": str(folder),
            "title": rows[-1]["model"],
            "config": {"training": {"seed": rows[-1]["seed"]}},
            "trained": rows[-1]["model"],
            "predictor": predictor,
            "evaluations": rows,
        }
        for predictor, rows in evaluations.items()
    ]


def _development_row(run: Run, facts: Row) -> Row:
    """Return the perplexities that training measured: those of the mixture, or of the neural model at its best step."""
    row = {"table": DEVELOPMENT, "texts_key": facts.get("development_key")}
    if (mixed := model_card.mixture_perplexity(run)) is not None:
        return {**row, "perplexity": mixed, "has_texts": False}  # training saved the texts of the neural model alone
    return {**row, **(run.best_evaluation() or {})}


def _with_texts(folder: Path, evaluation: Row) -> Row:
    """Add the figures of each text, and an id of the texts, which does not depend on the tokenizer if this is known."""
    figures = text_figures.load(folder, evaluation)
    originals = figures["bits_per_byte"].originals if "bits_per_byte" in figures else ""
    texts_id = originals or f"{evaluation.get('table')}, {evaluation.get('texts')} texts"
    return {**evaluation, "figures": figures if evaluation.get("has_texts", True) else {}, "texts_id": texts_id}


def _with_accuracies(folder: Path, scores: Row) -> Row:
    """Add the accuracy of each text, if the folder has those of these very scores."""
    figures = text_figures.load(folder, scores)
    sums = figures.get(str(scores.get("figure")))
    is_saved = sums is not None and abs(sums.ratio - scores["accuracy"]) < 1e-9
    return {**scores, "figures": {"accuracy": sums} if is_saved else {}}


def compared_table(models: Sequence[Sequence[Row]]) -> TableId | None:
    """Return the id of the table of which most models have figures.

    If several tables are equally frequent, the table on which most models were evaluated is chosen, then one with saved
    figures of each text, because only their differences have intervals, and then the one with the most texts.
    """
    evaluations = [row for trainings in models for run in trainings for row in run.get("evaluations") or ()]
    tables = dict.fromkeys((row["texts_id"], row["table"]) for row in reversed(evaluations))

    def rank(table: TableId) -> tuple[int, int, bool, int]:
        rows = [[row for run in trainings if (row := evaluation_on(run, table))] for trainings in models]
        evaluated = [row for rows_of_model in rows for row in rows_of_model]
        named_count = sum(any(row["table"] == table[1] for row in rows_of_model) for rows_of_model in rows)
        has_figures = all(row.get("figures") for row in evaluated)
        return sum(map(bool, rows)), named_count, has_figures, max(row.get("texts") or 0 for row in evaluated)

    return max(tables, key=rank, default=None)


def evaluation_on(run: Row, table: TableId | None) -> Row:
    """Return the last perplexities of a run on a table; empty without any."""
    if table is None:
        return {}
    texts_id, name = table
    same_texts = [row for row in run.get("evaluations") or () if row["texts_id"] == texts_id]
    same_table = [row for row in same_texts if row["table"] == name]
    rows = same_table or ([] if run.get("reads_context") else same_texts)
    return rows[-1] if rows else {}


def compared_accuracies(models: Sequence[Sequence[Row]]) -> tuple[Any, ...] | None:
    """Return the key (target, table, texts, kind of classifier) of the accuracies that most models have."""
    keys = [
        {accuracy_key(row): row.get("texts", 0) for run in trainings for row in run.get("accuracies") or ()}
        for trainings in models
    ]
    most_frequent: tuple[Any, ...] | None = _most_frequent(
        [{key: texts for key, texts in of_model.items() if key[-1] != "other"} for of_model in keys]
    )
    return most_frequent


def accuracy_key(row: Row) -> tuple[Any, ...]:
    """Return the key of an accuracy: target, table, number of texts, and kind of classifier.

    The kinds are "model", "calibrated" and "combined" for the model of the run, and "other".
    """
    name, kind = row["classifier"], "model" if saved_results.is_model(row) else "other"
    if name.endswith(saved_results.CALIBRATED):
        kind = "calibrated"
    elif name.endswith(saved_results.COMBINED):
        kind = "combined"
    return row.get("target"), row.get("table"), row.get("texts"), kind


def _most_frequent(sizes_by_id: Iterable[Mapping[Any, Any]]) -> Any:
    """Return the id that is in most mappings; of several such ids, the last one with the largest size."""
    totals: dict[Any, tuple[int, Any]] = {}
    for sizes in sizes_by_id:
        for key, size in sizes.items():
            models, _ = totals.pop(key, (0, None))
            totals[key] = models + 1, size
    return max(reversed(totals), key=lambda key: totals[key], default=None)


def main_accuracies(run: Row) -> list[Row]:
    """Return the accuracies to show first: those of the chosen classifier, and of the plain model if it is another.

    They are those of the largest classified table, and of the last classification of several.
    """
    accuracies = [row for row in run.get("accuracies") or () if is_number(row.get("accuracy"))]
    chosen = [row for row in accuracies if "confusion" in row]
    if not chosen:
        return []
    first = max(reversed(chosen), key=lambda row: int(row.get("texts", 0)))
    target, table, texts, kind = accuracy_key(first)
    alone = [row for row in accuracies if accuracy_key(row) == (target, table, texts, "model")]
    plain = saved_results.plain_classifier(first["classifier"])
    is_same_prior = [row for row in alone if row["classifier"] == plain]
    return [first] if kind == "model" else [first, *(is_same_prior or alone)[-1:]]


def figures_on(run: Row, table: TableId | None, accuracy: tuple[Any, ...] | None) -> tuple[Row, Figures]:
    """Return the metrics of a run on the compared table, and the contribution of each text to them.

    The metrics have no gain over the baseline with which `evaluate` compared the run.
    """
    evaluation = evaluation_on(run, table)
    same_kind = [row for row in run.get("accuracies") or () if accuracy_key(row) == accuracy]
    scores: Row = next((row for row in reversed(same_kind) if "confusion" in row), same_kind[-1] if same_kind else {})
    seconds = max((row["seconds"] for row in run.get("log") or () if "seconds" in row), default=None)
    accuracy_fields = ("accuracy", "accuracy_low", "accuracy_high", "accuracy_without_text", "accuracy_remark")
    classification = {name: scores.get(name) for name in ("classifier", "majority", *accuracy_fields)}
    sizes = {"parameters": run.get("parameters"), "minutes": None if seconds is None else seconds / 60}
    omitted = ("figures", "gains", "has_texts", "texts_id")
    metrics = {name: value for name, value in evaluation.items() if name not in omitted}
    return {**sizes, **metrics, **classification}, {**evaluation.get("figures", {}), **scores.get("figures", {})}
