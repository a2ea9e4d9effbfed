"""Bayes' rule over candidate contexts, its metrics, and the calibration of its probabilities.

    p(candidate | text) ~ p(text | candidate) ** (1 / T) p(candidate)                       (TACL 2018, equation 7)

A language model takes each word as independent evidence, so its posterior is mostly too confident; a temperature above
1 corrects that (Guo et al. 2017). The prior is not divided by T. With a uniform prior no T changes the predictions.

The calibration error is the expected |accuracy - confidence|, over bins of the probability of the predicted value.

Shapes: B texts, K candidates.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.config import UserError
from factorcell.evaluation.statistics import auc
from factorcell.evaluation.text_figures import TextSums, accuracy_sums

BINS = 15  # of the confidence, of equal width (Guo et al. 2017)
COLDEST, HOTTEST = 0.01, 100.0  # range of temperatures
HALVINGS = 60

Row = dict[str, Any]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Classification:
    """Classified texts: candidate `names` (K), `log_posterior` (B, K), and `truth` (B,), -1 if unknown.

    `score` (B, K) is minus the perplexity, z-normalized over the candidates: the detection score of the 2017 paper.
    `missing` (B,) marks texts without any value, `distractor` (B,) those with the value of a distractor, `truncated`
    (B,) those that were cut after `max_tokens` tokens. `by_training` (B,) are the predictions with the training priors.
    `key` identifies texts and candidates. `log_prior` (K,) is None if uniform. `posterior_at_1` is `log_posterior`
    before the `temperature` was applied.
    """

    names: tuple[str, ...]
    log_posterior: Floats
    score: Floats
    truth: NDArray[np.int64]
    distractor: NDArray[np.bool_]
    missing: NDArray[np.bool_] | None = None
    by_training: NDArray[np.int64] | None = None
    key: str = ""
    log_prior: Floats | None = None
    temperature: float = 1.0
    posterior_at_1: Floats | None = None
    truncated: NDArray[np.bool_] | None = None

    @property
    def predicted(self) -> NDArray[np.int64]:
        """The most probable candidate of each text (B,)."""
        best: NDArray[np.int64] = self.log_posterior.argmax(1)
        return best

    @property
    def probabilities(self) -> Floats:
        """p(candidate given text) (B, K)."""
        return np.exp(self.log_posterior)

    @property
    def has_labels(self) -> bool:
        """Whether any text has the value of a candidate."""
        return bool((self.truth >= 0).any())

    def rows(self) -> list[Row]:
        """Return a row per text, counted from zero: `predicted`, `true` or None, and the `probabilities` of all values.

        `truncated`, where it is known, says whether only the first `max_tokens` tokens of the text were read.
        """
        rows = []
        for row, (best, probabilities) in enumerate(zip(self.predicted, self.probabilities, strict=True)):
            named = {name: round(float(p), 6) for name, p in zip(self.names, probabilities, strict=True)}
            true = self.names[self.truth[row]] if self.truth[row] >= 0 else None
            cut = {} if self.truncated is None else {"truncated": bool(self.truncated[row])}
            rows.append({"row": row, "predicted": self.names[best], "true": true, **cut, "probabilities": named})
        return rows

    def with_priors(self, priors: Mapping[str, float]) -> "Classification":
        """Return the classification with other priors; this one must have a uniform prior and temperature 1."""
        if self.log_prior is not None or self.posterior_at_1 is not None:
            raise UserError("priors: expected a classification with a uniform prior and temperature 1, got another")
        weights = np.array([priors[name] for name in self.names])
        with np.errstate(divide="ignore"):
            log_prior = np.log(weights / weights.sum())
        posterior = apply_temperature(self.log_posterior + log_prior, 1.0)
        return replace(self, log_posterior=posterior, log_prior=log_prior)

    def at_temperature(self, temperature: float) -> "Classification":
        """Return the classification with the evidence of the texts at a temperature."""
        posterior = apply_temperature(self.log_posterior, temperature, self.log_prior)
        return replace(self, log_posterior=posterior, temperature=temperature, posterior_at_1=self.log_posterior)

    def fitted_temperature(self) -> float:
        """Return the temperature that fits the texts with a known value best."""
        judged = self.truth >= 0
        return fit_temperature(self.log_posterior[judged], self.truth[judged], self.log_prior)

    def confusion(self) -> NDArray[np.int64]:
        """Return counts (K, K): rows are true values, columns predicted ones."""
        judged, size = self.truth >= 0, len(self.names)
        flat = np.bincount(self.truth[judged] * size + self.predicted[judged], minlength=size * size)
        counts: NDArray[np.int64] = flat.reshape(size, size)
        return counts

    def metrics(self) -> Row:
        """Return accuracy, macro F1, mean AUC and calibration, and for each value count, precision, recall, F1 and AUC.

        `majority` is the share of the most frequent value; `left_out` counts texts that are not judged, of which
        `_missing` have no value and `_other` another one. Figures of no texts are NaN.
        """
        counts, judged = self.confusion(), self.truth >= 0
        right, true, predicted = np.diag(counts), counts.sum(1), counts.sum(0)
        values: list[Row] = [
            {
                "value": name,
                "count": int(true[index]),
                "precision": _ratio(right[index], predicted[index]),
                "recall": _ratio(right[index], true[index]),
                "f1": _ratio(2 * right[index], true[index] + predicted[index]),
                "auc": auc(self.score[judged | self.distractor, index], self.truth[judged | self.distractor] == index),
            }
            for index, name in enumerate(self.names)
        ]
        present = [value for value in values if value["count"]]
        left = ~judged & ~self.distractor
        row: Row = {"texts": int(counts.sum()), "distractors": int(self.distractor.sum())}
        row |= {} if self.truncated is None else {"truncated": int(self.truncated.sum())}
        row["left_out"] = int(left.sum())
        if self.missing is not None:
            missing = int((left & self.missing).sum())
            row |= {"left_out_missing": missing, "left_out_other": row["left_out"] - missing}
        row["accuracy"] = _ratio(right.sum(), counts.sum())
        if self.by_training is not None and judged.any():
            row["accuracy_training_priors"] = float((self.by_training == self.truth)[judged].mean())
        return {
            **row,
            "majority": _ratio(true.max(), counts.sum()),
            "majority_value": self.names[int(true.argmax())] if counts.sum() else None,
            "macro_f1": _mean([value["f1"] for value in present]),
            "auc": _mean([value["auc"] for value in present]),
            **self._calibration(),
            "values": values,
        }

    def _calibration(self) -> Row:
        judged = self.truth >= 0
        row: Row = {} if self.posterior_at_1 is None else {"temperature": self.temperature}
        for suffix, posterior in (("", self.log_posterior), ("_at_1", self.posterior_at_1)):
            if posterior is not None:
                row[f"calibration_error{suffix}"] = calibration_error(np.exp(posterior[judged]), self.truth[judged])
                row[f"value_nats{suffix}"] = value_nats(posterior[judged], self.truth[judged])
        if self.posterior_at_1 is not None and self.log_prior is not None and judged.any():
            row["accuracy_at_1"] = float((self.posterior_at_1.argmax(1) == self.truth)[judged].mean())
        return row


def apply_bayes_rule(
    names: Sequence[str],
    likelihoods: Floats,
    lengths: NDArray[np.int64],
    truth: Sequence[str | None],
    distractors: Sequence[str] = (),
    truncated: NDArray[np.bool_] | None = None,
) -> Classification:
    """Apply Bayes' rule with a uniform prior to log `likelihoods` (B, K).

    `lengths` (B,) counts targets, `truth` names the true candidates, some of which are `distractors`; `truncated` (B,)
    marks texts that were cut.
    """
    score = z_scores(-np.exp(-likelihoods / np.maximum(1, lengths)[:, None]))
    index = {name: number for number, name in enumerate(names)}
    which = np.array([-1 if name is None else index.get(name, -1) for name in truth], dtype=np.int64)
    distractor = np.isin(np.array(truth, dtype=object), list(distractors))
    return Classification(
        tuple(names), apply_temperature(likelihoods, 1.0), score, which, distractor, truncated=truncated
    )


def text_accuracies(result: Classification) -> TextSums:
    """Return what every text adds to the accuracy."""
    return accuracy_sums(result.key, result.predicted == result.truth, result.truth >= 0)


def z_scores(values: Floats) -> Floats:
    """Return how far values (B, K) lie above the mean of their row, in standard deviations; 0 if all are the same."""
    spread = values.std(1, keepdims=True)
    scores: Floats = (values - values.mean(1, keepdims=True)) / np.where(spread > 0, spread, 1.0)
    return scores


def _ratio(count: Any, total: Any) -> float:
    return float(count / total) if total else math.nan


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def calibration_error(probabilities: Floats, truth: NDArray[np.int64]) -> float:
    """Return the expected calibration error of `probabilities` (B, K) with true values `truth` (B,)."""
    if not len(truth):
        return math.nan
    confidence, right = probabilities.max(1), probabilities.argmax(1) == truth
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    gaps = np.bincount(bins, right, BINS) - np.bincount(bins, confidence, BINS)  # times the texts of each bin
    return float(np.abs(gaps).sum() / len(truth))


def value_nats(log_posterior: Floats, truth: NDArray[np.int64]) -> float:
    """Return the mean nats of the true values `truth` (B,) under `log_posterior` (B, K)."""
    return float(-log_posterior[np.arange(len(truth)), truth].mean()) if len(truth) else math.nan


def apply_temperature(log_posterior: Floats, temperature: float, log_prior: Floats | None = None) -> Floats:
    """Return `log_posterior` (B, K) with the evidence divided by a temperature, and the priors (K,) as they are."""
    prior = _finite(log_prior)
    flat = (log_posterior - prior) / temperature + prior
    top = flat.max(1, keepdims=True)
    return np.asarray(flat - top - np.log(np.exp(flat - top).sum(1, keepdims=True)))


def fit_temperature(log_posterior: Floats, truth: NDArray[np.int64], log_prior: Floats | None = None) -> float:
    """Return the temperature, from `COLDEST` to `HOTTEST`, with the fewest nats of true values; 1 for no texts.

    Nats are convex in 1 / T. Bisection finds where their slope, the mean of all values' evidence less that of the true
    value, is zero.
    """
    if not len(truth):
        return 1.0
    evidence = log_posterior - _finite(log_prior)
    own = evidence[np.arange(len(truth)), truth]
    known = np.where(np.isneginf(evidence), 0.0, evidence)  # an impossible value has no share in the mean

    def slope(inverse: float) -> float:
        shares = np.exp(apply_temperature(log_posterior, 1 / inverse, log_prior))
        return float(((shares * known).sum(1) - own).mean())

    low, high = 1 / HOTTEST, 1 / COLDEST
    for _ in range(HALVINGS):
        middle = np.sqrt(low * high)
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return float(1 / np.sqrt(low * high))


def _finite(log_prior: Floats | None) -> Floats:
    """Return priors to subtract: 0 for an impossible value, whose posterior is minus infinity already."""
    return np.zeros(1) if log_prior is None else np.where(np.isneginf(log_prior), 0.0, log_prior)
