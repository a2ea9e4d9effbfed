"""Canonical form of texts: texts that differ only in white space or in Unicode composition have the same form."""

import unicodedata


def canonical(text: str) -> str:
    """Return `text` in NFC, with each run of white space replaced by one space, and without white space at its ends."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def canonical_prefix(text: str) -> str:
    """Return the canonical form of the beginning of a text, with a final space if `text` ends in white space.

    A final space means that the last word is complete: "new " begins "new york" but not "newton".
    """
    form = canonical(text)
    return f"{form} " if form and text[-1].isspace() else form
