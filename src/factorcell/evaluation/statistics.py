"""Differences between models over texts and trainings, with 95 % confidence intervals.

A model m that is trained with several seeds s has a figure R_ms for each training, which is a ratio of sums over texts;
the figure of the model is their mean. A bootstrap over texts gives an interval [l, u] of the difference d between two
models. If they were trained several times, the interval is widened by the standard error e over trainings:

    [d - sqrt((d - l)^2 + (t e)^2), d + sqrt((u - d)^2 + (t e)^2)],    e^2 = v (1 / S_1 + 1 / S_2)

S_1 and S_2 are the numbers of trainings of the two models, v is the pooled variance of R_ms over these trainings, and t
is the quantile of Student's distribution with S_1 + S_2 - 2 degrees of freedom. This formula combines the confidence
limits of two independent terms of a sum (Zou and Donner 2008). Deterministic models, such as n-gram models, do not
contribute to v, e and t.

Shapes: M models, N texts, D bootstrap draws.
"""

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from factorcell import bootstrap
from factorcell.bootstrap import Interval
from factorcell.evaluation.text_figures import TextSums

LEVEL = 0.95  # confidence level of all intervals

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Ratios:
    """One figure of M models over the same texts.

    Attributes:
        resampled: The figure of each model over all texts (first row), and over each bootstrap draw of texts, as an
            array (1 + D, M).
        training_figures: For each model, the figure of each training; an empty array for a deterministic model.
        text_count: The number of texts that count, i.e. whose denominator is not 0.
    """

    resampled: Floats
    training_figures: tuple[Floats, ...]
    text_count: int

    @classmethod
    def from_sums(
        cls, models: Sequence[Sequence[TextSums]], seed: int = 0, deterministic: Container[int] = ()
    ) -> "Ratios | None":
        """Compute the figure of each model from the sums of its trainings; None unless all models read the same texts.

        A text that one model omits is omitted for all models. `seed` is the seed of the bootstrap, and `deterministic`
        has the indices of the deterministic models.
        """
        trainings = [sums for model in models for sums in model]
        if not all(models) or len({(sums.key, len(sums.denominator)) for sums in trainings}) > 1:
            return None
        is_included = np.logical_and.reduce([sums.is_included for sums in trainings])
        denominator = trainings[0].denominator[is_included]
        if not len(denominator) or not all(
            np.array_equal(sums.denominator[is_included], denominator) for sums in trainings
        ):
            return None
        numerators = [np.mean([sums.numerator[is_included] for sums in model], axis=0) for model in models]
        resampled = bootstrap.resampled_sums(np.stack([denominator, *numerators], axis=1), seed=seed)
        with np.errstate(invalid="ignore", divide="ignore"):
            training_figures = tuple(
                np.array([sums.numerator[is_included].sum() for sums in model if index not in deterministic])
                / denominator.sum()
                for index, model in enumerate(models)
            )
            denominators, numerators_by_model = resampled[:, :1], resampled[:, 1:]
            return cls(numerators_by_model / denominators, training_figures, int(np.count_nonzero(denominator)))

    def interval(self, model: int) -> Interval:
        """Return the figure of the model with index `model`, with its interval over texts and trainings."""
        text_interval = bootstrap.percentile_interval(self.resampled[:, model], self.text_count)
        return add_training_variance(text_interval, self.training_figures[model], np.zeros(0))

    def difference(self, first: int, second: int, paired: bool = False) -> Interval:
        """Return the figure of one model minus that of another, with its interval over texts and trainings.

        `first` and `second` are the indices of the models. If `paired`, training s of one model corresponds to training
        s of the other; then the interval includes the variance of the differences between corresponding trainings.
        """
        with np.errstate(invalid="ignore"):
            differences = self.resampled[:, first] - self.resampled[:, second]
            text_interval = bootstrap.percentile_interval(differences, self.text_count)
        first_values, second_values = self.training_figures[first], self.training_figures[second]
        if paired:
            return add_training_variance(text_interval, first_values - second_values, second_values[:0])
        return add_training_variance(text_interval, first_values, second_values)

    def best_model(self, higher_is_better: bool) -> int | None:
        """Return the index of the model that is significantly better than every other one, or None."""
        return bootstrap.find_clear_winner(self.resampled[0], higher_is_better, self.difference)


def add_training_variance(interval: Interval, first: Floats, second: Floats) -> Interval:
    """Widen an interval over texts by the variance between trainings (equation in the module header).

    `first` and `second` have the figures of the trainings of two models; either array may be empty.
    """
    if interval.low is None or interval.high is None:
        return interval
    figures_by_model = [values for values in (first, second) if len(values)]
    degrees_of_freedom = sum(len(values) - 1 for values in figures_by_model)
    sum_of_squares = sum(float(((values - values.mean()) ** 2).sum()) for values in figures_by_model)
    pooled_variance = sum_of_squares / max(1, degrees_of_freedom)
    standard_error = math.sqrt(pooled_variance * sum(1 / len(values) for values in figures_by_model))
    quantile = float(stdtrit(degrees_of_freedom, (1 + LEVEL) / 2)) if degrees_of_freedom else 0.0  # of Student
    half_width = quantile * standard_error
    distance_to_low, distance_to_high = (
        math.hypot(end - interval.point, half_width) for end in (interval.low, interval.high)
    )
    return Interval(interval.point, interval.point - distance_to_low, interval.point + distance_to_high)


def gain_from_nats(nats: Interval) -> Interval:
    """Convert a reduction in nats per target, with its interval, to the relative reduction of the perplexity."""
    with np.errstate(over="ignore"):  # a diverged model has infinite nats
        point, *ends = (None if value is None else float(-np.expm1(-value)) for value in nats)
    assert point is not None
    return Interval(point, *ends)


def ranks(values: Sequence[float] | NDArray[Any]) -> Floats:
    """Return the rank of each value, 1 for the lowest; tied values all have the mean of their ranks."""
    _, inverse, counts = np.unique(np.asarray(values, dtype=float), return_inverse=True, return_counts=True)
    mean_ranks: Floats = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return mean_ranks


def auc(scores: Floats, is_positive: NDArray[np.bool_]) -> float:
    """Return the area under the ROC curve (AUC); NaN without positive or without negative items.

    The AUC is the share of pairs of a positive and a negative item in which the positive item has the higher score; a
    tie counts half.
    """
    from sklearn.metrics import roc_auc_score  # takes half a second

    if not is_positive.any() or is_positive.all():
        return math.nan
    return float(roc_auc_score(is_positive, ranks(scores)))  # scores may be infinite
