"""Counts of n-grams in the texts of each value of a context column.

Shapes: T targets, K values (value K is a missing value), M pairs of an item and a value.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]
Float32s = NDArray[np.float32]


@dataclass(frozen=True)
class ValueCounts:
    """Counts of pairs of an item (the id of an n-gram or history) and a value.

    Attributes:
        value_count: The number of values, K.
        keys: The sorted keys item * K + value of the pairs (M,).
        counts: How often each pair occurs (M,).
    """

    value_count: int
    keys: Ids
    counts: Ids

    @classmethod
    def of_pairs(cls, items: Ids, values: Ids, value_count: int) -> "ValueCounts":
        """Count the pairs of `items` (T,) and `values` (T,), except those of item -1 or of a missing value."""
        is_known = (items >= 0) & (values < value_count)
        pair_keys = items[is_known] * value_count + values[is_known]
        return cls(value_count, *np.unique(pair_keys, return_counts=True))

    def of_all_values(self, items: Ids) -> Float32s:
        """Return the counts of each of `items` (T,) with all values (T, K + 1).

        The counts of item -1 and of the missing value are 0.
        """
        begins = np.searchsorted(self.keys, items * self.value_count)
        ends = np.searchsorted(self.keys, (items + 1) * self.value_count)
        range_sizes = np.where(items >= 0, ends - begins, 0)
        item_indices = np.repeat(np.arange(len(items)), range_sizes)
        # The keys of an item are consecutive; `positions` lists those of all items one after the other.
        first_places = np.cumsum(range_sizes) - range_sizes
        positions = np.arange(len(item_indices)) + np.repeat(begins - first_places, range_sizes)
        values = self.keys[positions] % self.value_count
        counts = np.zeros((len(items), self.value_count + 1), dtype=np.float32)
        counts[item_indices, values] = self.counts[positions]
        return counts

    def with_value(self, items: Ids, values: Ids) -> Floats:
        """Return the count (T,) of each of `items` (T,) with its own value in `values` (T,)."""
        if not len(self.keys):
            return np.zeros(len(items))
        keys = items * self.value_count + values
        positions = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        is_counted = (self.keys[positions] == keys) & (items >= 0) & (values < self.value_count)
        return np.where(is_counted, self.counts[positions], 0).astype(np.float64)

    def of_histories(self, vocabulary_size: int, gram_keys: Ids) -> "ValueCounts":
        """Return the counts of the histories of n-grams, from those of the n-grams.

        Args:
            vocabulary_size: The number of tokens, V.
            gram_keys: The keys of all n-grams of the order: id of the history * V + last token.
        """
        histories = gram_keys[self.keys // self.value_count] // vocabulary_size
        pair_keys = histories * self.value_count + self.keys % self.value_count
        keys, positions = np.unique(pair_keys, return_inverse=True)
        counts = np.bincount(positions, self.counts, len(keys)).astype(np.int64)
        return ValueCounts(self.value_count, keys, counts)
