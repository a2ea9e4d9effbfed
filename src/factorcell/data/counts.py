"""Counted texts: how often each was seen and by how many people, as a run folder keeps them.

What one person typed, however often, is that person's own: a text is popular once `min_users` people wrote it.
Nobody's name is kept. Texts that differ only in white space are counted as one (`canonical.canonical`).

Shapes: N texts.
"""

import hashlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from factorcell import files
from factorcell.config import DataConfig, UserError
from factorcell.data.canonical import canonical
from factorcell.data.rows import labels_of, values_of
from factorcell.data.tokenizer import Tokenizer
from factorcell.data.tokens import END, Ids
from factorcell.data.values import quoted

POPULARITY = "popularity.jsonl"  # in a run folder: the counted texts of training


@dataclass(frozen=True)
class TextCounts:
    """How often each of the texts that are `kept` was seen (canonical, not empty), of `total` texts there were.

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
            texts: The texts, compared in canonical form.
            min_count: The fewest times that a text must occur.
            users: The user who wrote each text, compared by `category_name`. A missing user (`is_missing`) counts for
                nobody. Without `users` the number of users of a text is not checked.
            min_users: The fewest different users who must have written a text.

        Raises:
            UserError: A text is not a string, a user has no name, or there are not as many users as texts.
        """
        listed = values_of(texts, "texts")
        numbers, people = dict[str, int](), dict[str | None, int]({None: 0})
        which = [numbers.setdefault(_canonical(text, row), len(numbers)) for row, text in enumerate(listed, 1)]
        names = [None] * len(which) if users is None else labels_of(users, "users", len(which))
        writers = [people.setdefault(name, len(people)) for name in names]
        found = FrequentTexts(tuple(numbers), np.array(which, np.int32), np.array(writers, np.int32))
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


def _canonical(text: Any, row: int) -> str:
    """A text in canonical form; `UserError` for a value that is not a text."""
    if not isinstance(text, str):
        raise UserError(f"text {row}: expected a string, got {quoted(text)}")
    return canonical(text)


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
    """A digest of the canonical form of every text of a table, so that no text has to be kept to find equal ones."""

    def __init__(self, config: DataConfig, tokenizer: Tokenizer) -> None:
        self.config, self.tokenizer, self.chunks = config, tokenizer, list[NDArray[np.uint64]]()

    def add(self, texts: Sequence[str], flat: NDArray[np.uint32], sizes: NDArray[np.int64]) -> None:
        """Take the texts of one chunk and their ids from `tokenise`; texts that are empty or cut have the digest 0."""
        whole = (flat[np.cumsum(sizes) - 1] == END).tolist()
        pairs = zip(texts, whole, strict=True)
        self.chunks.append(np.array([self._digest(text) if uncut else 0 for text, uncut in pairs], np.uint64))

    def _digest(self, text: str) -> int:
        try:
            content = canonical(self.tokenizer.normalized(text)).encode()
        except UnicodeEncodeError:  # nobody can type it
            return 0
        return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little") if content else 0

    def frequent(self, spool: Any, ids: Ids, offsets: NDArray[np.int64], writers: NDArray[np.int32]) -> FrequentTexts:
        """The texts that may be popular, restored from their ids in the file `spool`."""
        config = self.config
        which = np.full(len(writers), -1, dtype=np.int32)
        if len(which) < config.min_text_count:
            return FrequentTexts((), which, writers)
        digests, first, found, counts = np.unique(
            np.concatenate(self.chunks), return_index=True, return_inverse=True, return_counts=True
        )
        often = (digests > 0) & (counts >= config.min_text_count)
        people = people_of(np.where(often[found], found, -1), writers, len(digests))
        kept = often & (people >= config.min_text_users)
        names, texts = ["", "", "", *ids], list[str]()
        places = np.full(len(digests), -1, dtype=np.int32)
        for place in np.flatnonzero(kept).tolist():
            begin, end = offsets[first[place]] + 1, offsets[first[place] + 1] - 1
            spool.seek(4 * begin)
            tokens = np.frombuffer(spool.read(4 * (end - begin)), dtype=np.uint32)
            places[place] = len(texts)
            texts.append(canonical(self.tokenizer.join([names[token] for token in tokens.tolist()])))
        return FrequentTexts(tuple(texts), places[found], writers)
