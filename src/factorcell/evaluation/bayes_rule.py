"""Classification by Bayes' rule over candidate contexts: metrics and calibration of the posterior.

    p(candidate | text) ~ p(text | candidate) ** (1 / T) p(candidate)                       (TACL 2018, equation 7)

A temperature T above 1 reduces the confidence of language models, which is usually too high (Guo et al. 2017).
Shapes: B texts, K candidates.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from factorcell.data.columns.rows import ResultRows, key_by_category_name
from factorcell.data.tables.tables import table_name
from factorcell.errors import UserError
from factorcell.evaluation.text_figures import Ratios, TextSums, accuracy_sums, prediction_fields
from factorcell.runs.run import Run

BINS = 15  # bins of equal width for the calibration error (Guo et al. 2017)
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 100.0
LINEAR = "linear"  # the priors of a linear classifier, which has learned them
LIKELIHOOD, LINEAR_BASELINE = "likelihood", "linear baseline"  # names of parts of a combination
CONTEXT_CLASSIFIER = "other columns, without the text"  # name of the conditional prior as a classifier

Row = dict[str, Any]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Classification:
    """The posteriors of B texts over K candidates, with true values and metrics.

    Attributes:
        names: The candidates (K).
        log_posterior: log p(candidate given text) in nats (B, K).
        truth: The index of the true candidate of each text (B,), -1 for a text without one.
        priors: The name of the priors, such as "uniform".
        samples: The number of sampled tokens of the softmax; 0 if the softmax is exact.
        combination_weights: The weights of a combination of several classifiers, by their names; None for other
            classifications.
        other_predictions: The index of the predicted candidate of each text (B,) by other classifiers, by their names.
        key: A digest of the texts and candidates.
        log_prior: The log priors (K,), or those of each text (B, K); None if they are uniform.
        temperature: The temperature T by which the log likelihoods were divided; None if none was fitted.
        truncated: Whether each text was cut after `max_tokens` tokens (B,); None if this is unknown.

    References:
        Jaech and Ostendorf, TACL 2018, equation 7.
    """

    names: tuple[str, ...]
    log_posterior: Floats
    truth: NDArray[np.int64]
    priors: str = "uniform"
    samples: int = 0
    combination_weights: Mapping[str, float] | None = None
    other_predictions: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    key: str = ""
    log_prior: Floats | None = None
    temperature: float | None = None
    truncated: NDArray[np.bool_] | None = None

    @property
    def name(self) -> str:
        """The name of the classifier, such as "model, uniform priors, calibrated"."""
        if self.priors == LINEAR:
            return LINEAR_BASELINE
        settings = [f"{self.samples:,} samples"] if self.samples else []
        settings += [] if self.temperature is None else ["calibrated"]
        settings += [] if self.combination_weights is None else ["combined with a linear classifier"]
        return ", ".join(("model", f"{self.priors} priors", *settings))

    @property
    def classifier(self) -> str:
        """The kind of the classifier: "model", "calibrated", "combined" or "linear"."""
        if self.combination_weights is not None:
            return "combined"
        if self.priors == LINEAR:
            return LINEAR
        return "model" if self.temperature is None else "calibrated"

    @property
    def predicted(self) -> NDArray[np.int64]:
        """The index of the most probable candidate of each text (B,)."""
        best: NDArray[np.int64] = self.log_posterior.argmax(1)
        return best

    @property
    def probabilities(self) -> Floats:
        """The posterior probability of each candidate given the text (B, K)."""
        return np.exp(self.log_posterior)

    @property
    def labels(self) -> list[str]:
        """The most probable candidate of each text (B,)."""
        return [self.names[index] for index in self.predicted]

    @property
    def accuracy(self) -> float:
        """The share of correct labels among the texts with a true candidate; NaN if there are none."""
        is_labelled = self.truth >= 0
        return _ratio(int((self.predicted == self.truth)[is_labelled].sum()), int(is_labelled.sum()))

    @property
    def has_labels(self) -> bool:
        """Whether any text has a candidate as its true value."""
        return bool((self.truth >= 0).any())

    def rows(self) -> ResultRows:
        """Return one row per text: `row` (from zero), `predicted`, `true` (or None) and `probabilities` by candidate.

        Rows also have `truncated` (whether only the first `max_tokens` tokens were read) unless this is unknown.
        """
        rows = ResultRows()
        names = (*self.names, None)  # the index -1 stands for no candidate
        for index, (predicted, probabilities) in enumerate(zip(self.predicted, self.probabilities, strict=True)):
            row = {"row": index, "predicted": names[predicted], "true": names[self.truth[index]]}
            row |= {} if self.truncated is None else {"truncated": bool(self.truncated[index])}
            pairs = zip(self.names, probabilities.tolist(), strict=True)
            rows.append({**row, "probabilities": {name: float(f"{probability:.6g}") for name, probability in pairs}})
        return rows

    def with_priors(self, priors: Mapping[str, float]) -> "Classification":
        """Return a copy with the prior probabilities `priors`, which need not sum to 1.

        Raises a `UserError` unless this classification has a uniform prior and no fitted temperature, and `priors` has
        a number for each candidate.
        """
        weights = key_by_category_name(priors, "priors")
        if missing := [name for name in self.names if name not in weights]:
            raise UserError(f"priors: expected a number for each candidate, got none for {missing[0]}")
        return self.with_log_prior(to_log_prior([weights[name] for name in self.names]), "specified")

    def with_log_prior(self, log_prior: Floats, priors: str) -> "Classification":
        """Return a copy with normalized log priors (K,) or (B, K) and their name `priors`, such as "training"."""
        if self.log_prior is not None or self.temperature is not None:
            raise UserError("priors: expected a classification with a uniform prior and temperature 1")
        log_posterior = log_softmax(self.log_posterior + log_prior, axis=1)
        return replace(self, log_posterior=log_posterior, log_prior=log_prior, priors=priors)

    def at_temperature(self, temperature: float) -> "Classification":
        """Return a copy whose log likelihoods are divided by `temperature`."""
        log_posterior = apply_temperature(self.log_posterior, temperature, self.log_prior)
        return replace(self, log_posterior=log_posterior, temperature=temperature)

    def fitted_temperature(self) -> float:
        """Return the temperature that minimizes the nats of the true candidates, -log p(true candidate | text)."""
        is_labelled, log_prior = self.truth >= 0, self.log_prior
        if log_prior is not None and log_prior.ndim == 2:
            log_prior = log_prior[is_labelled]
        return fit_temperature(self.log_posterior[is_labelled], self.truth[is_labelled], log_prior)

    def confusion(self) -> NDArray[np.int64]:
        """Return the confusion matrix (K, K): counts by true value (rows) and predicted value (columns)."""
        is_labelled, counts = self.truth >= 0, np.zeros((len(self.names), len(self.names)), dtype=np.int64)
        np.add.at(counts, (self.truth[is_labelled], self.predicted[is_labelled]), 1)
        return counts

    def metrics(self) -> Row:
        """Return accuracy, macro F1, mean AUC and calibration error; `values` has a row of metrics for each candidate.

        The AUC of a candidate ranks the texts by its posterior probability, on which the predictions are based.
        `classifier` is "model", "calibrated" or "combined"; a combination never counts as the model. `accuracy_low` and
        `accuracy_high` are the ends of the interval of the accuracy over texts, and `linear_accuracy` is the accuracy
        of the linear baseline or None. `others` has a row for each of `other_predictions`: its accuracy, and the
        accuracy of this classification minus it, `difference`.
        `majority_value` is the most frequent true value of these texts, which may not be that of the training texts,
        and `majority` is the accuracy of always predicting it. `left_out` is the number of texts without a true
        candidate, which the metrics omit. A metric over zero texts is NaN.
        """
        confusion, is_labelled = self.confusion(), self.truth >= 0
        true_counts, predicted_counts = confusion.sum(1), confusion.sum(0)
        log_posterior, truth = self.log_posterior[is_labelled], self.truth[is_labelled]
        probabilities, scores = np.exp(log_posterior), log_odds(log_posterior)
        values: list[Row] = [
            {
                "value": name,
                "count": int(true_counts[index]),
                "precision": _ratio(confusion[index, index], predicted_counts[index]),
                "recall": _ratio(confusion[index, index], true_counts[index]),
                "f1": _ratio(2 * confusion[index, index], true_counts[index] + predicted_counts[index]),
                "auc": auc(scores[:, index], truth == index),
            }
            for index, name in enumerate(self.names)
        ]
        values_with_texts = [value for value in values if value["count"]]
        row: Row = {
            "priors": self.priors,
            "classifier": self.classifier,
            "texts": len(truth),
            "truncated": None if self.truncated is None else int(self.truncated.sum()),
            "left_out": len(self.truth) - len(truth),
            **self._accuracies(),
            "majority": _ratio(true_counts.max(), len(truth)),
            "majority_value": self.names[int(true_counts.argmax())] if len(truth) else None,
            "macro_f1": _nan_mean([value["f1"] for value in values_with_texts]),
            "auc": _nan_mean([value["auc"] for value in values_with_texts]),
            "temperature": self.temperature,
            "combination_weights": self.combination_weights and dict(self.combination_weights),
            "calibration_error": calibration_error(probabilities, truth),
            "mean_confidence": float(probabilities.max(1).mean()) if len(truth) else math.nan,
            "value_nats": value_nats(log_posterior, truth),
        }
        return {**row, "values": values}

    def result_row(self, run: Run, table: Any, target: str) -> Row:
        """Return the row of this classification by a run, which `save_result` saves; `target` may describe points."""
        confusion = {"labels": list(self.names), "counts": self.confusion().tolist()}
        identity = {"kind": "classify", "table": table_name(table), "target": target, **prediction_fields(run)}
        metrics = {name: value for name, value in self.metrics().items() if name != "others"}
        return {**identity, "samples": self.samples, **metrics, "confusion": confusion}

    def _accuracies(self) -> Row:
        if not self.has_labels:
            return {"accuracy": math.nan, "linear_accuracy": None, "others": []}
        predictions = self.other_predictions.values()
        sums = [accuracy_sums(self.key, predicted == self.truth, self.truth >= 0) for predicted in predictions]
        ratios = Ratios.from_sums([[text_accuracies(self)], *([other] for other in sums)])
        assert ratios is not None  # all figures have the same texts
        others = [
            {
                "classifier": name,
                **ratios.interval(index).to_row("accuracy"),
                **ratios.difference(0, index).to_row("difference"),
            }
            for index, name in enumerate(self.other_predictions, 1)
        ]
        linear_accuracy = next((row["accuracy"] for row in others if LINEAR_BASELINE in str(row["classifier"])), None)
        return {**ratios.interval(0).to_row("accuracy"), "linear_accuracy": linear_accuracy, "others": others}


def apply_bayes_rule(
    names: Sequence[str],
    log_likelihoods: Floats,
    truth: Sequence[str | None],
    truncated: NDArray[np.bool_] | None = None,
) -> Classification:
    """Classify texts by Bayes' rule with a uniform prior, from log p(text | candidate) in nats (B, K)."""
    index_of = {name: index for index, name in enumerate(names)}
    true_indices = np.array([-1 if name is None else index_of.get(name, -1) for name in truth], dtype=np.int64)
    return Classification(tuple(names), log_softmax(log_likelihoods, axis=1), true_indices, truncated=truncated)


def text_accuracies(result: Classification) -> TextSums:
    """Return the contribution of every text to the accuracy of a classification."""
    return accuracy_sums(result.key, result.predicted == result.truth, result.truth >= 0)


def log_odds(log_posterior: Floats) -> Floats:
    """Return log(p / (1 - p)) of posteriors p (B, K); it also distinguishes probabilities that round to 1."""
    best, rows = log_posterior.argmax(1), np.arange(len(log_posterior))
    others = np.exp(log_posterior)
    others[rows, best] = 0.0
    with np.errstate(divide="ignore"):
        log_complements = np.log1p(-others)
        log_complements[rows, best] = np.log(others.sum(1))
    result: Floats = log_posterior - log_complements
    return result


def _ratio(count: Any, total: Any) -> float:
    return float(count / total) if total else math.nan


def _nan_mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def auc(scores: Floats, is_positive: NDArray[np.bool_]) -> float:
    """Return the area under the ROC curve, in which a tie counts half; NaN without positive or negative items."""
    from scipy.stats import rankdata  # the imports take half a second
    from sklearn.metrics import roc_auc_score

    if not is_positive.any() or is_positive.all():
        return math.nan
    return float(roc_auc_score(is_positive, rankdata(scores)))  # scores may be infinite


def calibration_error(probabilities: Floats, truth: NDArray[np.int64]) -> float:
    """Return the calibration error of the posterior `probabilities` (B, K) for the true candidates `truth` (B,).

    It is the mean of |accuracy - mean confidence| over bins of texts with similar confidence, weighted by the numbers
    of texts; the confidence of a prediction is the posterior probability of the predicted candidate.
    """
    if not len(truth):
        return math.nan
    confidence, is_correct = probabilities.max(1), probabilities.argmax(1) == truth
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    correct_by_bin, confidence_by_bin = np.bincount(bins, is_correct, BINS), np.bincount(bins, confidence, BINS)
    return float(np.abs(correct_by_bin - confidence_by_bin).sum() / len(truth))


def value_nats(log_posterior: Floats, truth: NDArray[np.int64]) -> float:
    """Return the mean negative log posterior, in nats, of the true candidates `truth` (B,)."""
    return float(-log_posterior[np.arange(len(truth)), truth].mean()) if len(truth) else math.nan


def apply_temperature(log_posterior: Floats, temperature: float, log_prior: Floats | None = None) -> Floats:
    """Return log posteriors (B, K) whose log likelihoods are divided by `temperature`; the prior does not change.

    `log_posterior` (B, K) is at temperature 1 and need not be normalized. `log_prior` (K,) or (B, K) is the prior that
    it contains, or None for a uniform prior.
    """
    # The log posterior of an impossible candidate is minus infinity, whatever is subtracted.
    finite_log_prior = np.zeros(1) if log_prior is None else np.where(np.isneginf(log_prior), 0.0, log_prior)
    return np.asarray(log_softmax((log_posterior - finite_log_prior) / temperature + finite_log_prior, axis=1))


def to_log_prior(weights: Sequence[float] | NDArray[Any]) -> Floats:
    """Return the log priors (K,) that are proportional to `weights`."""
    values = np.asarray(weights, dtype=np.float64)
    if not ((values >= 0).all() and 0 < values.sum() < np.inf):
        raise UserError("priors: expected numbers of at least 0 that are not all 0")
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(values / values.sum()))


def fit_temperature(log_posterior: Floats, truth: NDArray[np.int64], log_prior: Floats | None = None) -> float:
    """Return the temperature T that minimizes the nats of the true candidates, a convex function of 1 / T."""
    from scipy.optimize import minimize_scalar

    if not len(truth):
        return 1.0

    def nats(log_temperature: float) -> float:
        return value_nats(apply_temperature(log_posterior, math.exp(log_temperature), log_prior), truth)

    bounds = math.log(MIN_TEMPERATURE), math.log(MAX_TEMPERATURE)
    result = minimize_scalar(nats, bounds=bounds, method="bounded", options={"xatol": 1e-7})
    return math.exp(result.x)
