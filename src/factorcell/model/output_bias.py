"""Softmax biases that depend on the context: one class each, used by `output.SoftmaxHead`.

    low_rank        Q c                                        (TACL 2018, equation 6; thesis 2018, 2.6)
    low_rank_each   sum_i Q_i c_i                              (thesis, A.1)
    one_hot         sum_i A_i o_i                              (TACL 2018, section 2.3)
    sparse          sum_i A_i o_i, most of A_i zero            (thesis, A.2)
    hash            sum_i H[h_i(w, f_i)] bloom(w, f_i)         (thesis, 3.4 to 3.6)

c is the context vector, c_i the embedding of variable i, f_i its value, o_i that value as a unit vector, and w a token.
Q, Q_i and A_i are matrices of coefficients with a row per token. H is a hash table, and h_i(w, f_i) a bucket of it.
bloom(w, f_i) is 1 if training contains the token with this value, and 0 for almost all other pairs. The proximal steps
of training (`training.proximal`) set coefficients of a sparse bias to zero.

Each class in `TABLES` maps contexts to features (B, F); the bias is the product of these features with its `weight`
(V, F). Only the hashed bias has a different form.

Shapes: B texts, V vocabulary, U chosen tokens, K context, F features, C categorical variables, D distinct values of a
variable in a batch, M buckets that a batch reads, l buckets of the hash table, m bits of the Bloom filter.
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

HASHES = 16  # number of bits of the Bloom filter that each pair of a value and a token sets
BATCH_PAIRS = 1 << 19  # largest number of pairs of a value and a token that are looked up at once
MAX_CACHED_PAIRS = 1 << 27  # results of the filter are not cached for a variable with more pairs than this


class LowRankBias(nn.Module):
    """Q c: a low-rank approximation of one bias vector per context."""

    def __init__(self, vocabulary_size: int, sizes: HeadSizes) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(vocabulary_size, sizes.model.context_size))

    def forward(self, vector: Tensor, parts: Sequence[Tensor], context: Context) -> Tensor:
        """Return the features (B, K): the context vectors."""
        return vector


class LowRankEachBias(nn.Module):
    """The sum of Q_i c_i: each variable shifts the bias by its own embedding c_i, without the context vector."""

    def __init__(self, vocabulary_size: int, sizes: HeadSizes) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(vocabulary_size, sum(sizes.variable_sizes)))

    def forward(self, vector: Tensor, parts: Sequence[Tensor], context: Context) -> Tensor:
        """Return the features (B, F): the embeddings of all variables."""
        return torch.cat(list(parts), dim=1)


class OneHotBias(nn.Module):
    """The sum of A_i o_i: a coefficient for every pair of a token and a value of a categorical variable."""

    def __init__(self, vocabulary_size: int, sizes: HeadSizes) -> None:
        super().__init__()
        self.schema = sizes.schema
        columns = sum(len(variable.values) for variable in self.schema.categories)
        self.weight = nn.Parameter(torch.zeros(vocabulary_size, columns))

    def per_column(self, numbers: Sequence[float]) -> Tensor:
        """Return a number for each column of `weight` (F,): the one of `numbers` (C,) that belongs to its variable."""
        pairs = zip(numbers, self.schema.categories, strict=True)
        return torch.tensor([number for number, variable in pairs for _ in variable.values])

    def count_nonzero(self) -> list[dict[str, Any]]:
        """Return a row for each categorical `variable`: how many `coefficients` it has, and how many are `nonzero`."""
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
        """Return the features (B, F): a unit vector for each value, value frequencies for a missing value."""
        features = [vector[:, :0]]
        for column, variable in enumerate(self.schema.categories):
            values = context.categories[:, column, None]
            unit_vectors = vector.new_zeros(len(vector), len(variable.values)).scatter_(1, values.clamp(min=0), 1.0)
            features.append(torch.where(values < 0, vector.new_tensor(variable.frequencies()), unit_vectors))
        return torch.cat(features, dim=1)


TABLES: dict[str, Callable[[int, HeadSizes], nn.Module]] = {
    "low_rank": LowRankBias,
    "low_rank_each": LowRankEachBias,
    "one_hot": OneHotBias,
    "sparse": OneHotBias,
}


@dataclass(frozen=True)
class Pairs:
    """Pairs of a value and a token that have a hashed bias, for a batch of B texts and U tokens.

    `biases` builds a table with a row for each distinct value of each variable and a column for each token. The bias of
    a text is the sum of the rows of its values. A missing value has a row too, the sum over all values of its variable.

    Attributes:
        buckets: The distinct buckets of the hash table that the pairs use (M,), ascending.
        rows: For each variable, the row of the table that belongs to the value of each text (B,).
        positions: For each pair, its cell in the flattened table: row x U + column.
        entries: For each pair, the index of its bucket in `buckets`.
        factors: For each pair, a factor on its bias; None means that all factors are 1.
        shape: The shape of the table: the number of rows, and U.
    """

    buckets: Tensor
    rows: list[Tensor]
    positions: Tensor
    entries: Tensor
    factors: Tensor | None
    shape: tuple[int, int]

    def biases(self, values: Tensor) -> Tensor:
        """Return the hashed biases (B, U) of all texts from the `values` (M, 1) that `buckets` contain."""
        terms = F.embedding(self.entries, values)[:, 0]
        terms = terms if self.factors is None else terms * self.factors
        table = terms.new_zeros(self.shape[0] * self.shape[1]).index_add_(0, self.positions, terms).view(self.shape)
        first, *others = (F.embedding(rows, table) for rows in self.rows)
        return sum(others, start=first)


class HashBias(nn.Module):
    """A bias for each pair of a value f_i and a token w in the training texts, stored in a hash table.

        h_i(w, f_i) = (w r_0 + f_i r_i) mod l        bloom(w, f_i) = prod_j beta[h_ij(w, f_i)]

    The bias of a pair is bucket h_i of `weight` if bloom = 1, and 0 if bloom = 0. Different pairs may share a bucket.
    beta are the m bits of a Bloom filter, which `observe` sets; h_ij is a hash like h_i, modulo m and with other
    factors in place of r_0 and r_i, which are fixed pseudorandom integers. The number of buckets l is the smallest
    prime that is at least `hash_size`; m is the same for `bloom_size`. With a `bloom_size` of 0 there is no filter, and
    every pair has a bias.
    """

    bits: Tensor  # the bits of the Bloom filter, eight in each byte

    def __init__(self, vocabulary_size: int, options: SoftmaxOptions, schema: ContextSchema) -> None:
        super().__init__()
        self.vocabulary_size, self.variables = vocabulary_size, schema.categories
        self.size = _next_prime(options.hash_size)
        self.filter_size = _next_prime(options.bloom_size) if options.bloom_size else 0
        self.weight = nn.Parameter(torch.zeros(self.size, 1))
        self.register_buffer("bits", torch.zeros(-(-self.filter_size // 8), dtype=torch.uint8))
        # For each variable, by its index: whether the filter contains each pair of a value and a token (values, V).
        self._cached_memberships: dict[int, Tensor] = {}
        self._cached_bits = self.bits, self.bits._version  # the filter that the cache was computed from

    def observe(self, tokens: NDArray[np.int64], categories: NDArray[np.int64]) -> None:
        """Add the pairs of `tokens` (N,) and the values `categories` (N, C) of their texts to the Bloom filter."""
        filter_bytes = self.bits.cpu().numpy()
        for column in range(len(self.variables) if self.filter_size else 0):
            known = categories[:, column] != MISSING
            pairs = np.unique(categories[known, column] * self.vocabulary_size + tokens[known])
            values, token_ids = map(torch.from_numpy, np.divmod(pairs, self.vocabulary_size))
            for bit in range(HASHES):
                value_hashes, token_hashes = _hashes(values, token_ids, column, f"bit {bit}", self.filter_size)
                positions = _modulo(value_hashes + token_hashes, self.filter_size).numpy()
                np.bitwise_or.at(filter_bytes, positions >> 3, np.left_shift(1, positions & 7).astype(np.uint8))
        self.bits.copy_(torch.from_numpy(filter_bytes))

    def pairs(self, categories: Tensor, tokens: Tensor | None = None) -> Pairs:
        """Return the pairs that have a bias for texts with `categories` (B, C), for `tokens` (U,) or all tokens."""
        tokens = torch.arange(self.vocabulary_size, device=categories.device) if tokens is None else tokens
        rows_of_texts: list[Tensor] = []
        entries: list[tuple[Tensor, ...]] = []
        row_count = 0
        for column in range(len(self.variables)):
            values, row_of_text = torch.unique(categories[:, column], return_inverse=True)
            rows_of_texts.append(row_of_text + row_count)
            for value_index, token_index, bucket, factor in self._entries(column, values, tokens):
                entries.append(((value_index + row_count) * len(tokens) + token_index, bucket, factor))
            row_count += len(values)
        positions, buckets, factors = (torch.cat(parts) for parts in zip(*entries, strict=True))
        distinct_buckets, bucket_indices = torch.unique(buckets.long(), return_inverse=True)
        has_missing = bool((categories == MISSING).any())
        shape = (row_count, len(tokens))
        return Pairs(
            distinct_buckets, rows_of_texts, positions, bucket_indices, factors if has_missing else None, shape
        )

    def _entries(self, column: int, values: Tensor, tokens: Tensor) -> list[tuple[Tensor, ...]]:
        """Return the pairs of `values` and `tokens` (U,) that have a bias, in several parts.

        A part has four arrays: for each pair the index of its value in `values`, the index of its token in `tokens`,
        its bucket, and a factor on its bias. A missing value has the pairs of all values of the variable `column`, with
        the frequencies of these values as factors.
        """
        known = values[values != MISSING]
        rows = torch.arange(len(values) - len(known), len(values), device=values.device)  # a missing value comes first
        entries = self._nonmissing_entries(column, known, rows, self.weight.new_ones(len(known)), tokens)
        if len(known) < len(values):
            every = torch.arange(len(self.variables[column].values), device=values.device)
            frequencies = self.weight.new_tensor(self.variables[column].frequencies())
            entries += self._nonmissing_entries(column, every, torch.zeros_like(every), frequencies, tokens)
        return entries

    def _nonmissing_entries(
        self, column: int, values: Tensor, rows: Tensor, factors: Tensor, tokens: Tensor
    ) -> list[tuple[Tensor, ...]]:
        """Return pairs as `_entries` does, for `values` (D,) that have the indices `rows` (D,) and `factors` (D,)."""
        entries: list[tuple[Tensor, ...]] = []
        step = max(1, BATCH_PAIRS // max(1, len(tokens)))
        for part in torch.split(torch.arange(len(values), device=values.device), step):
            value_index, token_index = self._pairs_in_filter(column, values[part], tokens)
            value_hashes, token_hashes = _hashes(values[part], tokens, column, "bucket", self.size)
            buckets = _modulo(
                value_hashes.index_select(0, value_index) + token_hashes.index_select(0, token_index), self.size
            )
            row_indices, pair_factors = (array[part].index_select(0, value_index) for array in (rows, factors))
            entries.append((row_indices, token_index, buckets, pair_factors))
        return entries

    def _pairs_in_filter(self, column: int, values: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pairs of `values` and `tokens` in the Bloom filter, as value indices and token indices."""
        if not self.filter_size:
            all_pairs = torch.ones(len(values), len(tokens), dtype=torch.bool, device=values.device)
            value_index, token_index = all_pairs.nonzero(as_tuple=True)
            return value_index, token_index
        membership = self._cached_membership(column)
        if membership is None:
            return self._probe_filter(column, values, tokens)
        value_index, token_index = membership.index_select(0, values).index_select(1, tokens).nonzero(as_tuple=True)
        return value_index, token_index

    def _cached_membership(self, column: int) -> Tensor | None:
        """Return which pairs (values, V) of a variable the Bloom filter contains; None if there are too many pairs."""
        value_count, token_count = len(self.variables[column].values), self.vocabulary_size
        if value_count * token_count > MAX_CACHED_PAIRS:
            return None
        filter_bytes, version = self._cached_bits
        if filter_bytes is not self.bits or version != self.bits._version:
            self._cached_memberships, self._cached_bits = {}, (self.bits, self.bits._version)
        if column not in self._cached_memberships:
            all_tokens = torch.arange(token_count, device=self.bits.device)
            with torch.inference_mode(False):  # a tensor of inference mode could not be used in training later
                membership = torch.zeros(value_count, token_count, dtype=torch.bool, device=self.bits.device)
                all_values = torch.arange(value_count, device=self.bits.device)
                for part in torch.split(all_values, max(1, BATCH_PAIRS // token_count)):
                    value_index, token_index = self._probe_filter(column, part, all_tokens)
                    membership[part[value_index], token_index] = True
            self._cached_memberships[column] = membership
        return self._cached_memberships[column]

    def _probe_filter(self, column: int, values: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pairs of `values` and `tokens` whose bits are all set, as value indices and token indices."""
        value_hashes, token_hashes = _hashes(values, tokens, column, "bit 0", self.filter_size)
        value_index, token_index = self._are_bits_set(value_hashes[:, None] + token_hashes).nonzero(as_tuple=True)
        for bit in range(1, HASHES):
            value_hashes, token_hashes = _hashes(values, tokens, column, f"bit {bit}", self.filter_size)
            positions = value_hashes.index_select(0, value_index) + token_hashes.index_select(0, token_index)
            remaining = self._are_bits_set(positions).nonzero()[:, 0]
            value_index, token_index = value_index.index_select(0, remaining), token_index.index_select(0, remaining)
        return value_index, token_index

    def _are_bits_set(self, positions: Tensor) -> Tensor:
        """Return whether the bits of the filter at `positions` modulo m are set."""
        positions = _modulo(positions, self.filter_size)
        # Indexing takes ten times as long as index_select.
        filter_bytes = self.bits.index_select(0, (positions >> 3).flatten()).view(positions.shape)
        return ((filter_bytes >> (positions & 7).to(torch.uint8)) & 1).bool()


def _hashes(values: Tensor, tokens: Tensor, column: int, name: str, size: int) -> tuple[Tensor, Tensor]:
    """Return the two terms of a hash, as 32-bit integers: f r_i mod `size` of `values`, w r_0 mod `size` of `tokens`.

    f counts values from 1: if it counted from 0, the first values of all variables would share their buckets.
    """
    value_hashes = (values + 1) * _random(f"{name} variable {column}", size) % size
    token_hashes = tokens * _random(f"{name} word", size) % size
    return value_hashes.int(), token_hashes.int()


def _modulo(index: Tensor, size: int) -> Tensor:
    """Return `index` modulo `size`. All indices must be less than 2 `size`."""
    return torch.where(index >= size, index - size, index)


def _random(name: str, size: int) -> int:
    """Return a pseudorandom integer from 1 to `size` - 1 that depends on `name` and `size` only."""
    return 1 + int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") % max(1, size - 1)


def _next_prime(minimum: int) -> int:
    """Return the smallest prime that is at least `minimum`."""
    candidates = itertools.count(max(2, minimum))
    return next(n for n in candidates if all(n % divisor for divisor in range(2, math.isqrt(n) + 1)))
