"""Confidence intervals by the bootstrap (Efron 1979).

A statistic is computed from sums over units: the perplexity, for example, from the sums of nats and targets over texts.
A draw resamples the units with replacement. The interval contains the middle 95 % of the values of the statistic over
all draws. Two statistics that are computed from the same draws are paired.

Shapes: U units, D draws, S sums.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

DRAW_COUNT = 1000
MIN_UNITS = 10  # smallest number of units for which an interval is computed
MAX_UNITS = 4000  # more units are first summed in this many random groups, which are resampled instead
MAX_COUNTS = 1 << 22  # largest number of resampling counts in memory at once
QUANTILES = (0.025, 0.975)
ROUNDING_ERROR = 1e-5  # differences of equal models are smaller than this

Floats = NDArray[np.float64]


class Interval(NamedTuple):
    """An estimate `point` with its confidence interval; `low` and `high` are None if there were too few units."""

    point: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def from_row(cls, row: Mapping[str, Any], name: str) -> "Interval | None":
        """Read an interval that `to_row` stored; return None if `row` does not contain the estimate."""
        point = row.get(name)
        return None if point is None else cls(point, row.get(f"{name}_low"), row.get(f"{name}_high"))

    def to_row(self, name: str) -> dict[str, float | None]:
        """Return the estimate and the ends as entries of a JSON row: NAME, NAME_low and NAME_high."""
        return {name: self.point, f"{name}_low": self.low, f"{name}_high": self.high}

    @property
    def sign(self) -> int:
        """1 or -1 if the whole interval is above or below zero; 0 if it contains zero or does not exist.

        It is also 0 if both ends are so close to zero that rounding errors alone can cause the difference.
        """
        if self.low is None or self.high is None or max(abs(self.low), abs(self.high)) < ROUNDING_ERROR:
            return 0
        return int(self.low > 0) - int(self.high < 0)

    def to_text(self, number_format: str = ".2f", scale: float = 1.0, unit: str = "") -> str:
        """Format a difference as `format_estimate` does, followed by "not significant" if `sign` is 0."""
        text = self.format_estimate(number_format, scale, unit)
        return text if self.sign or self.low is None else f"{text} not significant"

    def format_estimate(self, number_format: str = ".2f", scale: float = 1.0, unit: str = "") -> str:
        """Format a difference with the ends of its interval: "+2.1% [+1.0, +3.2]".

        The three numbers have the same number of decimals, which is larger than that of `number_format` if this format
        displays a number that is not zero as zero. Numbers that are as small as rounding errors are ignored.
        """
        numbers = [self.point] if self.low is None or self.high is None else [self.point, self.low, self.high]
        smallest = scale * min((abs(number) for number in numbers if abs(number) >= ROUNDING_ERROR), default=math.inf)
        decimals = int(number_format.strip(".f"))
        if math.isfinite(smallest):
            decimals = max(decimals, -math.floor(math.log10(smallest)))
        point, *ends = (f"{scale * number:+.{decimals}f}" for number in numbers)
        return f"{point}{unit} [{', '.join(ends)}]" if ends else f"{point}{unit}"


def format_ends(low: float, high: float, number_format: str) -> str:
    """Format the ends of an interval: "[+1.0, +3.2]"."""
    return f"[{low:{number_format}}, {high:{number_format}}]"


def resampling_counts(unit_count: int, draw_count: int = DRAW_COUNT, seed: int = 0) -> Floats:
    """Return how often each unit counts (1 + D, U): once in the first row, as often as drawn in each other row."""
    return np.concatenate([np.ones((1, unit_count)), *_draw_resampling_counts(unit_count, draw_count, seed)])


def resampled_sums(values: Floats, draw_count: int = DRAW_COUNT, seed: int = 0) -> Floats:
    """Return sums (1 + D, S) of `values` (U, S): over all units in the first row, over one draw in each other row."""
    unit_values = _sum_groups(values, seed) if len(values) > MAX_UNITS else values
    with np.errstate(invalid="ignore"):  # the nats of a diverged model are infinite
        sums = [counts @ unit_values for counts in _draw_resampling_counts(len(unit_values), draw_count, seed)]
    return np.concatenate([values.sum(axis=0)[None], *sums])


def _sum_groups(values: Floats, seed: int) -> Floats:
    """Sum `values` over `MAX_UNITS` random groups; resampling groups gives the same variance as resampling units."""
    group_of_unit = np.random.default_rng((seed, len(values))).permutation(len(values)) % MAX_UNITS
    return np.stack([np.bincount(group_of_unit, weights=column, minlength=MAX_UNITS) for column in values.T], axis=1)


def _draw_resampling_counts(unit_count: int, draw_count: int, seed: int) -> Iterator[Floats]:
    """Yield how often each unit occurs in each draw: arrays (d, U) for d draws at a time."""
    generator, probabilities = np.random.default_rng(seed), np.full(unit_count, 1 / unit_count)
    draws_at_once = max(1, MAX_COUNTS // unit_count)
    for begin in range(0, draw_count, draws_at_once):
        size = min(draws_at_once, draw_count - begin)
        yield generator.multinomial(unit_count, probabilities, size=size).astype(np.float64)


def find_clear_winner(points: Floats, highest_is_best: bool, difference: Callable[[int, int], Interval]) -> int | None:
    """Return the index of the best of `points`; None if it does not differ significantly from every other point."""
    if len(points) < 2 or not np.isfinite(points).all():
        return None
    sign = 1 if highest_is_best else -1
    best = int((sign * points).argmax())
    others = (index for index in range(len(points)) if index != best)
    return best if all(difference(best, other).sign == sign for other in others) else None


def percentile_interval(points: Floats, unit_count: int | None = None) -> Interval:
    """Return an estimate with its confidence interval, the middle 95 % of the finite values of its draws.

    `points` (1 + D,) contain the estimate, followed by the value of the statistic in each draw. With fewer than
    `MIN_UNITS` units, the ends of the interval are None.
    """
    estimate, draws = float(points[0]), points[1:]
    finite_draws = draws[np.isfinite(draws)]
    has_too_few_units = unit_count is not None and unit_count < MIN_UNITS
    if not len(finite_draws) or not math.isfinite(estimate) or has_too_few_units:
        return Interval(estimate)
    low, high = np.quantile(finite_draws, QUANTILES).tolist()
    return Interval(estimate, low, high)
