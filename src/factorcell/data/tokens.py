"""Tokenize the texts of a table in one pass into a flat array of ids.

`TokenizedTexts` numbers the tokens in order of appearance and writes these provisional ids of all texts to a temporary
file. After the last text, it counts the tokens to build a vocabulary, reads the file block by block, and replaces each
provisional id by the id of the token in the vocabulary.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.data.originals import SPELLING_END, OriginalTexts
from factorcell.data.readers import Ragged
from factorcell.data.tokenizer import Tokenizer

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
        split = self.tokenizer.split
        for text in texts:
            tokens = split(text)
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
        self.originals.append(OriginalTexts.of(texts, self.tokenizer))

    def corpus_fields(self, *, train: bool, folder: Path | None) -> dict[str, Any]:
        """Return the fields of a `Corpus` that come from texts.

        Args:
            train: Whether the tokenizer gets its vocabulary from these texts.
            folder: The folder of the memory-mapped file `tokens.npy`; None keeps the tokens in memory.
        """
        tokenizer = self.tokenizer.train(self._count_tokens()) if train else self.tokenizer
        final_ids = np.array([*tokenizer.specials, *tokenizer.encode(self.id_by_token)], dtype=np.uint32)
        offsets = np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)
        token_count = int(offsets[-1])
        dtype = np.uint16 if len(tokenizer) <= 2**16 else np.uint32
        tokens: NDArray[Any] = (
            np.lib.format.open_memmap(folder / "tokens.npy", mode="w+", dtype=dtype, shape=(token_count,))
            if folder
            else np.empty(token_count, dtype=dtype)
        )
        begin = 0
        for block in self._read_blocks():
            tokens[begin : begin + len(block)] = final_ids[block]
            begin += len(block)
        return {
            "tokens": tokens,
            "offsets": offsets,
            "tokenizer": tokenizer,
            "originals": OriginalTexts.concatenated(self.originals),
            "spellings": self._spellings(final_ids == tokenizer.specials.unknown, offsets),
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
        for block in self._read_blocks():
            indices = np.flatnonzero(is_unknown[block])
            block_parts = [encoded_tokens[token_id] for token_id in block[indices].tolist()]
            texts = np.searchsorted(offsets, begin + indices, side="right") - 1
            np.add.at(byte_counts, texts, np.fromiter(map(len, block_parts), np.int64, count=len(block_parts)))
            parts += block_parts
            begin += len(block)
        return Ragged(np.frombuffer(b"".join(parts), np.uint8), np.append(0, np.cumsum(byte_counts)))

    def _read_blocks(self) -> Iterator[NDArray[np.uint32]]:
        """Yield the provisional ids of all texts in blocks of at most `BLOCK_TOKENS` ids."""
        self.id_file.seek(0)
        while block := self.id_file.read(BLOCK_TOKENS * np.dtype(np.uint32).itemsize):
            yield np.frombuffer(block, dtype=np.uint32)

    def _count_tokens(self) -> dict[str, int]:
        """Return how often each token occurs in all texts, including the parts after cuts."""
        counts = np.zeros(len(self.id_by_token) + END + 1, dtype=np.int64)
        for block in self._read_blocks():
            counts += np.bincount(block, minlength=len(counts))
        for token_id, count in self.cut_counts.items():
            counts[token_id] += count
        return dict(zip(self.id_by_token, counts[END + 1 :].tolist(), strict=True))


def truncated_mask(texts: Iterable[str], tokenizer: Tokenizer, max_tokens: int) -> NDArray[np.bool_]:
    """Return, for each text, whether `TokenizedTexts` cuts it because it has `max_tokens` tokens or more (texts,).

    The result is false for a value that is not a string; the function that reads the texts raises an error for it.
    """
    is_cut = (isinstance(text, str) and len(tokenizer.split(text)) >= max_tokens for text in texts)
    return np.fromiter(is_cut, dtype=bool)
