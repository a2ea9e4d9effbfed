"""Tokens to ids and back."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import regex

from factorcell.config import UserError


class Specials(NamedTuple):
    """Ids of the special tokens: what stands for unknown ones, what every text starts with, and what ends it."""

    unknown: int = 0
    start: int = 1
    end: int = 2


SPECIAL_IDS = Specials()
UNKNOWN, START, END = SPECIAL_IDS
SPECIAL_TOKENS = ("<unk>", "<s>", "</s>")


class Vocabulary:
    """The tokens of a model; ids 0, 1 and 2 are the unknown token, the start and the end of a text."""

    def __init__(self, tokens: Sequence[str]) -> None:
        if tuple(tokens[:3]) != SPECIAL_TOKENS:
            raise UserError(f"a vocabulary begins with {' '.join(SPECIAL_TOKENS)}, not {' '.join(tokens[:3])!r}")
        self.tokens = list(tokens)
        self.ids = {token: index for index, token in enumerate(self.tokens) if index > END}
        if len(self.ids) != len(self.tokens) - 3:
            raise UserError("a vocabulary holds each token once")

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """Ids of tokens; what the vocabulary does not hold is `UNKNOWN`."""
        return [self.ids.get(token, UNKNOWN) for token in tokens]

    @classmethod
    def build(cls, counts: Mapping[str, int], min_count: int, max_size: int) -> "Vocabulary":
        """The at most `max_size` most frequent tokens seen at least `min_count` times, most frequent first."""
        kept = [token for token, count in counts.items() if count >= min_count and token not in SPECIAL_TOKENS]
        kept.sort(key=lambda token: (-counts[token], token))
        return cls([*SPECIAL_TOKENS, *kept[:max_size]])

    def content(self) -> bytes:
        """A text file, one token per line; white space and backslashes inside a token are escaped."""
        return "".join(_escape(token) + "\n" for token in self.tokens).encode()

    @classmethod
    def from_content(cls, content: bytes) -> "Vocabulary":
        """Return the vocabulary that has this `content`; `ValueError` if it is damaged."""
        lines = content.decode().split("\n")[:-1]
        return cls([regex.sub(r"\\U([0-9a-f]{8})", lambda found: chr(int(found[1], 16)), line) for line in lines])


def _escape(token: str) -> str:
    """`token` with everything that could end or blur a line written as a Python escape."""
    return "".join(
        f"\\U{ord(mark):08x}"
        if mark == "\\" or ((not mark.isprintable() or mark.isspace()) and mark != "\u200d")
        else mark
        for mark in token
    )
