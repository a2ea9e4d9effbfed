"""Corpora: texts as flat arrays of token ids with their contexts as arrays, and batches of texts of similar length.

A target is a token that the model predicts. A text of n tokens has n + 1 targets, because its end is predicted too.

Shapes: B texts, T targets of the longest text, C categorical and N numeric variables, D numbers of a vector, V tokens
of the vocabulary.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from factorcell.data.columns.context import Context, Ragged
from factorcell.data.columns.schema import MISSING, ContextSchema, Variable
from factorcell.data.tokenizers.tokenizer import Tokenizer
from factorcell.data.tokenizing import digests
from factorcell.errors import UserError
from factorcell.io import arrays
from factorcell.io.arrays import GrowingArray, blocks, mapped, take

POOL_BATCHES = 50  # shuffled rows are sorted by length in pools of about this many batches
# Few batches of all lengths would have more padding than tokens, and batches of few tokens take longer per token.
MIN_SORTED_BATCHES, MIN_SORTED_TOKENS = 10, 500
# 2^64 divided by the golden ratio (Knuth). It is odd, so multiplication modulo 2^64 is injective.
HASH_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Batch:
    """Texts and their contexts as tensors."""

    tokens: Tensor  # the token ids of each text (B, T + 1), from the start token on, padded with end tokens
    lengths: Tensor  # the number of targets of each text (B,)
    context: Context  # the contexts of the texts
    rows: Tensor  # the index of each text in its corpus (B,)

    def mask(self) -> Tensor:
        """Return a mask (B, T) that is true at targets and false at padding."""
        return torch.arange(self.tokens.shape[1] - 1, device=self.tokens.device) < self.lengths[:, None]

    def select(self, texts: Tensor) -> "Batch":
        """Return the texts at the indices `texts`, at least one, with no more padding than they need."""
        lengths = self.lengths[texts]
        tokens = self.tokens[texts, : int(lengths.max()) + 1]
        return Batch(tokens, lengths, self.context.select(texts), self.rows[texts])

    def to(self, device: torch.device) -> "Batch":
        """Return this batch on `device`."""
        return Batch(self.tokens.to(device), self.lengths.to(device), self.context.to(device), self.rows.to(device))


@dataclass(frozen=True)
class Corpus:
    """The texts and contexts of a table; large arrays are memory-mapped files (`factorcell.io.arrays`).

    Attributes:
        tokens: The token ids of all texts, one text after the other, each from its start token to its end token; a text
            that was cut has no end token.
        offsets: The index of the first token of each text, followed by the number of all tokens (rows + 1,).
        categories: The ids of category values (rows, C); -1 for a missing value.
        numbers: The values of the numeric variables (rows, N); NaN for a missing value.
        unknown: The out-of-vocabulary tokens of each text, in order, as indices of `unknown_names`.
        unknown_names: The out-of-vocabulary tokens of all texts.
        tokenizer: The tokenizer, with its vocabulary.
        schema: The context variables.
        vectors, words, prompts: The other context values of all rows, as in `Context`.
        users: The id of the user of each text (rows,); empty if the table has no user column. Users, rare ones too, are
            numbered from 1 on in order of appearance; 0 is a missing user.
        originals: The size of each normalized text in bytes of UTF-8, and a 64-bit digest of it (rows, 2); None if the
            tokens do not determine the texts (`Tokenizer.is_lossless`).
        selected: The index of the table row of each text (rows,) of a selection; empty in a corpus of a whole table.
    """

    tokens: NDArray[Any]
    offsets: NDArray[np.int64]
    categories: NDArray[np.int32]
    numbers: NDArray[np.float32]
    unknown: Ragged
    unknown_names: tuple[str, ...]
    tokenizer: Tokenizer
    schema: ContextSchema
    vectors: tuple[NDArray[np.float32], ...] = ()
    words: tuple[Ragged, ...] = ()
    prompts: tuple[Ragged, ...] = ()
    users: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    originals: NDArray[np.uint64] | None = None
    selected: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def target_count(self) -> int:
        """The number of targets: all tokens except the start tokens."""
        return len(self.tokens) - len(self)

    @property
    def source_rows(self) -> NDArray[np.int64]:
        """The index of the table row of each text (rows,)."""
        return self.selected if len(self.selected) else np.arange(len(self))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of targets of each text (rows,)."""
        return mapped(lambda begins, ends: ends - begins - 1, self.offsets[:-1], self.offsets[1:])

    @property
    def read_lengths(self) -> NDArray[np.int64]:
        """The number of tokens that the model reads of each text, including its prompts (rows,)."""
        lengths = self.lengths
        for prompt in self.prompts:
            begins, ends = prompt.offsets[:-1], prompt.offsets[1:]
            lengths = mapped(lambda lengths, begins, ends: lengths + ends - begins, lengths, begins, ends)
        return lengths

    @property
    def truncated(self) -> NDArray[np.bool_]:
        """Whether each text was cut after `max_tokens` tokens and therefore has no end token (rows,)."""
        return mapped(lambda ends: self.tokens[ends - 1] != self.tokenizer.specials.end, self.offsets[1:])

    def context(self, rows: NDArray[np.int64]) -> Context:
        """Return the contexts of the texts with the indices `rows` as tensors."""
        words, prompts = ([lists.select(rows) for lists in columns] for columns in (self.words, self.prompts))
        vectors = [vectors[rows] for vectors in self.vectors]
        return Context.of(self.categories[rows], self.numbers[rows], vectors, words, prompts)

    def batch(self, rows: NDArray[np.int64]) -> Batch:
        """Return the texts with the indices `rows` as one padded batch."""
        starts, sizes = self.offsets[rows], self.offsets[rows + 1] - self.offsets[rows]
        positions = np.arange(sizes.max())
        # Positions behind the end of a text read its last token, which the end token then replaces.
        indices = np.minimum(starts[:, None] + positions, (starts + sizes - 1)[:, None])
        is_token = positions < sizes[:, None]
        tokens = np.where(is_token, self.tokens[indices], self.tokenizer.specials.end).astype(np.int64)
        return Batch(torch.from_numpy(tokens), torch.from_numpy(sizes - 1), self.context(rows), torch.from_numpy(rows))

    def batches(
        self, batch_tokens: int, seed: int | None = None, epoch: int = 0, max_texts: int | None = None
    ) -> "RowBatches":
        """Divide the rows into batches of texts of similar length.

        Args:
            batch_tokens: The maximum number of tokens of a batch, prompts and padding included. A text of more tokens
                is a batch of its own.
            seed: The seed of the random order. Rows are shuffled and then sorted by length within pools of about
                `POOL_BATCHES` batches; then the batches are shuffled. Without a seed, all rows are sorted by length,
                and batches are smaller if there would be fewer than about `MIN_SORTED_BATCHES`.
            epoch: The number of the epoch; each epoch has its own random order.
            max_texts: The maximum number of texts of a batch, if `seed` is None.

        Returns:
            The indices of the texts of each batch.
        """
        lengths = self.read_lengths
        if seed is None:
            rows = np.argsort(lengths, kind="stable")
            batch_tokens = min(batch_tokens, max(MIN_SORTED_TOKENS, int(lengths.sum()) // MIN_SORTED_BATCHES))
            sizes = np.array(_batch_sizes(lengths[rows], batch_tokens, max_texts), np.int64)
            return RowBatches(rows, arrays.to_offsets(sizes), np.arange(len(sizes)))
        generator = np.random.default_rng((seed, epoch))
        random_rows = arrays.permutation(generator, len(self))
        pool_size = max(1, int(POOL_BATCHES * batch_tokens / max(1.0, float(lengths.mean()))))
        all_rows, all_sizes = GrowingArray(), GrowingArray()
        for block in blocks(len(self), pool_size):
            pool = random_rows[block]
            pool_lengths = lengths[pool]
            order = np.argsort(pool_lengths, kind="stable")
            all_rows.append(pool[order])
            all_sizes.append(np.array(_batch_sizes(pool_lengths[order], batch_tokens), np.int64))
        offsets = arrays.to_offsets(all_sizes.array())
        return RowBatches(all_rows.array(), offsets, arrays.permutation(generator, len(offsets) - 1))

    def select(self, rows: NDArray[np.int64]) -> "Corpus":
        """Return a corpus of the texts with the indices `rows`, in that order."""
        tokens, offsets = Ragged(self.tokens, self.offsets).select(rows)
        return replace(
            self,
            tokens=tokens,
            offsets=offsets,
            categories=take(self.categories, rows),
            numbers=take(self.numbers, rows),
            vectors=tuple(take(vectors, rows) for vectors in self.vectors),
            words=tuple(words.select(rows) for words in self.words),
            prompts=tuple(prompt.select(rows) for prompt in self.prompts),
            users=take(self.users, rows) if len(self.users) else self.users,
            originals=None if self.originals is None else take(self.originals, rows),
            unknown=self.unknown.select(rows),
            selected=take(self.selected, rows) if len(self.selected) else rows,
        )

    def without_context(self, schema: ContextSchema, keep: str = "") -> "Corpus":
        """Return a corpus with the same texts, in which all variables of `schema` are missing.

        The variables of the column `keep` have their values; `schema` is then that of this corpus.
        """
        rows, empty_lists = len(self), Ragged(np.zeros(0, np.int32), np.zeros(len(self) + 1, np.int64))

        def columns(variables: Sequence[Variable], values: Any, missing: Callable[[Variable], Any]) -> Any:
            return [
                values[index] if variable.source_column == keep else missing(variable)
                for index, variable in enumerate(variables)
            ]

        categories = columns(schema.categories, self.categories.T, lambda _: np.full(rows, MISSING))
        numbers = columns(schema.numbers, self.numbers.T, lambda _: np.full(rows, np.nan))
        vectors = columns(
            schema.vectors, self.vectors, lambda variable: np.full((rows, len(variable.means)), np.nan, np.float32)
        )
        return replace(
            self,
            schema=schema,
            categories=np.array(categories, np.int32).reshape(len(categories), rows).T,
            numbers=np.array(numbers, np.float32).reshape(len(numbers), rows).T,
            vectors=tuple(vectors),
            words=tuple(columns(schema.texts, self.words, lambda _: empty_lists)),
            prompts=(empty_lists,) * len(schema.prompts),
        )

    def split(self, share: float, seed: int) -> tuple["Corpus", "Corpus"]:
        """Split the rows at random into training rows and a `share` of held-out rows; each part has at least one row.

        Both corpora have the order of this corpus.

        Raises:
            UserError: The corpus has fewer than two rows.
        """
        if len(self) < 2:
            raise UserError("one row cannot be split into training and development data")
        # 0xDE7 makes these random numbers differ from those of other uses of the same seed.
        random_rows = arrays.permutation(np.random.default_rng((seed, 0xDE7)), len(self))
        held_out_count = min(max(1, round(share * len(self))), len(self) - 1)
        is_held_out = mapped(lambda rows: np.zeros(len(rows), bool), random_rows)
        is_held_out[random_rows[:held_out_count]] = True
        return self._split(is_held_out)

    def _split(self, is_held_out: NDArray[np.bool_]) -> tuple["Corpus", "Corpus"]:
        """Return the texts that are not held out, and those that are (rows,)."""
        training_rows = arrays.indices_where(mapped(np.logical_not, is_held_out))
        return self.select(training_rows), self.select(arrays.indices_where(is_held_out))

    def split_users(self, share: float, seed: int, column: str, keeps_schema: bool = False) -> "tuple[Corpus, Corpus]":
        """Split the users at random into those of training and held-out ones, who wrote about `share` of the texts.

        A user who wrote more than this share is never held out; if all users did, single texts are held out, as in
        `split`. Unless `keeps_schema`, the schema of both parts has no held-out users, as if training had never seen
        them. `column` is the column of the users. Both corpora have the order of this corpus.
        """
        text_counts = arrays.count_ids(self.users, 1 + int(self.users.max()))
        order = 1 + np.random.default_rng((seed, 0xDE7)).permutation(len(text_counts) - 1)  # 0 is a missing user
        order = order[text_counts[order] <= share * len(self)]
        if not len(order):
            return self.split(share, seed)
        totals = np.cumsum(text_counts[order])
        held_out_users = order[: 1 + int(np.searchsorted(totals, share * len(self)))]
        is_held_out = mapped(lambda users: np.isin(users, held_out_users), self.users)
        if keeps_schema:
            return self._split(is_held_out)
        index = [variable.source_column for variable in self.schema.categories].index(column)
        variable, ids = self.schema.categories[index], self.categories[:, index]
        is_kept = ~np.isin(np.arange(len(variable.values)), ids[is_held_out])
        is_kept[0] = True  # the unknown value
        new_ids = np.where(is_kept, np.cumsum(is_kept) - 1, 0)

        def renumber(block: NDArray[np.int32]) -> NDArray[np.int32]:
            categories, ids = block.copy(), block[:, index]
            categories[:, index] = np.where(ids < 0, ids, new_ids[ids])
            return categories

        new_variable = replace(
            variable, values=tuple(compress(variable.values, is_kept)), counts=tuple(compress(variable.counts, is_kept))
        )
        variables = tuple(new_variable if other is variable else other for other in self.schema.variables)
        corpus = replace(self, categories=mapped(renumber, self.categories), schema=ContextSchema(variables))
        return corpus._split(is_held_out)


@dataclass(frozen=True, eq=False)
class RowBatches(Sequence[NDArray[np.int64]]):
    """The rows of the texts of each batch."""

    rows: NDArray[np.int64]  # the rows of all batches, before they were shuffled (rows,)
    offsets: NDArray[np.int64]  # the index in `rows` of the first text of each batch, and the number of rows
    order: NDArray[np.int64]  # the index in `offsets` of each batch

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return replace(self, order=self.order[index])
        batch = self.order[index]
        return self.rows[self.offsets[batch] : self.offsets[batch + 1]]


def _batch_sizes(lengths: NDArray[np.int64], batch_tokens: int, max_texts: int | None = None) -> list[int]:
    """Return the numbers of texts of padded batches of at most `batch_tokens` tokens, or one text.

    `lengths` are the sorted lengths of all texts.
    """
    sorted_lengths, begin, sizes = np.maximum(lengths, 1), 0, list[int]()
    while begin < len(lengths):
        # Each text has at least as many tokens as the first one, which limits the number of texts.
        count = min(max_texts or len(lengths), 1 + batch_tokens // int(sorted_lengths[begin]))
        padded_sizes = np.arange(1, count + 1)[: len(lengths) - begin] * sorted_lengths[begin : begin + count]
        sizes.append(max(1, int(np.searchsorted(padded_sizes, batch_tokens, side="right"))))
        begin += sizes[-1]
    return sizes


def originals_key(originals: NDArray[np.uint64]) -> str:
    """Return a digest of all texts of `Corpus.originals` and their order."""
    return hashlib.sha256(np.ascontiguousarray(originals[:, 1]).tobytes()).hexdigest()[:16]


def target_offsets(corpus: Corpus) -> NDArray[np.int64]:
    """Return the index of each text's first target among all targets, followed by the number of targets (rows + 1,)."""
    # Each text before an offset has one token that is not a target: its start token.
    return arrays.join(corpus.offsets[rows] - np.arange(rows.start, rows.stop) for rows in blocks(len(corpus.offsets)))


def target_ids(corpus: Corpus) -> NDArray[np.int64]:
    """Return the ids of all targets, one text after the other: every token except the start tokens."""
    is_target = np.ones(len(corpus.tokens), dtype=bool)
    is_target[corpus.offsets[:-1]] = False
    return corpus.tokens[is_target].astype(np.int64)


def target_frequencies(corpus: Corpus, min_count: int = 0) -> NDArray[np.int64]:
    """Return how often each token is a target (V,), at least `min_count`; the count of the start token is 0."""
    counts = np.maximum(arrays.count_ids(corpus.tokens, len(corpus.tokenizer)), min_count)
    counts[corpus.tokenizer.specials.start] = 0
    return counts


def is_known_target(corpus: Corpus) -> NDArray[np.bool_]:
    """Return whether each target is in the vocabulary, in the order of `target_ids`."""
    is_known: NDArray[np.bool_] = target_ids(corpus) != corpus.tokenizer.specials.unknown
    return is_known


def is_empty_text(corpus: Corpus) -> NDArray[np.bool_]:
    """Return whether each text has no tokens (B,)."""
    # The first token of every text is the start token.
    return mapped(lambda begins: corpus.tokens[begins + 1] == corpus.tokenizer.specials.end, corpus.offsets[:-1])


def extend_hashes(hashes: NDArray[np.uint64], tokens: NDArray[np.uint64], shift: int = 29) -> NDArray[np.uint64]:
    """Return the 64-bit hashes of n-grams that are extended by one token; the hash of an empty n-gram is 0."""
    products = (hashes ^ tokens) * HASH_MULTIPLIER
    return products ^ (products >> np.uint64(shift))


def text_hashes(corpus: Corpus) -> NDArray[np.uint64]:
    """Return a 64-bit digest of each text (B,), of its tokens and of its out-of-vocabulary tokens."""
    names = [name.encode("utf-8", "surrogatepass") + b"\xff" for name in corpus.unknown_names]

    def lists(values: NDArray[Any], offsets: NDArray[np.int64]) -> Iterator[NDArray[Any]]:
        return (values[begin:end] for begin, end in pairwise(offsets.tolist()))

    def hash_block(block: slice) -> NDArray[np.uint64]:
        rows = slice(block.start, block.stop + 1)
        unknown = lists(corpus.unknown.values, corpus.unknown.offsets[rows])
        pairs = zip(lists(corpus.tokens, corpus.offsets[rows]), unknown, strict=True)
        return digests(b"".join((ids.tobytes(), *map(names.__getitem__, tokens.tolist()))) for ids, tokens in pairs)

    return arrays.join(map(hash_block, blocks(len(corpus))))
