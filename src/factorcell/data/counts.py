"""Counted texts: how often each was seen and by how many people, as a run folder keeps them.

What one person typed, however often, is that person's own: a text is popular once `min_users` people wrote it.
Nobody's name is kept.

Shapes: N texts.
"""

import hashlib
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from factorcell import files
from factorcell.config import DataConfig, UserError
from factorcell.data.tokens import Ids
from factorcell.data.values import NameIds, quoted
from factorcell.data.vocabulary import END, SPECIALS

POPULARITY = "popularity.jsonl"  # in a run folder: the counted texts of training
UNITS = ("char", "grapheme")


@dataclass(frozen=True)
class TextCounts:
    """How often each of the texts that are `kept` was seen (NFC, not empty), of `total` texts there were.

    Each was written by at least `min_users` people; 0 where people were not told apart.
    """

    kept: Mapping[str, int]
    total: int
    min_users: int = 0

    @classmethod
    def of(
        cls, texts: Iterable[str], min_count: int, users: Iterable[Hashable] | None = None, min_users: int = 3
    ) -> "TextCounts":
        """Count `texts`, and omit those seen less than `min_count` times or by fewer than `min_users` of `users`.

        Args:
            texts: The texts.
            min_count: The fewest times that a text must occur.
            users: The user who wrote each text, compared by `category_name`. A missing user (`is_missing`) counts for
                nobody. Without `users` the number of users of a text is not checked.
            min_users: The fewest different users who must have written a text.

        Raises:
            UserError: A text is not a string, a user has no name, or there are not as many users as texts.
        """
        numbers = dict[str, int]()
        which = [numbers.setdefault(_normal(text, row), len(numbers)) for row, text in enumerate(texts, 1)]
        writers = np.zeros(len(which), np.int32) if users is None else _user_ids(list(users))
        if len(writers) != len(which):
            raise UserError(f"expected a user for each of {len(which):,} texts, got {len(writers):,} users")
        found = FrequentTexts(tuple(numbers), np.array(which, np.int32), writers)
        return found.counted(min_count, 0 if users is None else min_users)

    def save(self, path: Path) -> None:
        """A row of JSON for every text, by alphabet, after one with the total."""
        rows = ({"text": text, "count": count} for text, count in sorted(self.kept.items()))
        files.write_rows(path, [{"total": self.total, "min_text_users": self.min_users}, *rows])

    @classmethod
    def open(cls, path: Path) -> "TextCounts":
        """What `save` wrote, or a `UserError`."""
        rows = files.read_rows(path)
        try:
            kept = {str(row["text"]): int(row["count"]) for row in rows[1:]}
            return cls(kept, int(rows[0]["total"]), int(rows[0]["min_text_users"]))
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path}: not a file of counted texts ({error!r})") from None


def _normal(text: Any, row: int) -> str:
    """A text in NFC; `UserError` for a value that is not a text."""
    if not isinstance(text, str):
        raise UserError(f"text {row}: expected a string, got {quoted(text)}")
    return normalize("NFC", text)


def _user_ids(users: list[Any]) -> NDArray[np.int32]:
    """Ids of users, 0 where missing; `UserError` for a user without a name."""
    try:
        return NameIds().of(users)
    except TypeError:
        raise UserError("expected the names of users, got values that are not hashable") from None


class FrequentTexts(NamedTuple):
    """The texts that a table has often, and their rows: popular ones are counted from those rows that are trained on.

    `texts` (N); `which` (rows,): the text of each row among them, or -1; `writers` (rows,): who wrote it, a number, 0
    where nobody is named.
    """

    texts: tuple[str, ...]
    which: NDArray[np.int32]
    writers: NDArray[np.int32]

    def select(self, rows: NDArray[np.int64]) -> "FrequentTexts":
        """Those of `rows` alone, in that order."""
        return FrequentTexts(self.texts, self.which[rows], self.writers[rows])

    def counted(self, min_count: int, min_users: int) -> TextCounts:
        """The texts of at least `min_count` rows and `min_users` people."""
        counts = np.bincount(self.which[self.which >= 0], minlength=len(self.texts))
        people = people_of(self.which, self.writers, len(self.texts))
        enough = ((counts >= min_count) & (people >= min_users)).tolist()
        found = zip(self.texts, counts.tolist(), enough, strict=True)
        return TextCounts({text: count for text, count, kept in found if kept and text}, len(self.which), min_users)


def people_of(which: NDArray[Any], writers: NDArray[np.int32], texts: int) -> NDArray[np.int64]:
    """How many people wrote each of so many texts (N,); rows without a text or without a name say nothing."""
    told = (which >= 0) & (writers > 0)
    pairs = np.unique(which[told].astype(np.int64) << 32 | writers[told])
    return np.bincount(pairs >> 32, minlength=texts)


class TextDigests:
    """A digest of every text of a table as it is read, by which equal ones are found; so no text outlives its chunk."""

    def __init__(self) -> None:
        self.chunks: list[NDArray[np.uint64]] = []

    def add(self, flat: NDArray[np.uint32], sizes: NDArray[np.int64]) -> None:
        """Take the provisional ids of one chunk, as `tokenise` has them; empty texts and cut ones have no digest."""
        ends, content = np.cumsum(sizes), memoryview(flat.tobytes())
        places = pairwise([0, *(ends * flat.itemsize).tolist()])
        found = b"".join(hashlib.blake2b(content[begin:end], digest_size=8).digest() for begin, end in places)
        self.chunks.append(np.where((flat[ends - 1] == END) & (sizes > 2), np.frombuffer(found, np.uint64), 0))

    def frequent(
        self, spool: Any, ids: Ids, offsets: NDArray[np.int64], writers: NDArray[np.int32], config: DataConfig
    ) -> FrequentTexts:
        """The texts that may be popular, restored from their ids in the file `spool`."""
        which = np.full(len(writers), -1, dtype=np.int32)
        if len(which) < config.min_text_count:
            return FrequentTexts((), which, writers)
        digests, first, found, counts = np.unique(
            np.concatenate(self.chunks), return_index=True, return_inverse=True, return_counts=True
        )
        often = (digests > 0) & (counts >= config.min_text_count)
        people = people_of(np.where(often[found], found, -1), writers, len(digests))
        kept = often & (people >= config.min_text_users)
        names, texts = [*SPECIALS, *ids], dict[str, int]()
        places = np.full(len(digests), -1, dtype=np.int32)
        for place in np.flatnonzero(kept).tolist():
            begin, end = offsets[first[place]] + 1, offsets[first[place] + 1] - 1
            spool.seek(4 * begin)
            tokens = np.frombuffer(spool.read(4 * (end - begin)), dtype=np.uint32)
            text = normalize("NFC", "".join(names[token] for token in tokens.tolist()))
            places[place] = texts.setdefault(text, len(texts))  # lower-cased ones may be equal once composed
        return FrequentTexts(tuple(texts), places[found], writers)
