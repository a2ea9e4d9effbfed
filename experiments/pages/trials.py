"""What models of random sizes say together: whether perplexity and accuracy go along, and what a rank is worth."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import tacl
from factorcell import bootstrap
from factorcell.bootstrap import Interval
from factorcell.config import PAPER_MODELS
from factorcell.evaluation.statistics import Ratios, correlation
from factorcell.evaluation.text_figures import TextSums
from pages.correlations import across, beyond_means, drawn, resampled, told, within
from pages.markdown import markdown, shown, with_none
from study import Row, ungrouped

KNOWN, FIGURE = "perplexity_known", "perplexity per unit, known targets"
LEAST = 10  # models, before anything is said of them
RANK, WEIGHTS = 20, 120_000  # of which the paper's sentence is
RANKED, LARGER = f"a rank of {RANK} for 0", "a W of twice as many weights"
LONGER, EACH = "a context vector twice as long", "a bias of each value for one of low rank"
CHANGES = {LARGER: (1, math.log(2)), RANKED: (2, float(RANK)), LONGER: (3, math.log(2)), EACH: (4, 1.0)}  # of `options`
DRAWS = 2000

Floats = NDArray[np.float64]


class Effect(NamedTuple):
    """What a change of what is drawn saves of the perplexity, in shares of it, and what it brings in accuracy."""

    saved: Interval
    told: Interval


Effects = Mapping[str, Effect]  # by change


def drawn_again(rows: Sequence[Row], draws: int) -> Floats:
    """How often each trial counts, in all and in every draw (1 + D, trials): those of one number have the same sizes.

    So they are drawn together, as one.
    """
    names, which = np.unique([number_of(row) for row in rows], return_inverse=True)
    return bootstrap.counts(len(names), draws)[:, which]


def of_class(rows: Sequence[Row], model: str) -> list[Row]:
    """The trials of a class of models."""
    return [row for row in rows if model_of(row) == model and row.get("accuracy") is not None]


def model_of(row: Row) -> str:
    """The class of a trial."""
    return str(row["row"].rpartition(" ")[0])


def number_of(row: Row) -> str:
    """The draw of sizes of a trial."""
    return str(row["row"].rpartition(" ")[2])


def together(rows: Sequence[Row], model: str) -> Row:
    """The correlation of log perplexity and accuracy over the trials of a class, within each kind of softmax bias.

    One of each value is more accurate than one of low rank, whatever the perplexity.
    """
    own = of_class(rows, model)
    return within(*both(own), [one_hot(row) for row in own])


def both(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    """Log perplexities and accuracies."""
    return [float(np.log(row["perplexity_known"])) for row in rows], [row["accuracy"] for row in rows]


def across_sets(sets: Sequence[Sequence[Row]], model: str) -> Row:
    """The mean of that of several sets, whose trials have the same sizes by number and are drawn again together."""
    every = [of_class(rows, model) for rows in sets]
    return across([beyond_kinds(own) for own in every], sum(map(len, every)))


def beyond_kinds(rows: Sequence[Row]) -> Floats:
    """The correlation of what lies beyond the means of those of the same kind of bias, in all and in every draw."""
    kinds = [one_hot(row) for row in rows]
    logs, accuracies = (beyond_means(column, kinds) for column in both(rows))
    return drawn(logs, accuracies, drawn_again(rows, DRAWS))


def correlated(first: Sequence[float], second: Sequence[float], rows: Sequence[Row]) -> Row:
    """The correlation of two figures of the trials `rows`, whose sizes are drawn together where several share them."""
    if len({number_of(row) for row in rows}) == len(rows):
        return correlation(first, second)
    return resampled(first, second, drawn_again(rows, DRAWS))


def traded(rows: Sequence[Row]) -> Interval | None:
    """How far the accuracy of the model that has most of it lies above that of the one of lowest perplexity.

    Both are chosen by one half of the texts and held against each other by the other half; None without trials.
    """
    told = [(figures[KNOWN], figures["accuracy"]) for figures in map(ungrouped, rows) if "accuracy" in figures]
    if len(told) < LEAST:
        return None
    halves = [[halved(sums) for sums in one] for one in told]
    by_text = min(halves, key=lambda one: one[0][0].ratio)
    by_label = max(halves, key=lambda one: one[1][0].ratio)
    both = Ratios.of([[by_text[1][1]], [by_label[1][1]]])
    return None if both is None else both.difference(1, 0)


def halved(sums: TextSums) -> tuple[TextSums, TextSums]:
    """What the groups of even numbers, and those of odd ones, add."""
    every = np.arange(len(sums.above))
    return sums.select(every[::2]), sums.select(every[1::2])


def recurrent_weights(row: Row) -> int:
    """The size of W, 3 (e + d) d (figure 4.5)."""
    model = row["config"]["model"]
    return int(3 * (model["embedding_size"] + model["hidden_size"]) * model["hidden_size"])


def effects(rows: Sequence[Row]) -> dict[str, Effect]:
    """What each of `CHANGES` brings, by least squares of log perplexity and of accuracy on all that is drawn.

    Intervals are those of draws of sizes drawn again. Nothing of fewer than `LEAST` trials, nor of what no two differ
    in.
    """
    own = [row for model in ("factorcell", "concatcell") for row in of_class(rows, model)]
    if len(own) < LEAST:
        return {}
    inputs = np.array([options(row) for row in own])
    figures = np.array([(np.log(row["perplexity_known"]), row["accuracy"]) for row in own], dtype=np.float64)
    slopes = np.array([fitted(inputs, figures, counted) for counted in drawn_again(own, DRAWS)])
    return {
        what: Effect(bootstrap.middle(-np.expm1(times * slopes[:, at, 0])), bootstrap.middle(times * slopes[:, at, 1]))
        for what, (at, times) in CHANGES.items()
        if np.ptp(inputs[:, at])
    }


def options(row: Row) -> tuple[float, ...]:
    """What is drawn of a model, after a constant: the size of W, rank, size of the context, kind of bias, dropout."""
    model = row["config"]["model"]
    sizes = math.log(recurrent_weights(row)), float(model_rank(row)), math.log(model["context_size"])
    return 1.0, *sizes, float(one_hot(row)), float(model["dropout_recurrent"])


def weights(found: Effects) -> float | None:
    """How many weights of W save as much as a rank of `RANK`; None if more of them save nothing, or that rank does."""
    larger, rank = (found[what].saved.point for what in (LARGER, RANKED))
    return float(WEIGHTS * 2 ** (math.log1p(-rank) / math.log1p(-larger))) if min(larger, rank) > 0 else None


def model_rank(row: Row) -> int:
    """The rank of a trial that has one, else 0."""
    return int(row["config"]["model"]["rank"]) if model_of(row) == "factorcell" else 0


def one_hot(row: Row) -> bool:
    """Whether the softmax has a bias of each value."""
    return "one_hot" in row["config"]["model"]["output_bias"]


def fitted(inputs: Floats, targets: Floats, counts: Floats) -> Floats:
    """Coefficients (inputs, targets) of least squares in which each line counts so often."""
    root = np.sqrt(counts)[:, None]
    return np.asarray(np.linalg.lstsq(inputs * root, targets * root, rcond=None)[0], dtype=np.float64)


def table(sets: Mapping[str, Sequence[Row]]) -> str:
    """A line for each class of models on each set; then what ranks and kinds of biases bring on each."""
    lines, brought = [], list[list[str]]()
    for name, rows in sets.items():
        unit = tacl.SETS[name].unit
        for model in PAPER_MODELS[1:]:
            if own := of_class(rows, model):
                lines.append([name, unit, model, *cells(rows, own, model)])
        brought += brings(name, effects(rows))
    header = [
        "set",
        "unit",
        "model",
        "trials",
        "correlation",
        f"lowest {FIGURE}",
        "its accuracy, %",
        "best accuracy, %",
        f"its {FIGURE}",
    ]
    larger = f"weights of W that bring as much, of {WEIGHTS:,}"
    effect = ["set", "what", "gain in per cent, known targets", "accuracy above, points", larger]
    return markdown(header, lines) + "\n" + with_none(effect, brought)


def cells(rows: Sequence[Row], own: Sequence[Row], model: str) -> list[str]:
    """The figures of a class."""
    found = together(rows, model)
    by_text = min(own, key=lambda row: row["perplexity_known"])
    by_label = max(own, key=lambda row: row["accuracy"])
    ends = [one for row in (by_text, by_label) for one in (row["perplexity_known"], 100 * row["accuracy"])]
    figures = [shown(ends[0]), shown(ends[1], ".1f"), shown(ends[3], ".1f"), shown(ends[2])]
    return [str(len(own)), told(found), *figures]


def brings(name: str, found: Effects) -> list[list[str]]:
    """What the paper says of its figure 5, of a set, and what it says below: lines of the second table."""
    lines = []
    for what, (saved, brought) in found.items():
        as_much = shown(weights(found), ",.0f") or "none" if what == RANKED and saved.sign == 1 else ""
        lines.append([name, what, saved.told(".1f", 100.0), brought.told(".1f", 100.0), as_much])
    return lines
