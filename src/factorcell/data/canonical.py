"""The canonical form of a text: texts that differ only in white space or in Unicode composition have the same one."""

import unicodedata


def canonical(text: str) -> str:
    """Return the form in which whole texts are compared: NFC, each run of white space one space, none at the ends."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def canonical_prefix(text: str) -> str:
    """Return the form in which the beginning of a text is compared: as `canonical`, but a space at its end stays.

    "new " begins "new york" but not "newton", so white space at the end says that a word is complete.
    """
    folded = canonical(text)
    return f"{folded} " if folded and text[-1].isspace() else folded
