"""Classification by Bayes' rule over candidate contexts: metrics and calibration of the posterior.

    p(candidate | text) ~ p(text | candidate) ** (1 / T) p(candidate)                       (TACL 2018, equation 7)

A language model treats each token as independent evidence, so its posterior is usually overconfident; a temperature T
above 1 corrects that (Guo et al. 2017). The prior is not tempered. With a uniform prior, T does not change predictions.

The calibration error is the mean of |accuracy - confidence| over bins of the probability of the predicted value,
weighted by the number of texts per bin.

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

BINS = 15  # bins of equal width for the calibration error (Guo et al. 2017)
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 100.0
BISECTION_STEPS = 60

Row = dict[str, Any]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Classification:
    """The posteriors of B texts over K candidates, with true values and metrics.

    Attributes:
        names: The candidates (K).
        log_posterior: log p(candidate given text) in nats (B, K).
        detection_score: Minus the perplexity, z-normalized over the candidates (B, K).
        truth: The index of the true candidate of each text (B,), -1 if unknown.
        is_distractor: Whether the value of the text is a distractor (B,).
        is_missing: Whether the text has no value (B,).
        training_prior_predictions: The predictions with the training frequencies as priors (B,).
        key: A digest of the texts and candidates.
        log_prior: The log priors (K,); None if they are uniform.
        temperature: The temperature of the evidence.
        untempered_log_posterior: `log_posterior` before the temperature was applied (B, K).
        truncated: Whether the text was cut after `max_tokens` tokens (B,).

    References:
        Jaech and Ostendorf, TACL 2018, equation 7; the detection score is from the paper of 2017.
    """

    names: tuple[str, ...]
    log_posterior: Floats
    detection_score: Floats
    truth: NDArray[np.int64]
    is_distractor: NDArray[np.bool_]
    is_missing: NDArray[np.bool_] | None = None
    training_prior_predictions: NDArray[np.int64] | None = None
    key: str = ""
    log_prior: Floats | None = None
    temperature: float = 1.0
    untempered_log_posterior: Floats | None = None
    truncated: NDArray[np.bool_] | None = None

    @property
    def predicted(self) -> NDArray[np.int64]:
        """The most probable candidate of each text (B,)."""
        best: NDArray[np.int64] = self.log_posterior.argmax(1)
        return best

    @property
    def probabilities(self) -> Floats:
        """The posterior probability of each candidate given the text (B, K)."""
        return np.exp(self.log_posterior)

    @property
    def has_labels(self) -> bool:
        """Whether any text has a candidate as its true value."""
        return bool((self.truth >= 0).any())

    def rows(self) -> list[Row]:
        """Return one row per text: `row` (from zero), `predicted`, `true` (or None) and `probabilities` by candidate.

        If it is known, `truncated` is true for texts of which only the first `max_tokens` tokens were read.
        """
        rows = []
        for row, (predicted, probabilities) in enumerate(zip(self.predicted, self.probabilities, strict=True)):
            by_name = {name: round(float(p), 6) for name, p in zip(self.names, probabilities, strict=True)}
            truth = self.names[self.truth[row]] if self.truth[row] >= 0 else None
            cut = {} if self.truncated is None else {"truncated": bool(self.truncated[row])}
            rows.append(
                {"row": row, "predicted": self.names[predicted], "true": truth, **cut, "probabilities": by_name}
            )
        return rows

    def with_priors(self, priors: Mapping[str, float]) -> "Classification":
        """Return this classification, which must have a uniform prior and temperature 1, with other priors."""
        if self.log_prior is not None or self.untempered_log_posterior is not None:
            raise UserError("priors: expected a classification with a uniform prior and temperature 1")
        weights = np.array([priors[name] for name in self.names])
        with np.errstate(divide="ignore"):
            log_prior = np.log(weights / weights.sum())
        posterior = apply_temperature(self.log_posterior + log_prior, 1.0)
        return replace(self, log_posterior=posterior, log_prior=log_prior)

    def at_temperature(self, temperature: float) -> "Classification":
        """Return this classification with the log likelihoods divided by `temperature`."""
        posterior = apply_temperature(self.log_posterior, temperature, self.log_prior)
        return replace(
            self, log_posterior=posterior, temperature=temperature, untempered_log_posterior=self.log_posterior
        )

    def fitted_temperature(self) -> float:
        """Return the temperature that minimizes the nats of the true values."""
        is_labelled = self.truth >= 0
        return fit_temperature(self.log_posterior[is_labelled], self.truth[is_labelled], self.log_prior)

    def confusion(self) -> NDArray[np.int64]:
        """Return the confusion matrix (K, K): counts by true value (rows) and predicted value (columns)."""
        is_labelled, size = self.truth >= 0, len(self.names)
        flat = np.bincount(self.truth[is_labelled] * size + self.predicted[is_labelled], minlength=size * size)
        counts: NDArray[np.int64] = flat.reshape(size, size)
        return counts

    def metrics(self) -> Row:
        """Return accuracy, macro F1, mean AUC and calibration, and for each value count, precision, recall, F1 and AUC.

        `majority` is the accuracy of always predicting the majority class. `left_out` counts the texts without a
        candidate as true value: `left_out_missing` have no value, `left_out_other` have another value. Metrics over
        zero texts are NaN.
        """
        counts, is_labelled = self.confusion(), self.truth >= 0
        correct, true, predicted = np.diag(counts), counts.sum(1), counts.sum(0)
        values: list[Row] = [
            {
                "value": name,
                "count": int(true[index]),
                "precision": _ratio(correct[index], predicted[index]),
                "recall": _ratio(correct[index], true[index]),
                "f1": _ratio(2 * correct[index], true[index] + predicted[index]),
                "auc": auc(
                    self.detection_score[is_labelled | self.is_distractor, index],
                    self.truth[is_labelled | self.is_distractor] == index,
                ),
            }
            for index, name in enumerate(self.names)
        ]
        present = [value for value in values if value["count"]]
        excluded = ~is_labelled & ~self.is_distractor
        row: Row = {"texts": int(counts.sum()), "distractors": int(self.is_distractor.sum())}
        row |= {} if self.truncated is None else {"truncated": int(self.truncated.sum())}
        row["left_out"] = int(excluded.sum())
        if self.is_missing is not None:
            missing = int((excluded & self.is_missing).sum())
            row |= {"left_out_missing": missing, "left_out_other": row["left_out"] - missing}
        row["accuracy"] = _ratio(correct.sum(), counts.sum())
        if self.training_prior_predictions is not None and is_labelled.any():
            row["accuracy_training_priors"] = float((self.training_prior_predictions == self.truth)[is_labelled].mean())
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
        is_labelled = self.truth >= 0
        row: Row = {} if self.untempered_log_posterior is None else {"temperature": self.temperature}
        for suffix, posterior in (("", self.log_posterior), ("_at_1", self.untempered_log_posterior)):
            if posterior is not None:
                row[f"calibration_error{suffix}"] = calibration_error(
                    np.exp(posterior[is_labelled]), self.truth[is_labelled]
                )
                row[f"value_nats{suffix}"] = value_nats(posterior[is_labelled], self.truth[is_labelled])
        if self.untempered_log_posterior is not None and self.log_prior is not None and is_labelled.any():
            row["accuracy_at_1"] = float((self.untempered_log_posterior.argmax(1) == self.truth)[is_labelled].mean())
        return row


def apply_bayes_rule(
    names: Sequence[str],
    likelihoods: Floats,
    lengths: NDArray[np.int64],
    truth: Sequence[str | None],
    distractors: Sequence[str] = (),
    truncated: NDArray[np.bool_] | None = None,
) -> Classification:
    """Apply Bayes' rule with a uniform prior.

    Args:
        names: The candidates (K).
        likelihoods: log p(text given candidate) in nats (B, K).
        lengths: The number of targets of each text (B,).
        truth: The true value of each text (B,), None if it has none.
        distractors: Values that are not candidates, whose texts count as negatives in the AUC.
        truncated: Whether each text was cut (B,).
    """
    score = z_scores(-np.exp(-likelihoods / np.maximum(1, lengths)[:, None]))
    index_of = {name: number for number, name in enumerate(names)}
    true_indices = np.array([-1 if name is None else index_of.get(name, -1) for name in truth], dtype=np.int64)
    distractor = np.isin(np.array(truth, dtype=object), list(distractors))
    return Classification(
        tuple(names), apply_temperature(likelihoods, 1.0), score, true_indices, distractor, truncated=truncated
    )


def text_accuracies(result: Classification) -> TextSums:
    """Return the contribution of every text to the accuracy."""
    return accuracy_sums(result.key, result.predicted == result.truth, result.truth >= 0)


def z_scores(values: Floats) -> Floats:
    """Return the z-scores of `values` (B, K) within each row; 0 for a row of equal values."""
    spread = values.std(1, keepdims=True)
    scores: Floats = (values - values.mean(1, keepdims=True)) / np.where(spread > 0, spread, 1.0)
    return scores


def _ratio(count: Any, total: Any) -> float:
    return float(count / total) if total else math.nan


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def calibration_error(probabilities: Floats, truth: NDArray[np.int64]) -> float:
    """Return the expected calibration error of `probabilities` (B, K) for the true candidates `truth` (B,)."""
    if not len(truth):
        return math.nan
    confidence, correct = probabilities.max(1), probabilities.argmax(1) == truth
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    gaps = np.bincount(bins, correct, BINS) - np.bincount(bins, confidence, BINS)  # summed over the texts of each bin
    return float(np.abs(gaps).sum() / len(truth))


def value_nats(log_posterior: Floats, truth: NDArray[np.int64]) -> float:
    """Return the mean negative log posterior, in nats, of the true candidates `truth` (B,)."""
    return float(-log_posterior[np.arange(len(truth)), truth].mean()) if len(truth) else math.nan


def apply_temperature(log_posterior: Floats, temperature: float, log_prior: Floats | None = None) -> Floats:
    """Divide the log likelihoods in `log_posterior` (B, K) by `temperature`, leave the prior as it is, normalize."""
    prior = _finite(log_prior)
    flat = (log_posterior - prior) / temperature + prior
    top = flat.max(1, keepdims=True)
    return np.asarray(flat - top - np.log(np.exp(flat - top).sum(1, keepdims=True)))


def fit_temperature(log_posterior: Floats, truth: NDArray[np.int64], log_prior: Floats | None = None) -> float:
    """Return the temperature that minimizes the nats of the true values (1 for no texts), by bisection.

    The nats are convex in 1 / T; their slope is the posterior mean of the evidence minus that of the true value.
    """
    if not len(truth):
        return 1.0
    evidence = log_posterior - _finite(log_prior)
    true_evidence = evidence[np.arange(len(truth)), truth]
    finite = np.where(np.isneginf(evidence), 0.0, evidence)  # impossible values have posterior 0

    def slope(inverse: float) -> float:
        posterior = np.exp(apply_temperature(log_posterior, 1 / inverse, log_prior))
        return float(((posterior * finite).sum(1) - true_evidence).mean())

    low, high = 1 / MAX_TEMPERATURE, 1 / MIN_TEMPERATURE
    for _ in range(BISECTION_STEPS):
        middle = np.sqrt(low * high)
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return float(1 / np.sqrt(low * high))


def _finite(log_prior: Floats | None) -> Floats:
    """Return the log priors, with 0 for impossible values, whose log posterior is minus infinity already."""
    return np.zeros(1) if log_prior is None else np.where(np.isneginf(log_prior), 0.0, log_prior)
