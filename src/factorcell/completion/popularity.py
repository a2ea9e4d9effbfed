"""Completion without a model: it looks up texts that begin with a prefix.

`Popularity` suggests the most frequent texts of all users (most popular completion, Bar-Yossef and Kraus 2011).
`History` suggests earlier texts of one user; newer texts have larger weights.

Shapes: N texts, R texts that match, L characters of the prefix.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from factorcell.completion.typos import Distances, Floats, Ints, TypoCounts, max_typos_for
from factorcell.config import HISTORY_COLUMN
from factorcell.data.counts import POPULARITY, TextCounts
from factorcell.data.text_folds import MAX_BYTES, byte_length, clean_text, lower_case, same_prefix, same_text
from factorcell.errors import UserError
from factorcell.options import limits
from factorcell.runs.run import Run

MAX_HISTORY = 100  # maximum number of texts of a history
HALF_LIFE = 20.0  # number of newer texts after which a text of a history has half of its first weight
MIN_PROPOSALS = 10  # minimum number of texts that each source of a blend proposes, as in the lists that fit its weights


@dataclass(frozen=True)
class Suggestion:
    """A suggested text."""

    text: str  # the whole text, including the prefix
    # the log probability of the text given the prefix, according to `source`; of a lookup, the log share of all texts
    log_probability: float
    source: str  # the sources that propose the text, such as `model` or `model+history`
    # number of typing errors in the prefix if the user intends this text; 0 if it begins with the prefix
    typos: int = 0
    # source of a blend -> the number that it adds to the score of the text; empty without a blend
    parts: Mapping[str, float] = field(default_factory=dict)


class TextLookup:
    """Completion by `source` from texts with shares that sum to at most 1; texts with larger shares come first.

    The texts are sorted alphabetically, so the texts that begin with a prefix are neighbours.
    """

    def __init__(self, source: str, shares: Mapping[str, float]) -> None:
        self.source, self.texts = source, sorted(shares)
        values = np.array([shares[text] for text in self.texts])
        self.log_shares: Floats = np.log(values)
        # The text with the largest share has rank 0; texts with equal shares are ranked alphabetically.
        self.ranks = np.empty(len(self.texts), dtype=np.int32)
        self.ranks[np.argsort(-values, kind="stable")] = np.arange(len(self.texts), dtype=np.int32)

    def complete(self, prefix: str, k: int = 10, typos: int = 0) -> list[Suggestion]:
        """Return the best `k` texts that are longer than `prefix` and begin with it, or with a correction of it.

        Texts with typing errors come last, ordered by the logarithm of their share minus the cost of the errors.
        """
        prefix, [typos] = same_prefix(prefix), limits.check(typos=typos)
        rows = self._best(np.arange(*_range_after(self.texts, prefix)), k)
        columns = [(rows, self.log_shares[rows], np.zeros(len(rows), dtype=np.int16))]
        if len(rows) < k and (max_typos := max_typos_for(len(prefix), typos)):
            columns.append(self._find_corrected(prefix, max_typos, k - len(rows)))
        return [
            Suggestion(self.texts[row], log_probability, self.source, typo_count)
            for arrays in columns
            for row, log_probability, typo_count in zip(*(array.tolist() for array in arrays), strict=True)
        ]

    def complete_in_other_case(self, prefix: str, k: int = 10) -> list[Suggestion]:
        """Return the best `k` texts that are longer than `prefix` and begin with it in another case only."""
        prefix = same_prefix(prefix)
        forms, form_rows = self._forms
        rows = form_rows[slice(*_range_after(forms, lower_case(prefix)))]
        same_begin, same_end = _range_after(self.texts, prefix)
        best = self._best(rows[(rows < same_begin) | (rows >= same_end)], k)
        return [Suggestion(self.texts[row], float(self.log_shares[row]), self.source) for row in best.tolist()]

    def _best(self, rows: Ints, k: int) -> Ints:
        """Return the `k` of `rows` whose texts have the largest shares, sorted."""
        ranks = self.ranks[rows]
        best = np.argpartition(ranks, k)[:k] if k < len(ranks) else np.arange(len(ranks))
        return rows[best[np.argsort(ranks[best])]]

    def _find_corrected(self, prefix: str, max_typos: int, count: int) -> tuple[Ints, Floats, TypoCounts]:
        """Return the best `count` texts that begin with a correction of `prefix`: their rows, scores and typos."""
        characters, places = self._characters  # `places` are those of the next characters of the texts in `rows` (R,)
        distances = Distances.start([ord(character) for character in prefix], max_typos)
        rows = np.arange(len(self.texts))  # the texts that are not settled yet (R,)
        beginnings = np.zeros_like(rows)  # for each of them, the row of its beginning in `distances`
        matches = [(rows[:0], self.log_shares[:0], distances.whole_prefix_typos[:0])]
        for _ in range(len(prefix) + max_typos):
            last_characters = characters[places]
            places = places + (last_characters != 0)
            differs = np.ones(len(rows), dtype=np.bool_)  # whether a text has another beginning than the text before it
            differs[1:] = (last_characters[1:] != last_characters[:-1]) | (beginnings[1:] != beginnings[:-1])
            distances = distances.extend(beginnings[differs], last_characters[differs])
            beginnings = np.cumsum(differs) - 1
            is_open = ~distances.is_settled
            if is_open.all():
                continue
            is_match, typos = (~is_open & distances.has_typos)[beginnings], distances.whole_prefix_typos
            matched_rows, matched = rows[is_match], beginnings[is_match]
            scores = self.log_shares[matched_rows] - distances.costs(typos)[matched]
            matches.append((matched_rows, scores, typos[matched]))
            is_open_text = is_open[beginnings]
            rows, places = rows[is_open_text], places[is_open_text]
            beginnings = (np.cumsum(is_open) - 1)[beginnings[is_open_text]]
            distances = distances.select(np.flatnonzero(is_open))
            if not rows.size:
                break
        rows, scores, typos = (np.concatenate(columns) for columns in zip(*matches, strict=True))
        best = np.lexsort((rows, -scores))[:count]
        return rows[best], scores[best], typos[best]

    @cached_property
    def _characters(self) -> tuple[Ints, Ints]:
        """The code points of all texts, each followed by 0, which no text contains, and the start of each text (N,)."""
        content = "".join(f"{text}\0" for text in self.texts).encode("utf-32-le")
        characters: Ints = np.frombuffer(content, dtype=np.uint32).astype(np.int64)
        return characters, np.append(0, np.flatnonzero(characters == 0) + 1)[:-1]

    @cached_property
    def _forms(self) -> tuple[list[str], Ints]:
        """All texts in lower case, sorted, and their rows (N,)."""
        forms = sorted((lower_case(text), row) for row, text in enumerate(self.texts))
        return [form for form, _ in forms], np.array([row for _, row in forms], dtype=np.int64)


def _range_after(texts: Sequence[str], prefix: str) -> tuple[int, int]:
    """Return where those of the sorted `texts` begin and end that are longer than `prefix` and begin with it."""
    begin = bisect_right(texts, prefix)
    return begin, bisect_right(texts, prefix, lo=begin, key=lambda text: text[: len(prefix)])


class Popularity(TextLookup):
    """Completion by popular texts: the most frequent texts that begin with a prefix.

    Args:
        text_counts: The texts and their counts.
    """

    def __init__(self, text_counts: TextCounts) -> None:
        self.counts = text_counts.counts
        byte_length("\n".join(self.counts), "the counted texts")  # raises an error if a text is not Unicode text
        super().__init__("popularity", {text: count / text_counts.total for text, count in self.counts.items()})

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
        return cls(popular_counts(run, is_allowed))


def popular_counts(run: Run, is_allowed: Callable[[str], bool] | None = None) -> TextCounts:
    """Return the counts of popular training texts of `run`, with the arguments and errors of `Popularity.from_run`."""
    path = run.folder / POPULARITY
    if not path.exists():
        raise UserError(
            f"{run.folder}: no {POPULARITY}; training writes it with --user COLUMN and --tokenizer char, grapheme, "
            "bpe or pretrained"
        )
    text_counts = TextCounts.open(path)
    if is_allowed is None:
        return text_counts
    return replace(text_counts, counts={text: n for text, n in text_counts.counts.items() if is_allowed(text)})


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

    def complete(self, prefix: str, k: int = 10, typos: int = 0) -> list[Suggestion]:
        """Return the best `k` texts, as `TextLookup.complete` does; a share is a part of the sum of all weights."""
        return self._lookup.complete(prefix, k, typos)

    def complete_in_other_case(self, prefix: str, k: int = 10) -> list[Suggestion]:
        """Return the best `k` texts that begin with `prefix` in another case only."""
        return self._lookup.complete_in_other_case(prefix, k)

    @cached_property
    def _lookup(self) -> TextLookup:
        return TextLookup("history", self.shares)

    @cached_property
    def shares(self) -> Mapping[str, float]:
        """The share of each text of the sum of the weights of all texts."""
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
