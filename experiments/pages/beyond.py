"""The tables of what goes beyond the papers: one scorer of the best, and contexts told apart as classifiers do."""

import itertools

from pages import overview
from pages.markdown import NO_ROW, markdown, shown
from pages.results import Results, rows_of
from tacl_beyond import MODEL, RUN, WITH, experiment

CLASSIFIERS = ("bayes", "linear", "fasttext")
ACCURACY, CHOSEN_BY = "classifier_accuracy", "classifier_dev_accuracy"
HEADER = (
    "gain, known targets",
    "accuracy, %",
    "above the best, points",
    "calibration error, %",
    "temperature",
)


def best_classifier(found: Results) -> str | None:
    """The classifier of the highest accuracy on dev; None where none is trained."""
    there = [name for name in CLASSIFIERS if found.row(name).get(CHOSEN_BY) is not None]
    return max(there, key=lambda name: found.row(name)[CHOSEN_BY], default=None)


def read(reader: overview.Read, name: str) -> Results:
    """The rows of a set, with gains over its FactorCell."""
    kinds = [rows_of(reader(f"{kind}_{name}")) for kind in ("tacl", "tacl_baselines", "tacl_beyond")]
    return Results.of(list(itertools.chain(*kinds)), MODEL)


def table(name: str, unit: str, found: Results) -> str:
    """A set: the FactorCell, what goes beyond it, and the classifiers. `found` has gains over the FactorCell."""
    best = best_classifier(found)
    lines = [line(found, row, best) for row in (MODEL, *experiment(name).rows, *CLASSIFIERS)]
    header = ["model", f"perplexity per {unit}, known targets", *HEADER]
    return markdown(header, lines) + (on_fresh(found) if found.candidates else f"\n{NO_ROW}")


def on_fresh(found: Results) -> str:
    """A line about what n-grams bring on texts that are not known again."""
    texts, gain = found.row(WITH).get("fresh_texts"), found.shown(WITH, "fresh_gain", ".1f", 100.0)
    shared = f"share no {RUN} words in a row with a training text"
    return f"\n{texts:,} texts of the test {shared}.\nOn these the gain of `{WITH}` is {gain} %.\n" if texts else ""


def line(found: Results, row: str, best: str | None) -> list[str]:
    """The figures of a row, and its accuracy beside that of the best classifier."""
    gain = "" if row == MODEL else found.gain(row)
    above = found.difference(row, ACCURACY, best) if best and row != best else None
    figures = found.row(row)
    return [
        row,
        found.shown(row, "perplexity_known"),
        gain,
        found.shown(row, ACCURACY, ".1f", 100.0),
        "" if above is None else above.told(".1f", 100.0, ""),
        found.shown(row, "classifier_calibration_error", ".1f", 100.0),
        shown(figures.get("classifier_temperature")),
    ]
