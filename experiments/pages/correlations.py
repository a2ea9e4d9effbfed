"""Correlations of what models of several groups say: within the groups, and of several sets together."""

import math
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from factorcell.evaluation.statistics import INTERVAL, correlation
from study import Row

Floats = NDArray[np.float64]


def within(first: Sequence[float], second: Sequence[float], groups: Sequence[Hashable]) -> Row:
    """The correlation of two columns beyond the means of their groups, as `pooled` has it.

    Each group but one counts as a trial less, since its mean is fitted.
    """
    names = list(dict.fromkeys(groups))
    which = np.array([names.index(group) for group in groups], dtype=np.int64)
    beyond = [beyond_means(np.asarray(column, dtype=np.float64), which) for column in (first, second)]
    found = correlation(*(column.tolist() for column in beyond))
    return pooled([{**found, "free": found["n"] - 3 - (len(names) - 1)}])


def beyond_means(column: Floats, which: NDArray[np.int64]) -> Floats:
    """What each number lies above the mean of its group; rounded, so that it is zero where groups say all."""
    means = np.bincount(which, column) / np.bincount(which)
    found: Floats = np.round(column - means[which], 12)
    return found


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
