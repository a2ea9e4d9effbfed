"""The rule for texts that are typed, learned or kept: which are valid, and which are the same text.

A text is any Unicode text of at most `LONGEST` bytes, empty or not. Texts that differ only in white space or in Unicode
normalisation are one text: `clean_text` gives the form in which it is learned, counted, compared and forgotten, and
`clean_prefix` that of a prefix, in which one space at the end stays.
"""

from factorcell.config import UserError
from factorcell.data.canonical import canonical, canonical_prefix

MAX_BYTES = 1 << 16  # bytes in UTF-8 of one text, and of all texts of a history together
SHOWN = 50  # characters of a text in a message


def check_text(text: str, what: str = "text") -> str:
    """Return `text`, or raise a `UserError` (which calls it `what`) if it is not Unicode text or too long."""
    if not isinstance(text, str):
        raise UserError(f"{what} {text!r:.{SHOWN}}: not a text")
    if len(text) > MAX_BYTES or byte_length(text, what) > MAX_BYTES:
        raise UserError(
            f"{what} {text[:SHOWN]!a}...: {len(text):,} characters; a text takes at most {MAX_BYTES:,} bytes"
        )
    return text


def clean_text(text: str, what: str = "text") -> str:
    """Return the canonical form of a whole text; `UserError` as `checked`."""
    return canonical(check_text(text, what))


def clean_prefix(text: str, what: str = "prefix") -> str:
    """Return the canonical form of a prefix; `UserError` as `checked`."""
    return canonical_prefix(check_text(text, what))


def byte_length(text: str, what: str = "text") -> int:
    """Return the number of bytes of a text in UTF-8, or raise a `UserError` if it is not Unicode text."""
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise UserError(f"{what} {text[:SHOWN]!a}: not Unicode text (character {error.start + 1})") from None
