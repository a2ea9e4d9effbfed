"""Completion without a model: it looks up texts that begin with a prefix.

`Popularity` suggests the most frequent texts of all users (most popular completion, Bar-Yossef and Kraus 2011).
`History` suggests earlier texts of one user; newer texts have larger weights.
"""

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from factorcell.completion.texts import MAX_BYTES, byte_length, clean_text
from factorcell.config import HISTORY_COLUMN
from factorcell.data.counts import POPULARITY, TextCounts
from factorcell.data.text_folds import same_prefix, same_text
from factorcell.errors import UserError
from factorcell.runs.run import Run

MAX_HISTORY = 100  # maximum number of texts of a history
HALF_LIFE = 20.0  # number of newer texts after which a text of a history has half of its first weight
MIN_PROPOSALS = 10  # minimum number of texts that each source of a blend proposes, as in the lists that fit its weights


@dataclass(frozen=True)
class Suggestion:
    """A suggested text.

    Attributes:
        text: The whole text, including the prefix.
        log_probability: The log probability of the text given the prefix, according to `source`.
        source: The sources that propose the text, such as `model` or `model+history`.
        typos: Number of typing errors in the prefix if the user intends this text; 0 if it begins with the prefix.
        parts: Source of a blend -> the number that it adds to the score of the text; empty without a blend.
    """

    text: str
    log_probability: float
    source: str
    typos: int = 0
    parts: Mapping[str, float] = field(default_factory=dict)


class Popularity:
    """Completion by popular texts: the most frequent texts that begin with a prefix.

    The texts are sorted alphabetically, so the texts that begin with a prefix are neighbours.

    Args:
        text_counts: The texts and their counts.
    """

    source: ClassVar[str] = "popularity"

    def __init__(self, text_counts: TextCounts) -> None:
        self.total, self.texts = text_counts.total, sorted(text_counts.counts)
        byte_length("\n".join(self.texts), "the counted texts")  # raises an error if a text is not Unicode text
        self.counts = np.array([text_counts.counts[text] for text in self.texts], dtype=np.int64)
        # The most popular text has rank 0; equally popular texts are ranked alphabetically.
        self.ranks = np.empty(len(self.texts), dtype=np.int32)
        self.ranks[np.argsort(-self.counts, kind="stable")] = np.arange(len(self.texts), dtype=np.int32)

    @classmethod
    def fit(
        cls, texts: Iterable[str], min_count: int = 3, users: Iterable[Hashable] | None = None, min_users: int = 3
    ) -> "Popularity":
        """Count the texts of all users and return the popular ones.

        Args:
            texts: The texts.
            min_count: Minimum number of times that a popular text occurs.
            users: The user who wrote each text. Without `users`, a text that one user wrote `min_count` times is
                suggested to all users.
            min_users: Minimum number of users who wrote a popular text; ignored without `users`.

        Raises:
            UserError: A text is not a string, a user is missing, or the numbers of texts and users differ.
        """
        return cls(TextCounts.of(texts, min_count, users, min_users))

    @classmethod
    def from_run(cls, run: Run, is_allowed: Callable[[str], bool] | None = None) -> "Popularity":
        """Read the popular training texts of `run`.

        Args:
            run: The run.
            is_allowed: Returns whether a text may be suggested; other texts are omitted.

        Raises:
            UserError: The run folder has no popular texts; training stores them only with a user column.
        """
        path = run.folder / POPULARITY
        if not path.exists():
            raise UserError(
                f"{run.folder}: no {POPULARITY}; training writes it with --user COLUMN and --tokenizer char, grapheme, "
                "bpe or pretrained"
            )
        text_counts = TextCounts.open(path)
        if is_allowed is not None:
            allowed = {text: count for text, count in text_counts.counts.items() if is_allowed(text)}
            text_counts = replace(text_counts, counts=allowed)
        return cls(text_counts)

    def __len__(self) -> int:
        return len(self.texts)

    def most_popular(self, count: int) -> list[str]:
        """Return the `count` most popular texts."""
        return [self.texts[row] for row in np.argsort(self.ranks)[:count]]

    def count(self, text: str) -> int:
        """Return how often a text in canonical form was counted; 0 if it is not popular."""
        row = bisect_left(self.texts, text)
        return int(self.counts[row]) if row < len(self.texts) and self.texts[row] == text else 0

    def complete(self, prefix: str, k: int = 10) -> list[Suggestion]:
        """Return the `k` most popular texts that begin with `prefix` and are longer than it.

        Equally popular texts are in alphabetical order.

        Args:
            prefix: The typed text.
            k: Maximum number of suggestions.
        """
        prefix = same_prefix(prefix)
        begin = bisect_left(self.texts, prefix)
        end = bisect_right(self.texts, prefix, lo=begin, key=lambda text: text[: len(prefix)])
        if begin < end and self.texts[begin] == prefix:
            begin += 1  # the prefix itself is not a completion
        ranks = self.ranks[begin:end]
        best = np.argpartition(ranks, k)[:k] if k < len(ranks) else np.arange(len(ranks))
        rows = begin + best[np.argsort(ranks[best])]
        return [
            Suggestion(self.texts[row], math.log(count) - math.log(self.total), self.source)
            for row, count in zip(rows.tolist(), self.counts[rows].tolist(), strict=True)
        ]

    def shares(self) -> dict[str, float]:
        """Return each text and its share of all counted texts, in alphabetical order."""
        return {text: count / self.total for text, count in zip(self.texts, self.counts.tolist(), strict=True)}


@dataclass(frozen=True)
class History:
    """The last texts that one user entered, which complete what this user types.

    A history stores texts in the canonical form of `same_text`. It stores only the newest texts: at most
    `MAX_HISTORY` texts, and at most `MAX_BYTES` bytes in total.

    Attributes:
        texts: The texts, the newest last.

    Raises:
        UserError: A text is not valid Unicode.
    """

    texts: tuple[str, ...] = ()

    source: ClassVar[str] = "history"

    def __post_init__(self) -> None:
        newest, free_bytes = list[str](), MAX_BYTES
        for text in map(same_text, reversed(self.texts[-MAX_HISTORY:])):
            free_bytes -= byte_length(text, "history")
            if free_bytes < 0:
                break
            newest.append(text)
        object.__setattr__(self, "texts", tuple(reversed(newest)))

    def add(self, text: str) -> "History":
        """Return a history with the texts of this history and the new text `text`.

        Raises:
            UserError: The text is not Unicode text, or too long.
        """
        return replace(self, texts=(*self.texts, clean_text(text)))

    def complete(self, prefix: str, k: int = 10) -> list[Suggestion]:
        """Return the `k` texts with the largest weights among those that begin with `prefix` and are longer than it.

        Args:
            prefix: The typed text.
            k: Maximum number of suggestions.
        """
        prefix = same_prefix(prefix)
        shares = self.shares()
        matches = [text for text in shares if text.startswith(prefix) and text != prefix]
        best = sorted(matches, key=lambda text: (-shares[text], text))[:k]
        return [Suggestion(text, math.log(shares[text]), self.source) for text in best]

    def shares(self) -> dict[str, float]:
        """Return each text and its share of the sum of the weights of all texts."""
        weights: defaultdict[str, float] = defaultdict(float)
        for age, text in enumerate(reversed(self.texts)):
            weights[text] += 0.5 ** (age / HALF_LIFE)
        total = sum(weights.values())
        return {text: weight / total for text, weight in weights.items()}


def with_earlier_texts(run: Run, history: History, context: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `context` with the last texts of a user, if the run reads them and `context` has no earlier texts."""
    count = run.config.data.prompt_history
    if not count or HISTORY_COLUMN in context:
        return context
    return {**context, HISTORY_COLUMN: list(history.texts[-count:])}
