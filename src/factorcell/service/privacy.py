"""Which texts are neither learned nor kept, and how many texts are kept for how long.

Secrets are found by rules of thumb, which err on the side of keeping nothing.
"""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import regex

from factorcell.completion.texts import MAX_BYTES
from factorcell.config import UserError
from factorcell.service.record import StoredText

MOST_TEXTS = 1000  # of one person
MAX_USER_BYTES = 4 * MAX_BYTES  # of all texts of one person
PATIENCE = 0.05  # seconds of one pattern on one text
CARD = (13, 19)  # digits of a card number
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}

_EMAIL = regex.compile(r"(?<=[^\s@<>()\[\],;:])@[^\s@<>()\[\],;:]+\.[^\s@<>()\[\],;:]{2,}")
_DIGITS = regex.compile(r"\d{3,}(?:[ .\-\u00a0\u202f]\d{3,})*")  # groups as cards have them
# What repeats is possessive or bounded, so that the longest text is looked through in milliseconds.
_SECRETS = regex.compile(
    r"\b(?:pass(?:word|wd|phrase|code)?|pwd|passwort|kennwort|contraseña)\s*+[:=]\s*+\S"
    r"|\b(?:pin|secret|token|api[ _-]?key)\s*+[:=]\s*+(?=\S{0,99}\d)\S{4}"
    r"|\bmot de passe\s*+[:=]?\s*+\S"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|(?<![\w-])eyJ[\w-]{8,}+\.[\w-]{8,}+\."  # a JSON web token
    r"|\b(?:AKIA[0-9A-Z]{16}|gh[pousr]_\w{30,}|sk-[\w-]{20,}|xox[abprs]-[\w-]{10,})",
    regex.IGNORECASE,
)
_PLAIN = set("'’-.,:;()/\"?&#_")  # signs that texts have anyway, so that they make no password
_SHORTEST, _LONG = 8, 20  # characters of a word that may be a password by its signs, or by its length


@dataclass(frozen=True)
class Privacy:
    """The privacy rules of a service.

    Attributes:
        never: Regular expressions of texts that are neither learned nor kept.
        keep: Seconds after which a text is deleted, or None.
        most: Number of texts of a user that are kept.
    """

    withheld_patterns: tuple[str, ...] = ()
    retention: int | None = None
    max_texts: int = MOST_TEXTS
    patterns: tuple[Any, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.max_texts < 1 or (self.retention is not None and self.retention < 1):
            raise UserError("at least 1 text is kept of a person, for at least 1 second")
        object.__setattr__(self, "patterns", tuple(map(_compiled, self.withheld_patterns)))

    def withhold_reason(self, text: str, context: Mapping[str, Any] | None = None) -> str | None:
        """Return why a text, or a text in its context, is neither learned nor kept; None if it may be."""
        values = (value for value in (context or {}).values() if isinstance(value, str))
        return next(filter(None, map(self._fault, itertools.chain([text], values))), None)

    def without_expired(self, texts: Iterable[StoredText], now: int) -> tuple[StoredText, ...]:
        """Return the texts that are not too old."""
        return tuple(text for text in texts if self.retention is None or text.time >= now - self.retention)

    def newest(self, texts: tuple[StoredText, ...]) -> tuple[StoredText, ...]:
        """Return the newest texts, as many as are kept."""
        texts = texts[-self.max_texts :]
        sizes = itertools.accumulate(len(text.text.encode()) for text in reversed(texts))
        count = sum(1 for _ in itertools.takewhile(MAX_USER_BYTES.__ge__, sizes))
        return texts[len(texts) - count :]

    def _fault(self, text: str) -> str | None:
        if _EMAIL.search(text):
            return "an e-mail address"
        if _has_card(text):
            return "a card number"
        if _SECRETS.search(text) or any(map(_like_password, text.split())):
            return "a password"
        return "a pattern" if any(_found(pattern, text) for pattern in self.patterns) else None


def parse_duration(text: str) -> int:
    """Return the seconds of a time such as 90d, 12h or 30m. `UserError` for anything else."""
    count, unit = text[:-1], text[-1:]
    if not count.isascii() or not count.isdigit() or unit not in UNITS or not 0 < int(count) < 1_000_000:
        raise UserError(f"a time of {text!r:.30}: valid is a whole number and one of {', '.join(UNITS)}, such as 90d")
    return int(count) * UNITS[unit]


def _compiled(pattern: str) -> Any:
    try:
        found = regex.compile(pattern)
    except regex.error as error:
        raise UserError(f"never {pattern!r:.60}: not a regular expression ({error})") from None
    if found.search(""):
        raise UserError(f"never {pattern!r:.60}: every text has it, so nothing would ever be kept")
    return found


def _found(pattern: Any, text: str) -> bool:
    """Return whether a text contains a pattern, or the search took too long."""
    try:
        return pattern.search(text, timeout=PATIENCE, concurrent=True) is not None
    except TimeoutError:
        return True


def _has_card(text: str) -> bool:
    """Return whether consecutive groups of digits are a number that passes Luhn's check."""
    for run in _DIGITS.finditer(text):
        groups = regex.findall(r"\d+", run.group())
        for first in range(len(groups)):
            digits = ""
            for group in groups[first:]:
                digits += group
                if len(digits) > CARD[1]:
                    break
                if len(digits) >= CARD[0] and _passes_luhn(digits):
                    return True
    return False


def _passes_luhn(digits: str) -> bool:
    """Return whether the digits pass the check of ISO/IEC 7812-1 (not all of them equal)."""
    doubled = (int(digit) * (1 + place % 2) for place, digit in enumerate(reversed(digits)))
    return len(set(digits)) > 1 and sum(number // 10 + number % 10 for number in doubled) % 10 == 0


def _like_password(word: str) -> bool:
    """Return whether a word has both cases, digits and a rare sign, or is long with both cases and digits."""
    if len(word) < _SHORTEST or "://" in word:
        return False
    kinds = [
        any(map(str.islower, word)),
        any(map(str.isupper, word)),
        any(map(str.isdigit, word)),
        any(not letter.isalnum() and letter not in _PLAIN for letter in word),
    ]
    return all(kinds) or (len(word) >= _LONG and word.isalnum() and sum(kinds) == 3)
