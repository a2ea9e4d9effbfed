"""Tokenize the texts of a table in one pass into a flat array of ids.

`TokenizedTexts` numbers the tokens in order of appearance and writes these provisional ids of all texts to a temporary
file. After the last text, it counts the tokens to build a vocabulary, reads the file block by block, and replaces each
provisional id by the id of the token in the vocabulary, or by several ids if a tokenizer of pieces cuts the token.
"""

import sys
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.data.originals import SPELLING_END, OriginalTexts
from factorcell.data.ragged import Ragged
from factorcell.data.tokenizers.tokenizer import Tokenizer

START, END = 1, 2  # provisional ids; 0 is the unknown token
BLOCK_TOKENS = 1 << 24  # number of tokens whose provisional ids are replaced or counted at once


class _ProvisionalIds(dict[str, int]):
    """Ids of tokens in order of appearance, after the ids of the special tokens."""

    def __missing__(self, token: str) -> int:
        self[token] = token_id = len(self) + END + 1
        return token_id


class TokenizedTexts:
    """Collects the tokenized texts of a table, and writes their provisional ids into the open file `id_file`.

    A text of `max_tokens` tokens or more is cut after `max_tokens` tokens and has no end token. With `max_tokens`
    None, texts are not cut.
    """

    def __init__(self, id_file: Any, tokenizer: Tokenizer, max_tokens: int | None) -> None:
        self.id_file, self.tokenizer, self.max_tokens = id_file, tokenizer, max_tokens
        self.id_by_token = _ProvisionalIds()
        # Counts of the tokens after the cuts, by provisional id: these tokens are not stored, but they count for the
        # vocabulary.
        self.cut_counts = Counter[int]()
        self.sizes = array("q")  # the number of stored tokens of each text, including its start and end tokens
        self.originals = list[OriginalTexts]()

    def add(self, texts: Sequence[str]) -> None:
        """Add the texts of one chunk."""
        ids, id_of = array("I"), self.id_by_token.__getitem__  # an array takes half the memory of a list
        for tokens in self.tokenizer.split_all(texts):
            begin = len(ids)
            ids.append(START)
            if self.max_tokens is None or len(tokens) < self.max_tokens:
                ids.extend(map(id_of, tokens))
                ids.append(END)
            else:
                ids.extend(map(id_of, tokens[: self.max_tokens]))
                self.cut_counts.update(map(id_of, tokens[self.max_tokens :]))
            self.sizes.append(len(ids) - begin)
        self.id_file.write(np.array(ids, dtype=np.uint32).tobytes())
        if self.tokenizer.is_lossless:
            self.originals.append(OriginalTexts.of([self.tokenizer.normalize(text) for text in texts]))

    def corpus_fields(self, *, train: bool, folder: Path | None) -> dict[str, Any]:
        """Return the fields of a `Corpus` that come from texts.

        Args:
            train: Whether the tokenizer gets its vocabulary from these texts.
            folder: The folder of the memory-mapped file `tokens.npy`; None keeps the tokens in memory.
        """
        tokenizer = self.tokenizer.train(self._count_tokens()) if train else self.tokenizer
        if train:  # the tokens are words, of which a tokenizer of pieces makes several ids
            ids_of_tokens = tokenizer.encode_words(self.id_by_token)
        else:
            ids_of_tokens = [(token_id,) for token_id in tokenizer.encode(self.id_by_token)]
        final_ids = _FinalIds.of([(special,) for special in tokenizer.specials] + ids_of_tokens)
        max_size = sys.maxsize if self.max_tokens is None else 1 + self.max_tokens  # with the start token
        final_sizes = [
            sizes if final_ids.is_one_to_one else final_ids.sizes(block, sizes, max_size)
            for block, sizes in self._read_blocks()
        ]
        offsets = np.concatenate([[0], np.cumsum(np.concatenate(final_sizes))]).astype(np.int64)
        token_count = int(offsets[-1])
        dtype = np.uint16 if len(tokenizer) <= 2**16 else np.uint32
        tokens: NDArray[Any] = (
            np.lib.format.open_memmap(folder / "tokens.npy", mode="w+", dtype=dtype, shape=(token_count,))
            if folder
            else np.empty(token_count, dtype=dtype)
        )
        begin = 0
        for block, sizes in self._read_blocks():
            ids = final_ids.replace(block, sizes, max_size)
            tokens[begin : begin + len(ids)] = ids
            begin += len(ids)
        return {
            "tokens": tokens,
            "offsets": offsets,
            "tokenizer": tokenizer,
            "originals": OriginalTexts.concatenated(self.originals) if self.originals else None,
            "spellings": self._spellings(final_ids.ids[final_ids.starts] == tokenizer.specials.unknown, offsets),
        }

    def _spellings(self, is_unknown: NDArray[np.bool_], offsets: NDArray[np.int64]) -> Ragged:
        """Return the field `spellings` of a `Corpus`.

        Args:
            is_unknown: For each provisional id, whether its token is out of vocabulary.
            offsets: The index of the first token of each text, followed by the number of all tokens (rows + 1,).
        """
        encoded_tokens = {
            token_id: token.encode("utf-8", "surrogatepass") + SPELLING_END
            for token, token_id in self.id_by_token.items()
            if is_unknown[token_id]
        }
        parts, begin, byte_counts = list[bytes](), 0, np.zeros(len(self.sizes), np.int64)
        for block, _ in self._read_blocks():
            indices = np.flatnonzero(is_unknown[block])
            block_parts = [encoded_tokens[token_id] for token_id in block[indices].tolist()]
            texts = np.searchsorted(offsets, begin + indices, side="right") - 1
            np.add.at(byte_counts, texts, np.fromiter(map(len, block_parts), np.int64, count=len(block_parts)))
            parts += block_parts
            begin += len(block)
        return Ragged(np.frombuffer(b"".join(parts), np.uint8), np.append(0, np.cumsum(byte_counts)))

    def _read_blocks(self) -> Iterator[tuple[NDArray[np.uint32], NDArray[np.int64]]]:
        """Yield the provisional ids of texts and the sizes of these texts, in blocks of about `BLOCK_TOKENS` ids."""
        self.id_file.seek(0)
        sizes = np.array(self.sizes, dtype=np.int64)
        ends = np.cumsum(sizes)
        first = read_count = 0
        while first < len(sizes):
            last = max(first + 1, int(np.searchsorted(ends, read_count + BLOCK_TOKENS, side="right")))
            count = int(ends[last - 1]) - read_count
            block = self.id_file.read(count * np.dtype(np.uint32).itemsize)
            yield np.frombuffer(block, dtype=np.uint32), sizes[first:last]
            first, read_count = last, read_count + count

    def _count_tokens(self) -> dict[str, int]:
        """Return how often each token occurs in all texts, including the parts after cuts."""
        counts = np.zeros(len(self.id_by_token) + END + 1, dtype=np.int64)
        for block, _ in self._read_blocks():
            counts += np.bincount(block, minlength=len(counts))
        for token_id, count in self.cut_counts.items():
            counts[token_id] += count
        return dict(zip(self.id_by_token, counts[END + 1 :].tolist(), strict=True))


@dataclass(frozen=True)
class _FinalIds:
    """The final ids of each provisional id, one list after the other.

    Attributes:
        ids: All final ids.
        starts: The index in `ids` of the first final id of each provisional id.
        counts: The number of final ids of each provisional id.
    """

    ids: NDArray[np.uint32]
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, ids_of_tokens: Sequence[Sequence[int]]) -> "_FinalIds":
        counts = np.fromiter(map(len, ids_of_tokens), np.int64, len(ids_of_tokens))
        ids = np.fromiter(chain.from_iterable(ids_of_tokens), np.uint32, int(counts.sum()))
        return cls(ids, np.cumsum(counts) - counts, counts)

    @cached_property
    def is_one_to_one(self) -> bool:
        """Whether every provisional id has one final id, so that the sizes of texts do not change."""
        return bool((self.counts == 1).all())

    def sizes(self, block: NDArray[np.uint32], sizes: NDArray[np.int64], max_size: int) -> NDArray[np.int64]:
        """Return the number of final ids of each text of a block, at most `max_size`.

        Args:
            block: The provisional ids of the texts; every text has at least a start token.
            sizes: The number of provisional ids of each text.
            max_size: The maximum number of final ids of a text.
        """
        return np.minimum(np.add.reduceat(self.counts[block], np.cumsum(sizes) - sizes), max_size)

    def replace(self, block: NDArray[np.uint32], sizes: NDArray[np.int64], max_size: int) -> NDArray[np.uint32]:
        """Return the final ids of the texts of a block, at most `max_size` of each text; `sizes` is as for `sizes`."""
        if self.is_one_to_one:
            all_ids: NDArray[np.uint32] = self.ids[block]
            return all_ids
        counts = self.counts[block]
        ids = self.ids[np.repeat(self.starts[block], counts) + _positions(counts)]
        text_sizes = np.add.reduceat(counts, np.cumsum(sizes) - sizes)
        retained_ids: NDArray[np.uint32] = ids[_positions(text_sizes) < max_size]
        return retained_ids


def _positions(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return 0, 1, ... for each of several ranges of these sizes, one range after the other."""
    return np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
