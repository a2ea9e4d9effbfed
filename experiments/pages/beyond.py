"""The tables of what goes beyond the papers: one scorer of the best, and contexts told apart as classifiers do."""

import itertools
import math

from factorcell.evaluation.statistics import INTERVAL
from pages import overview
from pages.markdown import NO_ROW, markdown, shown, with_none
from pages.results import Results, rows_of
from tacl import SETS
from tacl_baselines import CLASSIFIERS
from tacl_beyond import MODEL, RUN, WITH, experiment

TOLD = "told"
GO_ON = (TOLD, WITH)  # rows whose trainings begin with those of the FactorCell, seed by seed
CODE_TEXTS, WANTED = 3000, 0.2  # texts of dev that the published code is measured on; by how much fewer are to be wrong
ACCURACY, CHOSEN_BY = "classifier_accuracy", "classifier_dev_accuracy"
CALIBRATION = "classifier_calibration_error"
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


def reached(reader: overview.Read, code: float) -> str:
    """Of each set what telling apart brings beside the best classifier, and what it costs; `code` as `fewer`."""
    lines, of_news = list[list[str]](), ""
    for name in SETS:
        found = read(reader, name)
        best = best_classifier(found)
        if best is None or TOLD not in found:
            continue
        accuracies = [found.shown(row, ACCURACY, ".1f", 100.0) for row in (best, TOLD)]
        above, calibration = found.difference(TOLD, ACCURACY, best), found.shown(TOLD, CALIBRATION, ".1f", 100.0)
        told = "" if above is None else above.told(".1f", 100.0)
        lines.append([name, best, *accuracies, told, gained(found, TOLD), calibration])
        of_news += fewer(found, code) if name == "agnews" else ""
    header = ["set", "best classifier", "its accuracy, %", "told, accuracy, %", "above, points"]
    return with_none([*header, "gain, known targets", "calibration error, %"], lines) + of_news


def gained(found: Results, row: str) -> str:
    """By what share the perplexity of a row lies below that of the FactorCell."""
    if row not in GO_ON:
        return found.gain(row) if row != MODEL else ""
    own = found.lower(row, "perplexity_known", MODEL, paired=True)
    return "" if own is None else own.told(".1f", 100.0, "%")


def fewer(found: Results, code: float) -> str:
    """By how much our models make fewer errors than the published code, whose accuracy on news is `code` per cent."""
    rows = [row for row in (TOLD, "ensemble") if found.row(row).get(ACCURACY)]
    told = [f"`{row}` makes {share(found, row, 1 - code / 100)} fewer on the test" for row in rows]
    wrong = f"On news the published code, trained once, errs on {100 - code:.1f} % of {CODE_TEXTS:,} texts of dev"
    larger = "Ours are larger, of 200 hidden units for 110."
    return f"\n{wrong};\n{', '.join(told)}; {WANTED:.0%} fewer were wanted.\n{larger}\n" if told else ""


def share(found: Results, row: str, code: float) -> str:
    """By what share a row makes fewer errors than `code`, a share of errors on other texts, each wrong by chance."""
    wrong, (_, texts) = 1 - found.row(row)[ACCURACY], found.units(row, ACCURACY)
    reach = INTERVAL * math.hypot(
        *(math.sqrt((1 - one) / (one * count)) for one, count in ((wrong, texts), (code, CODE_TEXTS)))
    )
    low, point, high = (1 - wrong / code * math.exp(factor * reach) for factor in (1, 0, -1))
    return f"{point:.0%} [{low:.0%}, {high:.0%}]"


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
    above = found.difference(row, ACCURACY, best) if best and row != best else None
    figures = found.row(row)
    return [
        row,
        found.shown(row, "perplexity_known"),
        gained(found, row),
        found.shown(row, ACCURACY, ".1f", 100.0),
        "" if above is None else above.told(".1f", 100.0, ""),
        found.shown(row, CALIBRATION, ".1f", 100.0),
        shown(figures.get("classifier_temperature")),
    ]
