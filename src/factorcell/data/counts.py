"""Counted texts: how often each was seen and by how many people, as a run folder keeps them.

What one person typed, however often, is that person's own: a text is popular once `min_users` people wrote it.
Nobody's name is kept. Texts that differ only in white space are counted as one (`canonical.canonical`).

Shapes: N texts.
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

POPULARITY = "popularity.jsonl"  # in a run folder: the counted texts of training
LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class TextCounts:
    """How often each of the texts that are `kept` was seen (canonical, not empty), of `total` texts there were.

    Each was written by at least `min_users` people; 0 where people were not told apart.
    """

    counts: Mapping[str, int]
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
        listed, forms = to_values(texts, "texts"), list[str]()
        counts, writers = Counter[str](), defaultdict[str, set[str]](set)
        for row, text in enumerate(listed, 1):
            if not isinstance(text, str):
                raise UserError(f"text {row}: expected a string, got {short_repr(text)}")
            forms.append(canonical(text))
        counts.update(forms)
        if users is not None:
            for text, name in zip(forms, category_names(users, "users", len(listed)), strict=True):
                writers[text] |= {name} if name is not None else set()
        least = 0 if users is None else min_users
        enough = (text for text in counts if counts[text] >= min_count and len(writers[text]) >= least)
        return cls({text: counts[text] for text in enough if text}, len(listed), least)

    @classmethod
    def of_corpus(cls, corpus: Corpus, min_count: int, min_users: int) -> "TextCounts":
        """Count the texts of a corpus of characters whose users are known.

        Texts that were cut or have a token out of vocabulary are not counted, since they cannot be restored, nor are
        texts with a lone surrogate, which nobody can type.
        """
        specials = corpus.tokenizer.specials

        def text_of(row: int) -> str:
            ids = corpus.tokens[corpus.offsets[row] + 1 : corpus.offsets[row + 1]].tolist()
            if ids[-1] != specials.end or specials.unknown in ids:
                return ""
            text = canonical(corpus.tokenizer.join(corpus.tokenizer.decode(ids[:-1])))
            return "" if LONE_SURROGATE.search(text) else text

        digests = np.fromiter(map(hash, map(text_of, range(len(corpus)))), np.int64, len(corpus))
        _, first, which, counts = np.unique(digests, return_index=True, return_inverse=True, return_counts=True)
        people = count_users(which, corpus.users, len(first))
        enough = np.flatnonzero((counts >= min_count) & (people >= min_users))
        kept = {text_of(row): count for row, count in zip(first[enough].tolist(), counts[enough].tolist(), strict=True)}
        kept.pop("", None)
        return cls(kept, len(corpus), min_users)

    def save(self, path: Path) -> None:
        """A row of JSON for every text, by alphabet, after one with the total."""
        rows = ({"text": text, "count": count} for text, count in sorted(self.counts.items()))
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


def count_users(which: NDArray[Any], writers: NDArray[np.int32], texts: int) -> NDArray[np.int64]:
    """Return how many people wrote each text (texts,), by the text and the writer of each row; writer 0 is nobody."""
    named = writers > 0
    pairs = np.unique(which[named].astype(np.int64) << 32 | writers[named])
    return np.bincount(pairs >> 32, minlength=texts)
