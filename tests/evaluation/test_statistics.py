"""Differences of models against slow bootstraps, and intervals that cover what is true."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from factorcell.bootstrap import Interval
from factorcell.evaluation.statistics import (
    Ratios,
    add_training_variance,
    correlation,
    gain_from_nats,
    rank_correlation,
    student_quantile,
)
from factorcell.evaluation.text_figures import TextSums

Floats = NDArray[np.float64]


def sums(nats: Floats, targets: Floats, key: str = "a") -> TextSums:
    return TextSums(key, nats, targets)


def texts(count: int, seed: int = 0) -> tuple[Floats, Floats, NDArray[np.float64]]:
    """Nats of two models that read the same texts of unlike lengths, the second a little worse; and the lengths."""
    random = np.random.default_rng(seed)
    targets = random.integers(2, 40, count).astype(np.float64)
    shared = targets * random.gamma(20.0, 0.2, count)
    return shared, shared + targets * random.normal(0.02, 0.1, count), targets


def slow(one: Floats, other: Floats, targets: Floats, seed: int, draws: int = 1000) -> tuple[float, list[float]]:
    """By what share the perplexity of `one` is lower, and in every draw; each text by text, as it is defined."""
    random, drawn = np.random.default_rng(seed), []
    for draw in range(draws + 1):
        times = [1] * len(one) if draw == 0 else random.multinomial(len(one), [1 / len(one)] * len(one)).tolist()
        total = sum(n * t for n, t in zip(times, targets, strict=True))
        ours, theirs = (math.exp(sum(n * v for n, v in zip(times, v, strict=True)) / total) for v in (one, other))
        drawn.append(1 - ours / theirs)
    return drawn[0], drawn[1:]


def test_the_gain_is_that_of_a_slow_bootstrap() -> None:
    one, other, targets = texts(30)
    point, drawn = slow(one, other, targets, seed=5)
    found = Ratios.from_sums([[sums(other, targets)], [sums(one, targets)]], seed=5)
    assert found is not None
    low, high = np.quantile(drawn, (0.025, 0.975))
    assert gain_from_nats(found.difference(0, 1)) == pytest.approx((point, low, high))


def test_accuracy_is_of_the_texts_that_are_judged() -> None:
    judged = np.array([1.0] * 20 + [0.0] * 80)
    right = np.array([1.0] * 15 + [0.0] * 85)
    found = Ratios.from_sums([[sums(right, judged)], [sums(0 * right, judged)]])
    assert found is not None
    assert found.difference(0, 1).point == pytest.approx(0.75)
    assert found.texts == 20


def test_other_texts_are_not_compared() -> None:
    one, other, targets = texts(20)
    assert Ratios.from_sums([[sums(one, targets)], [sums(other, targets, "b")]]) is None
    assert Ratios.from_sums([[sums(one, targets)], [sums(other, targets + 1)]]) is None


def test_few_texts_have_no_interval() -> None:
    one, _, targets = texts(9)
    found = Ratios.from_sums([[sums(one + targets, targets)], [sums(one, targets)]])
    assert found is not None
    difference = found.difference(0, 1)
    assert difference.point == pytest.approx(1.0)
    assert difference.low is difference.high is None
    assert found.best_model(highest=False) is None


@pytest.mark.parametrize(("freedom", "t"), [(1, 12.7062), (2, 4.3027), (4, 2.7764), (10, 2.2281), (1000, 1.9623)])
def test_student_is_that_of_the_tables(freedom: int, t: float) -> None:
    assert student_quantile(freedom) == pytest.approx(t, abs=1e-4)


def test_trainings_widen_an_interval_as_a_t_test_would() -> None:
    one, other = np.array([1.0, 1.2, 1.4]), np.array([0.5, 0.6, 0.7])
    found = add_training_variance(Interval(0.6, 0.6, 0.6), one, other)
    half = 2.7764 * math.sqrt((0.04 + 0.01) / 2 * 2 / 3)  # pooled variance, four degrees of freedom
    assert found == pytest.approx((0.6, 0.6 - half, 0.6 + half), rel=1e-4)
    wide = add_training_variance(Interval(0.6, 0.6 - 3.0, 0.6 + 4.0), one, other)
    assert wide == pytest.approx((0.6, 0.6 - math.hypot(3, half), 0.6 + math.hypot(4, half)), rel=1e-4)
    texts_alone = Interval(0.6, 0.5, 0.7)
    assert add_training_variance(texts_alone, one[:1], other[:1]) == texts_alone


def test_what_is_not_by_chance_adds_no_spread() -> None:
    targets, trained = np.full(50, 4.0), (1.0, 1.2, 1.4)
    models = [[sums(targets * level, targets) for level in trained], [sums(targets * 0.6, targets)]]
    found = Ratios.from_sums(models, deterministic={1})
    assert found is not None
    half = 4.3027 * 0.2 / math.sqrt(3)
    assert found.difference(0, 1) == pytest.approx((0.6, 0.6 - half, 0.6 + half), rel=1e-4)
    alone = Ratios.from_sums([models[1], models[1]], deterministic={0, 1})
    assert alone is not None
    assert alone.difference(0, 1) == pytest.approx((0.0, 0.0, 0.0))


def test_the_same_trainings_in_two_ways_spread_by_their_differences() -> None:
    targets, trained = np.full(50, 4.0), (1.0, 2.0, 3.0)
    gains = (0.1, 0.2, 0.3)
    models = [
        [sums(targets * (level + gain), targets) for level, gain in zip(trained, gains, strict=True)],
        [sums(targets * level, targets) for level in trained],
    ]
    found = Ratios.from_sums(models)
    assert found is not None
    half = 4.3027 * 0.1 / math.sqrt(3)
    assert found.difference(0, 1, paired=True) == pytest.approx((0.2, 0.2 - half, 0.2 + half), rel=1e-4)
    assert found.difference(0, 1).sign == 0


def test_intervals_over_texts_and_trainings_cover_the_true_difference() -> None:
    random, held, alone, times = np.random.default_rng(3), 0, 0, 120
    for _ in range(times):
        targets = random.integers(5, 30, 60).astype(np.float64)
        shared = random.normal(0.0, 0.3, 60)  # how hard a text is
        models = []
        for mean in (4.0, 4.1):
            own = random.normal(0.0, 0.1, 60)
            levels = mean + random.normal(0.0, 0.05, 3)
            models.append([sums(targets * (level + shared + own), targets) for level in levels])
        found = Ratios.from_sums(models)
        assert found is not None
        both = found.difference(1, 0)
        single = Ratios(found.resampled, tuple(values[:1] for values in found.trained), found.texts).difference(1, 0)
        held += bool(both.low <= 0.1 <= both.high)  # type: ignore[operator]
        alone += bool(single.low <= 0.1 <= single.high)  # type: ignore[operator]
    assert 0.92 * times <= held
    assert alone < 0.75 * times


def test_correlation_is_pearsons_and_its_interval_covers_the_truth() -> None:
    draw = np.random.default_rng(0)
    held = 0
    for _ in range(200):
        x = draw.normal(size=30)
        y = 0.6 * x + 0.8 * draw.normal(size=30)
        found = correlation(x.tolist(), y.tolist())
        sums = ((x - x.mean()) * (y - y.mean())).sum() / math.sqrt(
            ((x - x.mean()) ** 2).sum() * ((y - y.mean()) ** 2).sum()
        )
        assert found["r"] == pytest.approx(sums)
        assert found["low"] < found["r"] < found["high"]
        assert found["n"] == 30
        held += found["low"] < 0.6 < found["high"]
    assert 180 <= held <= 199
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
