"""What experiments measure on their test beside perplexity: which contexts a model tells apart.

Bayes' rule and the exact softmax, unless samples of it are asked for; an unadapted model is not asked. The accuracy of
the papers is that of a uniform prior. As a classifier, which knows how frequent each value is, a model has the priors
of training, and what a text says counts at the temperature that suits dev.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from corpora import Tables
from factorcell.data.tables import open_table
from factorcell.evaluation.bayes_rule import Classification, text_accuracies
from factorcell.evaluation.classification import classify, classify_points
from factorcell.evaluation.results import read_points
from factorcell.model.run import Run
from study import HERE, Measured

WITHIN = 300.0  # km of a city, as in the TACL paper
SAMPLES = 1000  # of a vocabulary of words, where not all of it tells contexts apart; the TACL paper draws 8,000
PRINTED = "_printed_cities"  # ends the keys of figures of the cities that the TACL paper tells apart


class Cities(NamedTuple):
    """Cities of a file, the nearest of which is told of texts that have a place."""

    file: str

    def cities(self) -> dict[str, dict[str, float]]:
        """Each by name, with `lat` and `lon`."""
        return read_points(HERE / self.file)


PRINTED_CITIES = Cities("printed_cities.csv")


def measure_classification(run: Run, tables: Tables, target: str, samples: int = 0) -> Measured:
    """Accuracy, F1, AUC and calibration of `target`, of the texts that are judged; where texts are `held`, of both.

    By `samples` of the vocabulary drawn from unigrams, as printed; by all of it if 0.
    """
    if not run.model.adapted:
        return Measured({})
    variable = run.schema.variable(target)
    names = frequent_values(tables["judged"], target, variable.values[1:])
    if not names:  # in a trial all of them may be rare
        return Measured({})

    def ask(table: Path) -> Classification:
        return classify(run, table, target, values=names, unknown="group", samples=samples, proposal="unigram")

    classification = ask(tables["judged"])
    metrics = classification.metrics()
    row = {"candidates": len(names), "judged": metrics["texts"]}
    row |= {name: metrics[name] for name in ("accuracy", "macro_f1", "auc", "calibration_error", "value_nats")}
    measured = Measured(row, {"accuracy": text_accuracies(classification)})
    return (
        measured | as_classifier(classification, ask(tables["held"]), variable.counts_by_value)
        if "held" in tables
        else measured
    )


def as_classifier(
    classification: Classification, held_out: Classification, priors: Mapping[str, float] | None
) -> Measured:
    """The same texts under the priors of training, what they say at the temperature that suits the texts `held`.

    Without priors for what has learned how frequent the values are. The accuracy of the texts `held` stands in the row
    too, to choose a classifier by.
    """
    if priors is not None:
        classification, held_out = classification.with_priors(priors), held_out.with_priors(priors)
    temperature = held_out.fitted_temperature()
    calibrated, held_out = classification.at_temperature(temperature), held_out.at_temperature(temperature)
    metrics = calibrated.metrics()
    row = {name: metrics[name] for name in ("accuracy", "calibration_error", "value_nats", "temperature")}
    row["dev_accuracy"] = held_out.metrics()["accuracy"]
    renamed = {f"classifier_{name}": value for name, value in row.items()}
    return Measured(renamed, {"classifier_accuracy": text_accuracies(calibrated)})


def frequent_values(table: Path, target: str, known: Sequence[str]) -> list[str]:
    """Which of the `known` values of a column a table has."""
    present = {value for chunk in open_table(table).chunks([target]) for value in chunk[target]}
    return [value for value in known if value in present]


def detected(run: Run, tables: Tables, target: str, values: Sequence[str], distractors: Sequence[str]) -> Measured:
    """The mean AUC of `values` against each other and against `distractors`, by perplexities as z-scores.

    It has no texts to draw from: the AUC of a text alone is none. Seeds tell how sure it is.
    """
    known = set(run.schema.variable(target).values[1:]) if run.model.adapted else set()
    names = [value for value in values if value in known]
    if len(names) < 2:  # an unadapted model; in a trial all of them may be rare
        return Measured({})
    others = [*distractors, *(value for value in values if value not in known)]
    classification = classify(run, tables["judged"], target, values=names, distractors=others, unknown="group")
    return detection(classification)


def detection(classification: Classification) -> Measured:
    """The mean AUC of what was found of the texts that are judged, and how many there are of each kind."""
    metrics = classification.metrics()
    row = {"candidates": len(classification.names), "judged": metrics["texts"], "distractors": metrics["distractors"]}
    return Measured({**row, "auc": metrics["auc"]})


def nearest_city(run: Run, tables: Tables, cities: Cities) -> Measured:
    """Accuracy of the nearest of our cities, and of the nearest of the paper's, of the texts judged that are near one.

    Each has its own texts, `judged`; keys of the paper's end in `PRINTED`.
    """
    if not run.model.adapted:
        return Measured({})
    return _nearest(run, tables, cities) | _nearest(run, tables, PRINTED_CITIES, PRINTED)


def _nearest(run: Run, tables: Tables, cities: Cities, ending: str = "") -> Measured:
    """Accuracy (a share) among the cities of a file, under keys that end in `ending`."""
    classification = classify_points(run, tables["judged"], cities.cities(), within=WITHIN)
    metrics = classification.metrics()
    if not metrics["texts"]:  # in a trial none may be near
        return Measured({})
    row = {"candidates": len(classification.names), "judged": metrics["texts"], "accuracy": metrics["accuracy"]}
    renamed = {f"{key}{ending}": value for key, value in row.items()}
    return Measured(renamed, {f"accuracy{ending}": text_accuracies(classification)})
