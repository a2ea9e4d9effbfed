"""Softmax biases that depend on the context: one class each, used by `output.SoftmaxHead`.

    low_rank        Q c                                        (TACL 2018, equation 6; thesis 2018, 2.6)
    low_rank_each   sum_i Q_i c_i                              (thesis, A.1)
    one_hot         sum_i A_i o_i                              (TACL 2018, section 2.3)
    sparse          sum_i A_i o_i, most of A_i zero            (thesis, A.2)
    hash            sum_i H(h_i(w, f_i)) B(w, f_i)             (thesis, 3.4 to 3.6)

The zeros of a sparse bias come of proximal steps in training (`training.proximal`).

c is the context vector, c_i the embedding of variable i, f_i its value and o_i that value as a unit vector; w is a
word. All but the last are linear in features f of the context, with a table that has a row for every token.

Shapes: B texts, V vocabulary, U chosen tokens, K context, F features, C categorical variables, l buckets, m bits.
"""

import hashlib
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from factorcell.data.context import Context
from factorcell.data.schema import MISSING, ContextSchema
from factorcell.model.head import HeadSizes
from factorcell.option_fields import SoftmaxOptions

HASHES = 16  # bits of the Bloom filter that a pair sets
AT_ONCE = 1 << 19  # pairs of a value and a token that are looked at together
KEPT = 1 << 27  # pairs of values and words of a variable, at most, whose bits of the filter are looked up once


class LowRankBias(nn.Module):
    """Q c: a low-rank stand-in for one bias vector per context."""

    def __init__(self, vocabulary_size: int, sizes: HeadSizes) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(vocabulary_size, sizes.model.context_size))

    def forward(self, vector: Tensor, parts: Sequence[Tensor], context: Context) -> Tensor:
        """Features (B, K): the context vector."""
        return vector


class LowRankEachBias(nn.Module):
    """A term Q_i c_i for the embedding of each variable, without the network that joins them."""

    def __init__(self, vocabulary_size: int, sizes: HeadSizes) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(vocabulary_size, sum(sizes.variable_sizes)))

    def forward(self, vector: Tensor, parts: Sequence[Tensor], context: Context) -> Tensor:
        """Features (B, F): the embeddings of all variables."""
        return torch.cat(list(parts), dim=1)


class OneHotBias(nn.Module):
    """A coefficient for every token and value of a categorical variable."""

    def __init__(self, vocabulary_size: int, sizes: HeadSizes) -> None:
        super().__init__()
        self.schema = sizes.schema
        columns = sum(len(variable.values) for variable in self.schema.categories)
        self.weight = nn.Parameter(torch.zeros(vocabulary_size, columns))

    def per_column(self, numbers: Sequence[float]) -> Tensor:
        """A number of each categorical variable -> the same for each column of the table (F,)."""
        each = zip(numbers, self.schema.categories, strict=True)
        return torch.tensor([number for number, variable in each for _ in variable.values])

    def count_nonzero(self) -> list[dict[str, Any]]:
        """Count the `coefficients` of each categorical `variable`, and how many of them are `nonzero`."""
        nonzero = (self.weight.detach() != 0).sum(0)
        parts = torch.split(nonzero, [len(variable.values) for variable in self.schema.categories])
        return [
            {
                "variable": variable.name,
                "coefficients": len(self.weight) * len(variable.values),
                "nonzero": int(part.sum()),
            }
            for variable, part in zip(self.schema.categories, parts, strict=True)
        ]

    def forward(self, vector: Tensor, parts: Sequence[Tensor], context: Context) -> Tensor:
        """Features (B, F): 1 for the value of each variable; its frequencies where it is missing."""
        found = [vector[:, :0]]
        for column, variable in enumerate(self.schema.categories):
            rows = context.categories[:, column, None]
            known = vector.new_zeros(len(vector), len(variable.values)).scatter_(1, rows.clamp(min=0), 1.0)
            found.append(torch.where(rows < 0, vector.new_tensor(variable.frequencies()), known))
        return torch.cat(found, dim=1)


TABLES: dict[str, Callable[[int, HeadSizes], nn.Module]] = {
    "low_rank": LowRankBias,
    "low_rank_each": LowRankEachBias,
    "one_hot": OneHotBias,
    "sparse": OneHotBias,
}


@dataclass(frozen=True)
class Pairs:
    """Which buckets (M,), ascending, the biases (B, U) are in: `entries` name a place (D x U), a bucket and a factor.

    Texts share D rows of values: `which` (C, B) says for each variable which of them is a text's own.
    """

    buckets: Tensor
    which: list[Tensor]
    places: Tensor
    entries: Tensor
    factors: Tensor | None
    shape: tuple[int, int]

    def biases(self, values: Tensor) -> Tensor:
        """`values` (M, 1) of the buckets -> the hashed bias (B, U) of every text."""
        found = F.embedding(self.entries, values)[:, 0]
        found = found if self.factors is None else found * self.factors
        rows = found.new_zeros(self.shape[0] * self.shape[1]).index_add_(0, self.places, found).view(self.shape)
        first, *others = (F.embedding(which, rows) for which in self.which)
        return sum(others, start=first)


class HashBias(nn.Module):
    """Biases of pairs of a value and a word, in buckets that pairs share, for pairs that training has seen.

        h_i(w, f_i) = (w r_0 + f_i r_i) mod l        B(w, f_i) = prod_j beta(h_ij(w, f_i))

    l and the number of bits m are the primes from `hash_size` and `bloom_size` on; the r are fixed. Without a Bloom
    filter (`bloom_size` 0) every pair has a bias.
    """

    bits: Tensor

    def __init__(self, vocabulary_size: int, options: SoftmaxOptions, schema: ContextSchema) -> None:
        super().__init__()
        self.vocabulary_size, self.variables = vocabulary_size, schema.categories
        self.size = _prime(options.hash_size)
        self.filter_size = _prime(options.bloom_size) if options.bloom_size else 0
        self.weight = nn.Parameter(torch.zeros(self.size, 1))
        self.register_buffer("bits", torch.zeros(-(-self.filter_size // 8), dtype=torch.uint8))
        self._seen_words: dict[int, Tensor] = {}  # by variable: what the filter passes, (values, V)
        self._filter = self.bits, self.bits._version  # of which that is true

    def observe(self, tokens: NDArray[np.int64], categories: NDArray[np.int64]) -> None:
        """Let pairs of `tokens` (N,) with the values (N, C) of their texts into the filter."""
        bits = self.bits.cpu().numpy()
        for column in range(len(self.variables) if self.filter_size else 0):
            known = categories[:, column] != MISSING
            pairs = np.unique(categories[known, column] * self.vocabulary_size + tokens[known])
            values, words = map(torch.from_numpy, np.divmod(pairs, self.vocabulary_size))
            for probe in range(HASHES):
                ours, theirs = _hashes(values, words, column, f"bit {probe}", self.filter_size)
                index = _wrapped(ours + theirs, self.filter_size).numpy()
                np.bitwise_or.at(bits, index >> 3, np.left_shift(1, index & 7).astype(np.uint8))
        self.bits.copy_(torch.from_numpy(bits))

    def pairs(self, categories: Tensor, tokens: Tensor | None = None) -> Pairs:
        """Where the biases of texts with `categories` (B, C) are, of `tokens` (U,) or of the whole vocabulary."""
        tokens = torch.arange(self.vocabulary_size, device=categories.device) if tokens is None else tokens
        which: list[Tensor] = []
        found: list[tuple[Tensor, ...]] = []
        rows = 0
        for column in range(len(self.variables)):
            values, own = torch.unique(categories[:, column], return_inverse=True)
            which.append(own + rows)
            for row, word, bucket, factor in self._entries(column, values, tokens):
                found.append(((row + rows) * len(tokens) + word, bucket, factor))
            rows += len(values)
        places, buckets, factors = (torch.cat(parts) for parts in zip(*found, strict=True))
        unique, entries = torch.unique(buckets.long(), return_inverse=True)
        whole = not bool((categories == MISSING).any())
        return Pairs(unique, which, places, entries, None if whole else factors, (rows, len(tokens)))

    def _entries(self, column: int, values: Tensor, tokens: Tensor) -> list[tuple[Tensor, ...]]:
        """(row of `values`, column of `tokens`, bucket, factor) of all pairs; a missing value is the mean of all."""
        known = values[values != MISSING]
        own = torch.arange(len(values) - len(known), len(values), device=values.device)  # a missing one comes first
        found = self._looked_up(column, known, own, self.weight.new_ones(len(known)), tokens)
        if len(known) < len(values):
            every = torch.arange(len(self.variables[column].values), device=values.device)
            shares = self.weight.new_tensor(self.variables[column].frequencies())
            found += self._looked_up(column, every, torch.zeros_like(every), shares, tokens)
        return found

    def _looked_up(
        self, column: int, values: Tensor, rows: Tensor, factors: Tensor, tokens: Tensor
    ) -> list[tuple[Tensor, ...]]:
        """Return entries as `_entries` does, for `values` (D,) of the `rows` (D,) with `factors` (D,)."""
        found: list[tuple[Tensor, ...]] = []
        step = max(1, AT_ONCE // max(1, len(tokens)))
        for part in torch.split(torch.arange(len(values), device=values.device), step):
            row, word = self._seen(column, values[part], tokens)
            ours, theirs = _hashes(values[part], tokens, column, "bucket", self.size)
            bucket = _wrapped(ours.index_select(0, row) + theirs.index_select(0, word), self.size)
            found.append((rows[part].index_select(0, row), word, bucket, factors[part].index_select(0, row)))
        return found

    def _seen(self, column: int, values: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Row and column of the pairs of `values` (D,) and `tokens` (U,) that the filter lets through."""
        if not self.filter_size:
            every = torch.ones(len(values), len(tokens), dtype=torch.bool, device=values.device)
            row, word = every.nonzero(as_tuple=True)
            return row, word
        seen = self._all_seen(column)
        if seen is None:
            return self._passing(column, values, tokens)
        row, word = seen.index_select(0, values).index_select(1, tokens).nonzero(as_tuple=True)
        return row, word

    def _all_seen(self, column: int) -> Tensor | None:
        """Return whether the filter passes each pair (values, V) of a variable; None if there are too many pairs."""
        count, words = len(self.variables[column].values), self.vocabulary_size
        if count * words > KEPT:
            return None
        bits, version = self._filter
        if bits is not self.bits or version != self.bits._version:
            self._seen_words, self._filter = {}, (self.bits, self.bits._version)
        if column not in self._seen_words:
            every = torch.arange(words, device=self.bits.device)
            with torch.inference_mode(False):  # training can use the tensor too
                seen = torch.zeros(count, words, dtype=torch.bool, device=self.bits.device)
                for part in torch.split(torch.arange(count, device=self.bits.device), max(1, AT_ONCE // words)):
                    row, word = self._passing(column, part, every)
                    seen[part[row], word] = True
            self._seen_words[column] = seen
        return self._seen_words[column]

    def _passing(self, column: int, values: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        ours, theirs = _hashes(values, tokens, column, "bit 0", self.filter_size)
        row, word = self._lit(ours[:, None] + theirs).nonzero(as_tuple=True)
        for probe in range(1, HASHES):
            ours, theirs = _hashes(values, tokens, column, f"bit {probe}", self.filter_size)
            lit = self._lit(ours.index_select(0, row) + theirs.index_select(0, word)).nonzero()[:, 0]
            row, word = row.index_select(0, lit), word.index_select(0, lit)
        return row, word

    def _lit(self, index: Tensor) -> Tensor:
        index = _wrapped(index, self.filter_size)
        bits = self.bits.index_select(0, (index >> 3).flatten()).view(index.shape)  # indexing takes ten times as long
        return ((bits >> (index & 7).to(torch.uint8)) & 1).bool()


def _hashes(values: Tensor, tokens: Tensor, column: int, name: str, size: int) -> tuple[Tensor, Tensor]:
    """f r_i mod `size` of `values` and w r_0 mod `size` of `tokens`, in numbers of 32 bits.

    Values count from 1 here, or row 0 of all variables would share its buckets.
    """
    ours = (values + 1) * _random(f"{name} variable {column}", size) % size
    theirs = tokens * _random(f"{name} word", size) % size
    return ours.int(), theirs.int()


def _wrapped(index: Tensor, size: int) -> Tensor:
    return torch.where(index >= size, index - size, index)


def _random(name: str, size: int) -> int:
    """A random integer from 1 to `size` - 1, the same for the same `name` for ever."""
    return 1 + int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") % max(1, size - 1)


def _prime(least: int) -> int:
    return next(n for n in itertools.count(max(2, least)) if all(n % d for d in range(2, math.isqrt(n) + 1)))
