"""Texts to flat arrays of ids, in one pass over a table.

Tokens get provisional ids in order of appearance, kept in a file; when all are counted they are mapped to those of the
vocabulary, block by block.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.data.originals import OriginalTexts
from factorcell.data.tokenizer import Tokenizer

START, END = 1, 2  # provisional ids; 0 is the unknown token
STRIDE = 1 << 24  # tokens mapped at once


class _Ids(dict[str, int]):
    """Provisional ids of tokens, in order of appearance, after those of the special tokens."""

    def __missing__(self, token: str) -> int:
        self[token] = index = len(self) + END + 1
        return index


class TokenizedTexts:
    """The texts of a table as they are tokenized; their provisional ids are in the file `spool`.

    With a `limit`, a text of so many tokens or more is cut there and has no end token.
    """

    def __init__(self, spool: Any, tokenizer: Tokenizer, limit: int | None) -> None:
        self.spool, self.tokenizer, self.limit = spool, tokenizer, limit
        self.ids, self.beyond = _Ids(), Counter[int]()  # `beyond`: tokens after the cut, which count but are not kept
        self.sizes, self.originals = array("q"), list[OriginalTexts]()

    def add(self, texts: Sequence[str]) -> None:
        """Take the texts of one chunk."""
        flat, number = array("I"), self.ids.__getitem__  # half the memory of a list
        split = self.tokenizer.split
        for text in texts:
            tokens = split(text)
            before = len(flat)
            flat.append(START)
            if self.limit is None or len(tokens) < self.limit:
                flat.extend(map(number, tokens))
                flat.append(END)
            else:
                flat.extend(map(number, tokens[: self.limit]))
                self.beyond.update(map(number, tokens[self.limit :]))
            self.sizes.append(len(flat) - before)
        self.spool.write(np.array(flat, dtype=np.uint32).tobytes())
        self.originals.append(OriginalTexts.of(texts, self.tokenizer))

    def arrays(self, *, train: bool, folder: Path | None) -> dict[str, Any]:
        """Return the fields of a `Corpus` that come from texts; with a `folder` the tokens are in a file there, mapped.

        If `train` is true, the tokenizer gets its vocabulary from these texts.
        """
        tokenizer = self.tokenizer.train(self._counts()) if train else self.tokenizer
        final = np.array([*tokenizer.specials, *tokenizer.encode(self.ids)], dtype=np.uint32)
        offsets = np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)
        size, kind = int(offsets[-1]), np.uint16 if len(tokenizer) <= 1 << 16 else np.uint32
        tokens: NDArray[Any] = (
            np.lib.format.open_memmap(folder / "tokens.npy", mode="w+", dtype=kind, shape=(size,))
            if folder
            else np.empty(size, dtype=kind)
        )
        done = 0
        for block in self._blocks():
            tokens[done : done + len(block)] = final[block]
            done += len(block)
        return {
            "tokens": tokens,
            "offsets": offsets,
            "tokenizer": tokenizer,
            "originals": OriginalTexts.concatenated(self.originals),
        }

    def _blocks(self) -> Iterator[NDArray[np.uint32]]:
        self.spool.seek(0)
        while block := self.spool.read(STRIDE * 4):
            yield np.frombuffer(block, dtype=np.uint32)

    def _counts(self) -> dict[str, int]:
        counts = np.zeros(len(self.ids) + END + 1, dtype=np.int64)
        for block in self._blocks():
            counts += np.bincount(block, minlength=len(counts))
        for index, times in self.beyond.items():
            counts[index] += times
        return dict(zip(self.ids, counts[END + 1 :].tolist(), strict=True))


def truncated_mask(texts: Iterable[str], tokenizer: Tokenizer, max_tokens: int) -> NDArray[np.bool_]:
    """Return which texts have `max_tokens` tokens or more and are cut as `TokenizedTexts` does; others none.

    Their type is checked where they are read.
    """
    cut = (isinstance(text, str) and len(tokenizer.split(text)) >= max_tokens for text in texts)
    return np.fromiter(cut, dtype=bool)
