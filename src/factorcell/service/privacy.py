"""Rules for texts: which are not saved and not learned, how many are saved, for how long, and which are suggested."""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import regex

from factorcell.data.private_content import find_private_content, texts_in
from factorcell.data.text_folds import HANGUL, MAX_BYTES, UNSPACED, screening
from factorcell.errors import UserError
from factorcell.io import input_files
from factorcell.service.record import StoredText

MAX_TEXTS = 1000  # maximum number of saved texts of one user
MAX_USER_BYTES = 4 * MAX_BYTES  # maximum number of bytes of all saved texts of one user
PATTERN_TIMEOUT = 0.05  # seconds to search one text for one pattern
MARK = r"\p{M}"
LETTER = rf"[[\p{{Alphabetic}}{MARK}\p{{N}}]--[{UNSPACED}{HANGUL}]]"
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}  # seconds by unit of a duration


@dataclass(frozen=True)
class Privacy:
    """The privacy rules of a service.

    Attributes:
        withheld_patterns: Regular expressions; texts that contain a match, themselves or in the form of `screening`,
            are neither learned nor saved, in addition to texts in which `find_private_content` recognizes private
            content.
        retention: Seconds after which a text is deleted, or None to keep texts without a time limit.
        max_texts: Maximum number of saved texts per user.
    """

    withheld_patterns: tuple[str, ...] = ()
    retention: int | None = None
    max_texts: int = MAX_TEXTS
    patterns: tuple[Any, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.max_texts < 1 or (self.retention is not None and self.retention < 1):
            raise UserError("privacy: expected at least 1 text per user and a retention of at least 1 second")
        object.__setattr__(self, "patterns", tuple(map(_compile, self.withheld_patterns)))

    def withhold_reason(self, text: str, context: Mapping[str, Any] | None = None) -> str | None:
        """Return what a text or its context seems to contain, such as "a password"; None if the text may be saved."""
        for part in (text, *texts_in([*(context or {}).values()])):
            if (label := find_private_content(part)) is not None:
                return label
            forms = {part, screening(part)}
            if any(_matches(pattern, form) for pattern in self.patterns for form in forms):
                return "a withheld pattern"
        return None

    def is_expired(self, saved: StoredText, now: int) -> bool:
        """Return whether a text is older than the retention time."""
        return self.retention is not None and saved.time < now - self.retention

    def newest(self, texts: tuple[StoredText, ...]) -> tuple[StoredText, ...]:
        """Return as many of the newest texts as `max_texts` and `MAX_USER_BYTES` allow."""
        newest_texts = texts[-self.max_texts :]
        # Bytes of the newest text, of the newest two, of the newest three, ...
        total_sizes = itertools.accumulate(len(saved.text.encode()) for saved in reversed(newest_texts))
        count = sum(size <= MAX_USER_BYTES for size in total_sizes)
        return newest_texts[len(newest_texts) - count :]


def parse_duration(text: str) -> int:
    """Return the seconds of a duration such as 90d, 12h or 30m; raise a `UserError` if the text is not a duration."""
    digits, unit = text[:-1], text[-1:]
    if not digits.isascii() or not digits.isdigit() or unit not in UNITS or not 0 < int(digits) < 1_000_000:
        raise UserError(f"duration {text!r:.30}: expected a whole number and a unit ({', '.join(UNITS)}), such as 90d")
    return int(digits) * UNITS[unit]


def _compile(pattern: str) -> Any:
    try:
        compiled = regex.compile(pattern)
    except regex.error as error:
        raise UserError(f"withheld pattern {pattern!r:.60}: not a regular expression ({error})") from None
    if compiled.search(""):
        raise UserError(f"withheld pattern {pattern!r:.60}: expected a pattern that does not match the empty text")
    return compiled


def _matches(pattern: Any, text: str) -> bool:
    """Return whether a text contains a match of a pattern; True if the search takes too long."""
    try:
        return pattern.search(text, timeout=PATTERN_TIMEOUT, concurrent=True) is not None
    except TimeoutError:
        return True


class BlockList:
    """A filter of suggestions, which may not contain a phrase: `BlockList(["bad word"])("a Bad  word!")` is False.

    Texts and phrases are compared in the form of `text_folds.screening` without case, in which characters that look
    alike are equal. Each run of white space and underscores counts as one space. Accents are significant.

    A match must begin and end at a word boundary, with three exceptions. Scripts that are written without spaces have
    no boundaries. Korean letters may follow a Korean match, because Korean particles are attached to words. Symbols and
    emoji have no boundaries. In all three cases, no combining mark may follow the match.

    Args:
        phrases: Words or sequences of words. Phrases that are empty after normalization are ignored.
    """

    def __init__(self, phrases: Iterable[str]) -> None:
        self.phrases = sorted({_fold(phrase) for phrase in phrases} - {""})
        phrases_by_borders: dict[tuple[str, str], list[str]] = {}
        for phrase in self.phrases:
            phrases_by_borders.setdefault((_border_before(phrase), _border_after(phrase)), []).append(phrase)
        # The pattern has one alternative per pair of borders: \L<group0> matches any phrase of the list `group0`.
        borders = enumerate(phrases_by_borders)
        alternatives = (rf"{before}\L<group{number}>{after}" for number, (before, after) in borders)
        phrases_by_group = {f"group{number}": group for number, group in enumerate(phrases_by_borders.values())}
        self.pattern = regex.compile("|".join(alternatives), regex.V1, **phrases_by_group) if self.phrases else None

    @classmethod
    def read(cls, path: str | Path) -> "BlockList":
        """Read a UTF-8 text file with one phrase per line; lines that begin with # are comments.

        Raises:
            UserError: The file does not exist or is not UTF-8.
        """
        return cls(line for line in input_files.read_text(path).splitlines() if not line.startswith("#"))

    def __call__(self, text: str) -> bool:
        """Return True if the text contains none of the phrases."""
        return self.pattern is None or self.pattern.search(_fold(text)) is None


def _fold(text: str) -> str:
    """Return the form in which phrases are searched."""
    return " ".join(screening(text, ignore_case=True).replace("_", " ").split())


def _border_before(phrase: str) -> str:
    """Return the pattern of the word boundary that must precede a phrase; empty if the phrase needs none."""
    for letter_pattern in (LETTER, HANGUL):
        if regex.match(letter_pattern, phrase[0], regex.V1):
            return f"(?<!{letter_pattern})"
    return ""


def _border_after(phrase: str) -> str:
    """Return the pattern that excludes the letters and marks that must not follow a phrase."""
    ends_with_letter = regex.match(LETTER, phrase[-1], regex.V1)
    return f"(?!{LETTER if ends_with_letter else MARK})"
