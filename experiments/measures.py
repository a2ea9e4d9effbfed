"""Measures of classification: how well a model infers the context of a text.

They use Bayes' rule and the exact softmax, or samples of it if requested; unadapted models cannot classify. The
accuracy of the papers has a uniform prior. The keys `classifier_` have the prior of the training texts, and a
temperature that is fitted to development texts.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from corpora import Tables
from factorcell.data.tables.tables import open_table
from factorcell.evaluation.bayes_rule import Classification, auc, text_accuracies
from factorcell.evaluation.classification import classify, classify_points, read_points
from factorcell.runs.run import Run
from study import EXPERIMENTS_FOLDER, Measurement

MAX_DISTANCE = 300.0  # km from a text to its city, as in the TACL paper
SAMPLES = 1000  # sampled words that replace the vocabulary in a classification; the TACL paper draws 8,000
PAPER_SUFFIX = "_printed_cities"  # suffix of the keys of figures for the cities of the TACL paper


class Cities(NamedTuple):
    """A file of cities; the target of a text with coordinates is the nearest of them."""

    file: str

    def cities(self) -> dict[str, dict[str, float]]:
        return read_points(EXPERIMENTS_FOLDER / self.file)


PAPER_CITIES = Cities("printed_cities.csv")


def measure_classification(run: Run, tables: Tables, target: str, samples: int = 0) -> Measurement:
    """Measure the classification of `target`, with `samples` of the vocabulary as in the paper, or all of it (0)."""
    if not run.model.is_adapted:
        return Measurement({})
    variable = run.schema.variable(target)
    names = frequent_values(tables["judged"], target, variable.values[1:])
    if not names:  # in a trial all values may be rare
        return Measurement({})

    def classify_table(table: Path) -> Classification:
        options: dict[str, Any] = {"priors": "uniform", "samples": samples, "proposal": "unigram"}
        return classify(run, table, target, values=names, unknown="group", **options)

    classification = classify_table(tables["judged"])
    metrics = classification.metrics()
    row = {"candidates": len(names), "judged": metrics["texts"]}
    row |= {name: metrics[name] for name in ("accuracy", "macro_f1", "calibration_error", "value_nats")}
    measured = Measurement(row, {"accuracy": text_accuracies(classification)})
    return (
        measured | calibrated_figures(classification, classify_table(tables["calibration"]), variable.counts_by_value)
        if "calibration" in tables
        else measured
    )


def calibrated_figures(
    classification: Classification, held_out: Classification, priors: Mapping[str, float] | None
) -> Measurement:
    """Return figures with the priors of training (None if learned) and the temperature fitted to the held-out texts."""
    if priors is not None:
        classification, held_out = classification.with_priors(priors), held_out.with_priors(priors)
    temperature = held_out.fitted_temperature()
    calibrated, held_out = classification.at_temperature(temperature), held_out.at_temperature(temperature)
    metrics = calibrated.metrics()
    row = {name: metrics[name] for name in ("accuracy", "calibration_error", "value_nats", "temperature")}
    row["dev_accuracy"] = held_out.metrics()["accuracy"]
    renamed = {f"classifier_{name}": value for name, value in row.items()}
    return Measurement(renamed, {"classifier_accuracy": text_accuracies(calibrated)})


def frequent_values(table: Path, target: str, known: Sequence[str]) -> list[str]:
    present = {value for chunk in open_table(table).chunks([target]) for value in chunk[target]}
    return [value for value in known if value in present]


def measure_detection(
    run: Run, tables: Tables, target: str, values: Sequence[str], distractors: Sequence[str]
) -> Measurement:
    """Measure the mean AUC of `values` against each other and `distractors`, by z-scores of perplexities."""
    known = set(run.schema.variable(target).values[1:]) if run.model.is_adapted else set()
    names = [value for value in values if value in known]
    if len(names) < 2:  # an unadapted model, or a trial where all values are rare
        return Measurement({})
    others = [*distractors, *(value for value in values if value not in known)]
    classification = classify(run, tables["judged"], target, values=names, priors="uniform", unknown="group")
    lengths = run.prepare(tables["judged"], unknown="group").lengths
    true_values = [value for chunk in open_table(tables["judged"]).chunks([target]) for value in chunk[target]]
    is_distractor = np.array([value in others for value in true_values], dtype=bool)
    return detection_figures(classification, detection_scores(classification, lengths), is_distractor)


def detection_scores(classification: Classification, lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return minus the perplexities of texts given candidates, as z-scores over the candidates; the prior is uniform.

    A constant that is added to the log posteriors of a text changes its perplexities by a factor, but not the z-scores.
    """
    perplexities = np.exp(-classification.log_posterior / np.maximum(1, lengths)[:, None])
    deviations = perplexities.std(1, keepdims=True)
    scores: NDArray[np.float64] = perplexities.mean(1, keepdims=True) - perplexities
    return scores / np.where(deviations > 0, deviations, 1.0)


def detection_figures(
    classification: Classification, scores: NDArray[np.float64], is_distractor: NDArray[np.bool_]
) -> Measurement:
    """Return the mean AUC of the candidates, which rank texts and distractors by their `scores` (B, K)."""
    truth = classification.truth
    is_judged = (truth >= 0) | is_distractor
    areas = [auc(scores[is_judged, place], truth[is_judged] == place) for place in range(len(classification.names))]
    row = {"candidates": len(areas), "judged": int((truth >= 0).sum()), "distractors": int(is_distractor.sum())}
    return Measurement({**row, "auc": float(np.nanmean(areas))})


def measure_nearest_city(run: Run, tables: Tables, cities: Cities) -> Measurement:
    """Measure the accuracy of the nearest city for these cities and, with `PAPER_SUFFIX`, for those of the paper."""
    if not run.model.is_adapted:
        return Measurement({})
    return _nearest(run, tables, cities) | _nearest(run, tables, PAPER_CITIES, PAPER_SUFFIX)


def _nearest(run: Run, tables: Tables, cities: Cities, ending: str = "") -> Measurement:
    classification = classify_points(run, tables["judged"], cities.cities(), within=MAX_DISTANCE)
    metrics = classification.metrics()
    if not metrics["texts"]:  # a trial may have no text near a city
        return Measurement({})
    row = {"candidates": len(classification.names), "judged": metrics["texts"], "accuracy": metrics["accuracy"]}
    renamed = {f"{key}{ending}": value for key, value in row.items()}
    return Measurement(renamed, {f"accuracy{ending}": text_accuracies(classification)})
