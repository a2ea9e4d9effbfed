"""What experiments measure on their test beside perplexity: which contexts a model tells apart.

Bayes' rule with a uniform prior and the exact softmax; an unadapted model is not asked.
"""

import csv
from collections.abc import Sequence
from pathlib import Path

from corpora import Tables
from factorcell.data.tables import open_table
from factorcell.evaluation.bayes_rule import judged_texts
from factorcell.evaluation.classification import classify, classify_points
from factorcell.model.run import Run
from study import HERE, Measured

WITHIN = 300.0  # km of a city, as in the TACL paper


def told_apart(run: Run, tables: Tables, target: str) -> Measured:
    """Accuracy, F1, AUC and calibration of `target`, of the texts that are judged."""
    if not run.model.adapted:
        return Measured({})
    names = asked_for(tables["judged"], target, run.schema.variable(target).values[1:])
    if not names:  # in a trial all of them may be rare
        return Measured({})
    found = classify(run, tables["judged"], target, values=names, unknown="group")
    metrics = found.metrics()
    row = {"candidates": len(names), "judged": metrics["texts"]}
    row |= {name: metrics[name] for name in ("accuracy", "macro_f1", "auc", "calibration_error", "value_nats")}
    return Measured(row, {"accuracy": judged_texts(found)})


def asked_for(table: Path, target: str, known: Sequence[str]) -> list[str]:
    """Which of the `known` values of a column a table has."""
    there = {value for chunk in open_table(table).chunks([target]) for value in chunk[target]}
    return [value for value in known if value in there]


def cities() -> dict[str, dict[str, float]]:
    """The six cities by name, each with `lat` and `lon`."""
    with (HERE / "us_cities.csv").open(encoding="utf-8", newline="") as file:
        return {row.pop("name"): {key: float(value) for key, value in row.items()} for row in csv.DictReader(file)}


def detected(run: Run, tables: Tables, target: str, values: Sequence[str], distractors: Sequence[str]) -> Measured:
    """The mean AUC of `values` against each other and against `distractors`, by perplexities as z-scores.

    It has no texts to draw from: the AUC of a text alone is none. Seeds tell how sure it is.
    """
    known = set(run.schema.variable(target).values[1:]) if run.model.adapted else set()
    names = [value for value in values if value in known]
    if len(names) < 2:  # an unadapted model; in a trial all of them may be rare
        return Measured({})
    others = [*distractors, *(value for value in values if value not in known)]
    metrics = classify(run, tables["judged"], target, values=names, distractors=others, unknown="group").metrics()
    row = {"candidates": len(names), "judged": metrics["texts"], "distractors": metrics["distractors"]}
    return Measured({**row, "auc": metrics["auc"]})


def nearest_city(run: Run, tables: Tables) -> Measured:
    """Accuracy of the nearest of six cities, of the texts that are judged and near one."""
    if not run.model.adapted:
        return Measured({})
    found = classify_points(run, tables["judged"], cities(), within=WITHIN)
    metrics = found.metrics()
    row = {"candidates": len(found.names), "judged": metrics["texts"], "accuracy": metrics["accuracy"]}
    return Measured(row, {"accuracy": judged_texts(found)})
