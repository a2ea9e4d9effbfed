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
        return np.append(self.counts, 0)[self.positions(items, values)].astype(np.float64)

    def positions(self, items: Ids, values: Ids) -> Ids:
        """Return the index (T,) of the pair of each of `items` (T,) and its value in `values` (T,), -1 without one."""
        return find_pairs(self.keys, items, values, self.value_count)

    def keys_with_items(self, items: Ids) -> Ids:
        """Return the keys of the pairs (M,) after replacing item i by `items[i]`."""
        return items[self.keys // self.value_count] * self.value_count + self.keys % self.value_count

    def continuations(self, longer: "ValueCounts", suffixes: Ids) -> "ValueCounts":
        """Return the Kneser-Ney counts of n-grams: the number of distinct tokens that precede each n-gram.

        N-grams at the beginning of a text, which no token precedes, keep their counts.

        Args:
            longer: The counts of the n-grams of the next higher order.
            suffixes: The id of each of these n-grams without its first token.
        """
        keys, predecessors = np.unique(longer.keys_with_items(suffixes), return_counts=True)
        counts = self.counts.copy()
        counts[np.searchsorted(self.keys, keys)] = predecessors
        return ValueCounts(self.value_count, self.keys, counts)


def find_pairs(keys: Ids, items: Ids, values: Ids, value_count: int) -> Ids:
    """Return the index of each pair of an item and a value (T,) in sorted keys item * K + value (M,), or -1."""
    if not len(keys):
        return np.full(len(items), -1)
    pair_keys = items * value_count + values
    positions = np.minimum(np.searchsorted(keys, pair_keys), len(keys) - 1)
    is_counted = (keys[positions] == pair_keys) & (items >= 0) & (values < value_count)
    return np.where(is_counted, positions, -1)
