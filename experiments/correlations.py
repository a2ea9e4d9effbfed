"""Correlations of pairs of figures with 95 % confidence intervals."""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from factorcell.evaluation.text_figures import LEVEL
from study import Row

NORMAL_QUANTILE = NormalDist().inv_cdf((1 + LEVEL) / 2)  # half width of a normal interval in standard deviations


def correlation(first: Sequence[float], second: Sequence[float]) -> Row:
    """Return Pearson's correlation `r`, its interval (`low`, `high`), and the number `n` of pairs.

    The interval follows from Fisher's transformation. r is None if one side is constant or there are fewer than three
    pairs; the interval is None for fewer than four pairs. Pairs with a value that is not finite are omitted.
    """
    pairs: Any = _finite_pairs(first, second)
    count = len(pairs)
    if count < 3 or (np.ptp(pairs, axis=0) == 0).any():
        return {"r": None, "low": None, "high": None, "n": count}
    r = max(-1.0, min(1.0, float(np.corrcoef(pairs.T)[0, 1])))
    if count < 4:
        return {"r": r, "low": None, "high": None, "n": count}
    if abs(r) > 1 - 1e-12:
        return {"r": r, "low": r, "high": r, "n": count}
    half_width = NORMAL_QUANTILE / math.sqrt(count - 3)
    low, high = (math.tanh(math.atanh(r) + sign * half_width) for sign in (-1, 1))
    return {"r": r, "low": low, "high": high, "n": count}


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> Row:
    """Return Spearman's rank correlation in the format of `correlation`."""
    first_values, second_values = _finite_pairs(first, second).T
    return correlation(rankdata(first_values).tolist(), rankdata(second_values).tolist())


def _finite_pairs(first: Sequence[float], second: Sequence[float]) -> NDArray[np.float64]:
    return np.array([pair for pair in zip(first, second, strict=True) if np.isfinite(pair).all()]).reshape(-1, 2)
