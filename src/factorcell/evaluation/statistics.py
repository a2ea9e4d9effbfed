"""Correlations of figures, with their intervals."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Row = dict[str, Any]

INTERVAL = 1.959964  # standard deviations around the middle 95 % of a normal distribution


def correlation(first: Sequence[float], second: Sequence[float]) -> Row:
    """Pearson's r of two columns with its middle 95 % by Fisher's transformation, and n.

    r is None where one does not vary or has fewer than three numbers; the interval is None under four. Pairs without
    a number are omitted.
    """
    pairs = np.array([pair for pair in zip(first, second, strict=True) if np.isfinite(pair).all()]).reshape(-1, 2)
    count = len(pairs)
    if count < 3 or (np.ptp(pairs, axis=0) == 0).any():
        return {"r": None, "low": None, "high": None, "n": count}
    r = float(np.clip(np.corrcoef(pairs.T)[0, 1], -1.0, 1.0))
    if count < 4:
        return {"r": r, "low": None, "high": None, "n": count}
    if abs(r) > 1 - 1e-12:
        return {"r": r, "low": r, "high": r, "n": count}
    wide = INTERVAL / math.sqrt(count - 3)
    return {"r": r, "low": math.tanh(math.atanh(r) - wide), "high": math.tanh(math.atanh(r) + wide), "n": count}


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> Row:
    """Spearman's: the correlation of ranks, equal numbers sharing their mean rank."""
    return correlation(_ranks(first), _ranks(second))


def _ranks(values: Sequence[float]) -> list[float]:
    _, which, counts = np.unique(np.asarray(values, dtype=float), return_inverse=True, return_counts=True)
    ranks: list[float] = (np.cumsum(counts) - (counts - 1) / 2)[which].tolist()
    return ranks
