"""Differences between models against slow bootstraps; coverage of intervals."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from factorcell.bootstrap import Interval
from factorcell.evaluation.text_figures import Ratios, TextSums, add_training_variance, gain_from_nats

Floats = NDArray[np.float64]


def sums(nats: Floats, targets: Floats, key: str = "a") -> TextSums:
    return TextSums(key, nats, targets)


def texts(count: int, seed: int = 0) -> tuple[Floats, Floats, NDArray[np.float64]]:
    """Return the nats of two models on the same texts, the second slightly worse, and the lengths of the texts."""
    random = np.random.default_rng(seed)
    targets = random.integers(2, 40, count).astype(np.float64)
    shared = targets * random.gamma(20.0, 0.2, count)
    return shared, shared + targets * random.normal(0.02, 0.1, count), targets


def slow_gain(
    nats: Floats, baseline_nats: Floats, targets: Floats, seed: int, draws: int = 1000
) -> tuple[float, list[float]]:
    """Return the gain over a baseline and the gain in every bootstrap draw, summed text by text."""
    random, gains, size = np.random.default_rng(seed), [], len(nats)
    for draw in range(draws + 1):
        times = [1] * size if draw == 0 else random.multinomial(size, [1 / size] * size).tolist()
        total = sum(n * t for n, t in zip(times, targets, strict=True))
        model, baseline = (
            math.exp(sum(n * v for n, v in zip(times, values, strict=True)) / total) for values in (nats, baseline_nats)
        )
        gains.append(1 - model / baseline)
    return gains[0], gains[1:]


def test_gain_equals_a_bootstrap_computed_text_by_text() -> None:
    first, second, targets = texts(30)
    point, drawn = slow_gain(first, second, targets, seed=0)
    ratios = Ratios.from_sums([[sums(second, targets)], [sums(first, targets)]])
    assert ratios is not None
    low, high = np.quantile(drawn, (0.025, 0.975))
    assert gain_from_nats(ratios.difference(0, 1)) == pytest.approx((point, low, high))


def test_accuracy_counts_only_judged_texts() -> None:
    judged = np.array([1.0] * 20 + [0.0] * 80)
    right = np.array([1.0] * 15 + [0.0] * 85)
    ratios = Ratios.from_sums([[sums(right, judged)], [sums(0 * right, judged)]])
    assert ratios is not None
    assert ratios.difference(0, 1).point == pytest.approx(0.75)
    assert ratios.text_count == 20


def test_models_of_different_texts_are_not_compared() -> None:
    first, second, targets = texts(20)
    assert Ratios.from_sums([[sums(first, targets)], [sums(second, targets, "b")]]) is None
    assert Ratios.from_sums([[sums(first, targets)], [sums(second, targets + 1)]]) is None


def test_the_best_model_is_significantly_better_than_every_other_one() -> None:
    nats, _, targets = texts(60)
    noise = np.random.default_rng(1).normal(0, 0.3, (2, 60)) * targets

    def best(*models: Floats) -> int | None:
        ratios = Ratios.from_sums([[sums(model, targets)] for model in models])
        assert ratios is not None
        return ratios.best_model(higher_is_better=False)

    assert best(nats, nats + targets, nats + targets / 2) == 0
    assert best(nats, nats + noise[0], nats + targets) is None
    assert best(nats) is None
    assert best(nats, nats * np.nan) is None


def test_few_texts_have_no_interval() -> None:
    nats, _, targets = texts(9)
    ratios = Ratios.from_sums([[sums(nats + targets, targets)], [sums(nats, targets)]])
    assert ratios is not None
    difference = ratios.difference(0, 1)
    assert difference.point == pytest.approx(1.0)
    assert difference.low is difference.high is None
    assert ratios.best_model(higher_is_better=False) is None


@pytest.mark.parametrize(("freedom", "t"), [(1, 12.7062), (2, 4.3027), (4, 2.7764), (10, 2.2281), (1000, 1.9623)])
def test_the_quantiles_are_those_of_published_tables(freedom: int, t: float) -> None:
    figures = np.linspace(0.0, 1.0, freedom + 1)
    widened = add_training_variance(Interval(0.0, 0.0, 0.0), figures, figures[:0])
    assert widened.high is not None
    standard_error = math.sqrt(figures.var(ddof=1) / len(figures))
    assert widened.high / standard_error == pytest.approx(t, abs=1e-4)


def test_trainings_widen_an_interval_as_a_t_test_would() -> None:
    first, second = np.array([1.0, 1.2, 1.4]), np.array([0.5, 0.6, 0.7])
    interval = add_training_variance(Interval(0.6, 0.6, 0.6), first, second)
    half_width = 2.7764 * math.sqrt((0.04 + 0.01) / 2 * 2 / 3)  # pooled variance, four degrees of freedom
    assert interval == pytest.approx((0.6, 0.6 - half_width, 0.6 + half_width), rel=1e-4)
    widened = add_training_variance(Interval(0.6, 0.6 - 3.0, 0.6 + 4.0), first, second)
    assert widened == pytest.approx((0.6, 0.6 - math.hypot(3, half_width), 0.6 + math.hypot(4, half_width)), rel=1e-4)
    texts_alone = Interval(0.6, 0.5, 0.7)
    assert add_training_variance(texts_alone, first[:1], second[:1]) == texts_alone


def test_deterministic_models_add_no_training_variance() -> None:
    targets, trained = np.full(50, 4.0), (1.0, 1.2, 1.4)
    models = [[sums(targets * level, targets) for level in trained], [sums(targets * 0.6, targets)]]
    ratios = Ratios.from_sums(models, deterministic={1})
    assert ratios is not None
    half_width = 4.3027 * 0.2 / math.sqrt(3)
    assert ratios.difference(0, 1) == pytest.approx((0.6, 0.6 - half_width, 0.6 + half_width), rel=1e-4)
    deterministic_ratios = Ratios.from_sums([models[1], models[1]], deterministic={0, 1})
    assert deterministic_ratios is not None
    assert deterministic_ratios.difference(0, 1) == pytest.approx((0.0, 0.0, 0.0))


def test_intervals_over_texts_and_trainings_cover_the_true_difference() -> None:
    random, covered, covered_by_texts, repetitions = np.random.default_rng(3), 0, 0, 120
    for _ in range(repetitions):
        targets = random.integers(5, 30, 60).astype(np.float64)
        shared = random.normal(0.0, 0.3, 60)  # difficulty of each text, shared by the models
        models = []
        for mean in (4.0, 4.1):
            noise = random.normal(0.0, 0.1, 60)
            levels = mean + random.normal(0.0, 0.05, 3)
            models.append([sums(targets * (level + shared + noise), targets) for level in levels])
        ratios = Ratios.from_sums(models)
        assert ratios is not None
        interval = ratios.difference(1, 0)
        texts_only = Ratios(
            ratios.resampled, tuple(values[:1] for values in ratios.training_figures), ratios.text_count
        ).difference(1, 0)
        covered += bool(interval.low <= 0.1 <= interval.high)  # type: ignore[operator]
        covered_by_texts += bool(texts_only.low <= 0.1 <= texts_only.high)  # type: ignore[operator]
    assert 0.92 * repetitions <= covered
    assert covered_by_texts < 0.75 * repetitions
