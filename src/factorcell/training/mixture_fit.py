"""Fit the n-gram mixture of a trained run: count n-grams in its training texts, fit the weights on development texts.

The weights W_l of targets whose longest counted history has l tokens maximize the likelihood of the development texts.
A prior of 100 targets keeps them near the weights of all targets (`mixture_weights.fit_weights`).
Cross-validation over two halves of the development texts chooses the components. The reported perplexity of the mixture
comes from it too, so no text is predicted with weights that were fitted on it.

Shapes: B texts, T targets, M components, K values.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from factorcell import files
from factorcell.bootstrap import Interval
from factorcell.config import Config
from factorcell.data.corpus import Corpus, target_offsets
from factorcell.data.schema import Variable
from factorcell.evaluation import perplexity, text_figures
from factorcell.model.count_models import CACHE, NGRAM, VALUE, CountModels, ValueOrder
from factorcell.model.ngram import DEFAULT_CHARACTER_ORDER, DEFAULT_ORDER, NGram, count_ngrams
from factorcell.model.ngram_mixture import NGramMixture
from factorcell.model.run import Run
from factorcell.model.scoring import mixed_nats
from factorcell.model.value_counts import ValueCounts
from factorcell.training.mixture_weights import PRIOR_TARGETS, fit_weights

MAX_COUNTED_TARGETS = 20_000_000  # n-grams of larger tables are counted in a random part of their texts
MAX_DEV_TARGETS = 300_000  # development targets on which the weights are fitted
COMPARED_ORDER, COMPARED_CHARACTER_ORDER = 3, 6  # highest orders that are counted to choose a column
MAX_COMPARED_TARGETS = 2_000_000  # training targets in which these are counted
SHARES = tuple(step / 20 for step in range(21))  # candidates for s_n
MIN_IMPROVEMENT = 0.002  # nats per target that a further component must gain
TOLERANCE = 1e-7  # EM ends if an iteration gains fewer nats per target

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class MixtureFit:
    """A fitted mixture and its perplexities on development texts.

    Attributes:
        mixture: The mixture.
        neural: The perplexity of the neural model.
        ngram: The perplexity of the n-gram model.
        mixed: The perplexity of the mixture, by cross-validation.
        gain: The gain of the mixture over the neural model, with its interval.
    """

    mixture: NGramMixture
    neural: float
    ngram: float
    mixed: float
    gain: Interval

    @property
    def is_better(self) -> bool:
        """Whether the mixture is significantly better than the neural model."""
        return self.gain.low is not None and self.gain.low > 0

    def to_row(self) -> files.Row:
        """Return the figures as a row for training.json."""
        components = ["neural", *self.mixture.counts.names]
        perplexities = {"neural": self.neural, "ngram": self.ngram, "mixture": self.mixed}
        return {"components": components, "perplexity": perplexities, **self.gain.to_row("gain")}

    def describe(self, is_saved: bool) -> str:
        """Return a line about the perplexities; `is_saved` is whether the run predicts with the mixture."""
        gain = self.gain.to_text(".1f", 100.0, "%")
        line = (
            f"n-gram model of the same texts: development perplexity {self.ngram:.2f}; n-gram mixture (the model, "
            f"n-gram counts and a cache) {self.mixed:.2f}, a gain of {gain} over the model alone"
        )
        return f"{line}; the run predicts with the mixture" if is_saved else line


@dataclass(frozen=True)
class _DevFigures:
    """The nats of each development target under all components, and what its weights depend on.

    Attributes:
        nats: The nats (T, M).
        names: The names of the components, without `neural` (M - 1).
        history_lengths: The length of the longest counted history of each target (T,).
        halves: The half of the development texts to which each target belongs (T,).
        length_count: The number of lengths that the longest counted history can have.
    """

    nats: Floats
    names: tuple[str, ...]
    history_lengths: Ids
    halves: Ids
    length_count: int

    def of_components(self, names: Sequence[str]) -> Floats:
        """Return the nats under the neural model and the components `names`."""
        return self.nats[:, [0, *(self.names.index(name) + 1 for name in names)]]


def fit_mixture(run: Run, corpus: Corpus, dev: Corpus, ngram: NGram | None = None) -> MixtureFit:
    """Fit the mixture of a run.

    Args:
        run: The trained run.
        corpus: Its training texts.
        dev: Its development texts.
        ngram: An n-gram model of the training texts, if there is one already.

    Returns:
        The mixture and its perplexities; nothing is saved.
    """
    ngram = ngram or _count_ngrams(run.folder, run.config, corpus)
    corpus, sample = limit_targets(corpus, MAX_COUNTED_TARGETS), limit_targets(dev, MAX_DEV_TARGETS)
    variable, orders = _best_value_counts(run, ngram, corpus, sample)
    names = [NGRAM, *([VALUE] if variable else []), CACHE]
    counts = CountModels(ngram, variable, orders, names)
    uniform = np.full((counts.length_count, len(names) + 1), 1 / (len(names) + 1))
    figures = _dev_figures(run, NGramMixture(run.model, run.schema, counts, uniform), sample)
    chosen, mixed = _choose_components(figures)
    weights = _fit_weights_by_history(figures, chosen, np.ones(len(mixed), dtype=bool))
    if VALUE not in chosen:
        variable, orders = None, []
    counts = CountModels(ngram, variable, orders, chosen)
    mixture = NGramMixture(run.model, run.schema, counts, weights)
    sums = [
        text_figures.figures_from_nats(nats, sample)["perplexity"]
        for nats in (figures.nats[:, 0], figures.of_components([NGRAM])[:, 1], mixed)
    ]
    with np.errstate(over="ignore"):  # a diverged model has infinite perplexity
        neural, alone, together = (float(np.exp(part.numerator.sum() / part.denominator.sum())) for part in sums)
    return MixtureFit(mixture, neural, alone, together, perplexity.gain(sums[2], sums[0]))


def limit_targets(corpus: Corpus, count: int) -> Corpus:
    """Return a random part of the texts with about `count` targets, or all texts if they have fewer."""
    if corpus.target_count <= count:
        return corpus
    texts = max(1, len(corpus) * count // corpus.target_count)
    return corpus.select(np.sort(np.random.default_rng(0).permutation(len(corpus))[:texts]))


def _count_ngrams(folder: Path, config: Config, corpus: Corpus) -> NGram:
    order = DEFAULT_CHARACTER_ORDER if corpus.tokenizer.is_character_level else DEFAULT_ORDER
    return NGram(folder, config, corpus.tokenizer, count_ngrams(limit_targets(corpus, MAX_COUNTED_TARGETS), order))


def _best_value_counts(run: Run, ngram: NGram, corpus: Corpus, dev: Corpus) -> tuple[Variable | None, list[ValueOrder]]:
    """Count n-grams by the values of a category; return the column and the orders of its counts.

    If there are several categories, it is the one with the fewest nats of development texts, for short n-grams that are
    counted in a part of the training texts. The user column is left out: counts of one user would reproduce what this
    user wrote. An unadapted run has no context, and therefore no counts by value.
    """
    columns = [
        column
        for column, variable in enumerate(run.schema.categories)
        if run.model.is_adapted and variable.source_column != run.config.data.user
    ]
    if not columns:
        return None, []
    best_column = columns[0]
    if len(columns) > 1:
        part = limit_targets(corpus, MAX_COMPARED_TARGETS)
        length = COMPARED_CHARACTER_ORDER if corpus.tokenizer.is_character_level else COMPARED_ORDER
        best_column = min(columns, key=lambda column: _fit_values(ngram, part, dev, column, length)[1])
    return run.schema.categories[best_column], _fit_values(ngram, corpus, dev, best_column, len(ngram.grams))[0]


def _fit_values(ngram: NGram, corpus: Corpus, dev: Corpus, column: int, highest: int) -> tuple[list[ValueOrder], float]:
    """Count the n-grams of the orders up to `highest` by the values of a column, and fit s_n of each order.

    Returns:
        The orders, and the nats of the development texts with the highest of them.
    """
    blocks = [ids for *ids, _ in ngram.blocks(dev)]
    histories, grams = ([np.concatenate(ids) for ids in zip(*part, strict=True)] for part in zip(*blocks, strict=True))
    values = np.repeat(_values_of_texts(dev, column), dev.lengths)
    orders, probabilities = list[ValueOrder](), np.full(len(values), ngram.uniform)
    by_order = ngram.target_probabilities_by_order(histories, grams)
    counts = count_by_value(ngram, corpus, column, highest)
    for order_counts, of_all_texts, order_grams, history_ids, gram_ids in zip(
        counts, by_order, ngram.grams, histories, grams, strict=False
    ):
        order = ValueOrder(order_counts, order_grams.keys, len(ngram.tokenizer), share=0.0)
        first_terms, backoffs = order.first_terms(gram_ids, values), order.backoffs(history_ids, values)
        by_share = {
            share: first_terms + backoffs * (share * probabilities + (1 - share) * of_all_texts) for share in SHARES
        }
        order.share = max(by_share, key=lambda share: float(np.log(by_share[share]).sum()))
        probabilities = by_share[order.share]
        orders.append(order)
    return orders, float(-np.log(probabilities).sum())


def count_by_value(ngram: NGram, corpus: Corpus, column: int, highest: int) -> list[ValueCounts]:
    """Return the Kneser-Ney counts of the n-grams of the orders up to `highest` by the values of a column."""
    begins, size = corpus.offsets[:-1], len(corpus.schema.categories[column].values)
    values = np.repeat(_values_of_texts(corpus, column), np.diff(corpus.offsets))
    values[begins] = size  # start tokens are not targets
    counts, shorter_ids = list[ValueCounts](), np.zeros(0, dtype=np.int64)
    for ids in itertools.islice(ngram.gram_ids(corpus.tokens.astype(np.int64), begins), highest):
        pairs = ValueCounts.of_pairs(ids, values, size)
        if counts:
            suffixes = np.zeros(len(ngram.grams[len(counts)].keys), dtype=np.int64)
            suffixes[ids[ids >= 0]] = shorter_ids[ids >= 0]
            counts[-1] = counts[-1].continuations(pairs, suffixes)
        counts.append(pairs)
        shorter_ids = ids
    return counts


def _values_of_texts(corpus: Corpus, column: int) -> Ids:
    """Return the value of each text; the number of values where it is missing."""
    values = corpus.categories[:, column].astype(np.int64)
    return np.where(values < 0, len(corpus.schema.categories[column].values), values)


def _dev_figures(run: Run, mixture: NGramMixture, dev: Corpus) -> _DevFigures:
    """Compute the nats of all development targets under every component."""
    count, starts = dev.target_count, target_offsets(dev)
    nats, history_lengths = np.zeros((count, len(mixture.counts.names) + 1)), np.zeros(count, dtype=np.int64)
    with run.scoring():
        for batch in run.batches(dev):
            batch_nats, batch_lengths = mixture.component_nats(batch, mixture.condition(batch.context))
            for index, (row, length) in enumerate(zip(batch.rows.tolist(), batch.lengths.tolist(), strict=True)):
                targets = slice(starts[row], starts[row] + length)
                nats[targets], history_lengths[targets] = batch_nats[index, :length], batch_lengths[index, :length]
    halves = np.repeat(np.arange(len(dev)) % 2, dev.lengths)
    return _DevFigures(nats, tuple(mixture.counts.names), history_lengths, halves, mixture.counts.length_count)


def _choose_components(figures: _DevFigures) -> tuple[tuple[str, ...], Floats]:
    """Choose the components by cross-validation.

    Returns:
        The names of the components without `neural`, and the nats of each target (T,) in the mixture whose weights were
        fitted on the other half of the texts.
    """
    optional = figures.names[1:]
    best: tuple[float, tuple[str, ...], Floats] | None = None
    for names in dict.fromkeys([(NGRAM,), *((NGRAM, name) for name in optional), (NGRAM, *optional)]):
        mixed = np.empty(len(figures.nats))
        for half in (0, 1):
            weights = _fit_weights_by_history(figures, names, figures.halves != half)
            rows = figures.halves == half
            mixed[rows] = mixed_nats(figures.of_components(names)[rows], weights[figures.history_lengths[rows]])
        mean = float(mixed.mean())
        if best is None or mean < best[0] - MIN_IMPROVEMENT:
            best = mean, names, mixed
    assert best is not None  # the first set of components always exists
    return best[1:]


def _fit_weights_by_history(figures: _DevFigures, names: Sequence[str], is_used: NDArray[np.bool_]) -> Floats:
    """Fit the weights (lengths of the longest counted history, M) on the targets that `is_used` (T,) marks."""
    nats, history_lengths = figures.of_components(names)[is_used], figures.history_lengths[is_used]
    prior = PRIOR_TARGETS * fit_weights(nats, tolerance=TOLERANCE)
    parts = [nats[history_lengths == length] for length in range(figures.length_count)]
    return np.stack([fit_weights(part, prior, TOLERANCE) for part in parts])
