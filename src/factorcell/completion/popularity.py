"""Most popular completion (Bar-Yossef and Kraus 2011): the texts of a log that begin with a prefix, by their counts."""

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from factorcell.completion import texts as rule
from factorcell.completion.search import Suggestion
from factorcell.config import UserError
from factorcell.data.canonical import canonical, canonical_prefix
from factorcell.data.counts import POPULARITY, TextCounts
from factorcell.model.run import Run


class Popularity:
    """Counted texts in alphabetical order; those with a common prefix are a range."""

    source: ClassVar[str] = "popularity"

    def __init__(self, counted: TextCounts) -> None:
        self.total, self.texts = counted.total, sorted(counted.counts)
        rule.byte_length("\n".join(self.texts), "the counted texts")
        self.counts = np.array([counted.counts[text] for text in self.texts], dtype=np.int64)
        # Ranks by popularity, 0 the most popular, ties by alphabet.
        self.ranks = np.empty(len(self.texts), dtype=np.int32)
        self.ranks[np.argsort(-self.counts, kind="stable")] = np.arange(len(self.texts), dtype=np.int32)

    @classmethod
    def fit(
        cls, queries: Iterable[str], min_count: int = 3, users: Iterable[Hashable] | None = None, min_users: int = 3
    ) -> "Popularity":
        """Count `queries` and omit those seen less than `min_count` times.

        `users` says who wrote each query; queries of fewer than `min_users` users are then omitted too. Without it,
        what one person wrote `min_count` times is suggested to all.
        """
        return cls(TextCounts.of(queries, min_count, users, min_users))

    @classmethod
    def from_run(cls, run: Run, is_allowed: Callable[[str], bool] | None = None) -> "Popularity":
        """Read the popular training texts of `run`, only those that are `allowed`.

        Raises:
            UserError: The run has none: only runs that tell users apart keep them.
        """
        return cls.load(run.folder, is_allowed)

    @classmethod
    def load(cls, folder: Path, is_allowed: Callable[[str], bool] | None = None) -> "Popularity":
        """Read the popular training texts of a run folder, as `of`."""
        path = folder / POPULARITY
        if not path.exists():
            raise UserError(
                f"{folder}: no {POPULARITY}; training keeps it with --user COLUMN and --tokenizer char or grapheme"
            )
        counted = TextCounts.open(path)
        if is_allowed is not None:
            counted = replace(
                counted, counts={text: count for text, count in counted.counts.items() if is_allowed(text)}
            )
        return cls(counted)

    def __len__(self) -> int:
        return len(self.texts)

    def top(self, count: int) -> list[str]:
        """Return the `count` most popular texts of all."""
        return [self.texts[row] for row in np.argsort(self.ranks)[:count]]

    def complete(self, prefix: str, k: int = 10) -> list[Suggestion]:
        """Return the `k` most popular texts that begin with `prefix` and are longer; ties by alphabet."""
        prefix = canonical_prefix(prefix)
        begin = bisect_left(self.texts, prefix)
        end = bisect_right(self.texts, prefix, lo=begin, key=lambda text: text[: len(prefix)])
        begin += begin < end and self.texts[begin] == prefix  # the prefix itself is not a completion
        ranks = self.ranks[begin:end]
        chosen = np.argpartition(ranks, k)[:k] if k < len(ranks) else np.arange(len(ranks))
        rows = begin + chosen[np.argsort(ranks[chosen])]
        return [
            Suggestion(self.texts[row], math.log(count) - math.log(self.total), self.source)
            for row, count in zip(rows.tolist(), self.counts[rows].tolist(), strict=True)
        ]

    def shares(self) -> dict[str, float]:
        """Return every text, by alphabet, and its share of all texts that were counted."""
        return {text: count / self.total for text, count in zip(self.texts, self.counts.tolist(), strict=True)}


@dataclass(frozen=True)
class History:
    """The last texts of one user, the newest last; a text weighs half as much as one `half_life` texts later.

    They are kept in canonical form, so that texts that differ only in white space are one. Only the newest are kept: at
    most `most`, and at most `texts.LONGEST` bytes in all.

    Raises:
        UserError: A text is not valid Unicode.
    """

    texts: tuple[str, ...] = ()
    half_life: float = 20.0
    max_texts: int = 100  # texts that are remembered

    source: ClassVar[str] = "history"

    def __post_init__(self) -> None:
        kept, room = list[str](), rule.MAX_BYTES
        for text in map(canonical, reversed(self.texts[-self.max_texts :])):
            room -= rule.byte_length(text, "history")
            if room < 0:
                break
            kept.append(text)
        object.__setattr__(self, "texts", tuple(reversed(kept)))

    def add(self, text: str) -> "History":
        """Return the history with one more text; `UserError` if it is not Unicode text or too long."""
        return replace(self, texts=(*self.texts, rule.clean_text(text)))

    def complete(self, prefix: str, k: int = 10) -> list[Suggestion]:
        """Return the `k` texts of the largest weight that continue `prefix`, with their shares of all weight."""
        prefix = canonical_prefix(prefix)
        found = [(text, share) for text, share in self.shares().items() if text.startswith(prefix) and text != prefix]
        best = sorted(found, key=lambda one: (-one[1], one[0]))[:k]
        return [Suggestion(text, math.log(share), self.source) for text, share in best]

    def shares(self) -> dict[str, float]:
        """Return every text and its share of all weight."""
        weights: defaultdict[str, float] = defaultdict(float)
        for age, text in enumerate(reversed(self.texts)):
            weights[text] += 0.5 ** (age / self.half_life)
        total = sum(weights.values())
        return {text: weight / total for text, weight in weights.items()}
