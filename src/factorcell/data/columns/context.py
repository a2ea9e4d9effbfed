"""The context of the texts of a batch as tensors, and lists of different lengths.

Shapes: B texts, B' selected texts, C categorical and N numeric variables, W ids in the lists of all B texts, L ids of
the longest list, D numbers of a vector.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from factorcell.io.arrays import GrowingArray, blocks, lists_per_block, to_offsets


class Ragged(NamedTuple):
    """Lists of different lengths, one per row.

    Attributes:
        values: The items of all lists, one list after the other.
        offsets: The index of the first item of each list, followed by the number of items (rows + 1,).
    """

    values: NDArray[Any]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, lists: Sequence[Sequence[int]], dtype: Any) -> "Ragged":
        """Return lists of integers as arrays."""
        offsets = np.cumsum([0, *map(len, lists)], dtype=np.int64)
        return cls(np.fromiter(chain.from_iterable(lists), dtype, int(offsets[-1])), offsets)

    @classmethod
    def join(cls, parts: Iterable["Ragged"]) -> "Ragged":
        """Return the lists of all parts, of which there must be at least one."""
        values, sizes = GrowingArray(), GrowingArray()
        for part in parts:
            values.append(part.values)
            sizes.append(np.diff(part.offsets))
        return cls(values.array(), to_offsets(sizes.array()))

    def select(self, rows: NDArray[np.integer[Any]]) -> "Ragged":
        """Return the lists of `rows`, in that order."""
        return Ragged.join(self._select(rows[block]) for block in blocks(len(rows), lists_per_block(self.offsets)))

    def _select(self, rows: NDArray[np.integer[Any]]) -> "Ragged":
        """Return the lists of a block of rows."""
        starts = self.offsets[rows]
        lengths = self.offsets[rows + 1] - starts
        offsets = np.append(0, np.cumsum(lengths))
        # From the index of an item in the result to its index in `values`
        indices = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
        return Ragged(self.values[indices], offsets)


@dataclass(frozen=True)
class IdLists:
    """Lists of ids, one for each of B texts: the words of a text variable, or the tokens of a prompt.

    Attributes:
        ids: The ids of all lists, one list after the other (W,).
        offsets: The index of the first id of each list, followed by W (B + 1,).
        longest: L, if it is known without reading it from the device of the tensors, which would take time.
    """

    ids: Tensor
    offsets: Tensor
    longest: int | None = None

    @classmethod
    def of(cls, lists: Ragged) -> "IdLists":
        """Return lists of ids as tensors."""
        longest = int(np.diff(lists.offsets).max(initial=0))
        return cls(torch.from_numpy(lists.values.astype(np.int64)), torch.from_numpy(lists.offsets), longest)

    @property
    def sizes(self) -> Tensor:
        """The number of ids of each list (B,)."""
        return self.offsets.diff()

    def __getitem__(self, rows: Tensor) -> "IdLists":
        """Return the lists at the indices `rows` (B',)."""
        sizes = self.sizes[rows]
        offsets = F.pad(sizes.cumsum(0), (1, 0))
        # For each selected id, the shift from its index in the result to its index in `self.ids`.
        shifts = (self.offsets[rows] - offsets[:-1]).repeat_interleave(sizes)
        return IdLists(self.ids[shifts + torch.arange(len(shifts), device=rows.device)], offsets)

    def padded(self) -> Tensor:
        """Return the ids (B, L), padded with -1."""
        sizes, longest = self.sizes, self.longest
        if longest is None:
            longest = int(sizes.max()) if len(sizes) else 0
        lists = torch.arange(len(sizes), device=sizes.device)
        rows = torch.repeat_interleave(lists, sizes, output_size=len(self.ids))
        columns = torch.arange(len(self.ids), device=sizes.device) - self.offsets[rows]
        return self.ids.new_full((len(sizes), longest), -1).index_put((rows, columns), self.ids)

    def join(self, other: "IdLists") -> "IdLists":
        """Return, for each text, the ids of its list followed by those of its list in `other`."""
        texts = torch.arange(len(self.sizes), device=self.sizes.device)
        text_of_id = torch.cat([texts.repeat_interleave(lists.sizes) for lists in (self, other)])
        order = torch.argsort(text_of_id, stable=True)
        return IdLists(torch.cat([self.ids, other.ids])[order], self.offsets + other.offsets)

    def to(self, device: torch.device, *, non_blocking: bool = False) -> "IdLists":
        """Return these lists on `device`; `non_blocking` is as for tensors."""
        ids, offsets = (values.to(device, non_blocking=non_blocking) for values in (self.ids, self.offsets))
        return IdLists(ids, offsets, self.longest)


@dataclass(frozen=True)
class Context:
    """The contexts of B texts. The numbers are those of the table; the model standardizes them.

    Attributes:
        categories: The ids of category values (B, C), int64; -1 for a missing value.
        numbers: The values of the numeric variables (B, N); NaN for a missing value.
        vectors: For each vector variable, its values (B, D); NaN for a missing vector.
        words: For each variable of kind text, the words that the schema contains, in their order; an empty
            list for a missing text.
        prompts: For each prompt, its tokens, each text after a start token; an empty list for a missing prompt.
        may_lack_categories: False if no category is missing; models then need not read the categories from the device
            to know it. Code that adds missing values must set it to True.
    """

    categories: Tensor
    numbers: Tensor
    vectors: tuple[Tensor, ...] = ()
    words: tuple[IdLists, ...] = ()
    prompts: tuple[IdLists, ...] = ()
    may_lack_categories: bool = True

    @classmethod
    def of(
        cls,
        categories: NDArray[np.int32],
        numbers: NDArray[np.float32],
        vectors: Iterable[NDArray[np.float32]],
        words: Iterable[Ragged],
        prompts: Iterable[Ragged] = (),
    ) -> "Context":
        """Return the contexts in arrays as tensors; the names of the arrays are those of the attributes."""
        return cls(
            torch.from_numpy(categories.astype(np.int64)),
            torch.from_numpy(numbers),
            tuple(map(torch.from_numpy, vectors)),
            tuple(map(IdLists.of, words)),
            tuple(map(IdLists.of, prompts)),
            bool((categories < 0).any()),
        )

    def __len__(self) -> int:
        return self.categories.shape[0]

    def _apply(self, function: Callable[[Any], Any]) -> "Context":
        """Return these contexts with the result of `function` in place of each tensor and each `IdLists`."""
        return Context(
            function(self.categories),
            function(self.numbers),
            tuple(map(function, self.vectors)),
            tuple(map(function, self.words)),
            tuple(map(function, self.prompts)),
            self.may_lack_categories,
        )

    def select(self, rows: Tensor) -> "Context":
        """Return the contexts at the indices `rows` (B',)."""
        return self._apply(lambda part: part[rows])

    def to(self, device: torch.device, *, non_blocking: bool = False) -> "Context":
        """Return these contexts on `device`; `non_blocking` is as for tensors."""
        return self._apply(lambda part: part.to(device, non_blocking=non_blocking))

    def drop_categories(self, rate: float, key: Sequence[int]) -> "Context":
        """Return these contexts with each category replaced by the unknown value with probability `rate`.

        `key` is the seed of the random numbers.
        """
        is_retained = np.random.default_rng(key).random(tuple(self.categories.shape)) >= rate
        # The id of the unknown value is 0, the product of any id and False.
        factors = torch.from_numpy(is_retained).to(self.categories.device)
        return replace(self, categories=self.categories * factors)

    def distinct(self) -> tuple["Context", Tensor]:
        """Return the distinct contexts and, for each text, the index of its context among them (B,)."""
        lists = (*self.words, *self.prompts)
        parts = [self.categories, self.numbers, *self.vectors, *(ids.padded() for ids in lists)]
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
