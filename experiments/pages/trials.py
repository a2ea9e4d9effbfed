"""What models of random sizes say together: whether perplexity and accuracy go along, and what a rank is worth."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import tacl
from factorcell import bootstrap
from factorcell.bootstrap import Interval
from factorcell.config import PAPER_MODELS
from factorcell.evaluation.statistics import Ratios
from factorcell.evaluation.text_figures import TextSums
from pages.correlations import within
from pages.markdown import markdown, shown, with_none
from study import Row, ungrouped

KNOWN, FIGURE = "perplexity_known", "perplexity per unit, known targets"
LEAST = 10  # models, before anything is said of them
RANK, WEIGHTS = 20, 120_000  # of which the paper's sentence is
DRAWS = 2000

Floats = NDArray[np.float64]


class Worth(NamedTuple):
    """What rank 20 saves of the perplexity, and how many weights of W would save as much, if more of them save any.

    Also what that rank brings in accuracy, and what a bias of each value in place of one of low rank brings in both;
    None where no trial has one.
    """

    saved: Interval
    weights: float | None
    told: Interval = Interval(0.0)
    saved_each: Interval | None = None
    told_each: Interval | None = None


def of_class(rows: Sequence[Row], model: str) -> list[Row]:
    """The trials of a class of models."""
    return [row for row in rows if model_of(row) == model and row.get("accuracy") is not None]


def model_of(row: Row) -> str:
    """The class of a trial."""
    return str(row["row"].rpartition(" ")[0])


def together(rows: Sequence[Row], model: str) -> Row:
    """The correlation of log perplexity and accuracy over the trials of a class, within each kind of softmax bias.

    One of each value is more accurate than one of low rank, whatever the perplexity.
    """
    own = of_class(rows, model)
    logs = [float(np.log(row["perplexity_known"])) for row in own]
    return within(logs, [row["accuracy"] for row in own], [one_hot(row) for row in own])


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


def worth(rows: Sequence[Row]) -> Worth | None:
    """Least squares of log perplexity and of accuracy on what is drawn: the rank, 0 of a ConcatCell, and all else.

    Intervals are those of trials drawn again. None of fewer than `LEAST` trials.
    """
    ranked = [(row, model_rank(row)) for model in ("factorcell", "concatcell") for row in of_class(rows, model)]
    if len(ranked) < LEAST:
        return None
    inputs = np.array([(1.0, float(np.log(recurrent_weights(row))), rank, *besides(row)) for row, rank in ranked])
    figures = np.array([(np.log(row["perplexity_known"]), row["accuracy"]) for row, _ in ranked], dtype=np.float64)
    slopes = np.array([fitted(inputs, figures, counted) for counted in bootstrap.counts(len(ranked), DRAWS)])
    (size, rank), each = slopes[0, 1:3, 0], inputs[:, -1].any()
    weights = float(WEIGHTS * np.exp(RANK * rank / size)) if size < 0 and rank < 0 else None
    return Worth(
        bootstrap.middle(-np.expm1(RANK * slopes[:, 2, 0])),
        weights,
        bootstrap.middle(RANK * slopes[:, 2, 1]),
        bootstrap.middle(-np.expm1(slopes[:, -1, 0])) if each else None,
        bootstrap.middle(slopes[:, -1, 1]) if each else None,
    )


def model_rank(row: Row) -> int:
    """The rank of a trial that has one, else 0."""
    return int(row["config"]["model"]["rank"]) if model_of(row) == "factorcell" else 0


def besides(row: Row) -> tuple[float, ...]:
    """What else is drawn of a model that its perplexity may hang on: dropout, context size and the kind of its bias."""
    model = row["config"]["model"]
    return float(model["dropout_recurrent"]), float(np.log(model["context_size"])), float(one_hot(row))


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
        if found := worth(rows):
            brought += effects(name, found)
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


def told(found: Row) -> str:
    """A correlation with its interval; nothing where there is none."""
    return f"{found['r']:+.2f} [{found['low']:+.2f}, {found['high']:+.2f}]" if found["low"] is not None else ""


def effects(name: str, found: Worth) -> list[list[str]]:
    """What the paper says of its figure 5, of a set, and what it says below of accuracy: lines of the second table."""
    weights = f"{found.weights:,.0f}" if found.weights else "none"
    rank = [found.saved.told(".1f", 100.0), found.told.told(".1f", 100.0), weights if found.saved.sign == 1 else ""]
    lines = [[name, f"a rank of {RANK} for 0", *rank]]
    if found.saved_each is not None and found.told_each is not None:
        each = [one.told(".1f", 100.0) for one in (found.saved_each, found.told_each)]
        lines.append([name, "a bias of each value for one of low rank", *each, ""])
    return lines
