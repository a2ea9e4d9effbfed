"""The vocabulary of the built-in tokenizers: the ids of tokens, and the file that stores them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import regex

from factorcell.config import UserError


class Specials(NamedTuple):
    """Ids of the special tokens: the unknown token, the start token and the end token of a text.

    Args:
        unknown: The id of all tokens that are out of vocabulary.
        start: The id of the token before the first token of a text.
        end: The id of the token after the last token of a text.
    """

    unknown: int = 0
    start: int = 1
    end: int = 2


SPECIAL_IDS = Specials()
UNKNOWN, START, END = SPECIAL_IDS
SPECIAL_TOKENS = ("<unk>", "<s>", "</s>")


class Vocabulary:
    """The tokens of a tokenizer, numbered in their order; ids 0, 1 and 2 are the special tokens."""

    def __init__(self, tokens: Sequence[str]) -> None:
        if tuple(tokens[:3]) != SPECIAL_TOKENS:
            raise UserError(f"vocabulary: expected {' '.join(SPECIAL_TOKENS)} first, got {' '.join(tokens[:3])!r}")
        self.tokens = list(tokens)
        self.ids = {token: index for index, token in enumerate(self.tokens) if index > END}
        if len(self.ids) != len(self.tokens) - 3:
            raise UserError("vocabulary: expected each token once, got a token twice")

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """Return the id of each token; an out-of-vocabulary token has the id `UNKNOWN`."""
        return [self.ids.get(token, UNKNOWN) for token in tokens]

    @classmethod
    def build(cls, counts: Mapping[str, int], min_count: int, max_size: int) -> "Vocabulary":
        """Return a vocabulary of the `max_size` most frequent tokens that occur at least `min_count` times."""
        frequent = [token for token, count in counts.items() if count >= min_count and token not in SPECIAL_TOKENS]
        frequent.sort(key=lambda token: (-counts[token], token))
        return cls([*SPECIAL_TOKENS, *frequent[:max_size]])

    def content(self) -> bytes:
        """Return the content of the vocabulary file: one token per line, with white space and backslashes escaped."""
        return "".join(_escape(token) + "\n" for token in self.tokens).encode()

    @classmethod
    def from_content(cls, content: bytes) -> "Vocabulary":
        """Return the vocabulary whose file has this `content`; raise `ValueError` if it is damaged."""
        lines = content.decode().split("\n")[:-1]
        return cls([regex.sub(r"\\U([0-9a-f]{8})", lambda match: chr(int(match[1], 16)), line) for line in lines])


def _escape(token: str) -> str:
    """Return `token` with backslashes, white space and characters that cannot be printed as Python escapes."""
    return "".join(
        f"\\U{ord(character):08x}"
        if character == "\\" or ((not character.isprintable() or character.isspace()) and character != "\u200d")
        else character
        for character in token
    )
