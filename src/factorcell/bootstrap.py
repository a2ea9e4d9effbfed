"""Confidence intervals by the bootstrap (Efron 1979): the middle 95 % of a statistic of resampled units, such as texts.

Two statistics that are computed from the same draws are paired. Shapes: U units, D draws, S sums.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

DRAW_COUNT = 1000
MIN_UNITS = 10  # smallest number of units for which an interval is computed
MAX_UNITS = 4000  # more units are first summed in this many random groups, which are resampled instead
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
        """Format a difference with the ends of its interval, "+2.1% [+1.0, +3.2]", and whether it is not significant.

        The three numbers have the same number of decimals, which is larger than that of `number_format` if this format
        displays a number that is not zero as zero. Numbers that are as small as rounding errors are ignored.
        """
        numbers = [self.point] if self.low is None or self.high is None else [self.point, self.low, self.high]
        smallest = scale * min((abs(number) for number in numbers if abs(number) >= ROUNDING_ERROR), default=math.inf)
        decimals = int(number_format.strip(".f"))
        if math.isfinite(smallest):
            decimals = max(decimals, -math.floor(math.log10(smallest)))
        point, *ends = (f"{scale * number:+.{decimals}f}" for number in numbers)
        text = f"{point}{unit} [{', '.join(ends)}]" if ends else f"{point}{unit}"
        return text if self.sign or not ends else f"{text} not significant"


def format_ends(low: float, high: float, number_format: str) -> str:
    """Format the ends of an interval: "[+1.0, +3.2]"."""
    return f"[{low:{number_format}}, {high:{number_format}}]"


def resampled_sums(values: Floats) -> Floats:
    """Return sums (1 + D, S) of `values` (U, S): over all units in the first row, over one draw in each other row."""
    unit_values = values
    if len(values) > MAX_UNITS:  # resampling sums over random groups gives the same variance as resampling units
        group_of_unit = np.random.default_rng((0, len(values))).permutation(len(values)) % MAX_UNITS
        groups = [np.bincount(group_of_unit, weights=column, minlength=MAX_UNITS) for column in values.T]
        unit_values = np.stack(groups, axis=1)
    count = len(unit_values)
    counts = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=DRAW_COUNT)
    with np.errstate(invalid="ignore"):  # the nats of a diverged model are infinite
        return np.concatenate([values.sum(axis=0)[None], counts.astype(np.float64) @ unit_values])


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
