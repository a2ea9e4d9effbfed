"""An n-gram model that is conditioned on the value of a context column.

    p_1(w | h, v) = p(w | h) r_v(w)^beta / Z(h, v)         r_v(w) = (c_v(w) + alpha p(w)) / (c_v + alpha) / p(w)
    p_n(w | h, v) = (c_v(h w) + alpha_n p_{n-1}(w | h, v)) / (c_v(h) + alpha_n)

w is a token, h its history (the preceding tokens), and v the value. p(w | h) is a Kneser-Ney model of all texts (the
base model), p(w) a unigram model of all texts, c_v are counts in the texts with value v, and Z normalizes. An adapted
softmax bias can represent the first line; the second line, for histories h of n - 1 = 1, 2, ... tokens, requires an
adapted recurrent layer. alpha, beta and alpha_n are fitted on tune texts, which are neither counted nor test texts.

Shapes: B texts, T targets, V vocabulary, K values (label K is a missing value), C columns.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from factorcell.data.corpus import Corpus, target_ids
from factorcell.evaluation.bayes_rule import apply_temperature
from factorcell.evaluation.ngram import NGram

BLOCK = 4_000_000  # maximum number of probabilities that are computed at once
ALPHAS = tuple(10.0 ** (power / 2) for power in range(0, 14))  # candidate pseudo-counts
MAX_STEPS, TOLERANCE = 6, 1e-3  # Newton's method for beta stops after this number of steps, or at a smaller change

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]
Float32s = NDArray[np.float32]


class ValueCounts:
    """Counts of pairs of an item (the id of an n-gram or history) and a value, with sorted keys item * K + value."""

    def __init__(self, items: Ids, values: Ids, size: int) -> None:
        known = (items >= 0) & (values < size)
        self.size = size
        self.keys, self.counts = np.unique(items[known] * size + values[known], return_counts=True)

    def of_all_values(self, items: Ids) -> Float32s:
        """Return the counts of each of `items` (T,) with all values (T, K + 1).

        The counts of item -1 and of the missing value are 0.
        """
        begin, end = (np.searchsorted(self.keys, (items + shift) * self.size) for shift in (0, 1))
        spans = np.where(items >= 0, end - begin, 0)
        rows = np.repeat(np.arange(len(items)), spans)
        positions = np.arange(len(rows)) + np.repeat(begin - np.cumsum(spans) + spans, spans)
        dense = np.zeros((len(items), self.size + 1), dtype=np.float32)
        dense[rows, self.keys[positions] % self.size] = self.counts[positions]
        return dense

    def with_value(self, items: Ids, values: Ids) -> Floats:
        """Return the count (T,) of each of `items` (T,) with its own value in `values` (T,)."""
        if not len(self.keys):
            return np.zeros(len(items))
        keys = items * self.size + values
        positions = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        exists = (self.keys[positions] == keys) & (items >= 0) & (values < self.size)
        return np.where(exists, self.counts[positions], 0).astype(np.float64)


@dataclass(frozen=True)
class IndexedTexts:
    """Texts as ids of the base model: the targets, and the history and n-gram of each target at every order."""

    targets: Ids  # (T,)
    histories: list[Ids]  # (T,) at every order
    grams: list[Ids]  # (T,) at every order
    starts: Ids  # index of the first target of each text (B + 1,)
    base: Floats  # log p(w | h) of each target (T,); empty for texts that are only counted

    @classmethod
    def from_corpus(cls, model: NGram, corpus: Corpus, *, only_counted: bool = False) -> "IndexedTexts":
        """Look up the n-grams of all texts of `corpus` in the base `model`."""
        blocks = list(model.blocks(corpus))
        histories, grams = (
            [np.concatenate(order) for order in zip(*(block[side] for block in blocks), strict=True)] for side in (0, 1)
        )
        starts = np.append(0, np.cumsum(corpus.lengths))
        base = np.zeros(0) if only_counted else -model.nats(corpus)
        return cls(target_ids(corpus), histories, grams, starts, base)

    def repeat_per_target(self, labels: Ids) -> Ids:
        """Repeat the labels of texts (B,) for each of their targets (T,)."""
        return np.repeat(labels, np.diff(self.starts))


class ValueNGram:
    """An n-gram model that is conditioned on one column with K = `size` values.

    The label of a text is the index of its value, or K if the value is missing.
    """

    def __init__(self, model: NGram, train: IndexedTexts, labels: Ids, size: int) -> None:
        self.model, self.size = model, size
        values = train.repeat_per_target(labels)
        vocabulary = len(model.tokenizer)
        tokens = ValueCounts(train.targets, values, size)
        self.counts = tokens.of_all_values(np.arange(vocabulary)).T  # (K + 1, V)
        self.totals = self.counts.sum(1, dtype=np.float64)
        unigrams = np.bincount(train.targets, minlength=vocabulary) + 0.5
        self.unigrams = unigrams / unigrams.sum()
        self.longer = [
            (ValueCounts(history, values, size), ValueCounts(gram, values, size))
            for history, gram in zip(train.histories[1:], train.grams[1:], strict=True)
        ]
        self.alpha, self.beta = 1.0, 1.0
        self.alphas: list[float] = []

    def fit_prior(self, tune: IndexedTexts, labels: Ids) -> None:
        """Fit alpha, the pseudo-count of the unigram model in each value, on the tune texts with these labels (B,)."""
        values = tune.repeat_per_target(labels)
        counts, totals, unigrams = self.counts[values, tune.targets], self.totals[values], self.unigrams[tune.targets]
        nats = {alpha: -np.log((counts + alpha * unigrams) / (totals + alpha)).sum() for alpha in ALPHAS}
        self.alpha = min(nats, key=lambda alpha: nats[alpha])

    def ratios(self) -> Float32s:
        """Return log r_v(w) (K + 1, V), which is 0 for the missing value."""
        unigrams = self.unigrams.astype(np.float32)
        shares = self.counts + np.float32(self.alpha) * unigrams
        shares /= (self.totals + self.alpha).astype(np.float32)[:, None] * unigrams
        log_ratios: Float32s = np.log(shares)
        return log_ratios

    def log_probs(self, texts: IndexedTexts) -> tuple[Float32s, Float32s]:
        """Return log p_1 and log p_n of every target given every value (T, K + 1), where n is the highest order."""
        ratios = self.beta * self.ratios()
        raised = np.exp(ratios).T
        first = np.empty((len(texts.targets), self.size + 1), dtype=np.float32)
        for rows, probabilities in blocks(self.model, texts):
            normaliser = probabilities @ raised
            first[rows] = texts.base[rows, None] + ratios[:, texts.targets[rows]].T - np.log(normaliser)
        probabilities = np.exp(first)
        for level, alpha in enumerate(self.alphas):
            if np.isfinite(alpha):
                histories, grams = self.longer[level]
                history, gram = (
                    histories.of_all_values(texts.histories[level + 1]),
                    grams.of_all_values(texts.grams[level + 1]),
                )
                probabilities = (gram + alpha * probabilities) / (history + alpha)
        return first, np.log(probabilities).astype(np.float32)

    def fit_longer(self, tune: IndexedTexts, labels: Ids, first: Floats) -> Floats:
        """Fit alpha_n for each order n on the tune texts; return p_n (T,) of the highest order.

        `first` (T,) are the probabilities p_1 given the true values. alpha_n is infinite if order n does not raise the
        likelihood of the tune texts.
        """
        self.alphas, probability = [], first
        for level in range(len(self.longer)):
            history, gram = self._counts_of_true_values(tune, labels, level)
            candidates = {alpha: (gram + alpha * probability) / (history + alpha) for alpha in ALPHAS}
            candidates[np.inf] = probability
            best = min(candidates, key=lambda alpha: -np.log(candidates[alpha]).sum())
            self.alphas.append(best)
            probability = candidates[best]
        return probability

    def apply_longer(self, texts: IndexedTexts, labels: Ids, first: Floats) -> Floats:
        """Return p_n (T,) of the highest order n given the true values; `first` (T,) are the probabilities p_1."""
        probability = first
        for level, alpha in enumerate(self.alphas):
            if np.isfinite(alpha):
                history, gram = self._counts_of_true_values(texts, labels, level)
                probability = (gram + alpha * probability) / (history + alpha)
        return probability

    def _counts_of_true_values(self, texts: IndexedTexts, labels: Ids, level: int) -> tuple[Floats, Floats]:
        """Return c_v(h) and c_v(h w) (T,) for the true values v, for histories of `level` + 1 tokens."""
        histories, grams = self.longer[level]
        values = texts.repeat_per_target(labels)
        history = histories.with_value(texts.histories[level + 1], values)
        return history, grams.with_value(texts.grams[level + 1], values)


def blocks(model: NGram, texts: IndexedTexts) -> Iterator[tuple[slice, Float32s]]:
    """Yield slices of t targets, each with p(w | h) of the base model for every token w (t, V)."""
    size = max(1, BLOCK // len(model.tokenizer))
    for begin in range(0, len(texts.targets), size):
        rows = slice(begin, min(begin + size, len(texts.targets)))
        yield rows, model.probabilities([history[rows] for history in texts.histories]).astype(np.float32)


def exponents(model: NGram, texts: IndexedTexts, ratios: Sequence[Float32s], labels: Sequence[Ids]) -> Floats:
    """Return the exponents beta (C,) that maximize the likelihood of p(w | h) prod_c r_c(w)^beta_c / Z.

    Newton's method maximizes the log likelihood, which is concave in beta. For each column c, `ratios` has an array
    log r_c (K_c + 1, V), and `labels` has an array (B,).
    """
    beta = np.zeros(len(ratios))
    values = [texts.repeat_per_target(column) for column in labels]
    for _ in range(MAX_STEPS):
        gradient, hessian = np.zeros(len(beta)), 1e-6 * np.eye(len(beta))
        for rows, probabilities in blocks(model, texts):
            log_ratios = np.stack(
                [ratio[value[rows]] for ratio, value in zip(ratios, values, strict=True)]
            )  # (C, t, V)
            tilted = probabilities * np.exp(np.tensordot(beta.astype(np.float32), log_ratios, 1))
            tilted /= tilted.sum(1, keepdims=True)
            means = np.einsum("tw,ctw->ct", tilted, log_ratios)
            of_targets = np.take_along_axis(log_ratios, texts.targets[None, rows, None], 2)[:, :, 0]
            gradient += (of_targets - means).sum(1, dtype=np.float64)
            hessian += np.einsum("tw,ctw,dtw->cd", tilted, log_ratios, log_ratios, optimize=True) - means @ means.T
        change = np.linalg.solve(hessian, gradient)
        beta = np.clip(beta + change, 0.0, 2.0)
        if np.abs(change).max() < TOLERANCE:
            break
    return beta


def tilted_log_probs(
    model: NGram, texts: IndexedTexts, ratios: Sequence[Float32s], labels: Sequence[Ids], beta: Floats
) -> Floats:
    """Return log [p(w | h) prod_c r_c(w)^beta_c / Z] of every target (T,), given the values of its text."""
    values = [texts.repeat_per_target(column) for column in labels]
    log_probs = np.empty(len(texts.targets))
    for rows, probabilities in blocks(model, texts):
        log_ratios = sum(b * ratio[value[rows]] for b, ratio, value in zip(beta, ratios, values, strict=True))
        of_targets = np.take_along_axis(log_ratios, texts.targets[rows, None], 1)[:, 0]
        log_probs[rows] = texts.base[rows] + of_targets - np.log((probabilities * np.exp(log_ratios)).sum(1))
    return log_probs


def posterior(
    log_probs: Float32s, texts: IndexedTexts, prior: Floats, exponent: float, max_targets: int | None = None
) -> Floats:
    """Return log p(v | text) (B, K) by Bayes' rule from the log probabilities (T, K) of the targets given each value.

    Only the first `max_targets` targets of each text count; by default all. `prior` (K,) has log probabilities. The
    likelihood is raised to the power `exponent`, because tokens are not independent evidence.
    """
    log_likelihoods = np.empty((len(texts.starts) - 1, len(prior)))
    for row, begin in enumerate(texts.starts[:-1]):
        end = texts.starts[row + 1] if max_targets is None else min(texts.starts[row + 1], begin + max_targets)
        log_likelihoods[row] = log_probs[begin:end, : len(prior)].sum(0, dtype=np.float64)
    return apply_temperature(prior + exponent * log_likelihoods, 1.0)
