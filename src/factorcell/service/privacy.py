"""Privacy rules: which texts are withheld (neither saved nor learned), how many texts are saved, and for how long."""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import regex

from factorcell.completion.texts import MAX_BYTES
from factorcell.data.private_content import find_private_content, texts_in
from factorcell.data.text_folds import screening
from factorcell.errors import UserError
from factorcell.service.record import StoredText

MAX_TEXTS = 1000  # maximum number of saved texts of one user
MAX_USER_BYTES = 4 * MAX_BYTES  # maximum number of bytes of all saved texts of one user
PATTERN_TIMEOUT = 0.05  # seconds to search one text for one pattern
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
        patterns: The compiled `withheld_patterns`.
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
        reasons = map(self._private_content, (text, *texts_in([*(context or {}).values()])))
        return next((reason for reason in reasons if reason is not None), None)

    def without_expired(self, texts: Iterable[StoredText], now: int) -> tuple[StoredText, ...]:
        """Return the texts that are not older than the retention time."""
        return tuple(text for text in texts if self.retention is None or text.time >= now - self.retention)

    def newest(self, texts: tuple[StoredText, ...]) -> tuple[StoredText, ...]:
        """Return as many of the newest texts as `max_texts` and `MAX_USER_BYTES` allow."""
        newest_texts = texts[-self.max_texts :]
        # Bytes of the newest text, of the newest two, of the newest three, ...
        total_sizes = itertools.accumulate(len(saved.text.encode()) for saved in reversed(newest_texts))
        count = sum(1 for _ in itertools.takewhile(lambda size: size <= MAX_USER_BYTES, total_sizes))
        return newest_texts[len(newest_texts) - count :]

    def _private_content(self, text: str) -> str | None:
        """Return what kind of private data a text seems to contain, or None."""
        if (label := find_private_content(text)) is not None:
            return label
        forms = dict.fromkeys((text, screening(text)))
        has_match = any(_matches(pattern, form) for pattern in self.patterns for form in forms)
        return "a withheld pattern" if has_match else None


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
