"""The results of runs and of n-gram models for a report: what a folder has, and which results can be compared.

Perplexities and bits per byte of several models are compared on one table: the one on which most models were evaluated.
Accuracies are compared for one target and one table, in the same way; they are those of the models by Bayes' rule.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from factorcell.evaluation import text_figures
from factorcell.evaluation.diagnostics import run_findings, training_texts
from factorcell.evaluation.results import prediction_fields
from factorcell.evaluation.text_figures import Figures
from factorcell.ngram import ngram
from factorcell.runs import saved_results
from factorcell.runs.run import Run, training_facts
from factorcell.runs.used_options import unused_options

Row = Mapping[str, Any]


def read_model(folder: Path) -> Row:
    """Read the results, logs and options of a run or of an n-gram model.

    A run with a mixture may also have results of its neural model alone, which are omitted.
    """
    run = None if (folder / ngram.FILE).is_file() else Run.open(folder)
    predictor = None if run is None else prediction_fields(run).get("predictor")
    results = [row for row in saved_results.read(folder) if row.get("predictor") == predictor]
    model: Row = {
        "folder": str(folder),
        "title": folder.name,
        "config": {},
        "results": [{**row, "figures": text_figures.load(folder, row)} for row in results],
    }
    if run is None:
        return model
    facts = training_facts(folder)
    return {
        **model,
        "config": run.config.to_dict(),
        "is_adapted": run.model.is_adapted,
        "unused": unused_options(run.config, run.schema),
        "schema": [variable.describe() for variable in run.schema.variables],
        "log": run.log(),
        "parameters": run.model.parameter_count(),
        "training_texts": training_texts(run),
        "predictor": predictor,
        # Trainings on the same texts have equal lists:
        "trained": [facts.get(name) for name in ("development_key", "texts", "source", "finetuned")],
        "cautions": [finding.text for finding in run_findings(run, run.schema.columns())],
    }


def read_mixtures(folder: Path) -> list[Row]:
    """Read the mixtures with the n-gram model in `folder` that `compare` has evaluated, each as in `read_model`."""
    results: dict[str, list[Row]] = {}
    for row in saved_results.read(folder):
        if row.get("predictor"):
            results.setdefault(row["predictor"], []).append({**row, "figures": text_figures.load(folder, row)})
    return [
        {
            "folder": str(folder),
            "title": rows[-1]["model"],
            "config": {"training": {"seed": rows[-1]["seed"]}},
            "trained": rows[-1]["model"],
            "predictor": predictor,
            "results": rows,
        }
        for predictor, rows in results.items()
    ]


def result_id(row: Row) -> tuple[Any, ...]:
    """Return the table, the target and the number of texts of a result; results with equal ids are comparable."""
    return row.get("table"), row.get("target"), row.get("texts")


def is_by_bayes_rule(row: Row) -> bool:
    """Return whether a result is the accuracy of a model by Bayes' rule, and not that of a combination."""
    return row["kind"] == "classify" and row.get("classifier") != "combined"


def most_frequent_ids(models: Sequence[Sequence[Row]]) -> tuple[Any, Any]:
    """Return the ids of the evaluations and of the accuracies that most models have; None without any.

    If several ids are equally frequent, the function returns the one with the most texts, then the one saved last.
    """
    evaluations, accuracies = Counter[Any](), Counter[Any]()
    for trainings in models:
        rows = [row for run in trainings for row in run["results"]]
        evaluations.update([*dict.fromkeys(result_id(row) for row in rows if row["kind"] != "classify")])
        accuracies.update([*dict.fromkeys(result_id(row) for row in rows if is_by_bayes_rule(row))])

    def most_frequent(counts: Counter[Any]) -> Any:
        return max(reversed(counts), key=lambda key: (counts[key], key[-1] or 0), default=None)

    return most_frequent(evaluations), most_frequent(accuracies)


def figures_on(run: Row, evaluation: Any, accuracy: Any) -> tuple[Row, Figures]:
    """Return the metrics of a run on the compared tables, and the contribution of each text to them."""
    rows = [row for row in run["results"] if row["kind"] != "classify" and result_id(row) == evaluation]
    scores = [row for row in run["results"] if is_by_bayes_rule(row) and result_id(row) == accuracy]
    scores.sort(key=lambda row: row.get("classifier") == "model")  # the last counts; a calibrated model only if alone
    seconds = max((row["seconds"] for row in run.get("log") or () if "seconds" in row), default=None)
    metrics: Row = {"parameters": run.get("parameters"), "minutes": None if seconds is None else seconds / 60}
    figures: Figures = {}
    for row in (*scores[-1:], *rows[-1:]):
        metrics = {**metrics, **{name: value for name, value in row.items() if name != "figures"}}
        figures |= row["figures"]
    return metrics, figures
