"""Analysis of models with random sizes: correlations, and the effect of each size by least squares."""

import math
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from correlations import NORMAL_QUANTILE, correlation
from factorcell import bootstrap
from factorcell.bootstrap import Interval
from study import Row

DRAWS = 2000  # bootstrap draws
MIN_MODELS = 10  # minimum for the analysis of effects
# name of a change -> its column in `inputs`, and the difference in that column
CHANGES = {
    "twice as many weights in W": (1, math.log(2)),
    "rank 20 instead of 0": (2, 20.0),
    "context vector twice as long": (3, math.log(2)),
    "a bias for each value instead of low rank": (4, 1.0),
}

Floats = NDArray[np.float64]


def model_of(row: Row) -> str:
    """Return the class of a model: rows are named "class number"."""
    return str(row["row"].rpartition(" ")[0])


def of_class(rows: Sequence[Row], model: str) -> list[Row]:
    return [row for row in rows if model_of(row) == model and row.get("accuracy") is not None]


def has_one_hot_bias(row: Row) -> bool:
    return "one_hot" in row["config"]["model"]["output_bias"]


def draw_counts(rows: Sequence[Row]) -> Floats:
    """Count how often each model is drawn (1 + D, models); models with the same sizes are drawn together."""
    numbers, group_index = np.unique([row["row"].rpartition(" ")[2] for row in rows], return_inverse=True)
    size = len(numbers)
    counts = np.random.default_rng(0).multinomial(size, np.full(size, 1 / size), size=DRAWS)
    return np.concatenate([np.ones((1, size)), counts])[:, group_index]


def deviations(column: Sequence[float], groups: Sequence[Hashable]) -> list[float]:
    """Return the deviation of each value from the mean of its group."""
    names = list(dict.fromkeys(groups))
    group_index = np.array([names.index(group) for group in groups], dtype=np.int64)
    means = np.bincount(group_index, column) / np.bincount(group_index)
    return [round(value, 12) for value in (np.asarray(column) - means[group_index]).tolist()]


def correlation_within_groups(first: Sequence[float], second: Sequence[float], groups: Sequence[Hashable]) -> Row:
    """Correlate two columns within groups; each group mean costs a degree of freedom."""
    result = correlation(deviations(first, groups), deviations(second, groups))
    degrees_of_freedom = result["n"] - 3 - (len(set(groups)) - 1)
    if result["r"] is None or degrees_of_freedom < 1:
        return {**result, "low": None, "high": None}
    center, half_width = (
        float(np.arctanh(np.clip(result["r"], -1 + 1e-12, 1 - 1e-12))),
        NORMAL_QUANTILE / math.sqrt(degrees_of_freedom),
    )
    return {**result, "low": math.tanh(center - half_width), "high": math.tanh(center + half_width)}


def correlation_over_models(first: Sequence[float], second: Sequence[float], rows: Sequence[Row]) -> Row:
    """Correlate two columns over models, with a bootstrap interval if several models have the same sizes."""
    if len({row["row"].rpartition(" ")[2] for row in rows}) == len(rows):
        return correlation(first, second)
    weights = draw_counts(rows)
    weights /= weights.sum(axis=1, keepdims=True)
    columns = np.array([first, second], dtype=np.float64)
    centred = columns[:, None] - (columns @ weights.T)[:, :, None]  # (2, 1 + D, models)
    squares = (weights * centred**2).sum(axis=2)
    with np.errstate(invalid="ignore", divide="ignore"):
        draws = (weights * centred.prod(axis=0)).sum(axis=1) / np.sqrt(squares.prod(axis=0))
    r, low, high = bootstrap.percentile_interval(draws)
    return {"r": r, "low": low, "high": high, "n": len(rows)}


def recurrent_weights(row: Row) -> int:
    hidden = row["config"]["backbone"]["hidden_size"]
    return int(3 * (row["config"]["model"]["embedding_size"] + hidden) * hidden)


def inputs(row: Row) -> tuple[float, ...]:
    """Return a constant and all drawn options: size of W, rank, context size, kind of bias, dropout."""
    model = row["config"]["model"]
    rank = model["rank"] if model_of(row) == "factorcell" else 0
    sizes = math.log(recurrent_weights(row)), float(rank), math.log(model["context_size"])
    return 1.0, *sizes, float(has_one_hot_bias(row)), float(row["config"]["backbone"]["dropout_recurrent"])


def effects(rows: Sequence[Row]) -> dict[str, tuple[Interval, Interval]]:
    """Return how much each change lowers the perplexity (a share) and raises the accuracy.

    Least squares of log perplexity and accuracy on `inputs`, over FactorCells and ConcatCells (rank 0).
    """
    models = [row for model in ("factorcell", "concatcell") for row in of_class(rows, model)]
    if len(models) < MIN_MODELS:
        return {}
    columns = np.array([inputs(row) for row in models])
    figures = np.array([(np.log(row["perplexity_known"]), row["accuracy"]) for row in models], dtype=np.float64)
    roots = np.sqrt(draw_counts(models))[:, :, None]
    slopes = np.array([np.linalg.lstsq(columns * root, figures * root, rcond=None)[0] for root in roots])
    return {
        name: (
            bootstrap.percentile_interval(-np.expm1(change * slopes[:, column, 0])),
            bootstrap.percentile_interval(change * slopes[:, column, 1]),
        )
        for name, (column, change) in CHANGES.items()
        if np.ptp(columns[:, column])
    }
