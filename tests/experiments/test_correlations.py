"""Correlations against their definitions; coverage of their intervals."""

import math
from typing import Any

import numpy as np
import pytest

from correlations import correlation, rank_correlation


def test_correlation_is_pearsons_and_its_interval_covers_the_truth() -> None:
    draw = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        x = draw.normal(size=30)
        y = 0.6 * x + 0.8 * draw.normal(size=30)
        result = correlation(x.tolist(), y.tolist())
        expected = ((x - x.mean()) * (y - y.mean())).sum() / math.sqrt(
            ((x - x.mean()) ** 2).sum() * ((y - y.mean()) ** 2).sum()
        )
        assert result["r"] == pytest.approx(expected)
        assert result["low"] < result["r"] < result["high"]
        assert result["n"] == 30
        covered += result["low"] < 0.6 < result["high"]
    assert 180 <= covered <= 199
    assert rank_correlation([1, 2, 3, 10], [1, 8, 27, 1000])["r"] == 1.0
    ties = rank_correlation([1, 1, 2, 3], [4, 3, 2, 2])
    assert ties["r"] == pytest.approx(np.corrcoef([1.5, 1.5, 3, 4], [4, 3, 1.5, 1.5])[0, 1])


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([1, 2], [1, 2], {"r": None, "low": None, "high": None, "n": 2}),
        ([1, 1, 1], [1, 2, 3], {"r": None, "low": None, "high": None, "n": 3}),
        ([1, 2, 3, math.nan], [3, 2, 1, 4], {"r": -1.0, "low": None, "high": None, "n": 3}),
        ([1, 2, 3, 4], [2, 4, 6, 8], {"r": 1.0, "low": 1.0, "high": 1.0, "n": 4}),
    ],
)
def test_correlation_of_few_points(first: list[float], second: list[float], expected: dict[str, Any]) -> None:
    assert correlation(first, second) == pytest.approx(expected)
