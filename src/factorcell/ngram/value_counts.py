"""Counts of n-grams in the texts of each value of a context column.

Shapes: T targets, K values (value K is a missing value), M pairs of an item and a value.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


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
