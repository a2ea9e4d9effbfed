"""Validation and canonical form of the texts that users type and learn.

A text is any Unicode text of at most `MAX_BYTES` bytes, including the empty text. Texts that differ only in white space
or in Unicode normalization are one text: `clean_text` returns the form in which it is learned, counted, compared and
forgotten, and `clean_prefix` returns that of a prefix, which may end with one space.
"""

from factorcell.config import UserError
from factorcell.data.canonical import canonical, canonical_prefix

MAX_BYTES = 1 << 16  # bytes in UTF-8 of one text, and of all texts of a history in total
MAX_SHOWN = 50  # characters of a text that a message shows, at most


def check_text(text: str, what: str = "text") -> str:
    """Return `text`, or raise a `UserError` that calls it `what` if it is not Unicode text or too long."""
    if not isinstance(text, str):
        raise UserError(f"{what} {text!r:.{MAX_SHOWN}}: not a text")
    if len(text) > MAX_BYTES or byte_length(text, what) > MAX_BYTES:
        raise UserError(
            f"{what} {text[:MAX_SHOWN]!a}...: {len(text):,} characters; a text may have at most {MAX_BYTES:,} bytes"
        )
    return text


def clean_text(text: str, what: str = "text") -> str:
    """Return the canonical form of a whole text, or raise a `UserError` that calls it `what` if it is not valid."""
    return canonical(check_text(text, what))


def clean_prefix(text: str, what: str = "prefix") -> str:
    """Return the canonical form of a prefix, or raise a `UserError` that calls it `what` if it is not valid."""
    return canonical_prefix(check_text(text, what))


def byte_length(text: str, what: str = "text") -> int:
    """Return the number of bytes of a text in UTF-8, or raise a `UserError` if it is not Unicode text."""
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise UserError(f"{what} {text[:MAX_SHOWN]!a}: not Unicode text (character {error.start + 1})") from None
