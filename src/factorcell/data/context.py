"""The context of the texts of a batch, as tensors.

Shapes: B texts, B' selected texts, C categorical and N numeric variables, W words in the bags of all B texts, D numbers
of a vector.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Bags:
    """The values of a text variable for B texts: bags of words, without words that the schema does not contain.

    Attributes:
        words: The ids of the words of all bags, one bag after the other (W,).
        offsets: The index of the first word of each bag, followed by W (B + 1,).
    """

    words: Tensor
    offsets: Tensor

    @property
    def sizes(self) -> Tensor:
        """The number of words of each bag (B,)."""
        return self.offsets.diff()

    def select(self, rows: Tensor) -> "Bags":
        """Return the bags at the indices `rows` (B',)."""
        sizes = self.sizes[rows]
        offsets = F.pad(sizes.cumsum(0), (1, 0))
        # For each selected word, the shift from its index in the result to its index in `self.words`.
        shifts = (self.offsets[rows] - offsets[:-1]).repeat_interleave(sizes)
        return Bags(self.words[shifts + torch.arange(len(shifts), device=rows.device)], offsets)

    def padded(self) -> Tensor:
        """Return the word ids (B, words of the largest bag), padded with -1."""
        sizes = self.sizes
        positions = torch.arange(int(sizes.max()) if len(sizes) else 0, device=sizes.device)
        padded_words = self.words.new_full((len(sizes), len(positions)), -1)
        padded_words[positions < sizes[:, None]] = self.words
        return padded_words

    def to(self, device: torch.device) -> "Bags":
        """Return these bags on `device`."""
        return Bags(self.words.to(device), self.offsets.to(device))


@dataclass(frozen=True)
class Context:
    """The contexts of B texts. The numbers are those of the table; the model standardizes them.

    Attributes:
        categories: The ids of category values (B, C), int64; -1 for a missing value.
        numbers: The values of the numeric variables (B, N); NaN for a missing value.
        vectors: For each vector variable, its values (B, D); NaN for a missing vector.
        bags: For each text variable, its bags of words; an empty bag for a missing text.
    """

    categories: Tensor
    numbers: Tensor
    vectors: tuple[Tensor, ...] = ()
    bags: tuple[Bags, ...] = ()

    def __len__(self) -> int:
        return self.categories.shape[0]

    def select(self, rows: Tensor) -> "Context":
        """Return the contexts at the indices `rows` (B',)."""
        return Context(
            self.categories[rows],
            self.numbers[rows],
            tuple(vector[rows] for vector in self.vectors),
            tuple(bags.select(rows) for bags in self.bags),
        )

    def drop_categories(self, rate: float, key: Sequence[int]) -> "Context":
        """Return these contexts with each category replaced by the unknown value with probability `rate`.

        `key` is the seed of the random numbers.
        """
        is_retained = np.random.default_rng(key).random(tuple(self.categories.shape)) >= rate
        # The id of the unknown value is 0, the product of any id and False.
        factors = torch.from_numpy(is_retained).to(self.categories.device)
        return replace(self, categories=self.categories * factors)

    def to(self, device: torch.device) -> "Context":
        """Return these contexts on `device`."""
        return Context(
            self.categories.to(device),
            self.numbers.to(device),
            tuple(vector.to(device) for vector in self.vectors),
            tuple(bags.to(device) for bags in self.bags),
        )

    def distinct(self) -> tuple["Context", Tensor]:
        """Return the distinct contexts and, for each text, the index of its context among them (B,)."""
        parts = [self.categories, self.numbers, *self.vectors, *(bags.padded() for bags in self.bags)]
        # NaN is not equal to itself, so missing numbers are compared as infinity.
        values = torch.cat([part.double().nan_to_num(torch.inf) for part in parts], dim=1)
        if values.shape[1] == 0:  # without variables, all contexts are equal
            indices = torch.zeros(len(self), dtype=torch.long, device=values.device)
            return self.select(indices[:1]), indices
        distinct_values, indices = torch.unique(values, dim=0, return_inverse=True)
        rows = torch.arange(len(self), device=values.device)
        # The first row of each distinct context.
        first_rows = indices.new_full((len(distinct_values),), len(self)).scatter_reduce(0, indices, rows, "amin")
        return self.select(first_rows), indices
