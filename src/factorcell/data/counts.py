"""Content that enough users wrote: counts of popular texts for completion, and the targets that a training learns.

A text that fewer than `min_users` users wrote may be private and is omitted, as is a text that seems to contain private
content (`find_private_content`). The names of users are not stored. Texts are compared in canonical form
(`text_folds.same_text`).
"""

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from factorcell.data.columns.rows import category_names, to_values
from factorcell.data.columns.values import short_repr
from factorcell.data.corpus import Batch, Corpus, extend_hashes, target_offsets
from factorcell.data.private_content import is_public
from factorcell.data.text_folds import same_text
from factorcell.data.tokenizing import digests
from factorcell.errors import UserError
from factorcell.io import files
from factorcell.io.arrays import GrowingArray, blocks, indices_where, join, list_blocks, mapped

POPULARITY = "popularity.jsonl"  # the file of a run folder with the counts of popular training texts
# n of the n-grams that `min_users` users must have written: of words, and of characters, graphemes and pieces of words.
WORD_ORDER, CHARACTER_ORDER = 2, 4
BLOCK_TARGETS = 1 << 20  # targets whose n-grams are sorted at once
LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # half of a surrogate pair


@dataclass(frozen=True)
class TextCounts:
    """Counts of popular texts."""

    counts: Mapping[str, int]  # how often each text occurs, by its canonical form; the empty text is omitted
    total: int  # the number of all texts, popular or not
    min_users: int = 0  # the minimum number of users who wrote a text of `counts`; 0 if users were not distinguished

    @classmethod
    def of(
        cls, texts: Iterable[str], min_count: int, users: Iterable[Hashable] | None = None, min_users: int = 3
    ) -> "TextCounts":
        """Count `texts`, and omit those with fewer than `min_count` occurrences or `min_users` users.

        The user of each text is compared by `category_name`; missing users are not counted. Without `users`, the
        number of users of a text is not checked.
        """
        canonical_texts = list[str]()
        for number, text in enumerate(to_values(texts, "texts"), 1):
            if not isinstance(text, str):
                raise UserError(f"text {number}: expected a string, got {short_repr(text)}")
            canonical_texts.append(same_text(text))
        counts: Mapping[str, int] = Counter(canonical_texts)
        if users is not None:
            names = category_names(users, "users", len(canonical_texts))
            pairs = {(text, name) for text, name in zip(canonical_texts, names, strict=True) if name is not None}
            user_counts = Counter(text for text, _ in pairs)
            counts = {text: count for text, count in counts.items() if user_counts[text] >= min_users}
        frequent = {text: count for text, count in counts.items() if count >= min_count}
        return cls(_public(frequent), len(canonical_texts), 0 if users is None else min_users)

    @classmethod
    def of_corpus(cls, corpus: Corpus, min_users: int) -> "TextCounts":
        """Count the texts that `min_users` wrote in a corpus with users and a tokenizer whose `join` restores texts.

        Texts that were cut and texts with an out-of-vocabulary token are not counted, because they cannot be restored.
        Texts with half of a surrogate pair are not counted either, because nobody can type them.
        """
        specials = corpus.tokenizer.specials

        def restore_text(row: int) -> str:
            """Return the canonical form of the text in a row, or an empty string for a text that is not counted."""
            ids = corpus.tokens[corpus.offsets[row] + 1 : corpus.offsets[row + 1]].tolist()
            if ids[-1] != specials.end or specials.unknown in ids:
                return ""
            text = same_text(corpus.tokenizer.join(corpus.tokenizer.decode(ids[:-1])))
            return "" if LONE_SURROGATE.search(text) else text

        def hash_texts(rows: slice) -> NDArray[np.uint64]:
            return digests(restore_text(row).encode() for row in range(rows.start, rows.stop))

        # The dictionary has only the texts of enough users: all distinct texts may not fit into memory.
        hashes = join(map(hash_texts, blocks(len(corpus))))
        shared = shared_hashes(((hashes[rows], corpus.users[rows]) for rows in blocks(len(corpus))), min_users)
        shared_rows = indices_where(mapped(lambda block: are_shared(block, shared), hashes))
        counts = Counter(restore_text(row) for rows in blocks(len(shared_rows)) for row in shared_rows[rows].tolist())
        return cls(_public(counts), len(corpus), min_users)

    def save(self, path: Path) -> None:
        """Write a JSON line with `total` and `min_users`, then one for each text in alphabetical order."""
        header = {"total": self.total, "min_text_users": self.min_users}
        rows = ({"text": text, "count": count} for text, count in sorted(self.counts.items()))
        files.write_rows(path, [header, *rows])

    @classmethod
    def open(cls, path: Path) -> "TextCounts":
        """Return the counts in a file that `save` wrote; raise `UserError` if it does not exist or is damaged."""
        rows = files.read_rows(path)
        try:
            counts = {str(row["text"]): int(row["count"]) for row in rows[1:]}
            header = rows[0]
            return cls(counts, int(header["total"]), int(header["min_text_users"]))
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path}: not a file of text counts ({error!r})") from None


def _public(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the counts of texts that are not empty and seem to contain no private content."""
    return {text: count for text, count in counts.items() if text and is_public(text)}


def target_counts_by_value(corpus: Corpus, column: int) -> csr_array:
    """Return how often each token is a target in the texts of each value of a category (K, V); row 0 is the unknown."""
    shape = len(corpus.schema.categories[column].values), len(corpus.tokenizer)
    counts = csr_array(shape, dtype=np.int64)
    for block in list_blocks(corpus.offsets, BLOCK_TARGETS):
        offsets = corpus.offsets[block.start : block.stop + 1]
        values = np.repeat(corpus.categories[block, column].astype(np.int64), np.diff(offsets))
        values[offsets[:-1] - offsets[0]] = -1  # start tokens are not targets
        has_value, tokens = values >= 0, corpus.tokens[offsets[0] : offsets[-1]].astype(np.int64)
        pairs = values[has_value], tokens[has_value]
        counts += csr_array((np.ones(len(pairs[0]), np.int64), pairs), shape)
    return counts


def count_users(text_indices: NDArray[Any], users: NDArray[np.int32], text_count: int) -> NDArray[np.int64]:
    """Return how many users wrote each text, from the texts and users of all rows; 0 is a missing user."""
    has_user = users > 0
    # A pair is one number: the text in the upper 32 bits, the user in the lower 32 bits.
    pairs = np.unique((text_indices[has_user].astype(np.int64) << 32) | users[has_user])
    return np.bincount(pairs >> 32, minlength=text_count)


def shared_hashes(parts: Iterable[tuple[NDArray[np.uint64], NDArray[np.int32]]], min_users: int) -> NDArray[np.uint64]:
    """Return the hashes of items that at least `min_users` users wrote, in ascending order.

    Each part has the hashes of items and their users; 0 is a missing user. As in an external merge sort, each part is
    sorted and stored, and then the parts are read together in as many ranges of hashes as there are parts.
    """
    hashes, users, bounds, shared = GrowingArray(), GrowingArray(), [0], GrowingArray()
    for part_hashes, part_users in parts:
        distinct_hashes, distinct_users = _distinct_pairs(part_hashes, part_users)
        hashes.append(distinct_hashes)
        users.append(distinct_users)
        bounds.append(len(hashes))
    all_hashes, all_users, begins = hashes.array(), users.array(), bounds[:-1]
    for number in range(1, len(bounds)):
        highest = np.uint64((number << 64) // len(begins) - 1)  # of the range
        parts_of_range = [*zip(begins, bounds[1:], strict=True)]
        sizes = [int(np.searchsorted(all_hashes[begin:end], highest, side="right")) for begin, end in parts_of_range]
        slices = [slice(begin, begin + size) for begin, size in zip(begins, sizes, strict=True)]
        range_hashes, range_users = (
            np.concatenate([column[part] for part in slices]) for column in (all_hashes, all_users)
        )
        distinct_hashes, user_counts = np.unique(_distinct_pairs(range_hashes, range_users)[0], return_counts=True)
        shared.append(distinct_hashes[user_counts >= min_users])
        begins = [part.stop for part in slices]
    return shared.array()


def _distinct_pairs(
    hashes: NDArray[np.uint64], users: NDArray[np.int32]
) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    """Return the distinct pairs of a hash and a user, sorted by hash, without missing users."""
    order = np.lexsort((users, hashes))
    hashes, users = hashes[order], users[order]
    is_new = (hashes[1:] != hashes[:-1]) | (users[1:] != users[:-1])
    is_distinct = np.append(True, is_new)[: len(order)] & (users > 0)
    return hashes[is_distinct], users[is_distinct]


def are_shared(hashes: NDArray[np.uint64], shared: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return whether each hash is one of the sorted `shared` ones."""
    if not len(shared):
        return np.zeros(len(hashes), bool)
    result: NDArray[np.bool_] = shared[np.minimum(np.searchsorted(shared, hashes), len(shared) - 1)] == hashes
    return result


@dataclass(frozen=True)
class SharedTargets:
    """Which targets of a corpus are learned, because at least `min_users` users wrote their n-grams.

    The n-gram is the target and the n - 1 tokens before it, or fewer at the start of a text. The model reads all texts,
    but rare content (a password, a name) adds nothing to the loss.
    """

    is_learned: Tensor  # whether each target is learned, text after text (targets,)
    starts: Tensor  # index of the first target of each text, followed by the number of targets (texts + 1,)

    @classmethod
    def of(cls, corpus: Corpus, min_users: int) -> "SharedTargets":
        """Find the targets whose n-gram at least `min_users` users wrote; texts without a user are not counted."""
        is_word_level = not (corpus.tokenizer.is_character_level or corpus.tokenizer.is_subword)
        order = WORD_ORDER if is_word_level else CHARACTER_ORDER

        def hash_blocks() -> Iterator[tuple[NDArray[np.uint64], NDArray[np.int32]]]:
            for rows in list_blocks(corpus.offsets, BLOCK_TARGETS):
                offsets = corpus.offsets[rows.start : rows.stop + 1]
                hashes = ngram_hashes(corpus.tokens[offsets[0] : offsets[-1]], offsets - offsets[0], order)
                yield hashes, np.repeat(corpus.users[rows], np.diff(offsets) - 1)

        shared = shared_hashes(hash_blocks(), min_users)
        is_learned = join(are_shared(hashes, shared) for hashes, _ in hash_blocks())
        return cls(torch.from_numpy(is_learned), torch.from_numpy(target_offsets(corpus)))

    def mask(self, batch: Batch) -> Tensor:
        """Return a mask (B, T) that is true at the learned targets of `batch`."""
        positions = torch.arange(batch.tokens.shape[1] - 1)
        first_targets = self.starts[batch.rows.cpu()]
        # The index of each target in the corpus. Indices of padding are limited to the last target.
        targets = (first_targets[:, None] + positions).clamp(max=len(self.is_learned) - 1)
        return self.is_learned[targets].to(batch.tokens.device) & batch.mask()


def ngram_hashes(ids: NDArray[Any], offsets: NDArray[np.int64], order: int) -> NDArray[np.uint64]:
    """Return, for each target, a 64-bit hash of the n-gram that ends with it: up to `order` tokens of the same text."""
    tokens = np.asarray(ids, dtype=np.uint64) + np.uint64(1)  # 0 stands for positions before the text
    positions = np.arange(len(tokens)) - np.repeat(offsets[:-1], np.diff(offsets))
    hashes = np.zeros(len(tokens), dtype=np.uint64)
    for distance in range(order - 1, -1, -1):
        # The token `distance` positions before each token, or 0 if that position is before the text.
        previous = np.zeros_like(tokens)
        earlier_tokens = tokens[: len(tokens) - distance]
        previous[distance:] = np.where(positions[distance:] >= distance, earlier_tokens, 0)
        hashes = extend_hashes(hashes, previous)
    return hashes[positions > 0]
