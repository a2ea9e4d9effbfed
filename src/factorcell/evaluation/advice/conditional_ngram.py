"""An n-gram model that is conditioned on the value of a context column.

    p_1(w | h, v) = p(w | h) r_v(w)^beta / Z(h, v)         r_v(w) = (c_v(w) + alpha p(w)) / (c_v + alpha) / p(w)
    p_n(w | h, v) = (c_v(h w) + alpha_n p_{n-1}(w | h, v)) / (c_v(h) + alpha_n)

w is a token, h its history (the preceding tokens), and v the value. p(w | h) is a Kneser-Ney model of all texts (the
base model), p(w) a unigram model of all texts, c_v(x) the count of x in the texts with value v, c_v the number of
targets of these texts, and Z a normalizer. An adapted softmax bias can represent the first line; the second line, for
histories h of n - 1 = 1, 2, ... tokens, requires an adapted recurrent layer. alpha, beta and alpha_n are fitted on tune
texts, which are neither counted nor test texts.

Shapes: B texts, T targets, V vocabulary, K values (label K is a missing value), C columns.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from factorcell.data.corpus import Corpus, target_ids
from factorcell.evaluation.bayes_rule import apply_temperature
from factorcell.ngram.ngram import NGram
from factorcell.ngram.value_counts import ValueCounts

MAX_PROBABILITIES = 4_000_000  # maximum number of probabilities that are computed at once
ALPHAS = tuple(10.0 ** (power / 2) for power in range(0, 14))  # candidate pseudo-counts
MAX_STEPS, TOLERANCE = 6, 1e-3  # Newton's method for beta stops after this number of steps, or at a smaller step

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]
Float32s = NDArray[np.float32]


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
        histories_by_order = zip(*(histories for histories, _, _ in blocks), strict=True)
        grams_by_order = zip(*(grams for _, grams, _ in blocks), strict=True)
        starts = np.append(0, np.cumsum(corpus.lengths))
        base = np.zeros(0) if only_counted else -model.nats(corpus)
        return cls(
            targets=target_ids(corpus),
            histories=[np.concatenate(arrays) for arrays in histories_by_order],
            grams=[np.concatenate(arrays) for arrays in grams_by_order],
            starts=starts,
            base=base,
        )

    def repeat_per_target(self, labels: Ids) -> Ids:
        """Repeat the labels of texts (B,) for each of their targets (T,)."""
        return np.repeat(labels, np.diff(self.starts))


class ValueNGram:
    """An n-gram model that is conditioned on one column with K values.

    The label of a text is the index of its value, or K if the value is missing.
    """

    def __init__(self, model: NGram, train: IndexedTexts, labels: Ids, value_count: int) -> None:
        self.model, self.value_count = model, value_count
        values = train.repeat_per_target(labels)
        vocabulary_size = len(model.tokenizer)
        tokens = ValueCounts.of_pairs(train.targets, values, value_count)
        self.counts = tokens.of_all_values(np.arange(vocabulary_size)).T  # (K + 1, V)
        self.totals = self.counts.sum(1, dtype=np.float64)
        unigrams = np.bincount(train.targets, minlength=vocabulary_size) + 0.5
        self.unigrams = unigrams / unigrams.sum()
        self.longer = [  # counts of histories and of n-grams, for each order from 2
            (ValueCounts.of_pairs(history, values, value_count), ValueCounts.of_pairs(gram, values, value_count))
            for history, gram in zip(train.histories[1:], train.grams[1:], strict=True)
        ]
        self.alpha, self.beta = 1.0, 1.0
        self.alphas: list[float] = []  # alpha_n of each order n from 2

    def fit_prior(self, tune: IndexedTexts, labels: Ids) -> None:
        """Fit alpha, the pseudo-count of the unigram model for each value, on tune texts with the `labels` (B,)."""
        values = tune.repeat_per_target(labels)
        counts, totals, unigrams = self.counts[values, tune.targets], self.totals[values], self.unigrams[tune.targets]
        nats_by_alpha = {alpha: -np.log((counts + alpha * unigrams) / (totals + alpha)).sum() for alpha in ALPHAS}
        self.alpha = min(nats_by_alpha, key=lambda alpha: nats_by_alpha[alpha])

    def log_ratios(self) -> Float32s:
        """Return log r_v(w) (K + 1, V), which is 0 for the missing value."""
        unigrams = self.unigrams.astype(np.float32)
        ratios = self.counts + np.float32(self.alpha) * unigrams
        ratios /= (self.totals + self.alpha).astype(np.float32)[:, None] * unigrams
        log_ratios: Float32s = np.log(ratios)
        return log_ratios

    def log_probs(self, texts: IndexedTexts) -> tuple[Float32s, Float32s]:
        """Return log p_1 and log p_n of every target given every value (T, K + 1), where n is the highest order."""
        scaled_log_ratios = self.beta * self.log_ratios()
        powers = np.exp(scaled_log_ratios).T
        bias_log_probs = np.empty((len(texts.targets), self.value_count + 1), dtype=np.float32)
        for target_span, probabilities in blocks(self.model, texts):
            normalizers = probabilities @ powers
            bias_log_probs[target_span] = (
                texts.base[target_span, None] + scaled_log_ratios[:, texts.targets[target_span]].T - np.log(normalizers)
            )
        probabilities = np.exp(bias_log_probs)
        for index, alpha in enumerate(self.alphas):
            if np.isfinite(alpha):
                histories, grams = self.longer[index]
                history_counts = histories.of_all_values(texts.histories[index + 1])
                gram_counts = grams.of_all_values(texts.grams[index + 1])
                probabilities = (gram_counts + alpha * probabilities) / (history_counts + alpha)
        return bias_log_probs, np.log(probabilities).astype(np.float32)

    def fit_longer(self, tune: IndexedTexts, labels: Ids, bias_probabilities: Floats) -> Floats:
        """Fit alpha_n for each order n on the tune texts; return p_n (T,) of the highest order.

        `bias_probabilities` (T,) are p_1 given the true values. alpha_n is infinite if order n does not raise the
        likelihood of the tune texts.
        """
        self.alphas, probabilities = [], bias_probabilities
        for index in range(len(self.longer)):
            history_counts, gram_counts = self._counts_of_true_values(tune, labels, index)
            candidate_probabilities = {
                alpha: (gram_counts + alpha * probabilities) / (history_counts + alpha) for alpha in ALPHAS
            }
            candidate_probabilities[np.inf] = probabilities
            best_alpha = min(candidate_probabilities, key=lambda alpha: -np.log(candidate_probabilities[alpha]).sum())
            self.alphas.append(best_alpha)
            probabilities = candidate_probabilities[best_alpha]
        return probabilities

    def apply_longer(self, texts: IndexedTexts, labels: Ids, bias_probabilities: Floats) -> Floats:
        """Return p_n (T,) of the highest order n given the true values; `bias_probabilities` (T,) are p_1."""
        probabilities = bias_probabilities
        for index, alpha in enumerate(self.alphas):
            if np.isfinite(alpha):
                history_counts, gram_counts = self._counts_of_true_values(texts, labels, index)
                probabilities = (gram_counts + alpha * probabilities) / (history_counts + alpha)
        return probabilities

    def _counts_of_true_values(self, texts: IndexedTexts, labels: Ids, index: int) -> tuple[Floats, Floats]:
        """Return c_v(h) and c_v(h w) (T,) for the true values v and histories h of `index` + 1 tokens."""
        histories, grams = self.longer[index]
        values = texts.repeat_per_target(labels)
        history_counts = histories.with_value(texts.histories[index + 1], values)
        return history_counts, grams.with_value(texts.grams[index + 1], values)


def blocks(model: NGram, texts: IndexedTexts) -> Iterator[tuple[slice, Float32s]]:
    """Yield pairs of a slice of t targets and their p(w | h) under the base model for every token w (t, V)."""
    target_count = max(1, MAX_PROBABILITIES // len(model.tokenizer))  # targets per block
    for begin in range(0, len(texts.targets), target_count):
        target_span = slice(begin, min(begin + target_count, len(texts.targets)))
        yield target_span, model.probabilities([history[target_span] for history in texts.histories]).astype(np.float32)


def text_blocks(model: NGram, texts: IndexedTexts) -> Iterator[tuple[int, slice, Float32s]]:
    """Yield the index of a text, a slice of t of its targets, and their p(w | h) for every token w (t, V)."""
    for target_span, probabilities in blocks(model, texts):
        first_text = int(np.searchsorted(texts.starts, target_span.start, side="right")) - 1
        end_text = int(np.searchsorted(texts.starts, target_span.stop, side="left"))
        for text in range(first_text, end_text):
            begin, end = max(texts.starts[text], target_span.start), min(texts.starts[text + 1], target_span.stop)
            if begin < end:
                yield text, slice(begin, end), probabilities[begin - target_span.start : end - target_span.start]


def _log_ratios_of_text(log_ratios: Sequence[Float32s], labels: Sequence[Ids], text: int) -> Float32s:
    """Return log r_c (C, V) of the values of one text."""
    return np.stack([ratios[column_labels[text]] for ratios, column_labels in zip(log_ratios, labels, strict=True)])


def fit_exponents(
    model: NGram,
    texts: IndexedTexts,
    log_ratios: Sequence[Float32s],
    labels: Sequence[Ids],
    start: Sequence[float] = (),
) -> Floats:
    """Return the exponents beta (C,) that maximize the likelihood of p(w | h) prod_c r_c(w)^beta_c / Z.

    Newton's method maximizes the log likelihood, which is concave in beta, from the exponents `start` of the first
    columns. For each column c with K_c values, `log_ratios` has an array log r_c (K_c + 1, V), and `labels` has an
    array (B,).
    """
    beta = np.zeros(len(log_ratios))
    beta[: len(start)] = start
    for _ in range(MAX_STEPS):
        gradient, hessian = np.zeros(len(beta)), 1e-6 * np.eye(len(beta))
        for text, target_span, probabilities in text_blocks(model, texts):
            text_log_ratios = _log_ratios_of_text(log_ratios, labels, text)
            tilted_probabilities = probabilities * np.exp(beta.astype(np.float32) @ text_log_ratios)
            tilted_probabilities /= tilted_probabilities.sum(1, keepdims=True)
            mean_log_ratios = text_log_ratios @ tilted_probabilities.T  # (C, t)
            target_log_ratios = text_log_ratios[:, texts.targets[target_span]]
            gradient += (target_log_ratios - mean_log_ratios).sum(1, dtype=np.float64)
            second_moments = (text_log_ratios * tilted_probabilities.sum(0)) @ text_log_ratios.T
            hessian += second_moments - mean_log_ratios @ mean_log_ratios.T
        step = np.linalg.solve(hessian, gradient)
        beta = np.clip(beta + step, 0.0, 2.0)
        if np.abs(step).max() < TOLERANCE:
            break
    return beta


def tilted_log_probs(
    model: NGram, texts: IndexedTexts, log_ratios: Sequence[Float32s], labels: Sequence[Ids], beta: Floats
) -> Floats:
    """Return log [p(w | h) prod_c r_c(w)^beta_c / Z] of every target (T,), given the `labels` of its text."""
    log_probs = np.empty(len(texts.targets))
    for text, target_span, probabilities in text_blocks(model, texts):
        scaled_log_ratios = beta.astype(np.float32) @ _log_ratios_of_text(log_ratios, labels, text)  # (V,)
        normalizers = probabilities @ np.exp(scaled_log_ratios)
        target_log_ratios = scaled_log_ratios[texts.targets[target_span]]
        log_probs[target_span] = texts.base[target_span] + target_log_ratios - np.log(normalizers)
    return log_probs


def compute_log_posterior(
    log_probs: Float32s, texts: IndexedTexts, log_prior: Floats, exponent: float, max_targets: int | None = None
) -> Floats:
    """Return log p(v | text) (B, K) by Bayes' rule from the log probabilities (T, K) of the targets given each value.

    Only the first `max_targets` targets of each text count; by default, all count. If `log_probs` has another column,
    for the missing value, the function ignores it. `log_prior` (K,) are the log priors. The likelihood is raised to the
    power `exponent`, because tokens are not independent evidence.
    """
    log_likelihoods = np.empty((len(texts.starts) - 1, len(log_prior)))
    for row, (begin, next_begin) in enumerate(pairwise(texts.starts)):
        end = next_begin if max_targets is None else min(next_begin, begin + max_targets)
        log_likelihoods[row] = log_probs[begin:end, : len(log_prior)].sum(0, dtype=np.float64)
    return apply_temperature(log_prior + exponent * log_likelihoods, 1.0)
