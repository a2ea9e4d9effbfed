"""A corpus: texts as flat arrays of ids, their contexts as columns; batches of texts of similar length.

Shapes: B texts, T targets of the longest.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from factorcell.config import UserError
from factorcell.data.context import Bags, Context
from factorcell.data.originals import OriginalTexts
from factorcell.data.readers import Ragged
from factorcell.data.schema import MISSING, ContextSchema
from factorcell.data.tokenizer import Tokenizer

POOL = 50  # batches' worth of shuffled rows that are sorted by length together
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio (Knuth); odd, so that no two products are equal


@dataclass(frozen=True)
class Batch:
    """Texts as tensors.

    Attributes:
        tokens: Ids (B, T + 1) from the start to the end token, padded with end tokens.
        lengths: Targets of each text (B,).
        context: The metadata of the texts.
        rows: The rows (B,) of the texts in their corpus.
    """

    tokens: Tensor
    lengths: Tensor
    context: Context
    rows: Tensor

    def mask(self) -> Tensor:
        """(B, T), true at real targets."""
        return torch.arange(self.tokens.shape[1] - 1, device=self.tokens.device) < self.lengths[:, None]

    def to(self, device: torch.device) -> "Batch":
        """The same batch on `device`."""
        return Batch(self.tokens.to(device), self.lengths.to(device), self.context.to(device), self.rows.to(device))


@dataclass(frozen=True)
class Corpus:
    """Texts and contexts of one table.

    `tokens`: all ids, text after text, each from start to end token (a text that was cut has no end token);
    `offsets` (rows + 1): where each text begins; `categories` (rows, C); `numbers` (rows, N); `vectors` (rows, D) of
    each vector variable; `bags` of each text variable.
    `users` (rows,): who wrote each text, the rare ones apart too, numbered as they appear and 0 where missing; empty
    without a user column. `originals`: sizes of the texts as the table gives them; None where no table gave them.
    """

    tokens: NDArray[Any]
    offsets: NDArray[np.int64]
    categories: NDArray[np.int32]
    numbers: NDArray[np.float32]
    tokenizer: Tokenizer
    schema: ContextSchema
    vectors: tuple[NDArray[np.float32], ...] = ()
    bags: tuple[Ragged, ...] = ()
    users: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    originals: OriginalTexts | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def target_count(self) -> int:
        """The number of predicted tokens: all but the start tokens."""
        return len(self.tokens) - len(self)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Targets of each text (rows,)."""
        return np.diff(self.offsets) - 1

    @property
    def truncated(self) -> NDArray[np.bool_]:
        """Which texts were cut after `max_tokens` tokens (rows,): those without an end token."""
        cut: NDArray[np.bool_] = np.asarray(self.tokens[self.offsets[1:] - 1] != self.tokenizer.specials.end)
        return cut

    def truncate(self, max_tokens: int) -> "Corpus":
        """Cut the texts of a corpus that was read whole, as a table is read with this `max_tokens`."""
        sizes = np.minimum(np.diff(self.offsets), max_tokens + 1)
        offsets = np.append(0, np.cumsum(sizes))
        places = np.arange(offsets[-1]) + np.repeat(self.offsets[:-1] - offsets[:-1], sizes)
        return replace(self, tokens=self.tokens[places], offsets=offsets)

    def context_arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays of all contexts by name, as files keep them; `context_fields` is the inverse."""
        arrays: dict[str, NDArray[Any]] = {"categories": self.categories, "numbers": self.numbers}
        arrays |= {f"vectors.{index}": vectors for index, vectors in enumerate(self.vectors)}
        for index, bags in enumerate(self.bags):
            arrays |= {f"bags.{index}": bags.values, f"bags.{index}.offsets": bags.offsets}
        return arrays

    def context(self, rows: NDArray[np.int64]) -> Context:
        """The contexts of `rows`."""
        bags = [bags.select(rows) for bags in self.bags]
        return Context(
            torch.from_numpy(self.categories[rows].astype(np.int64)),
            torch.from_numpy(self.numbers[rows]),
            tuple(torch.from_numpy(vectors[rows]) for vectors in self.vectors),
            tuple(Bags(torch.from_numpy(b.values.astype(np.int64)), torch.from_numpy(b.offsets)) for b in bags),
        )

    def batch(self, rows: NDArray[np.int64]) -> Batch:
        """The texts of `rows` as one padded batch."""
        starts, lengths = self.offsets[rows], self.offsets[rows + 1] - self.offsets[rows]
        steps = np.arange(lengths.max())
        index = np.minimum(starts[:, None] + steps, (starts + lengths - 1)[:, None])
        tokens = np.where(steps < lengths[:, None], self.tokens[index], self.tokenizer.specials.end).astype(np.int64)
        return Batch(
            torch.from_numpy(tokens), torch.from_numpy(lengths - 1), self.context(rows), torch.from_numpy(rows)
        )

    def batches(
        self, batch_tokens: int, seed: int | None = None, epoch: int = 0, max_user_texts: int = 0
    ) -> list[NDArray[np.int64]]:
        """Rows of every batch: rows x longest text within `batch_tokens`, unless one text alone is longer.

        Without a seed sorted by length; with one, rows are shuffled, sorted within pools, and batches shuffled. Then
        `most`, if it is not 0, bounds how many texts of one user are among them: the first as they were shuffled.
        """
        lengths = self.lengths
        if seed is None:
            return list(_cut(np.argsort(lengths, kind="stable"), lengths, batch_tokens))
        random = np.random.default_rng((seed, epoch))
        rows = random.permutation(len(self))
        if max_user_texts:
            rows = rows[_place_in_group(self.users[rows]) < max_user_texts]
        size = max(1, int(POOL * batch_tokens / max(1.0, float(lengths.mean()))))
        batches: list[NDArray[np.int64]] = []
        for begin in range(0, len(rows), size):
            pool = rows[begin : begin + size]
            batches += _cut(pool[np.argsort(lengths[pool], kind="stable")], lengths, batch_tokens)
        return [batches[index] for index in random.permutation(len(batches))]

    def select(self, rows: NDArray[np.int64]) -> "Corpus":
        """A corpus of `rows` alone, in that order."""
        tokens, offsets = Ragged(self.tokens, self.offsets).select(rows)
        return replace(
            self,
            tokens=tokens,
            offsets=offsets,
            categories=self.categories[rows],
            numbers=self.numbers[rows],
            vectors=tuple(vectors[rows] for vectors in self.vectors),
            bags=tuple(bags.select(rows) for bags in self.bags),
            users=self.users[rows] if len(self.users) else self.users,
            originals=self.originals and self.originals.select(rows),
        )

    def concatenate(self, other: "Corpus") -> "Corpus":
        """The texts of this corpus and then those of `other`, which has the same vocabulary, schema and columns."""
        originals = None
        if self.originals is not None and other.originals is not None:
            originals = OriginalTexts.concatenated([self.originals, other.originals])
        vectors, bags = zip(self.vectors, other.vectors, strict=True), zip(self.bags, other.bags, strict=True)
        tokens, offsets = Ragged(self.tokens, self.offsets).concatenate(Ragged(other.tokens, other.offsets))
        return replace(
            self,
            tokens=tokens,
            offsets=offsets,
            categories=np.concatenate([self.categories, other.categories]),
            numbers=np.concatenate([self.numbers, other.numbers]),
            vectors=tuple(np.concatenate(pair) for pair in vectors),
            bags=tuple(ours.concatenate(theirs) for ours, theirs in bags),
            users=np.concatenate([self.users, other.users]),
            originals=originals,
        )

    def without_context(self, schema: ContextSchema) -> "Corpus":
        """The same texts for a model with the variables of `schema`, all of them missing."""
        rows = len(self)
        return replace(
            self,
            schema=schema,
            categories=np.full((rows, len(schema.categories)), MISSING, dtype=np.int32),
            numbers=np.full((rows, len(schema.numbers)), np.nan, dtype=np.float32),
            vectors=tuple(np.full((rows, len(v.means)), np.nan, dtype=np.float32) for v in schema.vectors),
            bags=tuple(Ragged(np.zeros(0, np.int32), np.zeros(rows + 1, np.int64)) for _ in schema.texts),
        )

    def split(self, share: float, seed: int) -> tuple["Corpus", "Corpus"]:
        """Two corpora: about `share` of the rows held out, drawn by the seed, come second."""
        held = np.random.default_rng((seed, 0xDE7)).permutation(len(self))
        count = min(max(1, round(share * len(self))), len(self) - 1)
        if len(self) < 2:
            raise UserError("one row cannot be split into training and development data")
        return self.select(np.sort(held[count:])), self.select(np.sort(held[:count]))


def context_fields(arrays: Mapping[str, NDArray[Any]], schema: ContextSchema) -> dict[str, Any]:
    """Return the fields of a corpus with this schema that hold contexts, from their arrays by name."""
    return {
        "schema": schema,
        "categories": arrays["categories"],
        "numbers": arrays["numbers"],
        "vectors": tuple(arrays[f"vectors.{index}"] for index in range(len(schema.vectors))),
        "bags": tuple(Ragged(arrays[f"bags.{n}"], arrays[f"bags.{n}.offsets"]) for n in range(len(schema.texts))),
    }


def _place_in_group(groups: NDArray[np.int32]) -> NDArray[np.int64]:
    """How many values before each of `groups` are equal to it."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    places = np.empty(len(groups), dtype=np.int64)
    places[order] = np.arange(len(groups)) - np.searchsorted(ordered, ordered)
    return places


def _cut(rows: NDArray[np.int64], lengths: NDArray[np.int64], batch_tokens: int) -> Iterator[NDArray[np.int64]]:
    """Cut `rows`, sorted by length, into batches of at most `batch_tokens`, padding counted."""
    ordered, begin = np.maximum(lengths[rows], 1), 0
    while begin < len(rows):
        low, high = begin + 1, len(rows)  # the last end whose padded size fits; sizes grow with it
        while low < high:
            middle = (low + high + 1) // 2
            fits = (middle - begin) * ordered[middle - 1] <= batch_tokens
            low, high = (middle, high) if fits else (low, middle - 1)
        yield rows[begin:low]
        begin = low


def target_offsets(corpus: Corpus) -> NDArray[np.int64]:
    """Where the targets of each text begin among all targets (rows + 1): a text has one target fewer than tokens."""
    offsets: NDArray[np.int64] = np.asarray(corpus.offsets) - np.arange(len(corpus.offsets))
    return offsets


def target_ids(corpus: Corpus) -> NDArray[np.int64]:
    """The ids of all targets of `corpus`, text after text: every token but the start tokens."""
    keep = np.ones(len(corpus.tokens), dtype=bool)
    keep[np.asarray(corpus.offsets[:-1])] = False
    return np.asarray(corpus.tokens)[keep].astype(np.int64)


def target_frequencies(corpus: Corpus, min_count: int = 0) -> NDArray[np.int64]:
    """How often each token of the vocabulary is a target (V,), or `at_least`; the start token never is."""
    counts = np.zeros(len(corpus.tokenizer), dtype=np.int64)
    for begin in range(0, len(corpus.tokens), 1 << 24):
        counts += np.bincount(corpus.tokens[begin : begin + (1 << 24)], minlength=len(counts))
    counts = np.maximum(counts, min_count)
    counts[corpus.tokenizer.specials.start] = 0
    return counts


def is_known_target(corpus: Corpus) -> NDArray[np.bool_]:
    """Which targets of `corpus` are in the vocabulary, text after text."""
    known: NDArray[np.bool_] = target_ids(corpus) != corpus.tokenizer.specials.unknown
    return known


def extend_hashes(hashes: NDArray[np.uint64], tokens: NDArray[np.uint64], shift: int = 29) -> NDArray[np.uint64]:
    """64-bit hashes of n-grams that go on with `tokens`, from the `hashes` of what stands before them (0: nothing)."""
    keys = (hashes ^ tokens) * MULTIPLIER
    return keys ^ (keys >> np.uint64(shift))
