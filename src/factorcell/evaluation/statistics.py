"""How sure figures are: differences of models over texts and trainings, correlations; each with its interval.

Of a model m with trainings s, the figure of a draw of texts is the mean over s of R_ms, the ratio of the sums over
those texts. Its difference d to another model has an interval of 95 % over texts, from l to u, by the bootstrap. Where
models were trained several times the spread of trainings joins it:

    [d - sqrt((d - l)^2 + (t e)^2), d + sqrt((u - d)^2 + (t e)^2)],    e^2 = v (1 / S_1 + 1 / S_2)

with v the pooled variance of R_ms over the S_1 and S_2 trainings, and t that of Student for S_1 + S_2 - 2 degrees of
freedom. It is how confidence limits of independent parts of a sum are joined (Zou and Donner 2008). A model in which
nothing is by chance, such as one of counts, has no part in v, e and t. An interval of another level has t of that
level, and d - l and u - d of texts as much wider as those of a normal distribution.
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
INTERVAL = NormalDist().inv_cdf((1 + LEVEL) / 2)  # standard deviations around the middle of a normal distribution

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Ratios:
    """One figure of M models over the same N texts: `drawn` (1 + D, M) of all texts and of every draw of them.

    `trained` has the figure of each training of each model, of a model without chance none.
    """

    drawn: Floats
    trained: tuple[Floats, ...]
    texts: int

    @classmethod
    def of(cls, models: Sequence[Sequence[TextSums]], seed: int = 0, exact: Container[int] = ()) -> "Ratios | None":
        """Those of models by their trainings; None unless all are of the same texts, and each has some.

        Texts that one of the models omits are left out of all. In the models at the places `exact` nothing is by
        chance.
        """
        every = [sums for trainings in models for sums in trainings]
        if not all(models):
            return None
        if len({(sums.texts, len(sums.below)) for sums in every}) > 1:
            return None
        counted = np.logical_and.reduce([sums.counted for sums in every])
        below = every[0].below[counted]
        if not len(below) or not all(np.array_equal(sums.below[counted], below) for sums in every):
            return None
        above = [np.mean([sums.above[counted] for sums in trainings], axis=0) for trainings in models]
        drawn = bootstrap.sums(np.stack([below, *above], axis=1), seed=seed)
        with np.errstate(invalid="ignore", divide="ignore"):
            trained = tuple(
                np.array([sums.above[counted].sum() / below.sum() for sums in trainings if place not in exact])
                for place, trainings in enumerate(models)
            )
            return cls(drawn[:, 1:] / drawn[:, :1], trained, int(np.count_nonzero(below)))

    def interval(self, model: int) -> Interval:
        """Return the figure of `model`, with the interval over texts and over its trainings."""
        return widened(bootstrap.middle(self.drawn[:, model], self.texts), self.trained[model], np.zeros(0))

    def difference(self, one: int, other: int, paired: bool = False, level: float = LEVEL) -> Interval:
        """How far model `one` lies above model `other`, with what other texts and other trainings would change.

        Where trainings are `paired`, the same ones going on in two ways, only their differences spread.
        """
        with np.errstate(invalid="ignore"):
            found = bootstrap.middle(self.drawn[:, one] - self.drawn[:, other], self.texts)
        first, second = self.trained[one], self.trained[other]
        spread = (first - second, second[:0]) if paired else (first, second)
        return widened(found, *spread, level)

    def ahead(self, highest: bool) -> int | None:
        """The model that is better than every other beyond their intervals; None where there is none such."""
        return bootstrap.ahead(self.drawn[0], highest, self.difference)


def widened(found: Interval, one: Floats, other: Floats, level: float = LEVEL) -> Interval:
    """The interval of a difference over texts, with the spread of the trainings of both models, if any has several.

    A model without chance has no trainings. The interval `found`, over texts, has a level of .95.
    """
    if found.low is None or found.high is None:
        return found
    trained = [values for values in (one, other) if len(values)]
    freedom = sum(len(values) - 1 for values in trained)
    wide = student(freedom, level) * deviation(trained, freedom) if freedom else 0.0
    times = NormalDist().inv_cdf((1 + level) / 2) / INTERVAL
    low, high = (math.hypot(times * (end - found.point), wide) for end in (found.low, found.high))
    return Interval(found.point, found.point - low, found.point + high)


def deviation(trained: Sequence[Floats], freedom: int) -> float:
    """That of the difference of the means of two models, e, by their pooled variance."""
    squares = sum(float(((values - values.mean()) ** 2).sum()) for values in trained)
    return math.sqrt(squares / freedom * sum(1 / len(values) for values in trained))


@cache
def student(freedom: int, level: float = LEVEL) -> float:
    """The t that a share `level` of Student's distribution lies within.

    Its density over t = sqrt(n) tan(a) is cos(a)^(n - 1).
    """
    angles = np.linspace(0, math.pi / 2, 200_001)
    density = np.cos(angles) ** (freedom - 1)
    mass = np.append(0.0, np.cumsum((density[1:] + density[:-1]) / 2))
    return float(math.sqrt(freedom) * np.tan(np.interp(level * mass[-1], mass, angles)))


def gain(nats: Interval) -> Interval:
    """By what share a perplexity lies below another, from the nats per target that the other has more."""
    with np.errstate(over="ignore"):  # a model that got lost
        point, *ends = (None if value is None else float(-np.expm1(-value)) for value in nats)
    assert point is not None
    return Interval(point, *ends)


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
    """Spearman's: the correlation of ranks, equal numbers sharing their mean rank; pairs without a number omitted."""
    pairs = np.array([pair for pair in zip(first, second, strict=True) if np.isfinite(pair).all()]).reshape(-1, 2)
    return correlation(*(ranks(column).tolist() for column in pairs.T))


def ranks(values: Sequence[float] | NDArray[Any]) -> Floats:
    """The rank of each value, 1 the lowest; equal ones share their mean rank."""
    _, which, counts = np.unique(np.asarray(values, dtype=float), return_inverse=True, return_counts=True)
    found: Floats = (np.cumsum(counts) - (counts - 1) / 2)[which]
    return found


def auc(scores: Floats, positive: NDArray[np.bool_]) -> float:
    """Area under the ROC curve: how often a positive scores above a negative, ties counted half."""
    wanted, total = int(positive.sum()), len(positive)
    if wanted in (0, total):
        return math.nan
    return float((ranks(scores)[positive].sum() - wanted * (wanted + 1) / 2) / (wanted * (total - wanted)))
