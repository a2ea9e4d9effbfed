"""Tables 6.1 to 6.5 of the thesis and its figures 6.1 to 6.4: texts that fit their context."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from factorcell.config import PAPER_MODELS
from factorcell.evaluation.statistics import correlation
from lengths import MODEL, PENALTIES
from pages import correlations, trials
from pages.beside import ahead
from pages.markdown import NO_ROW, markdown, shown, with_none
from pages.results import Results
from study import Row
from thesis_specificity import TEMPLATES

ORDER = tuple(reversed(PAPER_MODELS[1:]))  # as tables 6.1 to 6.3 have them
WRITERS = (*PAPER_MODELS, "prefix")
WRITTEN = ("fit, %", "deviation, values", "5-grams copied, %")  # of what models write, and of real texts
ABOVE = "above unadapted, points"
WITHIN, AMONG = ("accuracy", "accuracy within classes"), ("rank", "perplexity")  # over all models, over FactorCells
TOWNS = {"town_any": "a town", "town_own": "their hotel's", "town_commonest": "the commonest one"}

Published = Mapping[str, Sequence[float]]


class Drawn(NamedTuple):
    """Texts of models of random sizes: whose rows they are, what they fit, and which figures they belong to."""

    rows: str
    fit: str
    by_accuracy: str
    by_rank: str


DRAWN = {
    "ratings": Drawn("specificity_trials_ratings", "rating", "6.1", "6.2"),
    "sampled": Drawn("sampled_trials_hotels", "rating, sampled", "6.1", "6.2"),
    "hotels": Drawn("specificity_trials_hotels", "class", "6.4", "6.3"),
}


def fillers(found: Results) -> str:
    """Tables 6.1 to 6.3: what fills the gap for each rating, the first seed of each model."""
    told = {name: found.first(name).get("fillers", []) for name in ORDER}
    told = {name: own if isinstance(own, list) else [] for name, own in told.items()}
    parts = []
    for place, template in enumerate(TEMPLATES):
        rows = {name: own[place] for name, own in told.items() if own}
        values = next((list(own) for own in rows.values()), [])
        lines = [[value, *(rows.get(name, {}).get(value, "") for name in ORDER)] for value in values]
        parts.append(f"“{template}”\n\n{with_none(['rating', *ORDER], lines)}")
    return "\n".join(parts)


def specificity(found: Results, published: Published, real: Sequence[float]) -> str:
    """Tables 6.4 and 6.5: how many texts are judged to fit, how far off and how much copied they are, the perplexity.

    Real texts, of which print has the figures `real`, have no perplexity.
    """
    lines = []
    for name in WRITERS:
        fit, *others = written(found, name)
        figures = [
            fit,
            ahead(found, name, PAPER_MODELS[0], "specificity"),
            *others,
            found.shown(name, "perplexity_known"),
        ]
        first, *rest = published.get(name, [None] * 3)
        printed = [shown(first, ".1f"), *map(shown, rest)]
        lines.append([name, *figures, *printed])
    perplexity = "perplexity per word, known targets"
    heads = [WRITTEN[0], ABOVE, *WRITTEN[1:], perplexity]
    header = ["model", *heads, "thesis: fit, %", WRITTEN[1], f"thesis: {perplexity}"]
    if not found.candidates:
        return f"{markdown(header, lines)}\n{NO_ROW}"
    theirs = [shown(real[0], ".1f"), shown(real[1]), ""]
    lines += [["real texts", fit, "", *own, "", *theirs] for fit, *own in real_texts(found)]
    orders = found.orders("specificity", {name: row[0] for name, row in published.items()})
    return f"{markdown(header, lines)}\nFit: {orders}{towns(found)}"


def written(found: Results, name: str, how: str = "") -> list[str]:
    """What is judged of the texts that a row wrote, in the columns `WRITTEN`; `how` ends the names of its figures."""
    fit, copied = (found.shown(name, f"{key}{how}", ".1f", 100.0) for key in ("specificity", "copied_5"))
    return [fit, found.shown(name, f"deviation{how}"), copied]


def real_texts(found: Results) -> list[list[str]]:
    """The same of real texts, from the row that has most of it: older ones lack what is copied. None without any."""
    every: list[Row] = [row.get("real", {}) for one in found.candidates for row in one.rows]
    real = max(every, key=len, default={})
    copied = shown(100 * real.get("copied_5", np.nan), ".1f")
    return [[shown(100 * real["accuracy"], ".1f"), shown(real["deviation"]), copied]] if real else []


def sampled(found: Results) -> str:
    """Texts that are sampled: how many are judged to fit, beside those of the unadapted model and real ones."""
    lines = []
    for name in (name for name in PAPER_MODELS if name in found):
        fit, *others = written(found, name)
        lines.append([name, fit, ahead(found, name, PAPER_MODELS[0], "specificity"), *others])
    lines += [["real texts", fit, "", *others] for fit, *others in real_texts(found)]
    return with_none(["model", WRITTEN[0], ABOVE, *WRITTEN[1:]], lines)


def lengths(every: Mapping[str, Results]) -> str:
    """Texts whose length is free: what is judged of them by each way to choose the best, the sum as printed first."""
    printed, *_ = PENALTIES
    lines = []
    for name, found in every.items():
        for by in PENALTIES if MODEL in found else ():
            told = found.within(MODEL, f"specificity_{by}", f"specificity_{printed}") if by != printed else None
            fit, *others = written(found, MODEL, f"_{by}")
            above = "" if told is None else told.told(".1f", 100.0)
            lines.append([name, f"the {by}", fit, above, found.shown(MODEL, f"tokens_{by}", ".1f"), *others])
        lines += [[name, "real texts", fit, "", "", *others] for fit, *others in real_texts(found)]
    fit, *others = WRITTEN
    return with_none(["set", "best by", fit, f"above the {printed}, points", "tokens", *others], lines)


def towns(found: Results) -> str:
    """How many texts of each model mention a town, beside real texts; nothing where none is written for a hotel."""
    rows = {name: [found.shown(name, key, ".1f", 100.0) for key in TOWNS] for name in WRITERS}
    real = next((one.rows[0] for one in found.candidates if "real_town_any" in one.rows[0]), None)
    if real is None:
        return ""
    rows["real texts"] = [shown(100 * real[f"real_{key}"], ".1f") for key in TOWNS]
    header = ["model", *(f"mention {what}, %" for what in TOWNS.values())]
    return f"\n{markdown(header, [[name, *figures] for name, figures in rows.items()])}"


def joined(written: Sequence[Row], told: Sequence[Row]) -> list[Row]:
    """The trials that have written, with the accuracy that they have as classifiers."""
    accuracy = {row["row"]: row.get("accuracy") for row in told}
    rows = [{**row, "accuracy": accuracy.get(row["row"])} for row in written if "specificity" in row]
    return [row for row in rows if row["accuracy"] is not None]


def along(rows: Sequence[Row], what: str) -> Row:
    """The correlation of specificity with accuracy over all models, with rank or log perplexity over FactorCells.

    "accuracy within classes" is that beyond what the classes of models differ by.
    """
    if what.startswith("accuracy"):
        told, fit = ([float(row[key]) for row in rows] for key in ("accuracy", "specificity"))
        if what != "accuracy":
            told, fit = (correlations.beyond_means(column, [*map(trials.model_of, rows)]) for column in (told, fit))
        return trials.correlated(told, fit, rows)
    own = trials.of_class(rows, PAPER_MODELS[-1])
    values = [row["config"]["model"]["rank"] if what == "rank" else np.log(row["perplexity_known"]) for row in own]
    return correlation(values, [row["specificity"] for row in own])


def figures(sets: Mapping[str, Sequence[Row]]) -> str:
    """Figures 6.1 to 6.4: a line for each correlation, and the means of the classes of models."""
    lines, means = [], []
    for name, rows in sets.items():
        _, fit, by_accuracy, by_rank = DRAWN[name]
        places = {**dict.fromkeys(WITHIN, by_accuracy), **dict.fromkeys(AMONG, by_rank)}
        for kind, place in places.items() if rows else ():
            found = along(rows, kind)
            lines.append([place, fit, kind, str(found["n"]), correlations.told(found)])
        means += [[fit, model, *_means(trials.of_class(rows, model))] for model in ORDER]
    text = with_none(["figure", "fit", "texts that fit, with", "models", "correlation"], lines)
    header = ["fit", "model", "models", "accuracy, %", "fit, %"]
    return text + (f"\n{markdown(header, [line for line in means if line[2] != '0'])}" if lines else "")


def _means(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return ["0", "", ""]
    means = [100 * float(np.mean([row[key] for row in rows])) for key in ("accuracy", "specificity")]
    return [str(len(rows)), *(shown(mean, ".1f") for mean in means)]
