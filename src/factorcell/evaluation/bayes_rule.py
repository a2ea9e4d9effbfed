"""Bayes' rule over candidate contexts: how likely each is, given what a text would cost with it, and how often so.

    p(candidate | text) ~ p(text | candidate) p(candidate)                                  (TACL 2018, equation 7)

Shapes: B texts, K candidates.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.evaluation.calibration import calibration_error, fit_temperature, tempered, value_nats
from factorcell.evaluation.statistics import auc
from factorcell.evaluation.text_figures import TextSums, of_right

Row = dict[str, Any]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Classification:
    """Texts judged by Bayes' rule: `names` (K) of the candidates, `log_posterior` (B, K), `truth` (B), -1: unknown.

    `score` (B, K) is minus the perplexity, z-normalised over the candidates: the detection score of the 2017 paper.
    Where they are told: `missing` (B,) are the texts without any value, `by_training` (B,) what would be predicted
    with the priors of training, `truncated` (B,) the texts that were cut after `max_tokens` tokens, and `key` tells
    texts and candidates from others. `log_prior` (K,) is None where all
    have the same. `posterior_at_1` is what `log_posterior` was before it got its `temperature`.
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
    def labelled(self) -> bool:
        """Whether any text has the value of a candidate, by which it can be judged."""
        return bool((self.truth >= 0).any())

    def rows(self) -> list[Row]:
        """One row a text, counted from zero: what is predicted, the true value or None, every value's probability.

        `truncated`, where it is known: whether only the first `max_tokens` tokens of the text were read.
        """
        rows = []
        for row, (best, probabilities) in enumerate(zip(self.predicted, self.probabilities, strict=True)):
            named = {name: round(float(p), 6) for name, p in zip(self.names, probabilities, strict=True)}
            true = self.names[self.truth[row]] if self.truth[row] >= 0 else None
            cut = {} if self.truncated is None else {"truncated": bool(self.truncated[row])}
            rows.append({"row": row, "predicted": self.names[best], "true": true, **cut, "probabilities": named})
        return rows

    def under(self, priors: Mapping[str, float]) -> "Classification":
        """The same where candidates are so frequent, and not all alike and at 1, as before; some may never be."""
        assert (self.log_prior, self.posterior_at_1) == (None, None)
        weights = np.array([priors[name] for name in self.names])
        with np.errstate(divide="ignore"):
            log_prior = np.log(weights / weights.sum())
        posterior = tempered(self.log_posterior + log_prior, 1.0)
        return replace(self, log_posterior=posterior, log_prior=log_prior)

    def at(self, temperature: float) -> "Classification":
        """The same with the evidence of the texts at a temperature; see `evaluation.calibration`."""
        posterior = tempered(self.log_posterior, temperature, self.log_prior)
        return replace(self, log_posterior=posterior, temperature=temperature, posterior_at_1=self.log_posterior)

    def fitted_temperature(self) -> float:
        """The temperature that suits the texts that are judged."""
        judged = self.truth >= 0
        return fit_temperature(self.log_posterior[judged], self.truth[judged], self.log_prior)

    def _calibration(self) -> Row:
        """How sure it is and may be: the calibration error and the nats of true values; as they were at 1, likewise.

        At 1 there is an accuracy of its own where candidates have priors.
        """
        judged = self.truth >= 0
        found: Row = {}
        for suffix, posterior in (("", self.log_posterior), ("_at_1", self.posterior_at_1)):
            if posterior is not None:
                found[f"calibration_error{suffix}"] = calibration_error(np.exp(posterior[judged]), self.truth[judged])
                found[f"value_nats{suffix}"] = value_nats(posterior[judged], self.truth[judged])
        if self.posterior_at_1 is not None and self.log_prior is not None and judged.any():
            found["accuracy_at_1"] = float((self.posterior_at_1.argmax(1) == self.truth)[judged].mean())
        return found if self.posterior_at_1 is None else {"temperature": self.temperature, **found}

    def confusion(self) -> NDArray[np.int64]:
        """Counts (K, K): rows are true values, columns predicted ones."""
        judged, size = self.truth >= 0, len(self.names)
        flat = np.bincount(self.truth[judged] * size + self.predicted[judged], minlength=size * size)
        counts: NDArray[np.int64] = flat.reshape(size, size)
        return counts

    def metrics(self) -> Row:
        """Accuracy, macro F1, mean AUC, calibration, and per value count, precision, recall, F1 and AUC.

        Beside the accuracy `majority`, the share of the most frequent value among the texts that are judged.
        """
        counts = self.confusion()
        right, true, predicted = np.diag(counts), counts.sum(1), counts.sum(0)
        values: list[Row] = []
        for index, name in enumerate(self.names):
            scale = int(true[index] + predicted[index])
            values.append(
                {
                    "value": name,
                    "count": int(true[index]),
                    "precision": right[index] / predicted[index] if predicted[index] else math.nan,
                    "recall": right[index] / true[index] if true[index] else math.nan,
                    "f1": 2 * right[index] / scale if scale else math.nan,
                    "auc": self._auc(index),
                }
            )
        present = [value for value in values if value["count"]]
        return {
            "texts": int(counts.sum()),
            "distractors": int(self.distractor.sum()),
            **({} if self.truncated is None else {"truncated": int(self.truncated.sum())}),
            **self._left_out(),
            "accuracy": float(right.sum() / counts.sum()) if counts.sum() else math.nan,
            **self._accuracy_by_training(),
            "majority": float(true.max() / counts.sum()) if counts.sum() else math.nan,
            "majority_value": self.names[int(true.argmax())] if counts.sum() else None,
            "macro_f1": _mean([value["f1"] for value in present]),
            "auc": _mean([value["auc"] for value in present]),
            **self._calibration(),
            "values": [{key: _plain(item) for key, item in value.items()} for value in values],
        }

    def _left_out(self) -> Row:
        """How many texts are not judged; where it is told, how many for want of a value, and of other values."""
        left = (self.truth < 0) & ~self.distractor
        if self.missing is None:
            return {"left_out": int(left.sum())}
        missing = int((left & self.missing).sum())
        return {"left_out": int(left.sum()), "left_out_missing": missing, "left_out_other": int(left.sum()) - missing}

    def _accuracy_by_training(self) -> Row:
        """The accuracy that the priors of training would give, where they were not those used."""
        judged = self.truth >= 0
        if self.by_training is None or not judged.any():
            return {}
        return {"accuracy_training_priors": float((self.by_training == self.truth)[judged].mean())}

    def _auc(self, index: int) -> float:
        judged = (self.truth >= 0) | self.distractor
        return auc(self.score[judged, index], self.truth[judged] == index)


def judged_texts(found: Classification) -> TextSums:
    """What every text adds to the accuracy."""
    return of_right(found.key, found.predicted == found.truth, found.truth >= 0)


def _mean(values: Sequence[float]) -> float:
    """The mean of what is not NaN; NaN of nothing."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def z_scores(values: Floats) -> Floats:
    """How far values (B, K) lie above the mean of their row, in its standard deviations; 0 where all are the same."""
    spread = values.std(1, keepdims=True)
    found: Floats = (values - values.mean(1, keepdims=True)) / np.where(spread > 0, spread, 1.0)
    return found


def judge(
    names: Sequence[str],
    likelihoods: Floats,
    lengths: NDArray[np.int64],
    truth: Sequence[str | None],
    distractors: Sequence[str] = (),
    truncated: NDArray[np.bool_] | None = None,
) -> Classification:
    """Bayes' rule over `likelihoods` (B, K), all candidates being as frequent.

    `lengths` (B,) counts targets, `truth` names the right candidates, some of which are `distractors`; `truncated`
    (B,) marks texts that were cut.
    """
    score = z_scores(-np.exp(-likelihoods / np.maximum(1, lengths)[:, None]))
    index = {name: number for number, name in enumerate(names)}
    which = np.array([-1 if name is None else index.get(name, -1) for name in truth], dtype=np.int64)
    distractor = np.isin(np.array(truth, dtype=object), list(distractors))
    return Classification(tuple(names), tempered(likelihoods, 1.0), score, which, distractor, truncated=truncated)
