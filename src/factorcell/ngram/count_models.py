"""Count-based language models: n-grams of all texts, n-grams of the texts of one value, and a cache of one text.

    ngram    a Kneser-Ney n-gram model of all training texts (`ngram`), whose letters the others share
    value    a Kneser-Ney model of the training texts with the value v of a column; without a value, the same as `ngram`
             p_n(w | h, v) = (c_v(h w) - D(c_v(h w))) / c_v(h .) + backoff_v(h) q_n(w | h, v)
             q_n(w | h, v) = s_n p_{n-1}(w | h', v) + (1 - s_n) p_n(w | h)       s_n is a weight
    cache    the preceding tokens x_1, x_2, ... of the same text, the last one first
             p(w | x) = (sum_i d^(i-1) [x_i = w] + k p_ngram(w | h)) / (sum_i d^(i-1) + k)

References:
    Chen and Goodman 1998 (Kneser-Ney), Wood and Teh 2009 (two directions of back-off), Kuhn and De Mori 1990 (cache).

Shapes: B texts, N texts that are extended token by token, T targets, V vocabulary, K values (value K is missing).
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from factorcell.data.columns.schema import ContextSchema, Variable
from factorcell.data.corpus import Corpus
from factorcell.io import files
from factorcell.ngram.ngram import NGram, NGramOrder, estimate_discounts, find_keys, lookup_tables

NGRAM, VALUE, CACHE = "ngram", "value", "cache"  # names of the components
CACHE_SIZE, CACHE_DECAY, CACHE_PRIOR = 300, 0.99, 5.0  # number of cached tokens, d, and k

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]


class ValueOrder:
    """The n-grams of one order by value, with lookup tables, as `NGramOrder` for all texts.

    The pair of an n-gram and one of K values has the key (id of the n-gram) * K + value. `keys` are sorted, `counts`
    are the Kneser-Ney counts, and `share` is s_n.
    """

    def __init__(self, keys: Ids, counts: Ids, value_count: int, of_all_texts: NGramOrder, share: float = 0.0) -> None:
        self.keys, self.counts, self.value_count, self.share = keys, counts, value_count, share
        history_ids = of_all_texts.keys // of_all_texts.vocabulary_size
        self.history_keys, positions = np.unique(_replace_items(keys, history_ids, value_count), return_inverse=True)
        discounts = estimate_discounts(counts)
        self.discounted, self.backoff = lookup_tables(counts, discounts, positions, len(self.history_keys))

    def backoffs(self, history_ids: Ids, values: Ids) -> Floats:
        """Return backoff_v(h) (T,) of each history and value."""
        return self.backoff[self._find(self.history_keys, history_ids, values)]

    def first_terms(self, gram_ids: Ids, values: Ids) -> Floats:
        """Return the first term of p_n(w | h, v) (T,) of each n-gram and value."""
        return self.discounted[self._find(self.keys, gram_ids, values)]

    def _find(self, keys: Ids, items: Ids, values: Ids) -> Ids:
        """Return the index in `keys` of each pair of an item and a value (T,), or -1; value K is a missing value."""
        is_known = (items >= 0) & (values < self.value_count)
        return np.where(is_known, find_keys(keys, items * self.value_count + values), -1)


def count_by_value(ngram: NGram, corpus: Corpus, column: int, highest: int) -> list[ValueOrder]:
    """Count the n-grams of the orders up to `highest` by the values of a categorical column, with s_n = 0."""
    begins, value_count = corpus.offsets[:-1], len(corpus.schema.categories[column].values)
    values = np.repeat(values_of_texts(corpus, column), np.diff(corpus.offsets))
    values[begins] = value_count  # start tokens are not targets
    keys, counts, shorter_ids = list[Ids](), list[Ids](), np.zeros(0, dtype=np.int64)
    for ids in itertools.islice(ngram.gram_ids(corpus.tokens.astype(np.int64), begins), highest):
        is_counted = (ids >= 0) & (values < value_count)
        pairs = np.unique(ids[is_counted] * value_count + values[is_counted], return_counts=True)
        if keys:
            # The number of distinct tokens that precede an n-gram replaces the number of its occurrences; n-grams at
            # the beginning of a text, which no token precedes, keep their counts.
            suffix_ids = np.zeros(len(ngram.orders[len(keys)].keys), dtype=np.int64)  # of each n-gram
            suffix_ids[ids[ids >= 0]] = shorter_ids[ids >= 0]
            suffixes, predecessors = np.unique(_replace_items(pairs[0], suffix_ids, value_count), return_counts=True)
            counts[-1][np.searchsorted(keys[-1], suffixes)] = predecessors
        keys.append(pairs[0])
        counts.append(pairs[1])
        shorter_ids = ids
    parts = zip(keys, counts, ngram.orders, strict=False)
    return [ValueOrder(keys, counts, value_count, order) for keys, counts, order in parts]


def values_of_texts(corpus: Corpus, column: int) -> Ids:
    """Return the value of each text in a categorical column; K where it is missing."""
    values = corpus.categories[:, column].astype(np.int64)
    return np.where(values < 0, len(corpus.schema.categories[column].values), values)


def _replace_items(keys: Ids, replacements: Ids, value_count: int) -> Ids:
    """Return the keys item * K + value after replacing item i by `replacements[i]`."""
    return replacements[keys // value_count] * value_count + keys % value_count


class CountModels:
    """The count-based components: the n-gram model, the n-gram counts of each value of one column, and the cache.

    `names` are those of the components, in the order of the weights; `orders` has the counts by value of the column
    `variable`, from order 1 on, and is empty without the component `value`.
    """

    def __init__(
        self, ngram: NGram, variable: Variable | None, orders: Sequence[ValueOrder], names: Sequence[str]
    ) -> None:
        self.ngram, self.variable, self.orders, self.names = ngram, variable, tuple(orders), tuple(names)

    @property
    def length_count(self) -> int:
        """The number of lengths l that the longest counted history can have."""
        return len(self.ngram.orders)

    def of_targets(self, tokens: Ids, values: Ids) -> tuple[Floats, Ids]:
        """Return the probability of each target under each component, and the length of its longest counted history.

        `tokens` (B, T + 1) are those of texts, each from its start token on, and `values` (B,) are -1 where they are
        missing. The probabilities have the shape (components, B, T), the lengths (B, T).
        """
        shape = len(tokens), tokens.shape[1] - 1
        begins = np.arange(len(tokens)) * tokens.shape[1]
        histories, grams = (
            [np.delete(ids, begins) for ids in part] for part in self.ngram.look_up(tokens.ravel(), begins)
        )
        by_order = self.ngram.target_probabilities(histories, grams)
        parts = {NGRAM: by_order[-1]}
        if VALUE in self.names:
            parts[VALUE] = self._by_value(by_order, histories, grams, np.repeat(self._indices(values), shape[1]))
        if CACHE in self.names:
            counted, total = _cached_counts(tokens)
            parts[CACHE] = (counted.ravel() + CACHE_PRIOR * by_order[-1]) / (total.ravel() + CACHE_PRIOR)
        lengths = (np.stack(histories) >= 0).sum(0) - 1
        return np.stack([parts[name].reshape(shape) for name in self.names]), lengths.reshape(shape)

    def _indices(self, values: Ids) -> Ids:
        """Replace -1, a missing value, by K."""
        assert self.variable is not None
        return np.where(values < 0, len(self.variable.values), values)

    def _by_value(self, by_order: list[Floats], histories: list[Ids], grams: list[Ids], values: Ids) -> Floats:
        """Return the probability (T,) of each target in the component `value`; the values are those of the targets."""
        probabilities = np.full(len(values), self.ngram.uniform)
        for order, of_all_texts, history_ids, gram_ids in zip(self.orders, by_order, histories, grams, strict=True):
            mixed = order.share * probabilities + (1 - order.share) * of_all_texts
            probabilities = order.first_terms(gram_ids, values) + order.backoffs(history_ids, values) * mixed
        return np.where(values < self.orders[0].value_count, probabilities, by_order[-1])

    def _of_all_tokens_by_value(self, by_order: list[Floats], histories: list[Ids], values: Ids) -> Floats:
        """Return the probabilities (N, V) of every next token in the component `value`."""
        probabilities = self.ngram.uniform_probabilities(len(values))
        parts = zip(self.orders, by_order, self.ngram.orders, histories, strict=True)
        for order, of_all_texts, grams, history_ids in parts:
            mixed = order.share * probabilities + (1 - order.share) * of_all_texts
            probabilities = order.backoffs(history_ids, values)[:, None] * mixed
            rows, gram_ids = grams.followers(history_ids)
            probabilities[rows, grams.last_tokens(gram_ids)] += order.first_terms(gram_ids, values[rows])
        return np.where((values < self.orders[0].value_count)[:, None], probabilities, by_order[-1])

    def step(self, tokens: Ids, state: Ids | None, values: Ids) -> tuple[list[Floats], Ids, Ids]:
        """Read one token (N,) of each text; `values` (N,) are -1 where they are missing.

        A row of the state has the ids of the histories in the n-gram model, and then the last `CACHE_SIZE` tokens, the
        last one first, or -1 where there is none. Before start tokens, the state is None.

        Return the probabilities (N, V) of every next token under each component, the lengths of the longest counted
        histories (N,), and the next state.
        """
        if state is None:
            before = self.ngram.empty_histories(len(tokens))
            recent = np.full((len(tokens), CACHE_SIZE), -1, dtype=np.int64)
        else:
            before, recent = np.split(state, [self.length_count], axis=1)
            recent = np.concatenate([tokens[:, None], recent[:, :-1]], axis=1)
        histories = self.ngram.extend_histories(before, tokens)
        by_order = self.ngram.probabilities(list(histories.T))
        parts = {NGRAM: by_order[-1]}
        if VALUE in self.names:
            parts[VALUE] = self._of_all_tokens_by_value(by_order, list(histories.T), self._indices(values))
        if CACHE in self.names:
            decays = CACHE_DECAY ** np.arange(recent.shape[1]) * (recent >= 0)
            total = decays.sum(1, keepdims=True) + CACHE_PRIOR
            parts[CACHE] = by_order[-1] * (CACHE_PRIOR / total)
            rows, places = np.nonzero(recent >= 0)
            np.add.at(parts[CACHE], (rows, recent[rows, places]), (decays / total)[rows, places])
        lengths = (histories >= 0).sum(1) - 1
        return [parts[name] for name in self.names], lengths, np.concatenate([histories, recent], axis=1)

    def to_files(self) -> tuple[files.Row, dict[str, Tensor]]:
        """Return an entry of a JSON file, and tensors; `from_files` is the inverse."""
        tensors = self.ngram.to_tensors()
        for n, order in enumerate(self.orders, 1):
            tensors[f"value_keys{n}"] = torch.from_numpy(order.keys)
            tensors[f"value_counts{n}"] = torch.from_numpy(order.counts.astype(np.int32))
        entry = {"order": self.length_count, "components": list(self.names)}
        entry |= {"column": self.variable and self.variable.name, "shares": [order.share for order in self.orders]}
        return entry, tensors

    @classmethod
    def from_files(
        cls, entry: Mapping[str, Any], tensors: Mapping[str, Tensor], ngram: NGram, schema: ContextSchema
    ) -> "CountModels":
        """Return the components that `to_files` stored; damaged contents raise a `KeyError` or `ValueError`."""
        if entry["column"] is None:
            return cls(ngram, None, (), entry["components"])
        variable, orders = schema.variable(entry["column"]), []
        for n, (share, order) in enumerate(zip(entry["shares"], ngram.orders, strict=True), 1):
            keys, counts = (tensors[f"value_{name}{n}"].numpy().astype(np.int64) for name in ("keys", "counts"))
            orders.append(ValueOrder(keys, counts, len(variable.values), order, float(share)))
        return cls(ngram, variable, orders, entry["components"])


def _cached_counts(tokens: Ids) -> tuple[Floats, Floats]:
    """Return the decayed count of each target among the preceding tokens of its text (B, T), and that of all tokens."""
    targets = tokens[:, 1:]
    counted, total = np.zeros(targets.shape), np.zeros(targets.shape)
    for distance in range(1, min(CACHE_SIZE, targets.shape[1] - 1) + 1):
        decay = CACHE_DECAY ** (distance - 1)
        counted[:, distance:] += decay * (targets[:, distance:] == targets[:, :-distance])
        total[:, distance:] += decay
    return counted, total
