"""Privacy rules: which texts are withheld (neither saved nor learned), how many texts are saved, and for how long.

Heuristics detect secrets; when in doubt, they withhold the text.
"""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import regex

from factorcell.completion.texts import MAX_BYTES
from factorcell.config import UserError
from factorcell.service.record import StoredText

MAX_TEXTS = 1000  # maximum number of saved texts of one user
MAX_USER_BYTES = 4 * MAX_BYTES  # maximum number of bytes of all saved texts of one user
PATTERN_TIMEOUT = 0.05  # seconds to search one text for one pattern
MIN_CARD_DIGITS, MAX_CARD_DIGITS = 13, 19  # minimum and maximum length of a card number
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}  # seconds by unit of a duration

_EMAIL = regex.compile(r"(?<=[^\s@<>()\[\],;:])@[^\s@<>()\[\],;:]+\.[^\s@<>()\[\],;:]{2,}")
_DIGITS = regex.compile(r"\d{3,}(?:[ .\-\u00a0\u202f]\d{3,})*")  # groups of three or more digits, as on payment cards
# Repetitions are possessive or bounded; therefore the search takes milliseconds even in the longest text.
_SECRETS = regex.compile(
    r"\b(?:pass(?:word|wd|phrase|code)?|pwd|passwort|kennwort|contraseña)\s*+[:=]\s*+\S"
    r"|\b(?:pin|secret|token|api[ _-]?key)\s*+[:=]\s*+(?=\S{0,99}\d)\S{4}"
    r"|\bmot de passe\s*+[:=]?\s*+\S"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|(?<![\w-])eyJ[\w-]{8,}+\.[\w-]{8,}+\."  # a JSON web token
    r"|\b(?:AKIA[0-9A-Z]{16}|gh[pousr]_\w{30,}|sk-[\w-]{20,}|xox[abprs]-[\w-]{10,})",
    regex.IGNORECASE,
)
_COMMON_PUNCTUATION = set("'’-.,:;()/\"?&#_")  # common in ordinary text, and therefore not a sign of a password
# Minimum length of a password with special characters, and of a password of letters and digits only.
_MIN_PASSWORD_LENGTH, _MIN_PLAIN_PASSWORD_LENGTH = 8, 20


@dataclass(frozen=True)
class Privacy:
    """The privacy rules of a service.

    Attributes:
        withheld_patterns: Regular expressions; texts that contain a match are neither learned nor saved.
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
        context_texts = (value for value in (context or {}).values() if isinstance(value, str))
        reasons = map(self._private_content, (text, *context_texts))
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
        if _EMAIL.search(text):
            return "an e-mail address"
        if _has_card_number(text):
            return "a card number"
        if _SECRETS.search(text) or any(map(_resembles_password, text.split())):
            return "a password"
        return "a withheld pattern" if any(_matches(pattern, text) for pattern in self.patterns) else None


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


def _has_card_number(text: str) -> bool:
    """Return whether consecutive groups of digits form a number that passes the Luhn check."""
    for match in _DIGITS.finditer(text):
        groups = regex.findall(r"\d+", match.group())
        for start in range(len(groups)):
            digits = ""
            for group in groups[start:]:
                digits += group
                if len(digits) > MAX_CARD_DIGITS:
                    break
                if len(digits) >= MIN_CARD_DIGITS and _passes_luhn(digits):
                    return True
    return False


def _passes_luhn(digits: str) -> bool:
    """Return whether digits pass the Luhn check of ISO/IEC 7812-1 and are not all equal."""
    # Every second digit from the right is doubled, and a product of two digits counts as the sum of these digits.
    products = (int(digit) * (1 + place % 2) for place, digit in enumerate(reversed(digits)))
    checksum = sum(product // 10 + product % 10 for product in products)
    return len(set(digits)) > 1 and checksum % 10 == 0


def _resembles_password(word: str) -> bool:
    """Return whether a word looks like a password.

    Such a word contains a lower-case letter, an upper-case letter, a digit and a special character, which is one that
    is rare in ordinary text. A long word of letters and digits needs no special character.
    """
    if len(word) < _MIN_PASSWORD_LENGTH or "://" in word:  # words with :// are URLs
        return False
    is_mixed = any(map(str.islower, word)) and any(map(str.isupper, word)) and any(map(str.isdigit, word))
    has_special = any(not letter.isalnum() and letter not in _COMMON_PUNCTUATION for letter in word)
    return is_mixed and (has_special or (len(word) >= _MIN_PLAIN_PASSWORD_LENGTH and word.isalnum()))
