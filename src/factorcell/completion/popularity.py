"""Most popular completion (Bar-Yossef and Kraus 2011): the texts of a log that begin with a prefix, by their counts.

Texts lie in a static trie (MARISA), which keeps millions in little room. Their places in alphabetical order are an
array, in which the texts with one prefix are a range; of it the most popular are found by the best of each block.

Shapes: N texts.
"""

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from itertools import accumulate, takewhile
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from factorcell.completion import texts as rule
from factorcell.completion.search import Suggestion
from factorcell.config import UserError
from factorcell.data.canonical import canonical, canonical_prefix
from factorcell.data.counts import POPULARITY, TextCounts
from factorcell.model.run import Run

BLOCK = 256  # texts of which only the most popular is looked at first


class Popularity:
    """Counted texts, the most popular ones of any prefix at hand."""

    source: ClassVar[str] = "popularity"

    def __init__(self, counted: TextCounts) -> None:
        counts = counted.kept
        try:
            self.trie = _marisa().Trie(counts)
        except UnicodeEncodeError as error:
            raise UserError(f"a counted text is not Unicode text ({error.object[:50]!a})") from None
        self.total, texts = counted.total, [self.trie.restore_key(key) for key in range(len(counts))]
        self.keys = np.array(sorted(range(len(texts)), key=texts.__getitem__), dtype=np.int32)  # by alphabet
        self.counts = np.array([counts[texts[key]] for key in self.keys], dtype=np.int64)
        # Places by popularity, 0 the most popular: what is smallest is best, and there are no ties.
        self.places = np.empty(len(texts), dtype=np.int32)
        self.places[np.argsort(-self.counts, kind="stable")] = np.arange(len(texts), dtype=np.int32)
        self.best = np.minimum.reduceat(self.places, np.arange(0, len(texts), BLOCK)) if texts else self.places

    @classmethod
    def fit(
        cls, queries: Iterable[str], min_count: int = 3, users: Iterable[Hashable] | None = None, min_users: int = 3
    ) -> "Popularity":
        """Of `queries`, a text each; those seen less than `min_count` times are omitted.

        `users` say who wrote each: what fewer than `min_users` of them wrote is omitted too. Without them, what one
        person wrote `min_count` times is shown to all.
        """
        return cls(TextCounts.of(queries, min_count, users, min_users))

    @classmethod
    def of(cls, run: Run, allowed: Callable[[str], bool] | None = None) -> "Popularity":
        """Of the texts that `run` was trained on, or a `UserError`: only runs that tell users apart keep them.

        Only those that are `allowed`, if that is given.
        """
        path = run.folder / POPULARITY
        if not path.exists():
            raise UserError(
                f"{run.folder}: no {POPULARITY}; training keeps it with --user COLUMN and --unit char or grapheme"
            )
        counted = TextCounts.open(path)
        if allowed is not None:
            counted = replace(counted, kept={text: count for text, count in counted.kept.items() if allowed(text)})
        return cls(counted)

    def __len__(self) -> int:
        return len(self.keys)

    def top(self, count: int) -> list[str]:
        """The `count` most popular texts of all."""
        return [self._text(int(row)) for row in np.argsort(self.places)[:count]]

    def complete(self, prefix: str, k: int = 10) -> list[Suggestion]:
        """The `k` most popular texts that begin with `prefix` and go on, as often as counted; ties by alphabet."""
        prefix = canonical_prefix(prefix)
        begin, end = self._range(prefix)
        begin += begin < end and self._text(begin) == prefix  # the prefix itself is not a completion
        among = self._candidates(begin, end, k)
        chosen = among[np.argsort(self.places[among])[:k]]
        seen = math.log(self.total) if len(chosen) else 0.0
        return [
            Suggestion(self._text(row), math.log(count) - seen, self.source)
            for row, count in zip(chosen.tolist(), self.counts[chosen].tolist(), strict=True)
        ]

    def shares(self) -> dict[str, float]:
        """Every text that is kept, by alphabet, and its share of all that were counted."""
        return {self._text(row): count / self.total for row, count in enumerate(self.counts.tolist())}

    def _text(self, row: int) -> str:
        return str(self.trie.restore_key(int(self.keys[row])))

    def _range(self, prefix: str) -> tuple[int, int]:
        """The rows of the texts that begin with `prefix`: one range."""

        def opening(row: int) -> str:
            return self._text(row)[: len(prefix)]

        rows = range(len(self))
        begin = bisect_left(rows, prefix, key=opening)
        return begin, bisect_right(rows, prefix, lo=begin, key=opening)

    def _candidates(self, begin: int, end: int, k: int) -> NDArray[np.int64]:
        """Rows among which the `k` most popular of the range are.

        They lie at its ends or in the k blocks whose best are best: any other block has k better texts outside.
        """
        first, last = -(-begin // BLOCK), end // BLOCK
        if last - first <= k:
            return np.arange(begin, end)
        blocks = first + np.argpartition(self.best[first:last], k - 1)[:k]
        inside = (blocks[:, None] * BLOCK + np.arange(BLOCK)).ravel()
        return np.concatenate([np.arange(begin, first * BLOCK), inside, np.arange(last * BLOCK, end)])


@dataclass(frozen=True)
class History:
    """The last texts of one person, the newest last. One weighs half as much as one `half_life` texts later.

    They are kept in canonical form, so that texts that differ only in white space are one. Only the newest `texts` are
    kept: at most `most`, and at most `texts.LONGEST` bytes in all. `UserError` for a text that is not valid Unicode.
    """

    texts: tuple[str, ...] = ()
    half_life: float = 20.0
    most: int = 100  # texts that are remembered

    source: ClassVar[str] = "history"

    def __post_init__(self) -> None:
        object.__setattr__(self, "texts", _newest(tuple(map(canonical, self.texts[-self.most :])), self.most))

    def add(self, text: str) -> "History":
        """The history with one more text. `UserError` for one that breaks the rule of `texts`."""
        return replace(self, texts=(*self.texts, rule.clean_text(text)))

    def complete(self, prefix: str, k: int = 10) -> list[Suggestion]:
        """The `k` texts that begin with `prefix`, go on and weigh most, with their shares of all weight."""
        prefix = canonical_prefix(prefix)
        found = [(text, share) for text, share in self.shares().items() if text.startswith(prefix) and text != prefix]
        best = sorted(found, key=lambda one: (-one[1], one[0]))[:k]
        return [Suggestion(text, math.log(share), self.source) for text, share in best]

    def shares(self) -> dict[str, float]:
        """Every text and its share of all weight."""
        weights: defaultdict[str, float] = defaultdict(float)
        for age, text in enumerate(reversed(self.texts)):
            weights[text] += 0.5 ** (age / self.half_life)
        total = sum(weights.values())
        return {text: weight / total for text, weight in weights.items()}


def _newest(texts: tuple[str, ...], most: int) -> tuple[str, ...]:
    """The last of the texts, as many as fit."""
    texts = texts[-most:]
    if rule.size("".join(texts), "history") <= rule.LONGEST:  # as nearly always
        return texts
    sizes = accumulate(map(rule.size, reversed(texts)))
    count = sum(1 for _ in takewhile(rule.LONGEST.__ge__, sizes))
    return texts[len(texts) - count :]


def _marisa() -> Any:
    try:
        import marisa_trie
    except ImportError:
        raise UserError("most popular completion needs MARISA tries: pip install 'factorcell[complete]'") from None
    return marisa_trie
