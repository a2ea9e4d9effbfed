"""The bootstrap, compared with draws that are summed up one by one."""

import math
from typing import Any

import numpy as np
import pytest

from factorcell import bootstrap
from factorcell.bootstrap import Interval


def test_resampled_sums_equal_sums_over_single_units() -> None:
    values = np.random.default_rng(1).gamma(2.0, size=(13, 3))
    random, expected = np.random.default_rng(0), [[sum(values[:, s]) for s in range(3)]]
    for _ in range(bootstrap.DRAW_COUNT):
        times = random.multinomial(13, [1 / 13] * 13)
        expected.append([sum(times[u] * values[u, s] for u in range(13)) for s in range(3)])
    np.testing.assert_allclose(bootstrap.resampled_sums(values), expected)


def test_grouping_many_units_preserves_the_variance(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).normal(3.0, 1.0, size=(3000, 2))
    ungrouped = bootstrap.resampled_sums(values)
    monkeypatch.setattr(bootstrap, "MAX_UNITS", 500)
    grouped = bootstrap.resampled_sums(values)
    np.testing.assert_allclose(grouped[0], ungrouped[0])
    ratios = [np.std(sums[1:, 0] / sums[1:, 1]) for sums in (ungrouped, grouped)]
    assert ratios[1] == pytest.approx(ratios[0], rel=0.2)


def test_percentile_interval_contains_95_percent_of_the_finite_draws() -> None:
    points = np.array([2.0, *np.linspace(0, 1, 101), np.inf, np.nan])
    assert bootstrap.percentile_interval(points) == pytest.approx((2.0, 0.025, 0.975))
    assert bootstrap.percentile_interval(points, bootstrap.MIN_UNITS - 1) == Interval(2.0)
    assert bootstrap.percentile_interval(points, bootstrap.MIN_UNITS).low is not None
    assert bootstrap.percentile_interval(np.array([np.nan, 1.0])).low is None


PERCENT: dict[str, Any] = {"number_format": ".1f", "scale": 100, "unit": "%"}
TEXTS: list[tuple[Interval, dict[str, Any], str, int]] = [
    (Interval(0.0215, 0.01, 0.032), PERCENT, "+2.1% [+1.0, +3.2]", 1),
    (Interval(-1.0, -2.0, -0.5), {"number_format": ".1f"}, "-1.0 [-2.0, -0.5]", -1),
    (Interval(0.5, -0.1, 1.0), {}, "+0.50 [-0.10, +1.00] not significant", 0),
    (Interval(0.0, 0.0, 0.0), {}, "+0.00 [+0.00, +0.00] not significant", 0),
    (Interval(1e-9, 1e-9, 2e-9), {}, "+0.00 [+0.00, +0.00] not significant", 0),
    (Interval(1e-2, 1e-3, 2e-2), {}, "+0.010 [+0.001, +0.020]", 1),
    (Interval(2e-4, 3.8e-4, 7e-3), {"number_format": ".3f"}, "+0.0002 [+0.0004, +0.0070]", 1),
    (Interval(2e-4, -3.8e-4, 2e-5), {"number_format": ".3f"}, "+0.00020 [-0.00038, +0.00002] not significant", 0),
    (Interval(2.2e-4, -7.2e-5, 5.03e-4), PERCENT, "+0.022% [-0.007, +0.050] not significant", 0),
    (Interval(7.54e-4, 3.68e-4, 1.153e-3), PERCENT, "+0.08% [+0.04, +0.12]", 1),
    (Interval(1.2e-3, 6e-4, 1.4e-3), PERCENT, "+0.12% [+0.06, +0.14]", 1),
    (Interval(7e-6, -3e-4, 4e-4), PERCENT, "+0.00% [-0.03, +0.04] not significant", 0),
    (Interval(0.273, 0.261, math.inf), PERCENT, "+27.3% [+26.1, +inf]", 1),
    (Interval(3.3e-5), PERCENT, "+0.003%", 0),
    (Interval(0.0, 0.0, 0.5), {}, "+0.00 [+0.00, +0.50] not significant", 0),
    (Interval(0.5), {}, "+0.50", 0),
]


@pytest.mark.parametrize(("interval", "options", "text", "sign"), TEXTS)
def test_text_of_an_interval_says_if_it_is_not_significant(
    interval: Interval, options: dict[str, Any], text: str, sign: int
) -> None:
    assert (interval.to_text(**options), interval.sign) == (text, sign)
    assert Interval.from_row(interval.to_row("gain"), "gain") == interval
    assert Interval.from_row({}, "gain") is None
