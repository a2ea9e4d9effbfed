"""Differences between models over texts and trainings, and correlations, each with its 95 % interval.

The figure of a model m with trainings s is the mean over s of R_ms, a ratio of sums over texts. Its difference d to
another model has an interval over texts, [l, u], by the bootstrap. If models were trained several times, the spread of
trainings is added:

    [d - sqrt((d - l)^2 + (t e)^2), d + sqrt((u - d)^2 + (t e)^2)],    e^2 = v (1 / S_1 + 1 / S_2)

with v the pooled variance of R_ms over the S_1 and S_2 trainings, and t that of Student for S_1 + S_2 - 2 degrees of
freedom, as confidence limits of independent parts of a sum are combined (Zou and Donner 2008). A deterministic model,
such as an n-gram model, has no part in v, e and t.

Shapes: M models, N texts, D draws.
"""

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell import bootstrap
from factorcell.bootstrap import Interval
from factorcell.evaluation.text_figures import TextSums

Row = dict[str, Any]

LEVEL = 0.95  # of intervals
NORMAL_QUANTILE = NormalDist().inv_cdf((1 + LEVEL) / 2)  # half an interval, in standard deviations

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Ratios:
    """One figure of M models over the same texts: `drawn` (1 + D, M), first of all texts, then of every draw.

    `trained` has the figure of each training of each model (none for a deterministic model), `texts` their number.
    """

    resampled: Floats
    trained: tuple[Floats, ...]
    texts: int

    @classmethod
    def from_sums(
        cls, models: Sequence[Sequence[TextSums]], seed: int = 0, deterministic: Container[int] = ()
    ) -> "Ratios | None":
        """Compute the figure of models, each given by its trainings; None unless all are of the same texts.

        Texts that one of the models omits are omitted from all. The models at the places `exact` are deterministic.
        """
        every = [sums for trainings in models for sums in trainings]
        if not all(models) or len({(sums.texts, len(sums.denominator)) for sums in every}) > 1:
            return None
        counted = np.logical_and.reduce([sums.is_included for sums in every])
        below = every[0].denominator[counted]
        if not len(below) or not all(np.array_equal(sums.denominator[counted], below) for sums in every):
            return None
        above = [np.mean([sums.numerator[counted] for sums in trainings], axis=0) for trainings in models]
        drawn = bootstrap.resampled_sums(np.stack([below, *above], axis=1), seed=seed)
        with np.errstate(invalid="ignore", divide="ignore"):
            trained = tuple(
                np.array(
                    [sums.numerator[counted].sum() / below.sum() for sums in trainings if place not in deterministic]
                )
                for place, trainings in enumerate(models)
            )
            return cls(drawn[:, 1:] / drawn[:, :1], trained, int(np.count_nonzero(below)))

    def interval(self, model: int) -> Interval:
        """Return the figure of `model`, with the interval over texts and over its trainings."""
        return add_training_variance(
            bootstrap.percentile_interval(self.resampled[:, model], self.texts), self.trained[model], np.zeros(0)
        )

    def difference(self, one: int, other: int, paired: bool = False) -> Interval:
        """Return how far model `one` lies above model `other`.

        If `paired`, the trainings of both models correspond, and only the spread of their differences counts.
        """
        with np.errstate(invalid="ignore"):
            interval = bootstrap.percentile_interval(self.resampled[:, one] - self.resampled[:, other], self.texts)
        first, second = self.trained[one], self.trained[other]
        return add_training_variance(interval, *((first - second, second[:0]) if paired else (first, second)))

    def best_model(self, highest: bool) -> int | None:
        """Return the model that is better than every other beyond their intervals, or None."""
        return bootstrap.clear_winner(self.resampled[0], highest, self.difference)


def add_training_variance(interval: Interval, one: Floats, other: Floats) -> Interval:
    """Add the spread of the trainings of both models to an interval over texts."""
    if interval.low is None or interval.high is None:
        return interval
    trained = [values for values in (one, other) if len(values)]
    freedom = sum(len(values) - 1 for values in trained)
    squares = sum(float(((values - values.mean()) ** 2).sum()) for values in trained)
    pooled = squares / max(1, freedom) * sum(1 / len(values) for values in trained)
    wide = student(freedom) * math.sqrt(pooled) if freedom else 0.0
    low, high = (math.hypot(end - interval.point, wide) for end in (interval.low, interval.high))
    return Interval(interval.point, interval.point - low, interval.point + high)


@cache
def student(freedom: int) -> float:
    """Return the t within which the share `LEVEL` of Student's distribution lies.

    Its density over t = sqrt(n) tan(a) is cos(a)^(n - 1).
    """
    angles = np.linspace(0, math.pi / 2, 200_001)
    density = np.cos(angles) ** (freedom - 1)
    mass = np.append(0.0, np.cumsum((density[1:] + density[:-1]) / 2))
    return float(math.sqrt(freedom) * np.tan(np.interp(LEVEL * mass[-1], mass, angles)))


def gain_from_nats(nats: Interval) -> Interval:
    """Return the relative reduction of a perplexity from the reduction in nats per target."""
    with np.errstate(over="ignore"):  # a model that diverged
        point, *ends = (None if value is None else float(-np.expm1(-value)) for value in nats)
    assert point is not None
    return Interval(point, *ends)


def correlation(first: Sequence[float], second: Sequence[float]) -> Row:
    """Return Pearson's `r` with its interval (`low`, `high`) by Fisher's transformation, and the number `n` of pairs.

    r is None if a column does not vary or there are fewer than three pairs; the interval is None under four. Pairs
    that are not finite are omitted.
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
    wide = NORMAL_QUANTILE / math.sqrt(count - 3)
    return {"r": r, "low": math.tanh(math.atanh(r) - wide), "high": math.tanh(math.atanh(r) + wide), "n": count}


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> Row:
    """Return Spearman's correlation, as `correlation` of the ranks."""
    return correlation(*(ranks(column).tolist() for column in _finite_pairs(first, second).T))


def _finite_pairs(first: Sequence[float], second: Sequence[float]) -> Floats:
    return np.array([pair for pair in zip(first, second, strict=True) if np.isfinite(pair).all()]).reshape(-1, 2)


def ranks(values: Sequence[float] | NDArray[Any]) -> Floats:
    """Return the rank of each value, 1 for the lowest; equal values share their mean rank."""
    _, which, counts = np.unique(np.asarray(values, dtype=float), return_inverse=True, return_counts=True)
    shared: Floats = (np.cumsum(counts) - (counts - 1) / 2)[which]
    return shared


def auc(scores: Floats, positive: NDArray[np.bool_]) -> float:
    """Return the area under the ROC curve: how often a positive scores above a negative, ties counted half."""
    count, total = int(positive.sum()), len(positive)
    if count in (0, total):
        return math.nan
    return float((ranks(scores)[positive].sum() - count * (count + 1) / 2) / (count * (total - count)))
