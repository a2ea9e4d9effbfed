"""Validation and canonical form of the texts that users type and learn.

A text is any Unicode text of at most `MAX_BYTES` bytes, including the empty text. Texts that differ only in white space
or in Unicode normalization count as the same text: they are learned, counted, compared and forgotten in the canonical
form that `clean_text` returns. `clean_prefix` returns the canonical form of a prefix, which may end with one space.
"""

from factorcell.config import UserError
from factorcell.data.canonical import canonical, canonical_prefix

MAX_BYTES = 1 << 16  # bytes in UTF-8 of one text, and of all texts of a history in total
MAX_SHOWN = 50  # maximum number of characters of a text that an error message shows


def check_text(text: str, what: str = "text") -> str:
    """Return `text`, or raise a `UserError` if it is not Unicode text or too long; the message calls it `what`."""
    if not isinstance(text, str):
        raise UserError(f"{what} {text!r:.{MAX_SHOWN}}: not a text")
    if len(text) > MAX_BYTES or byte_length(text, what) > MAX_BYTES:
        raise UserError(
            f"{what} {text[:MAX_SHOWN]!a}...: {len(text):,} characters; a text may have at most {MAX_BYTES:,} bytes"
        )
    return text


def clean_text(text: str, what: str = "text") -> str:
    """Return the canonical form of a whole text, or raise the `UserError` of `check_text`."""
    return canonical(check_text(text, what))


def clean_prefix(text: str, what: str = "prefix") -> str:
    """Return the canonical form of a typed prefix, or raise the `UserError` of `check_text`."""
    return canonical_prefix(check_text(text, what))


def byte_length(text: str, what: str = "text") -> int:
    """Return the number of bytes of a text in UTF-8, or raise a `UserError` if it is not Unicode text."""
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise UserError(f"{what} {text[:MAX_SHOWN]!a}: not Unicode text (character {error.start + 1})") from None
