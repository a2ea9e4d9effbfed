"""An n-gram model that is conditioning on the value of a context column.

    p_1(w | h, v) = p(w | h) r_v(w)^beta / Z(h, v)         r_v(w) = (c_v(w) + alpha p(w)) / (c_v + alpha) / p(w)
    p_n(w | h, v) = (c_v(h w) + alpha_n p_{n-1}(w | h, v)) / (c_v(h) + alpha_n)

p(w | h) is a Kneser-Ney model of all texts. An adapted softmax bias can represent the first line; the second, for
histories of 1, 2, ... tokens, needs an adapted recurrent layer. All are exact distributions over the vocabulary.
alpha, beta and alpha_n are fitted on tune texts, which are neither counted nor tested on.

Shapes: B texts, T targets, V vocabulary, K values (label K is a missing value), C columns.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from factorcell.data.corpus import Corpus, target_ids
from factorcell.evaluation.bayes_rule import apply_temperature
from factorcell.evaluation.ngram import NGram

BLOCK = 4_000_000  # probabilities that are computed at once
ALPHAS = tuple(10.0 ** (power / 2) for power in range(0, 14))  # candidate pseudo-counts
ROUNDS, TOLERANCE = 6, 1e-3  # Newton's method on the exponents: maximal steps, and the change that ends it

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]
Narrow = NDArray[np.float32]


class Counted:
    """Counts of pairs of an item (the id of an n-gram or history) and a value, by sorted keys item * K + value."""

    def __init__(self, items: Ids, values: Ids, size: int) -> None:
        known = (items >= 0) & (values < size)
        self.size = size
        self.keys, self.counts = np.unique(items[known] * size + values[known], return_counts=True)

    def of(self, items: Ids) -> Narrow:
        """Return counts (T, K + 1) of all values with each of `items`; 0 for item -1 and for the missing value."""
        begin, end = (np.searchsorted(self.keys, (items + shift) * self.size) for shift in (0, 1))
        spans = np.where(items >= 0, end - begin, 0)
        rows = np.repeat(np.arange(len(items)), spans)
        places = np.arange(len(rows)) + np.repeat(begin - np.cumsum(spans) + spans, spans)
        dense = np.zeros((len(items), self.size + 1), dtype=np.float32)
        dense[rows, self.keys[places] % self.size] = self.counts[places]
        return dense

    def with_value(self, items: Ids, values: Ids) -> Floats:
        """Return counts (T,) of one value for each of `items`."""
        if not len(self.keys):
            return np.zeros(len(items))
        wanted = items * self.size + values
        places = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        found = (self.keys[places] == wanted) & (items >= 0) & (values < self.size)
        return np.where(found, self.counts[places], 0).astype(np.float64)


@dataclass(frozen=True)
class IndexedTexts:
    """Texts by the ids that a base model has for their targets and for their histories at every order (T each)."""

    wanted: Ids
    histories: list[Ids]
    grams: list[Ids]
    starts: Ids  # where the targets of each text begin (B + 1)
    base: Floats  # log p(w | h) of each target (T,); empty for texts that are only counted

    @classmethod
    def find(cls, model: NGram, corpus: Corpus, *, counted: bool = False) -> "IndexedTexts":
        blocks = list(model.blocks(corpus))
        histories, grams = (
            [np.concatenate(order) for order in zip(*(block[side] for block in blocks), strict=True)] for side in (0, 1)
        )
        starts = np.append(0, np.cumsum(corpus.lengths))
        base = np.zeros(0) if counted else -model.nats(corpus)
        return cls(target_ids(corpus), histories, grams, starts, base)

    def each(self, of_texts: Ids) -> Ids:
        """Repeat what is given for each text (B,) for each of its targets (T,)."""
        return np.repeat(of_texts, np.diff(self.starts))


class ValueNGram:
    """The model above for one column of `size` values; `labels` (B,) are 0 to K - 1, and K for a missing value."""

    def __init__(self, model: NGram, train: IndexedTexts, labels: Ids, size: int) -> None:
        self.model, self.size = model, size
        values = train.each(labels)
        vocabulary = len(model.tokenizer)
        tokens = Counted(train.wanted, values, size)
        self.counts = tokens.of(np.arange(vocabulary)).T  # (K + 1, V)
        self.totals = self.counts.sum(1, dtype=np.float64)
        plain = np.bincount(train.wanted, minlength=vocabulary) + 0.5
        self.plain = plain / plain.sum()
        self.longer = [
            (Counted(history, values, size), Counted(gram, values, size))
            for history, gram in zip(train.histories[1:], train.grams[1:], strict=True)
        ]
        self.alpha, self.beta = 1.0, 1.0
        self.alphas: list[float] = []

    def fit_prior(self, tune: IndexedTexts, labels: Ids) -> None:
        values = tune.each(labels)
        seen, totals, plain = self.counts[values, tune.wanted], self.totals[values], self.plain[tune.wanted]
        nats = {alpha: -np.log((seen + alpha * plain) / (totals + alpha)).sum() for alpha in ALPHAS}
        self.alpha = min(nats, key=lambda alpha: nats[alpha])

    def ratios(self) -> Narrow:
        """Return log r_v(w) (K + 1, V); 0 for the missing value."""
        plain = self.plain.astype(np.float32)
        shares = self.counts + np.float32(self.alpha) * plain
        shares /= (self.totals + self.alpha).astype(np.float32)[:, None] * plain
        logs: Narrow = np.log(shares)
        return logs

    def logs(self, texts: IndexedTexts) -> tuple[Narrow, Narrow]:
        """Return log p_1 and log p_n of every target for every value (T, K + 1)."""
        ratios = self.beta * self.ratios()
        raised = np.exp(ratios).T
        first = np.empty((len(texts.wanted), self.size + 1), dtype=np.float32)
        for rows, probabilities in blocks(self.model, texts):
            normaliser = probabilities @ raised
            first[rows] = texts.base[rows, None] + ratios[:, texts.wanted[rows]].T - np.log(normaliser)
        probabilities = np.exp(first)
        for level, alpha in enumerate(self.alphas):
            if np.isfinite(alpha):
                histories, grams = self.longer[level]
                history, gram = histories.of(texts.histories[level + 1]), grams.of(texts.grams[level + 1])
                probabilities = (gram + alpha * probabilities) / (history + alpha)
        return first, np.log(probabilities).astype(np.float32)

    def fit_longer(self, tune: IndexedTexts, labels: Ids, first: Floats) -> Floats:
        """Fit alpha_n from p_1 of the texts' own values (T,); return p_n. It is infinite if an order does not help."""
        self.alphas, probability = [], first
        for level in range(len(self.longer)):
            history, gram = self.own(tune, labels, level)
            tried = {alpha: (gram + alpha * probability) / (history + alpha) for alpha in ALPHAS}
            tried[np.inf] = probability
            best = min(tried, key=lambda alpha: -np.log(tried[alpha]).sum())
            self.alphas.append(best)
            probability = tried[best]
        return probability

    def lengthen(self, texts: IndexedTexts, labels: Ids, first: Floats) -> Floats:
        """Return p_n (T,) of the texts' own values from p_1, or from what replaces it."""
        probability = first
        for level, alpha in enumerate(self.alphas):
            if np.isfinite(alpha):
                history, gram = self.own(texts, labels, level)
                probability = (gram + alpha * probability) / (history + alpha)
        return probability

    def own(self, texts: IndexedTexts, labels: Ids, level: int) -> tuple[Floats, Floats]:
        """Return c_v(h) and c_v(h w) (T,) of the texts' own values, for histories of `level` + 1 tokens."""
        histories, grams = self.longer[level]
        values = texts.each(labels)
        history = histories.with_value(texts.histories[level + 1], values)
        return history, grams.with_value(texts.grams[level + 1], values)


def blocks(model: NGram, texts: IndexedTexts) -> Iterator[tuple[slice, Narrow]]:
    """Yield p(w | h) of all tokens (t, V), for a slice of the targets at a time."""
    size = max(1, BLOCK // len(model.tokenizer))
    for begin in range(0, len(texts.wanted), size):
        rows = slice(begin, min(begin + size, len(texts.wanted)))
        yield rows, model.probabilities([history[rows] for history in texts.histories]).astype(np.float32)


def exponents(model: NGram, texts: IndexedTexts, ratios: Sequence[Narrow], labels: Sequence[Ids]) -> Floats:
    """Return the most likely beta (C,) of p(w | h) prod_c r_c(w)^beta_c / Z, by Newton's method (it is concave).

    `ratios` (K_c + 1, V) and `labels` (B,) are those of every column.
    """
    beta = np.zeros(len(ratios))
    values = [texts.each(column) for column in labels]
    for _ in range(ROUNDS):
        slope, curve = np.zeros(len(beta)), 1e-6 * np.eye(len(beta))
        for rows, probabilities in blocks(model, texts):
            logs = np.stack([ratio[value[rows]] for ratio, value in zip(ratios, values, strict=True)])  # (C, t, V)
            tilted = probabilities * np.exp(np.tensordot(beta.astype(np.float32), logs, 1))
            tilted /= tilted.sum(1, keepdims=True)
            means = np.einsum("tw,ctw->ct", tilted, logs)
            own = np.take_along_axis(logs, texts.wanted[None, rows, None], 2)[:, :, 0]
            slope += (own - means).sum(1, dtype=np.float64)
            curve += np.einsum("tw,ctw,dtw->cd", tilted, logs, logs, optimize=True) - means @ means.T
        change = np.linalg.solve(curve, slope)
        beta = np.clip(beta + change, 0.0, 2.0)
        if np.abs(change).max() < TOLERANCE:
            break
    return beta


def tilted(model: NGram, texts: IndexedTexts, ratios: Sequence[Narrow], labels: Sequence[Ids], beta: Floats) -> Floats:
    """Return log p(w | h) prod_c r_c(w)^beta_c / Z of every target (T,), given the values of its text."""
    values = [texts.each(column) for column in labels]
    logs = np.empty(len(texts.wanted))
    for rows, probabilities in blocks(model, texts):
        raised = sum(b * ratio[value[rows]] for b, ratio, value in zip(beta, ratios, values, strict=True))
        own = np.take_along_axis(raised, texts.wanted[rows, None], 1)[:, 0]
        logs[rows] = texts.base[rows] + own - np.log((probabilities * np.exp(raised)).sum(1))
    return logs


def posterior(logs: Narrow, texts: IndexedTexts, prior: Floats, exponent: float, first: int | None = None) -> Floats:
    """Return log p(v | text) (B, K) by Bayes' rule from `logs` (T, K) of all targets, or of the `first` of each text.

    `prior` (K,) are log probabilities; the likelihood is raised to `exponent`, since words are not independent.
    """
    found = np.empty((len(texts.starts) - 1, len(prior)))
    for row, begin in enumerate(texts.starts[:-1]):
        end = texts.starts[row + 1] if first is None else min(texts.starts[row + 1], begin + first)
        found[row] = logs[begin:end, : len(prior)].sum(0, dtype=np.float64)
    return apply_temperature(prior + exponent * found, 1.0)
