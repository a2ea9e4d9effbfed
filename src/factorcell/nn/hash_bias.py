"""The hashed softmax bias: a bias for each pair of a value and a token of training (thesis 2018, 3.4 to 3.6).

Shapes: B texts, V vocabulary, U chosen tokens, C categorical variables, D distinct values of a variable in a batch,
M buckets that a batch reads, l buckets of the hash table, m bits of the Bloom filter.
"""

import hashlib
import itertools
import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from factorcell.data.columns.schema import MISSING, ContextSchema

HASH_SIZE, BLOOM_SIZE = 1 << 22, 1 << 26  # the buckets of the hash table, and the bits of the Bloom filter
HASHES = 16  # number of hash functions of the Bloom filter: each pair of a value and a token sets one bit per function
BATCH_PAIRS = 1 << 19  # largest number of pairs of a value and a token that are looked up at once
MAX_CACHED_PAIRS = 1 << 27  # results of the filter are cached for variables with at most this many pairs


@dataclass(frozen=True)
class Pairs:
    """Pairs of a value and a token that have a hashed bias, for a batch of B texts and U tokens.

    `biases` builds a table with a row for each distinct value of each variable, or for a missing value, and a column
    for each token. The bias of a text is the sum of the rows of its values.
    """

    buckets: Tensor  # the distinct buckets of the hash table that the pairs use (M,), ascending
    rows: list[Tensor]  # for each variable, the row of the table that belongs to the value of each text (B,)
    positions: Tensor  # for each pair, its cell in the flattened table: row x U + column
    bucket_indices: Tensor  # for each pair, the index of its bucket in `buckets`
    factors: Tensor  # for each pair, a factor on its bias
    shape: tuple[int, int]  # of the table: the number of rows, and U

    def biases(self, bucket_values: Tensor) -> Tensor:
        """Return the hashed biases (B, U) of all texts from the values (M, 1) of `buckets` in the hash table."""
        table = self.table(bucket_values)
        first, *others = (F.embedding(rows, table) for rows in self.rows)
        return sum(others, start=first)

    def table(self, bucket_values: Tensor) -> Tensor:
        """Return the biases of each distinct value of each variable, from the values (M, 1) of `buckets`."""
        pair_biases = F.embedding(self.bucket_indices, bucket_values)[:, 0] * self.factors
        cells = pair_biases.new_zeros(math.prod(self.shape)).index_add_(0, self.positions, pair_biases)
        return cells.view(self.shape)


class HashBias(nn.Module):
    """A bias for each pair of a value f_i and a token w in the training texts, stored in a hash table.

        h_i(w, f_i) = (w r_0 + f_i r_i) mod l        bloom(w, f_i) = prod_j beta[h_ij(w, f_i)]

    The bias of a pair is bucket h_i of `weight` if bloom = 1, and 0 if bloom = 0. Different pairs may share a bucket.
    r_0 and r_i are fixed pseudorandom integers. beta are the m bits of a Bloom filter, which `observe` sets; h_ij is a
    hash like h_i, but modulo m and with other pseudorandom integers. The number of buckets l is the smallest prime that
    is at least `hash_size`, and m the smallest prime that is at least `bloom_size`. With a `bloom_size` of 0 there is
    no filter, and every pair has a bias.
    """

    bits: Tensor  # the bits of the Bloom filter, eight in each byte

    def __init__(
        self, vocabulary_size: int, schema: ContextSchema, hash_size: int = HASH_SIZE, bloom_size: int = BLOOM_SIZE
    ) -> None:
        super().__init__()
        self.vocabulary_size, self.variables = vocabulary_size, schema.categories
        self.size = _next_prime(hash_size)
        self.filter_size = _next_prime(bloom_size) if bloom_size else 0
        self.weight = nn.Parameter(torch.zeros(self.size, 1))
        self.register_buffer("bits", torch.zeros(-(-self.filter_size // 8), dtype=torch.uint8))
        # By the index of a variable: whether the filter contains each pair of a value and a token (values, V).
        self._memberships: dict[int, Tensor] = {}
        self._cached_bits = self.bits, self.bits._version  # the filter from which they were computed

    def forward(self, categories: Tensor) -> Tensor:
        """Return the biases (B, V) of all tokens in contexts with the values `categories` (B, C)."""
        pairs = self.pairs(categories)
        return pairs.biases(F.embedding(pairs.buckets, self.weight))

    def observe(self, tokens: NDArray[np.int64], categories: NDArray[np.int64]) -> None:
        """Add the pairs of `tokens` (N,) and the values `categories` (N, C) of their texts to the Bloom filter."""
        filter_bytes = self.bits.cpu().numpy()
        for column in range(len(self.variables) if self.filter_size else 0):
            is_known = categories[:, column] != MISSING
            pairs = np.unique(categories[is_known, column] * self.vocabulary_size + tokens[is_known])
            values, token_ids = map(torch.from_numpy, np.divmod(pairs, self.vocabulary_size))
            for bit in range(HASHES):
                value_terms, token_terms = _hash_terms(values, token_ids, column, f"bit {bit}", self.filter_size)
                positions = _modulo(value_terms + token_terms, self.filter_size).numpy()
                np.bitwise_or.at(filter_bytes, positions >> 3, np.left_shift(1, positions & 7).astype(np.uint8))
        self.bits.copy_(torch.from_numpy(filter_bytes))

    def pairs(self, categories: Tensor, tokens: Tensor | None = None) -> Pairs:
        """Return the pairs that have a bias for texts with `categories` (B, C), for `tokens` (U,) or all tokens."""
        device = categories.device
        tokens = torch.arange(self.vocabulary_size, device=device) if tokens is None else tokens
        rows_of_texts: list[Tensor] = []
        batches: list[tuple[Tensor, ...]] = []  # positions, buckets and factors of some pairs
        row_count = 0
        for column, variable in enumerate(self.variables):
            values, row_of_text = torch.unique(categories[:, column], return_inverse=True)
            rows_of_texts.append(row_of_text + row_count)
            rows = torch.arange(row_count, row_count + len(values), device=device)
            row_count += len(values)
            is_known = values != MISSING
            values, rows, missing_rows = values[is_known], rows[is_known], rows[~is_known]
            factors = self.weight.new_ones(len(values))
            if len(missing_rows):  # a missing value has the pairs of all values, with their frequencies as factors
                values = torch.cat([values, torch.arange(len(variable.values), device=device)])
                rows = torch.cat([rows, missing_rows.expand(len(variable.values))])
                factors = torch.cat([factors, self.weight.new_tensor(variable.frequencies())])
            values_at_once = max(1, BATCH_PAIRS // max(1, len(tokens)))
            for part in torch.split(torch.arange(len(values), device=device), values_at_once):
                part_index, token_index = self._pairs_in_filter(column, values[part], tokens)
                value_terms, token_terms = _hash_terms(values[part], tokens, column, "bucket", self.size)
                hashes = value_terms.index_select(0, part_index) + token_terms.index_select(0, token_index)
                pair_rows, pair_factors = (array[part].index_select(0, part_index) for array in (rows, factors))
                batches.append((pair_rows * len(tokens) + token_index, _modulo(hashes, self.size), pair_factors))
        positions, buckets, factors = (torch.cat(arrays) for arrays in zip(*batches, strict=True))
        distinct_buckets, bucket_indices = torch.unique(buckets.long(), return_inverse=True)
        return Pairs(
            buckets=distinct_buckets,
            rows=rows_of_texts,
            positions=positions,
            bucket_indices=bucket_indices,
            factors=factors,
            shape=(row_count, len(tokens)),
        )

    def _pairs_in_filter(self, column: int, values: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pairs of `values` and `tokens` in the Bloom filter, as value indices and token indices."""
        if not self.filter_size:
            membership = torch.ones(len(values), len(tokens), dtype=torch.bool, device=values.device)
        elif len(self.variables[column].values) * self.vocabulary_size > MAX_CACHED_PAIRS:
            return self._probe_filter(column, values, tokens)
        else:
            membership = self._membership(column).index_select(0, values).index_select(1, tokens)
        value_index, token_index = membership.nonzero(as_tuple=True)
        return value_index, token_index

    def _membership(self, column: int) -> Tensor:
        """Return which pairs (values, V) of a variable the Bloom filter contains."""
        cached_bits, cached_version = self._cached_bits
        if cached_bits is not self.bits or cached_version != self.bits._version:
            self._memberships, self._cached_bits = {}, (self.bits, self.bits._version)
        if column not in self._memberships:
            device, shape = self.bits.device, (len(self.variables[column].values), self.vocabulary_size)
            with torch.inference_mode(False):  # a tensor of inference mode could not be used in training later
                membership = torch.zeros(shape, dtype=torch.bool, device=device)
                all_tokens = torch.arange(shape[1], device=device)
                for part in torch.split(torch.arange(shape[0], device=device), max(1, BATCH_PAIRS // shape[1])):
                    value_index, token_index = self._probe_filter(column, part, all_tokens)
                    membership[part[value_index], token_index] = True
            self._memberships[column] = membership
        return self._memberships[column]

    def _probe_filter(self, column: int, values: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pairs of `values` and `tokens` whose bits are all set, as value indices and token indices."""
        value_terms, token_terms = _hash_terms(values, tokens, column, "bit 0", self.filter_size)
        value_index, token_index = self._are_bits_set(value_terms[:, None] + token_terms).nonzero(as_tuple=True)
        for bit in range(1, HASHES):  # pairs with an unset bit are removed after each bit
            value_terms, token_terms = _hash_terms(values, tokens, column, f"bit {bit}", self.filter_size)
            positions = value_terms.index_select(0, value_index) + token_terms.index_select(0, token_index)
            remaining = self._are_bits_set(positions).nonzero()[:, 0]
            value_index, token_index = value_index.index_select(0, remaining), token_index.index_select(0, remaining)
        return value_index, token_index

    def _are_bits_set(self, positions: Tensor) -> Tensor:
        """Return whether the bits of the filter at `positions` modulo m are set."""
        positions = _modulo(positions, self.filter_size)
        # Indexing takes ten times as long as index_select.
        filter_bytes = self.bits.index_select(0, (positions >> 3).flatten()).view(positions.shape)
        return ((filter_bytes >> (positions & 7).to(torch.uint8)) & 1).bool()


def _hash_terms(values: Tensor, tokens: Tensor, column: int, name: str, size: int) -> tuple[Tensor, Tensor]:
    """Return the two terms of the hash `name`, as 32-bit integers: f r_i mod `size` and w r_0 mod `size`.

    f is the number of a value, starting at 1: if it started at 0, the first values of all variables would share their
    buckets. w is the id of a token.
    """
    value_terms = (values + 1) * _pseudorandom_integer(f"{name} variable {column}", size) % size
    token_terms = tokens * _pseudorandom_integer(f"{name} word", size) % size
    return value_terms.int(), token_terms.int()


def _modulo(hashes: Tensor, size: int) -> Tensor:
    """Return `hashes` modulo `size`. All hashes must be less than 2 `size`."""
    return torch.where(hashes >= size, hashes - size, hashes)


def _pseudorandom_integer(name: str, size: int) -> int:
    """Return a pseudorandom integer from 1 to `size` - 1 that depends on `name` and `size` only."""
    return 1 + int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") % max(1, size - 1)


def _next_prime(minimum: int) -> int:
    """Return the smallest prime that is at least `minimum`."""
    candidates = itertools.count(max(2, minimum))
    return next(n for n in candidates if all(n % divisor for divisor in range(2, math.isqrt(n) + 1)))
