"""Texts that are suggested to nobody: those with a phrase of a list, as whole words, however they are written."""

from collections.abc import Iterable
from pathlib import Path
from unicodedata import normalize

import regex

from factorcell import inputs


class BlockList:
    """Whether a text may be suggested: `BlockList(["bad word"])("a Bad  word!")` is False. Any thread may ask."""

    def __init__(self, phrases: Iterable[str]) -> None:
        """Case, width and white space of the phrases make no difference; empty ones are left out."""
        self.phrases = sorted({_folded(phrase) for phrase in phrases} - {""})
        self.pattern = regex.compile(r"(?<!\w)\L<phrases>(?!\w)", phrases=self.phrases) if self.phrases else None

    @classmethod
    def read(cls, path: Path) -> "BlockList":
        """A phrase a line; lines that begin with # are remarks. `UserError` for what is no such file."""
        return cls(line for line in inputs.text(path).splitlines() if not line.startswith("#"))

    def __call__(self, text: str) -> bool:
        """Whether none of the phrases is in the text."""
        return self.pattern is None or self.pattern.search(_folded(text)) is None


def _folded(text: str) -> str:
    return " ".join(normalize("NFKC", normalize("NFKC", text).casefold()).split())
