"""Confidence intervals by the bootstrap (Efron 1979).

A figure is computed from sums over units, such as exp(sum of nats / sum of targets) over texts. A draw takes as many
units with replacement; the interval is the middle 95 % of the figures of all draws. Figures that share their draws are
paired.

Shapes: U units, D draws, S sums.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

DRAWS = 1000
MIN_UNITS = 10  # units, below which there is no interval
MANY = 4000  # units, beyond which they are drawn in so many groups of random ones
BLOCK = 1 << 22  # counts of units that are held at once
MIDDLE = (0.025, 0.975)

Floats = NDArray[np.float64]


class Interval(NamedTuple):
    """A figure with the ends of its confidence interval; both ends are None if there were too few units."""

    point: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def from_row(cls, row: Mapping[str, Any], name: str) -> "Interval | None":
        """Read the interval that `Interval.row` stored; None if `row` has no such figure."""
        point = row.get(name)
        return None if point is None else cls(point, row.get(f"{name}_low"), row.get(f"{name}_high"))

    def to_row(self, name: str) -> dict[str, float | None]:
        """The figure and its ends as a row of JSON: `name`, `name`_low and `name`_high."""
        return {name: self.point, f"{name}_low": self.low, f"{name}_high": self.high}

    @property
    def sign(self) -> int:
        """1 or -1 if the whole interval is above or below zero, 0 if it contains zero or does not exist."""
        if self.low is None or self.high is None:
            return 0
        return int(self.low > 0) - int(self.high < 0)

    def to_text(self, form: str = ".2f", scale: float = 1.0, unit: str = "") -> str:
        """A difference as people read it: +2.1% [+1.0, +3.2], and that there is none where the interval holds zero.

        Nor is there one where both ends are zero as they are shown: rounding alone may lie between equal models.
        """
        point = f"{scale * self.point:+{form}}{unit}"
        if self.low is None or self.high is None:
            return point
        low, high = (f"{scale * end:+{form}}" for end in (self.low, self.high))
        same = not self.sign or float(low) == float(high) == 0
        return f"{point} [{low}, {high}]" + (" no difference" if same else "")


def resampling_counts(units: int, draws: int = DRAWS, seed: int = 0) -> Floats:
    """How often each unit counts: once in the first line, then as every draw has it (1 + D, U)."""
    return np.concatenate([np.ones((1, units)), *_drawn(units, draws, seed)])


def resampled_sums(values: Floats, draws: int = DRAWS, seed: int = 0) -> Floats:
    """Sums of `values` (U, S) over all units in the first line, then over every draw (1 + D, S)."""
    units = _grouped(values, seed) if len(values) > MANY else values
    with np.errstate(invalid="ignore"):  # a model that got lost has infinite nats
        drawn = [counted @ units for counted in _drawn(len(units), draws, seed)]
    return np.concatenate([values.sum(axis=0)[None], *drawn])


def _grouped(values: Floats, seed: int) -> Floats:
    """Sums over `MANY` groups of random units, which vary as much as the units themselves."""
    groups = np.random.default_rng((seed, len(values))).permutation(len(values)) % MANY
    return np.stack([np.bincount(groups, weights=column, minlength=MANY) for column in values.T], axis=1)


def _drawn(units: int, draws: int, seed: int) -> Iterator[Floats]:
    """How often each unit is in every draw, some draws at a time."""
    random, shares = np.random.default_rng(seed), np.full(units, 1 / units)
    step = max(1, BLOCK // units)
    for begin in range(0, draws, step):
        yield random.multinomial(units, shares, size=min(step, draws - begin)).astype(np.float64)


def clear_winner(points: Floats, highest: bool, difference: Callable[[int, int], Interval]) -> int | None:
    """Which of `points` (M,) is the best, and better than every other one beyond the interval of their `difference`."""
    if len(points) < 2 or not np.isfinite(points).all():
        return None
    sign = 1 if highest else -1
    best = int((sign * points).argmax())
    return best if all(difference(best, m).sign == sign for m in range(len(points)) if m != best) else None


def percentile_interval(points: Floats, units: int | None = None) -> Interval:
    """A figure (1 + D,), itself first, with the middle 95 % of its finite draws; no interval of `FEW` units."""
    drawn = points[1:][np.isfinite(points[1:])]
    if not len(drawn) or not math.isfinite(points[0]) or (units is not None and units < MIN_UNITS):
        return Interval(float(points[0]))
    low, high = np.quantile(drawn, MIDDLE).tolist()
    return Interval(float(points[0]), low, high)
