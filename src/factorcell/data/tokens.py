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

from factorcell.config import DataConfig
from factorcell.data.originals import OriginalTexts
from factorcell.data.tokenizer import splitter
from factorcell.data.vocabulary import END, START, UNKNOWN, Vocabulary

STRIDE = 1 << 24  # tokens mapped at once


class _Ids(dict[str, int]):
    """Provisional ids of tokens, in order of appearance, after those of the special tokens."""

    def __missing__(self, token: str) -> int:
        self[token] = index = len(self) + END + 1
        return index


class TokenizedTexts:
    """The texts of a table as they are tokenized; their provisional ids are in the file `spool`.

    Unless `truncate` is false, a text of `config.max_tokens` tokens or more is cut there and has no `END`.
    """

    def __init__(self, spool: Any, config: DataConfig, *, truncate: bool) -> None:
        self.spool, self.config, self.split = spool, config, splitter(config)
        self.limit = config.max_tokens if truncate else None
        self.ids, self.beyond = _Ids(), Counter[int]()  # `beyond`: tokens after the cut, which count but are not kept
        self.sizes, self.originals = array("q"), list[OriginalTexts]()

    def add(self, texts: Sequence[str]) -> None:
        """Take the texts of one chunk."""
        flat, number = array("I"), self.ids.__getitem__  # half the memory of a list
        for text in texts:
            tokens = self.split(text)
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
        self.originals.append(OriginalTexts.of(texts, self.config))

    def arrays(self, vocabulary: Vocabulary | None, folder: Path | None) -> dict[str, Any]:
        """Return the fields of a `Corpus` that come from texts; with a `folder` the tokens are in a file there, mapped.

        Without a `vocabulary` these texts make one.
        """
        vocabulary = vocabulary or self._vocabulary()
        final = np.array([UNKNOWN, START, END, *vocabulary.encode(self.ids)], dtype=np.uint32)
        offsets = np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)
        size, kind = int(offsets[-1]), np.uint16 if len(vocabulary) <= 1 << 16 else np.uint32
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
            "vocabulary": vocabulary,
            "originals": OriginalTexts.concatenated(self.originals),
        }

    def _blocks(self) -> Iterator[NDArray[np.uint32]]:
        self.spool.seek(0)
        while block := self.spool.read(STRIDE * 4):
            yield np.frombuffer(block, dtype=np.uint32)

    def _vocabulary(self) -> Vocabulary:
        counts = np.zeros(len(self.ids) + END + 1, dtype=np.int64)
        for block in self._blocks():
            counts += np.bincount(block, minlength=len(counts))
        for index, times in self.beyond.items():
            counts[index] += times
        named = dict(zip(self.ids, counts[END + 1 :].tolist(), strict=True))
        return Vocabulary.build(named, self.config.min_count, self.config.max_vocabulary)


def truncated(texts: Iterable[str], config: DataConfig) -> NDArray[np.bool_]:
    """Return which texts have `config.max_tokens` tokens or more and are cut as `TokenizedTexts` does; others none.

    Their type is checked where they are read.
    """
    split = splitter(config)
    cut = (isinstance(text, str) and len(split(text)) >= config.max_tokens for text in texts)
    return np.fromiter(cut, dtype=bool)
