"""Fit the n-gram mixture of a trained run: count n-grams in its training texts, fit the weights on development texts.

The weights W_l of targets whose longest counted history has l tokens maximize the likelihood of the development texts.
A prior keeps them near the weights of all targets (`mixture_weights`).
Cross-validation over two halves of the development texts chooses the components. The reported perplexity of the mixture
comes from it too, so no text is predicted with weights that were fitted on it.

Shapes: T targets, M components, K values.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from factorcell.bootstrap import Interval
from factorcell.data.columns.schema import Variable
from factorcell.data.corpus import Corpus
from factorcell.evaluation import perplexity, text_figures
from factorcell.io import files
from factorcell.ngram.count_models import CACHE, NGRAM, VALUE, CountModels, ValueOrder
from factorcell.ngram.mixture import Mixture
from factorcell.ngram.ngram import DEFAULT_CHARACTER_ORDER, DEFAULT_ORDER, NGram, count_ngrams
from factorcell.ngram.value_counts import ValueCounts
from factorcell.nn.scoring import mixed_nats
from factorcell.runs.run import Run
from factorcell.training.mixture_weights import fit_weights_by_group

MAX_COUNTED_TARGETS = 20_000_000  # n-grams of larger tables are counted in a random part of their texts
MAX_DEV_TARGETS = 300_000  # development targets on which the weights are fitted
COMPARED_ORDER, COMPARED_CHARACTER_ORDER = 3, 6  # highest orders that are counted to choose a column
MAX_COMPARED_TARGETS = 2_000_000  # training targets in which these are counted
SHARES = tuple(step / 20 for step in range(21))  # candidates for s_n
MIN_IMPROVEMENT = 0.002  # nats per target that a further component must gain

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class MixtureFit:
    """A fitted mixture and its perplexities on development texts.

    Attributes:
        mixture: The mixture.
        components: The names of its components.
        neural: The perplexity of the neural model.
        ngram: The perplexity of the n-gram model.
        mixed: The perplexity of the mixture, by cross-validation.
        gain: The gain of the mixture over the neural model, with its interval.
    """

    mixture: Mixture
    components: Sequence[str]
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
        perplexities = {"neural": self.neural, "ngram": self.ngram, "mixture": self.mixed}
        return {"components": self.components, "perplexity": perplexities, **self.gain.to_row("gain")}


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
    corpus, sample = limit_targets(corpus, MAX_COUNTED_TARGETS), limit_targets(dev, MAX_DEV_TARGETS)
    if ngram is None:
        order = DEFAULT_CHARACTER_ORDER if corpus.tokenizer.is_character_level else DEFAULT_ORDER
        ngram = NGram(run.folder, run.config, corpus.tokenizer, count_ngrams(corpus, order))
    variable, orders = _best_value_counts(run, ngram, corpus, sample)
    counts = CountModels(ngram, variable, orders, [NGRAM, *([VALUE] if variable else []), CACHE])
    with run.scoring():
        mixture = Mixture.of_run(run.model, run.schema, counts)
        nats, groups = mixture.target_nats(sample, run.batches(sample))
    chosen, mixed = _choose_components(nats, groups, counts, np.repeat(np.arange(len(sample)) % 2, sample.lengths))
    weights = fit_weights_by_group(nats[:, _columns(counts, chosen)], groups, counts.length_count)
    if VALUE not in chosen:
        variable, orders = None, []
    mixture = Mixture.of_run(run.model, run.schema, CountModels(ngram, variable, orders, chosen), weights)
    sums = [text_figures.figures_from_nats(part, sample)["perplexity"] for part in (nats[:, 0], nats[:, 1], mixed)]
    with np.errstate(over="ignore"):  # a diverged model has infinite perplexity
        neural, alone, together = (float(np.exp(part.numerator.sum() / part.denominator.sum())) for part in sums)
    gain = perplexity.gain(sums[2], sums[0])
    return MixtureFit(mixture, ["neural", *chosen], neural, alone, together, gain)


def limit_targets(corpus: Corpus, count: int) -> Corpus:
    """Return a random part of the texts with about `count` targets, or all texts if they have fewer."""
    if corpus.target_count <= count:
        return corpus
    texts = max(1, len(corpus) * count // corpus.target_count)
    return corpus.select(np.sort(np.random.default_rng(0).permutation(len(corpus))[:texts]))


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


def _columns(counts: CountModels, names: Sequence[str]) -> list[int]:
    """Return the columns of the neural model and the components `names` in the nats of all components."""
    return [0, *(counts.names.index(name) + 1 for name in names)]


def _choose_components(nats: Floats, groups: Ids, counts: CountModels, halves: Ids) -> tuple[tuple[str, ...], Floats]:
    """Choose the components by cross-validation.

    Args:
        nats: The nats of the development targets under all components (T, M).
        groups: The length of the longest counted history of each target (T,).
        counts: The components without `neural`.
        halves: The half of the texts, 0 or 1, to which each target belongs (T,).

    Returns:
        The names of the components without `neural`, and the nats of each target (T,) in the mixture whose weights were
        fitted on the other half of the texts.
    """
    _, *optional = counts.names
    best: tuple[float, tuple[str, ...], Floats] | None = None
    for names in dict.fromkeys([(NGRAM,), *((NGRAM, name) for name in optional), (NGRAM, *optional)]):
        parts, mixed = nats[:, _columns(counts, names)], np.empty(len(nats))
        for half in (0, 1):
            is_used, is_held_out = halves != half, halves == half
            weights = fit_weights_by_group(parts[is_used], groups[is_used], counts.length_count)
            mixed[is_held_out] = mixed_nats(parts[is_held_out], weights[groups[is_held_out]])
        mean = float(mixed.mean())
        if best is None or mean < best[0] - MIN_IMPROVEMENT:
            best = mean, names, mixed
    assert best is not None  # the first set of components always exists
    return best[1:]
