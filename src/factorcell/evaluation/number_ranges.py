"""Ranges of numbers: numeric context variables as categories, from which a linear classifier learns any function.

A linear classifier of a number learns log odds that rise or fall with it. With a weight for each range of the number,
it also learns, for example, that the party of the president alternates from year to year. A number with few different
values has a range for each value; other numbers have ranges with about equally many training texts.

Shapes: B texts, N numeric variables, R ranges of a variable.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from factorcell.data.corpus import Corpus
from factorcell.data.schema import MISSING, UNKNOWN_VALUE, ContextSchema, Variable

MAX_RANGES = 256
MIN_TEXTS = 20  # minimum mean number of training texts per range
SUFFIX = " (range)"  # end of the names of the categories

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class NumberRanges:
    """The ranges of N numbers.

    Attributes:
        edges: For each number, the lower ends of all ranges except the first (R - 1,), in ascending order.
        counts: For each number, how many training texts are in each range (R,).
    """

    edges: tuple[Floats, ...]
    counts: tuple[NDArray[np.int64], ...]

    @classmethod
    def of(cls, train: Corpus) -> "NumberRanges":
        """Return the ranges for the numbers of training texts."""
        edges = tuple(_find_edges(numbers.astype(np.float64)) for numbers in train.numbers.T)
        ids = [_range_ids(numbers, ends) for numbers, ends in zip(train.numbers.T, edges, strict=True)]
        counts = [np.bincount(i[i > 0] - 1, minlength=len(ends) + 1) for i, ends in zip(ids, edges, strict=True)]
        return cls(edges, tuple(counts))

    def extend(self, schema: ContextSchema) -> ContextSchema:
        """Return a schema with a further category for each number."""
        numbers = zip(schema.numbers, self.counts, strict=True)
        return ContextSchema((*schema.variables, *(_category(number, counts) for number, counts in numbers)))

    def add_to(self, corpus: Corpus) -> Corpus:
        """Return a corpus with a further category for each number."""
        ids = [_range_ids(numbers, ends) for numbers, ends in zip(corpus.numbers.T, self.edges, strict=True)]
        columns = [column[:, None].astype(corpus.categories.dtype) for column in ids]
        categories = np.concatenate([corpus.categories, *columns], axis=1)
        return replace(corpus, schema=self.extend(corpus.schema), categories=categories)


def _find_edges(numbers: Floats) -> Floats:
    """Return the edges of the ranges of a number from its values in training texts (B,), NaN if missing."""
    present = numbers[np.isfinite(numbers)]
    max_ranges = max(1, min(MAX_RANGES, len(present) // MIN_TEXTS))
    values = np.unique(present)
    if len(values) <= max_ranges:
        middles: Floats = (values[1:] + values[:-1]) / 2  # a new number is in the range of the nearest value
        return middles
    return np.unique(np.quantile(present, np.arange(1, max_ranges) / max_ranges))


def _range_ids(numbers: NDArray[np.float32], edges: Floats) -> NDArray[np.int64]:
    """Return for each number (B,) the index of its range, from 1; `MISSING` for a missing number."""
    return np.where(np.isfinite(numbers), np.searchsorted(edges, numbers, side="right") + 1, MISSING)


def _category(number: Variable, counts: NDArray[np.int64]) -> Variable:
    """Return the category of the ranges of a number."""
    values = (UNKNOWN_VALUE, *(f"{index}" for index in range(1, len(counts) + 1)))
    return Variable(
        f"{number.name}{SUFFIX}", "category", values, (0, *counts.tolist()), column=number.source_column, min_count=1
    )
