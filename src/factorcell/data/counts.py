"""Counts of popular texts for completion: the number of occurrences of each text that enough users wrote.

A text that fewer than `min_users` users wrote is private and is omitted; the names of users are not stored.
Texts are compared in canonical form (`canonical.canonical`).
"""

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell import files
from factorcell.config import UserError
from factorcell.data.canonical import canonical
from factorcell.data.corpus import Corpus
from factorcell.data.rows import category_names, to_values
from factorcell.data.values import short_repr

POPULARITY = "popularity.jsonl"  # the file of a run folder with the text counts of training
LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class TextCounts:
    """Counts of popular texts.

    Attributes:
        counts: How often each text occurs, by its canonical form; the empty text is omitted.
        total: The number of all texts, popular or not.
        min_users: At least this many users wrote each text; 0 if users were not distinguished.
    """

    counts: Mapping[str, int]
    total: int
    min_users: int = 0

    @classmethod
    def of(
        cls, texts: Iterable[str], min_count: int, users: Iterable[Hashable] | None = None, min_users: int = 3
    ) -> "TextCounts":
        """Count `texts`, and omit those with fewer than `min_count` occurrences or `min_users` users.

        Args:
            texts: The texts, compared in canonical form.
            min_count: The minimum number of occurrences of a popular text.
            users: The user who wrote each text, compared by `category_name`. Missing users (`is_missing`) are not
                counted. Without `users` the number of users of a text is not checked.
            min_users: The minimum number of different users who wrote a popular text.

        Raises:
            UserError: A text is not a string, a user cannot be a category value, or the number of users differs from
                the number of texts.
        """
        values, forms = to_values(texts, "texts"), list[str]()
        counts, writers = Counter[str](), defaultdict[str, set[str]](set)
        for row, text in enumerate(values, 1):
            if not isinstance(text, str):
                raise UserError(f"text {row}: expected a string, got {short_repr(text)}")
            forms.append(canonical(text))
        counts.update(forms)
        if users is not None:
            for text, name in zip(forms, category_names(users, "users", len(values)), strict=True):
                if name is not None:
                    writers[text].add(name)
        min_users = 0 if users is None else min_users
        popular = (text for text in counts if counts[text] >= min_count and len(writers[text]) >= min_users)
        return cls({text: counts[text] for text in popular if text}, len(values), min_users)

    @classmethod
    def of_corpus(cls, corpus: Corpus, min_count: int, min_users: int) -> "TextCounts":
        """Count the texts of a corpus that has a user column and a tokenizer of characters.

        Texts that were cut and texts with an out-of-vocabulary token are not counted, because they cannot be restored.
        Texts with half of a surrogate pair are not counted either, because they cannot be typed.
        """
        specials = corpus.tokenizer.specials

        def text_of(row: int) -> str:
            ids = corpus.tokens[corpus.offsets[row] + 1 : corpus.offsets[row + 1]].tolist()
            if ids[-1] != specials.end or specials.unknown in ids:
                return ""
            text = canonical(corpus.tokenizer.join(corpus.tokenizer.decode(ids[:-1])))
            return "" if LONE_SURROGATE.search(text) else text

        # Hashes need less memory than texts, so only the popular texts are restored again below.
        digests = np.fromiter(map(hash, map(text_of, range(len(corpus)))), np.int64, len(corpus))
        _, first, index, counts = np.unique(digests, return_index=True, return_inverse=True, return_counts=True)
        users = count_users(index, corpus.users, len(first))
        popular = np.flatnonzero((counts >= min_count) & (users >= min_users))
        rows = zip(first[popular].tolist(), counts[popular].tolist(), strict=True)
        popular_counts = {text_of(row): count for row, count in rows}
        popular_counts.pop("", None)
        return cls(popular_counts, len(corpus), min_users)

    def save(self, path: Path) -> None:
        """Write a JSON line with the total, then one for each text in alphabetical order."""
        rows = ({"text": text, "count": count} for text, count in sorted(self.counts.items()))
        files.write_rows(path, [{"total": self.total, "min_text_users": self.min_users}, *rows])

    @classmethod
    def open(cls, path: Path) -> "TextCounts":
        """Return the counts in a file that `save` wrote.

        Raises:
            UserError: The file does not exist or is damaged.
        """
        rows = files.read_rows(path)
        try:
            counts = {str(row["text"]): int(row["count"]) for row in rows[1:]}
            return cls(counts, int(rows[0]["total"]), int(rows[0]["min_text_users"]))
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path}: not a file of text counts ({error!r})") from None


def count_users(index: NDArray[Any], users: NDArray[np.int32], text_count: int) -> NDArray[np.int64]:
    """Return how many users wrote each text (text_count,).

    Args:
        index: The text of each row, as an index from 0 to `text_count` - 1.
        users: The user of each row; 0 is missing and is not counted.
        text_count: The number of texts.
    """
    has_user = users > 0
    # A pair is one number: the text in the upper 32 bits, the user in the lower 32 bits.
    pairs = np.unique(index[has_user].astype(np.int64) << 32 | users[has_user])
    return np.bincount(pairs >> 32, minlength=text_count)
