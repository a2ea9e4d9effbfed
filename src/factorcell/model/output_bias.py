"""Softmax biases that depend on the context: one class each, used by `output.SoftmaxHead`.

    low_rank        Q c                                        (TACL 2018, equation 6; thesis 2018, 2.6)
    low_rank_each   sum_i Q_i c_i                              (thesis, A.1)
    one_hot         sum_i A_i o_i                              (TACL 2018, section 2.3)
    sparse          sum_i A_i o_i, most of A_i zero            (thesis, A.2)
    hash            sum_i H(h_i(w, f_i)) B(w, f_i)             (thesis, 3.4 to 3.6)

c is the context vector, c_i the embedding of variable i, f_i its value, o_i that value as a unit vector, and w a token.
All but the last are linear in features f of the context, with a table that has a row per token. The proximal steps of
training (`training.proximal`) make the zeros of a sparse bias.

Shapes: B texts, V vocabulary, U chosen tokens, K context, F features, C categorical variables, D distinct values of a
variable in a batch, M buckets that a batch reads, l buckets, m bits.
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

HASHES = 16  # bits of the Bloom filter per pair
BATCH_PAIRS = 1 << 19  # pairs of a value and a token that are looked up at once
MAX_CACHED_PAIRS = 1 << 27  # variables with more pairs of a value and a token do not cache the results of the filter


class LowRankBias(nn.Module):
    """Q c: a low-rank approximation of one bias vector per context."""

    def __init__(self, vocabulary_size: int, sizes: HeadSizes) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(vocabulary_size, sizes.model.context_size))

    def forward(self, vector: Tensor, parts: Sequence[Tensor], context: Context) -> Tensor:
        """Return the features (B, K): the context vectors."""
        return vector


class LowRankEachBias(nn.Module):
    """A term Q_i c_i for the embedding of each variable, without the network that joins them."""

    def __init__(self, vocabulary_size: int, sizes: HeadSizes) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(vocabulary_size, sum(sizes.variable_sizes)))

    def forward(self, vector: Tensor, parts: Sequence[Tensor], context: Context) -> Tensor:
        """Return the features (B, F): the embeddings of all variables."""
        return torch.cat(list(parts), dim=1)


class OneHotBias(nn.Module):
    """A coefficient for every token and value of a categorical variable."""

    def __init__(self, vocabulary_size: int, sizes: HeadSizes) -> None:
        super().__init__()
        self.schema = sizes.schema
        columns = sum(len(variable.values) for variable in self.schema.categories)
        self.weight = nn.Parameter(torch.zeros(vocabulary_size, columns))

    def per_column(self, numbers: Sequence[float]) -> Tensor:
        """Repeat one number per categorical variable (C,) for each column of the table (F,)."""
        pairs = zip(numbers, self.schema.categories, strict=True)
        return torch.tensor([number for number, variable in pairs for _ in variable.values])

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
        """Return the features (B, F): 1 for the value of each variable, or its frequencies if it is missing."""
        features = [vector[:, :0]]
        for column, variable in enumerate(self.schema.categories):
            rows = context.categories[:, column, None]
            known = vector.new_zeros(len(vector), len(variable.values)).scatter_(1, rows.clamp(min=0), 1.0)
            features.append(torch.where(rows < 0, vector.new_tensor(variable.frequencies()), known))
        return torch.cat(features, dim=1)


TABLES: dict[str, Callable[[int, HeadSizes], nn.Module]] = {
    "low_rank": LowRankBias,
    "low_rank_each": LowRankEachBias,
    "one_hot": OneHotBias,
    "sparse": OneHotBias,
}


@dataclass(frozen=True)
class Pairs:
    """The buckets that hold the hashed biases (B, U) of some texts, and how to sum them.

    Texts with equal values share a row.

    Attributes:
        buckets: The buckets that are read (M,), ascending.
        rows: For each variable, the row of each text (B,).
        positions: The flat index (row x U + token) of each entry.
        entries: The index in `buckets` of each entry.
        factors: A factor on each entry; None means 1.
        shape: The number of rows, and U.
    """

    buckets: Tensor
    rows: list[Tensor]
    positions: Tensor
    entries: Tensor
    factors: Tensor | None
    shape: tuple[int, int]

    def biases(self, values: Tensor) -> Tensor:
        """Return the hashed bias (B, U) of every text from the `values` (M, 1) of the buckets."""
        terms = F.embedding(self.entries, values)[:, 0]
        terms = terms if self.factors is None else terms * self.factors
        table = terms.new_zeros(self.shape[0] * self.shape[1]).index_add_(0, self.positions, terms).view(self.shape)
        first, *others = (F.embedding(rows, table) for rows in self.rows)
        return sum(others, start=first)


class HashBias(nn.Module):
    """Biases of pairs of a value and a token, in buckets that pairs share, for the pairs that training contains.

        h_i(w, f_i) = (w r_0 + f_i r_i) mod l        B(w, f_i) = prod_j beta(h_ij(w, f_i))

    The bias of a pair is bucket h_i of `weight` if B = 1, and 0 if B = 0. B is a Bloom filter: beta are its bits, and
    h_ij is a hash like h_i, modulo m. l and the number of bits m are the smallest primes from `hash_size` and
    `bloom_size` on; r_0 and r_i are fixed. Without a filter (`bloom_size` 0) every pair has a bias.
    """

    bits: Tensor

    def __init__(self, vocabulary_size: int, options: SoftmaxOptions, schema: ContextSchema) -> None:
        super().__init__()
        self.vocabulary_size, self.variables = vocabulary_size, schema.categories
        self.size = _next_prime(options.hash_size)
        self.filter_size = _next_prime(options.bloom_size) if options.bloom_size else 0
        self.weight = nn.Parameter(torch.zeros(self.size, 1))
        self.register_buffer("bits", torch.zeros(-(-self.filter_size // 8), dtype=torch.uint8))
        self._cached_passes: dict[int, Tensor] = {}  # by variable: whether the filter passes each pair (values, V)
        self._cached_bits = self.bits, self.bits._version  # the filter for which the cache is valid

    def observe(self, tokens: NDArray[np.int64], categories: NDArray[np.int64]) -> None:
        """Add pairs of `tokens` (N,) and the values (N, C) of their texts to the filter."""
        bits = self.bits.cpu().numpy()
        for column in range(len(self.variables) if self.filter_size else 0):
            known = categories[:, column] != MISSING
            pairs = np.unique(categories[known, column] * self.vocabulary_size + tokens[known])
            values, words = map(torch.from_numpy, np.divmod(pairs, self.vocabulary_size))
            for probe in range(HASHES):
                of_values, of_tokens = _hashes(values, words, column, f"bit {probe}", self.filter_size)
                index = _modulo(of_values + of_tokens, self.filter_size).numpy()
                np.bitwise_or.at(bits, index >> 3, np.left_shift(1, index & 7).astype(np.uint8))
        self.bits.copy_(torch.from_numpy(bits))

    def pairs(self, categories: Tensor, tokens: Tensor | None = None) -> Pairs:
        """Find the buckets of texts with `categories` (B, C), for `tokens` (U,) or for the whole vocabulary."""
        tokens = torch.arange(self.vocabulary_size, device=categories.device) if tokens is None else tokens
        rows_of_texts: list[Tensor] = []
        entries: list[tuple[Tensor, ...]] = []
        row_count = 0
        for column in range(len(self.variables)):
            values, row_of_text = torch.unique(categories[:, column], return_inverse=True)
            rows_of_texts.append(row_of_text + row_count)
            for row, word, bucket, factor in self._entries(column, values, tokens):
                entries.append(((row + row_count) * len(tokens) + word, bucket, factor))
            row_count += len(values)
        positions, buckets, factors = (torch.cat(parts) for parts in zip(*entries, strict=True))
        unique, index = torch.unique(buckets.long(), return_inverse=True)
        has_missing = bool((categories == MISSING).any())
        shape = (row_count, len(tokens))
        return Pairs(unique, rows_of_texts, positions, index, factors if has_missing else None, shape)

    def _entries(self, column: int, values: Tensor, tokens: Tensor) -> list[tuple[Tensor, ...]]:
        """Return the pairs that have a bias: row of `values`, column of `tokens`, bucket and factor of each.

        A missing value has all pairs of the variable, with the frequencies of the values as factors.
        """
        known = values[values != MISSING]
        rows = torch.arange(len(values) - len(known), len(values), device=values.device)  # a missing value comes first
        entries = self._known_entries(column, known, rows, self.weight.new_ones(len(known)), tokens)
        if len(known) < len(values):
            every = torch.arange(len(self.variables[column].values), device=values.device)
            frequencies = self.weight.new_tensor(self.variables[column].frequencies())
            entries += self._known_entries(column, every, torch.zeros_like(every), frequencies, tokens)
        return entries

    def _known_entries(
        self, column: int, values: Tensor, rows: Tensor, factors: Tensor, tokens: Tensor
    ) -> list[tuple[Tensor, ...]]:
        """Return the entries of `values` (D,) that belong to `rows` (D,) and have `factors` (D,)."""
        entries: list[tuple[Tensor, ...]] = []
        step = max(1, BATCH_PAIRS // max(1, len(tokens)))
        for part in torch.split(torch.arange(len(values), device=values.device), step):
            row, word = self._passing(column, values[part], tokens)
            of_values, of_tokens = _hashes(values[part], tokens, column, "bucket", self.size)
            bucket = _modulo(of_values.index_select(0, row) + of_tokens.index_select(0, word), self.size)
            entries.append((rows[part].index_select(0, row), word, bucket, factors[part].index_select(0, row)))
        return entries

    def _passing(self, column: int, values: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return row and column of the pairs of `values` (D,) and `tokens` (U,) that the filter passes."""
        if not self.filter_size:
            every = torch.ones(len(values), len(tokens), dtype=torch.bool, device=values.device)
            row, word = every.nonzero(as_tuple=True)
            return row, word
        passes = self._cached_passing(column)
        if passes is None:
            return self._probe(column, values, tokens)
        row, word = passes.index_select(0, values).index_select(1, tokens).nonzero(as_tuple=True)
        return row, word

    def _cached_passing(self, column: int) -> Tensor | None:
        """Return whether the filter passes each pair (values, V) of a variable; None if there are too many pairs."""
        count, words = len(self.variables[column].values), self.vocabulary_size
        if count * words > MAX_CACHED_PAIRS:
            return None
        bits, version = self._cached_bits
        if bits is not self.bits or version != self.bits._version:
            self._cached_passes, self._cached_bits = {}, (self.bits, self.bits._version)
        if column not in self._cached_passes:
            every = torch.arange(words, device=self.bits.device)
            with torch.inference_mode(False):  # training can use the tensor too
                passes = torch.zeros(count, words, dtype=torch.bool, device=self.bits.device)
                for part in torch.split(torch.arange(count, device=self.bits.device), max(1, BATCH_PAIRS // words)):
                    row, word = self._probe(column, part, every)
                    passes[part[row], word] = True
            self._cached_passes[column] = passes
        return self._cached_passes[column]

    def _probe(self, column: int, values: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Test all bits of all pairs; return row and column of the pairs whose bits are set."""
        of_values, of_tokens = _hashes(values, tokens, column, "bit 0", self.filter_size)
        row, word = self._is_set(of_values[:, None] + of_tokens).nonzero(as_tuple=True)
        for probe in range(1, HASHES):
            of_values, of_tokens = _hashes(values, tokens, column, f"bit {probe}", self.filter_size)
            bits = self._is_set(of_values.index_select(0, row) + of_tokens.index_select(0, word)).nonzero()[:, 0]
            row, word = row.index_select(0, bits), word.index_select(0, bits)
        return row, word

    def _is_set(self, index: Tensor) -> Tensor:
        index = _modulo(index, self.filter_size)
        bits = self.bits.index_select(0, (index >> 3).flatten()).view(index.shape)  # indexing takes ten times as long
        return ((bits >> (index & 7).to(torch.uint8)) & 1).bool()


def _hashes(values: Tensor, tokens: Tensor, column: int, name: str, size: int) -> tuple[Tensor, Tensor]:
    """Return f r_i mod `size` of `values` and w r_0 mod `size` of `tokens`, in 32 bits.

    Values count from 1 here, because row 0 of all variables would otherwise share its buckets.
    """
    of_values = (values + 1) * _random(f"{name} variable {column}", size) % size
    of_tokens = tokens * _random(f"{name} word", size) % size
    return of_values.int(), of_tokens.int()


def _modulo(index: Tensor, size: int) -> Tensor:
    """Return `index` modulo `size`, for indices below 2 `size`."""
    return torch.where(index >= size, index - size, index)


def _random(name: str, size: int) -> int:
    """Return a pseudorandom integer from 1 to `size` - 1 that depends on `name` and `size` only."""
    return 1 + int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") % max(1, size - 1)


def _next_prime(minimum: int) -> int:
    return next(n for n in itertools.count(max(2, minimum)) if all(n % d for d in range(2, math.isqrt(n) + 1)))
