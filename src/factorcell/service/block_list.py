"""A list of phrases that no suggestion may contain. A phrase is matched as whole words, in every Unicode form.

Texts and phrases are compared in the form of `text_folds.screening` without case, in which characters that look alike
are equal. Each run of white space and underscores counts as one space. Accents are significant.

A match must begin and end at a word boundary, with three exceptions. Scripts that are written without spaces have no
boundaries. Korean letters may follow a Korean match, because Korean particles are attached to words. Symbols and emoji
have no boundaries. In all three cases, no combining mark may follow the match.
"""

from collections.abc import Iterable
from pathlib import Path

import regex

from factorcell.data.text_folds import HANGUL, UNSPACED, screening
from factorcell.io import input_files

MARK = r"\p{M}"
LETTER = rf"[[\p{{Alphabetic}}{MARK}\p{{N}}]--[{UNSPACED}{HANGUL}]]"


class BlockList:
    """A filter of suggestions: `BlockList(["bad word"])("a Bad  word!")` is False. Any thread may call it."""

    def __init__(self, phrases: Iterable[str]) -> None:
        """Compile the phrases.

        Args:
            phrases: Words or sequences of words. Phrases that are empty after normalization are ignored.
        """
        self.phrases = sorted({_fold(phrase) for phrase in phrases} - {""})
        phrases_by_borders: dict[tuple[str, str], list[str]] = {}
        for phrase in self.phrases:
            borders = _border_before(phrase), _border_after(phrase)
            phrases_by_borders.setdefault(borders, []).append(phrase)
        # The pattern has one alternative per pair of borders: \L<group0> matches any phrase of the list `group0`.
        borders_by_group = {f"group{number}": borders for number, borders in enumerate(phrases_by_borders)}
        alternatives = (rf"{before}\L<{group}>{after}" for group, (before, after) in borders_by_group.items())
        phrases_by_group = {group: phrases_by_borders[borders] for group, borders in borders_by_group.items()}
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
