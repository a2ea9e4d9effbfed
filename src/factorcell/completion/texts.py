"""Validation and canonical form of the texts that users type and learn.

A valid text is Unicode text of at most `MAX_BYTES` bytes; it may be empty. Texts that `same_text` equates, such as
those that differ only in white space or invisible characters, count as the same text: the package learns, counts,
compares and deletes texts in the canonical form that `clean_text` returns. `clean_prefix` returns the canonical form of
a prefix, which may end with one space.
"""

from typing import Any

from factorcell.data.text_folds import same_prefix, same_text
from factorcell.errors import UserError

MAX_BYTES = 1 << 16  # bytes in UTF-8 of one text, and of all texts of a history in total
MAX_SHOWN = 50  # maximum number of characters of a text that an error message quotes


def check_text(text: str, label: str = "text") -> str:
    """Return `text`; raise a `UserError` that calls it `label` if it is not Unicode text or is too long."""
    if not isinstance(text, str):
        raise UserError(f"{label} {text!r:.{MAX_SHOWN}}: not a text")
    if len(text) > MAX_BYTES or byte_length(text, label) > MAX_BYTES:
        raise UserError(
            f"{label} {text[:MAX_SHOWN]!a}...: {len(text):,} characters; a text may have at most {MAX_BYTES:,} bytes"
        )
    return text


def is_valid_text(text: Any) -> bool:
    """Return whether `check_text` accepts a text."""
    try:
        check_text(text)
    except UserError:
        return False
    return True


def clean_text(text: str, label: str = "text") -> str:
    """Return the canonical form of a whole text; raise the `UserError` of `check_text` for an invalid text."""
    return same_text(check_text(text, label))


def clean_prefix(text: str, label: str = "prefix") -> str:
    """Return the canonical form of a typed prefix; raise the `UserError` of `check_text` for an invalid prefix."""
    return same_prefix(check_text(text, label))


def byte_length(text: str, label: str = "text") -> int:
    """Return the number of bytes of a text in UTF-8; raise a `UserError` if it is not Unicode text."""
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise UserError(f"{label} {text[:MAX_SHOWN]!a}: not Unicode text (character {error.start + 1})") from None
