"""Texts to flat arrays of ids, in one pass over a table.

Tokens get provisional ids in order of appearance, kept in a file; when all are counted they are mapped to those of the
vocabulary, block by block.
"""

import os
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.data.tokenizer import Tokenizer

START, END = 1, 2  # provisional ids; 0 is the unknown token
STRIDE = 1 << 24  # tokens mapped at once


class Ids(dict[str, int]):
    """Provisional ids of tokens, in order of appearance, after those of the special tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.beyond: Counter[int] = Counter()  # tokens after the cut: they count, but are not kept

    def __missing__(self, token: str) -> int:
        self[token] = index = len(self) + END + 1
        return index


def tokenise(
    texts: list[str], tokenizer: Tokenizer, max_tokens: int, ids: Ids, truncate: bool = True
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Provisional ids of all `texts`, flat, with `START` and `END`, and the number of ids of each.

    Unless `truncate` is false, a text of `max_tokens` tokens or more is cut there and has no `END`.
    """
    split = tokenizer.split
    flat = array("I")  # half the memory of a list
    sizes = np.empty(len(texts), dtype=np.int64)
    number = ids.__getitem__
    for index, text in enumerate(texts):
        tokens = split(text)
        flat.append(START)
        if not truncate or len(tokens) < max_tokens:
            flat.extend(map(number, tokens))
            flat.append(END)
            sizes[index] = len(tokens) + 2
        else:
            flat.extend(map(number, tokens[:max_tokens]))
            ids.beyond.update(map(number, tokens[max_tokens:]))
            sizes[index] = max_tokens + 1
    return np.array(flat, dtype=np.uint32), sizes


def truncated(texts: Iterable[str], tokenizer: Tokenizer, max_tokens: int) -> NDArray[np.bool_]:
    """Return which texts have `max_tokens` tokens or more and are cut by `tokenise`; values of other types none.

    Their type is checked where they are read.
    """
    cut = (isinstance(text, str) and len(tokenizer.split(text)) >= max_tokens for text in texts)
    return np.fromiter(cut, dtype=bool)


def _blocks(spool: Any) -> Iterator[NDArray[np.uint32]]:
    spool.seek(0)
    while block := spool.read(STRIDE * 4):
        yield np.frombuffer(block, dtype=np.uint32)


def count(spool: Any, ids: Ids) -> dict[str, int]:
    """Return how often each token is among the provisional ids in the file `spool`."""
    counts = np.zeros(len(ids) + END + 1, dtype=np.int64)
    for block in _blocks(spool):
        counts += np.bincount(block, minlength=len(counts))
    for index, times in ids.beyond.items():
        counts[index] += times
    return dict(zip(ids, counts[END + 1 :].tolist(), strict=True))


def map_ids(spool: Any, ids: Ids, tokenizer: Tokenizer, folder: Path | None) -> NDArray[Any]:
    """The ids in the file `spool` as those of the tokenizer; with a `folder` in a file there, mapped."""
    final = np.array([*tokenizer.specials, *tokenizer.encode(ids)], dtype=np.uint32)
    size = spool.seek(0, os.SEEK_END) // 4
    kind = np.uint16 if len(tokenizer) <= 1 << 16 else np.uint32
    tokens: NDArray[Any] = (
        np.lib.format.open_memmap(folder / "tokens.npy", mode="w+", dtype=kind, shape=(size,))
        if folder
        else np.empty(size, dtype=kind)
    )
    done = 0
    for block in _blocks(spool):
        tokens[done : done + len(block)] = final[block]
        done += len(block)
    if isinstance(tokens, np.memmap):
        tokens.flush()
    return tokens
