"""Count-based language models: n-grams of all texts, n-grams of the texts of one value, and a cache of one text.

    ngram    a Kneser-Ney n-gram model of all training texts (`ngram`)
    value    n-gram counts in the training texts with the value v of one context column: p_0 is the component `ngram`;
             for the orders n that raise the likelihood, with histories h of n - 1 tokens,
             p_n(w | h, v) = (c_v(h w) + alpha_n p_{n-1}(w | h, v)) / (c_v(h) + alpha_n)
    cache    the preceding tokens x_1, x_2, ... of the same text, the last one first:
             p(w | x) = (sum_i d^(i-1) [x_i = w] + k p_ngram(w | h)) / (sum_i d^(i-1) + k)

References:
    Chen and Goodman 1998 (Kneser-Ney), MacKay and Peto 1995 (counts of a value), Kuhn and De Mori 1990 (cache).

Shapes: B texts, N texts that are extended token by token, T targets, V vocabulary, K values (value K is missing).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from factorcell.data.schema import Variable
from factorcell.model.ngram import NGram
from factorcell.model.value_counts import ValueCounts

NGRAM, VALUE, CACHE = "ngram", "value", "cache"  # names of the components
CACHE_SIZE, CACHE_DECAY, CACHE_PRIOR = 300, 0.99, 5.0  # number of cached tokens, d, and k

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ValueOrder:
    """The counts of n-grams of one order by value.

    Attributes:
        history_length: The number of tokens of the histories, n - 1.
        grams: The counts of the n-grams.
        histories: The counts of their histories.
        alpha: alpha_n.
    """

    history_length: int
    grams: ValueCounts
    histories: ValueCounts
    alpha: float


class CountModels:
    """The count-based components: the n-gram model, the n-gram counts of each value of one column, and the cache.

    Args:
        ngram: The n-gram model.
        variable: The context variable of the component `value`; None without that component.
        orders: The counts by value, for the orders n that contribute, the lowest one first.
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
            values: The value of each text (B,).

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
                repeated = np.repeat(values, size - 1)
                for order in self.orders:
                    counted = order.grams.with_value(grams[order.history_length], repeated)
                    total = order.histories.with_value(histories[order.history_length], repeated)
                    probabilities = (counted + order.alpha * probabilities) / (total + order.alpha)
            elif name == CACHE:
                counted, total = _cached_counts(tokens)
                probabilities = (counted.ravel() + CACHE_PRIOR * base) / (total.ravel() + CACHE_PRIOR)
            parts.append(probabilities.reshape(count, size - 1))
        return np.stack(parts), history_lengths.reshape(count, size - 1)

    def of_all_tokens(self, histories: Ids, recent: Ids, values: Ids) -> list[Floats]:
        """Compute the probabilities (N, V) of every next token under each component.

        Args:
            histories: The ids of the histories in the n-gram model (N, orders).
            recent: The last tokens of each text (N, `CACHE_SIZE`), as in `MixtureState`.
            values: The value of each text (N,).
        """
        base = self.ngram.probabilities(list(histories.T))
        parts = []
        for name in self.names:
            probabilities = base
            if name == VALUE:
                for order in self.orders:
                    tables, history = self.ngram.order_tables[order.history_length], histories[:, order.history_length]
                    total = order.histories.with_value(history, values) + order.alpha
                    probabilities = probabilities * (order.alpha / total)[:, None]
                    rows, grams = tables.followers(history)
                    counted = order.grams.with_value(grams, values[rows])
                    probabilities[rows, tables.keys[grams] % tables.vocabulary_size] += counted / total[rows]
            elif name == CACHE:
                decays = CACHE_DECAY ** np.arange(recent.shape[1]) * (recent >= 0)
                total = decays.sum(1, keepdims=True) + CACHE_PRIOR
                probabilities = probabilities * (CACHE_PRIOR / total)
                rows, places = np.nonzero(recent >= 0)
                np.add.at(probabilities, (rows, recent[rows, places]), (decays / total)[rows, places])
            parts.append(probabilities)
        return parts


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
