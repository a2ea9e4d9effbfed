"""Count-based language models: n-grams of all texts, n-grams of the texts of one value, and a cache of one text.

    ngram    a Kneser-Ney n-gram model of all training texts (`ngram`)
    value    a Kneser-Ney model of the training texts with the value v of one context column, which backs off to shorter
             n-grams of these texts and to n-grams of all texts:
             p_n(w | h, v) = (c_v(h w) - D(c_v(h w))) / c_v(h .) + backoff_v(h) q_n(w | h, v),
             q_n(w | h, v) = s_n p_{n-1}(w | h', v) + (1 - s_n) p_n(w | h)
             p_n(w | h) is the model of order n of all texts, s_n a weight, p_0 the uniform distribution, and the other
             letters are those of `ngram`; a missing value has the component `ngram`
    cache    the preceding tokens x_1, x_2, ... of the same text, the last one first:
             p(w | x) = (sum_i d^(i-1) [x_i = w] + k p_ngram(w | h)) / (sum_i d^(i-1) + k)

References:
    Chen and Goodman 1998 (Kneser-Ney), Wood and Teh 2009 (two directions of back-off), Kuhn and De Mori 1990 (cache).

Shapes: B texts, N texts that are extended token by token, T targets, V vocabulary, K values (value K is missing).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from factorcell.data.columns.schema import ContextSchema, Variable
from factorcell.io import files
from factorcell.ngram.ngram import NGram, estimate_discounts
from factorcell.ngram.value_counts import ValueCounts, find_pairs

NGRAM, VALUE, CACHE = "ngram", "value", "cache"  # names of the components
CACHE_SIZE, CACHE_DECAY, CACHE_PRIOR = 300, 0.99, 5.0  # number of cached tokens, d, and k

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]


class ValueOrder:
    """Lookup tables of the n-grams of one order by value, as `OrderTables` for all texts.

    Args:
        counts: The Kneser-Ney counts of the n-grams by value.
        gram_keys: The keys of the n-grams of the order: id of the history * V + last token.
        vocabulary_size: The number of tokens, V.
        share: s_n.
    """

    def __init__(self, counts: ValueCounts, gram_keys: Ids, vocabulary_size: int, share: float) -> None:
        self.counts, self.share = counts, share
        discounts = np.array([0.0, *estimate_discounts(counts.counts)])[np.minimum(counts.counts, 3)]
        history_keys = counts.keys_with_items(gram_keys // vocabulary_size)
        self.history_keys, positions = np.unique(history_keys, return_inverse=True)
        totals = np.bincount(positions, counts.counts)
        # The last elements are for n-grams and histories that were not counted.
        self.discounted = np.append((counts.counts - discounts) / totals[positions], 0.0)
        self.backoff = np.append(np.bincount(positions, discounts) / totals, 1.0)

    def backoffs(self, history_ids: Ids, values: Ids) -> Floats:
        """Return backoff_v(h) (T,) of each history and value."""
        return self.backoff[find_pairs(self.history_keys, history_ids, values, self.counts.value_count)]

    def first_terms(self, gram_ids: Ids, values: Ids) -> Floats:
        """Return the first term of p_n(w | h, v) (T,) of each n-gram and value."""
        return self.discounted[self.counts.positions(gram_ids, values)]


class CountModels:
    """The count-based components: the n-gram model, the n-gram counts of each value of one column, and the cache.

    Args:
        ngram: The n-gram model.
        variable: The context variable of the component `value`; None without that component.
        orders: The counts by value of each order n, from 1 on.
        names: The names of the components, in the order of the weights, without `neural`.
    """

    def __init__(
        self, ngram: NGram, variable: Variable | None, orders: Sequence[ValueOrder], names: Sequence[str]
    ) -> None:
        self.ngram, self.variable, self.orders, self.names = ngram, variable, tuple(orders), tuple(names)

    @property
    def length_count(self) -> int:
        """The number of lengths l that the longest counted history can have."""
        return len(self.ngram.order_tables)

    def of_targets(self, tokens: Ids, values: Ids) -> tuple[Floats, Ids]:
        """Compute the probability of each target under each component.

        Args:
            tokens: The tokens of texts, each from its start token on (B, T + 1).
            values: The value of each text (B,), -1 where it is missing.

        Returns:
            Probabilities (components, B, T), and the length l of the longest counted history of each target (B, T).
        """
        count, size = tokens.shape
        begins = np.arange(count) * size
        histories, grams = self.ngram.look_up(tokens.reshape(-1), begins)
        histories, grams = ([ids.reshape(tokens.shape)[:, 1:].ravel() for ids in part] for part in (histories, grams))
        history_lengths = longest_history_lengths(np.stack(histories, axis=1))
        base = self.ngram.target_probabilities(histories, grams)
        parts = []
        for name in self.names:
            probabilities = base
            if name == VALUE:
                probabilities = self._by_value(histories, grams, np.repeat(self._indices(values), size - 1))
            elif name == CACHE:
                counted, total = _cached_counts(tokens)
                probabilities = (counted.ravel() + CACHE_PRIOR * base) / (total.ravel() + CACHE_PRIOR)
            parts.append(probabilities.reshape(count, size - 1))
        return np.stack(parts), history_lengths.reshape(count, size - 1)

    def _indices(self, values: Ids) -> Ids:
        """Replace -1, a missing value, by K."""
        assert self.variable is not None
        return np.where(values < 0, len(self.variable.values), values)

    def _by_value(self, histories: list[Ids], grams: list[Ids], values: Ids) -> Floats:
        """Return the probability (T,) of each target in the component `value`; the values are those of the targets."""
        assert self.variable is not None
        probabilities = np.full(len(values), self.ngram.uniform)
        by_order = self.ngram.target_probabilities_by_order(histories, grams)
        for order, of_all_texts, history_ids, gram_ids in zip(self.orders, by_order, histories, grams, strict=True):
            mixed = order.share * probabilities + (1 - order.share) * of_all_texts
            probabilities = order.first_terms(gram_ids, values) + order.backoffs(history_ids, values) * mixed
        return np.where(values < len(self.variable.values), probabilities, of_all_texts)

    def _of_all_tokens_by_value(self, histories: list[Ids], values: Ids) -> Floats:
        """Return the probabilities (N, V) of every next token in the component `value`."""
        assert self.variable is not None
        probabilities = self.ngram.uniform_probabilities(len(values))
        by_order = self.ngram.probabilities_by_order(histories)
        parts = zip(self.orders, by_order, self.ngram.order_tables, histories, strict=True)
        for order, of_all_texts, tables, history_ids in parts:
            mixed = order.share * probabilities + (1 - order.share) * of_all_texts
            probabilities = order.backoffs(history_ids, values)[:, None] * mixed
            rows, gram_ids = tables.followers(history_ids)
            tokens = tables.keys[gram_ids] % tables.vocabulary_size
            probabilities[rows, tokens] += order.first_terms(gram_ids, values[rows])
        return np.where((values < len(self.variable.values))[:, None], probabilities, of_all_texts)

    def step(self, tokens: Ids, state: Ids | None, values: Ids) -> tuple[list[Floats], Ids, Ids]:
        """Read one token of each text.

        Args:
            tokens: The tokens (N,).
            state: The state of the texts before the tokens; None for start tokens. A row has the ids of the histories
                in the n-gram model, and then the last `CACHE_SIZE` tokens, the last one first, or -1 where there is
                none.
            values: The value of each text (N,), -1 where it is missing.

        Returns:
            The probabilities (N, V) of every next token under each component, the lengths of the longest counted
            histories (N,), and the state after the tokens.
        """
        if state is None:
            before = self.ngram.empty_histories(len(tokens))
            recent = np.full((len(tokens), CACHE_SIZE), -1, dtype=np.int64)
        else:
            before, recent = np.split(state, [self.length_count], axis=1)
            recent = np.concatenate([tokens[:, None], recent[:, :-1]], axis=1)
        histories = self.ngram.extend_histories(before, tokens)
        base = self.ngram.probabilities(list(histories.T))
        parts = []
        for name in self.names:
            probabilities = base
            if name == VALUE:
                probabilities = self._of_all_tokens_by_value(list(histories.T), self._indices(values))
            elif name == CACHE:
                decays = CACHE_DECAY ** np.arange(recent.shape[1]) * (recent >= 0)
                total = decays.sum(1, keepdims=True) + CACHE_PRIOR
                probabilities = probabilities * (CACHE_PRIOR / total)
                rows, places = np.nonzero(recent >= 0)
                np.add.at(probabilities, (rows, recent[rows, places]), (decays / total)[rows, places])
            parts.append(probabilities)
        return parts, longest_history_lengths(histories), np.concatenate([histories, recent], axis=1)

    def to_files(self) -> tuple[files.Row, dict[str, Tensor]]:
        """Return what a file stores: an entry of a JSON file, and tensors. `from_files` is the inverse."""
        tensors = self.ngram.to_tensors()
        for n, order in enumerate(self.orders, 1):
            tensors[f"value_keys{n}"] = torch.from_numpy(order.counts.keys)
            tensors[f"value_counts{n}"] = torch.from_numpy(order.counts.counts.astype(np.int32))
        entry = {
            "order": self.length_count,
            "components": list(self.names),
            "column": None if self.variable is None else self.variable.name,
            "shares": [order.share for order in self.orders],
        }
        return entry, tensors

    @classmethod
    def from_files(
        cls, entry: Mapping[str, Any], tensors: Mapping[str, Tensor], ngram: NGram, schema: ContextSchema
    ) -> "CountModels":
        """Return the components that `to_files` stored; damaged contents raise a `KeyError` or `ValueError`."""
        if entry["column"] is None:
            return cls(ngram, None, (), entry["components"])
        variable, orders = schema.variable(entry["column"]), []
        for n, (share, grams) in enumerate(zip(entry["shares"], ngram.grams, strict=True), 1):
            arrays = (tensors[f"value_{name}{n}"].numpy().astype(np.int64) for name in ("keys", "counts"))
            counts = ValueCounts(len(variable.values), *arrays)
            orders.append(ValueOrder(counts, grams.keys, len(ngram.tokenizer), float(share)))
        return cls(ngram, variable, orders, entry["components"])


def longest_history_lengths(histories: Ids) -> Ids:
    """Return the length of the longest counted history in each row of ids (N, orders)."""
    lengths: Ids = (histories >= 0).sum(1) - 1
    return lengths


def _cached_counts(tokens: Ids) -> tuple[Floats, Floats]:
    """Return the decayed count of each target among the preceding tokens of its text (B, T), and that of all tokens."""
    targets = tokens[:, 1:]
    counted, total = np.zeros(targets.shape), np.zeros(targets.shape)
    for distance in range(1, min(CACHE_SIZE, targets.shape[1] - 1) + 1):
        decay = CACHE_DECAY ** (distance - 1)
        counted[:, distance:] += decay * (targets[:, distance:] == targets[:, :-distance])
        total[:, distance:] += decay
    return counted, total
