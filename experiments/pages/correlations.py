"""Correlations of what models of several groups say: within the groups, of draws, and of several sets together."""

import math
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from factorcell import bootstrap
from factorcell.evaluation.statistics import INTERVAL, correlation
from study import Row

Floats = NDArray[np.float64]


def within(first: Sequence[float], second: Sequence[float], groups: Sequence[Hashable]) -> Row:
    """The correlation of two columns beyond the means of their groups, with its middle 95 % by Fisher's transformation.

    Each group but one counts as a trial less, since its mean is fitted; where none are left there is no interval.
    """
    found = correlation(beyond_means(first, groups), beyond_means(second, groups))
    free = found["n"] - 3 - (len(set(groups)) - 1)
    if found["r"] is None or free < 1:
        return {**found, "low": None, "high": None}
    middle, wide = float(transformed(np.array(found["r"]))), INTERVAL / math.sqrt(free)
    return {**found, "low": math.tanh(middle - wide), "high": math.tanh(middle + wide)}


def transformed(r: Floats) -> Floats:
    """Fisher's transformation, finite for all."""
    limit = 1 - 1e-12
    found: Floats = np.arctanh(np.clip(r, -limit, limit))
    return found


def beyond_means(column: Sequence[float], groups: Sequence[Hashable]) -> list[float]:
    """What each number lies above the mean of its group; rounded, so that it is zero where groups say all."""
    names = list(dict.fromkeys(groups))
    which = np.array([names.index(group) for group in groups], dtype=np.int64)
    means = np.bincount(which, column) / np.bincount(which)
    return [round(value, 12) for value in (np.asarray(column) - means[which]).tolist()]


def resampled(first: Sequence[float], second: Sequence[float], counts: Floats) -> Row:
    """The correlation of two columns with the middle 95 % of what it is where each counts so often (1 + D, n)."""
    return across([drawn(first, second, counts)], len(first))


def drawn(first: Sequence[float], second: Sequence[float], counts: Floats) -> Floats:
    """The correlation of two columns (n,) where each counts so often (1 + D, n); no number where one does not vary."""
    columns = np.array([first, second], dtype=np.float64)
    weights = counts / counts.sum(axis=1, keepdims=True)
    beyond = columns[:, None] - (columns @ weights.T)[:, :, None]  # (2, 1 + D, n)
    squares = (weights * beyond**2).sum(axis=2)
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Floats = (weights * beyond.prod(axis=0)).sum(axis=1) / np.sqrt(squares.prod(axis=0))
    return found if np.ptp(columns, axis=1).all() else np.full(len(counts), np.nan)


def across(every: Sequence[Floats], count: int) -> Row:
    """The mean of correlations `drawn` in several sets together, by Fisher's transformation; `count` trials in all."""
    found = np.tanh(np.mean([transformed(one) for one in every], axis=0))
    if not np.isfinite(found[0]):
        return {"r": None, "low": None, "high": None, "n": count}
    r, low, high = bootstrap.middle(found)
    return {"r": r, "low": low, "high": high, "n": count}


def told(found: Row) -> str:
    """A correlation with its interval, where it has one; nothing where there is none."""
    interval = f" [{found['low']:+.2f}, {found['high']:+.2f}]" if found["low"] is not None else ""
    return "" if found["r"] is None else f"{found['r']:+.2f}{interval}"
