"""Correlations of what models of several groups say: within the groups, and of several sets together."""

import math
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from factorcell import bootstrap
from factorcell.evaluation.statistics import INTERVAL, correlation
from study import Row

Floats = NDArray[np.float64]


def within(first: Sequence[float], second: Sequence[float], groups: Sequence[Hashable]) -> Row:
    """The correlation of two columns beyond the means of their groups, as `pooled` has it.

    Each group but one counts as a trial less, since its mean is fitted.
    """
    found = correlation(beyond_means(first, groups), beyond_means(second, groups))
    return pooled([{**found, "free": found["n"] - 3 - (len(set(groups)) - 1)}])


def beyond_means(column: Sequence[float], groups: Sequence[Hashable]) -> list[float]:
    """What each number lies above the mean of its group; rounded, so that it is zero where groups say all."""
    names = list(dict.fromkeys(groups))
    which = np.array([names.index(group) for group in groups], dtype=np.int64)
    means = np.bincount(which, column) / np.bincount(which)
    return [round(value, 12) for value in (np.asarray(column) - means[which]).tolist()]


def resampled(first: Sequence[float], second: Sequence[float], counts: Floats) -> Row:
    """The correlation of two columns with the middle 95 % of what it is where each counts so often (1 + D, n)."""
    columns = np.array([first, second], dtype=np.float64)
    if columns.shape[1] < 3 or (np.ptp(columns, axis=1) == 0).any():
        return {"r": None, "low": None, "high": None, "n": columns.shape[1]}
    weights = counts / counts.sum(axis=1, keepdims=True)
    beyond = columns[:, None] - (columns @ weights.T)[:, :, None]  # (2, 1 + D, n)
    squares = (weights * beyond**2).sum(axis=2)
    with np.errstate(invalid="ignore", divide="ignore"):
        drawn = (weights * beyond.prod(axis=0)).sum(axis=1) / np.sqrt(squares.prod(axis=0))
    r, low, high = bootstrap.middle(drawn)
    return {"r": r, "low": low, "high": high, "n": columns.shape[1]}


def pooled(found: Sequence[Row]) -> Row:
    """The mean of correlations of independent sets with its middle 95 %, by Fisher's transformation.

    Each weighs as many trials as it has `free`; without any there is no r. `n` is the count of all trials.
    """
    told = [one for one in found if one["r"] is not None and one["free"] > 0]
    free, count = sum(one["free"] for one in told), sum(one["n"] for one in found)
    if not free:
        return {"r": None, "low": None, "high": None, "n": count, "free": 0}
    limit = 1 - 1e-12  # beyond which the transformation is infinite
    middle = sum(one["free"] * math.atanh(min(max(one["r"], -limit), limit)) for one in told) / free
    r, low, high = (math.tanh(middle + wide) for wide in (0.0, -INTERVAL / math.sqrt(free), INTERVAL / math.sqrt(free)))
    return {"r": r, "low": low, "high": high, "n": count, "free": free}


def told(found: Row) -> str:
    """A correlation with its interval, where it has one; nothing where there is none."""
    interval = f" [{found['low']:+.2f}, {found['high']:+.2f}]" if found["low"] is not None else ""
    return "" if found["r"] is None else f"{found['r']:+.2f}{interval}"
