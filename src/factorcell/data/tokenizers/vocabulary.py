"""The vocabulary of the built-in tokenizers: the ids of tokens, and the file that stores them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import regex

from factorcell.errors import UserError


class Specials(NamedTuple):
    """Ids of the special tokens: the unknown token, the start token and the end token of a text.

    Args:
        unknown: The id of every out-of-vocabulary token.
        start: The id of the token before the first token of a text.
        end: The id of the token after the last token of a text.
    """

    unknown: int = 0
    start: int = 1
    end: int = 2


SPECIAL_IDS = Specials()
UNKNOWN, START, END = SPECIAL_IDS
SPECIAL_TOKENS = ("<unk>", "<s>", "</s>")
ZERO_WIDTH_JOINER = "\u200d"  # joins several emoji to one; it is not escaped in the vocabulary file


class Vocabulary:
    """The tokens of a tokenizer, numbered in their order; ids 0, 1 and 2 are the special tokens."""

    def __init__(self, tokens: Sequence[str]) -> None:
        first_tokens = tokens[: len(SPECIAL_TOKENS)]
        if tuple(first_tokens) != SPECIAL_TOKENS:
            raise UserError(f"vocabulary: expected {' '.join(SPECIAL_TOKENS)} first, got {' '.join(first_tokens)!r}")
        self.tokens = list(tokens)
        self.id_by_token = {token: token_id for token_id, token in enumerate(self.tokens) if token_id > END}
        if len(self.id_by_token) != len(self.tokens) - len(SPECIAL_TOKENS):
            raise UserError("vocabulary: expected each token once, got a token twice")

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """Return the id of each token; an out-of-vocabulary token has the id `UNKNOWN`."""
        return [self.id_by_token.get(token, UNKNOWN) for token in tokens]

    @classmethod
    def build(cls, counts: Mapping[str, int], min_count: int, max_size: int) -> "Vocabulary":
        """Return a vocabulary of the `max_size` most frequent tokens that occur at least `min_count` times."""
        frequent_tokens = [
            token for token, count in counts.items() if count >= min_count and token not in SPECIAL_TOKENS
        ]
        frequent_tokens.sort(key=lambda token: (-counts[token], token))
        return cls([*SPECIAL_TOKENS, *frequent_tokens[:max_size]])

    def content(self) -> bytes:
        """Return the content of the vocabulary file: one token per line, with white space and backslashes escaped."""
        return "".join(_escape(token) + "\n" for token in self.tokens).encode()

    @classmethod
    def from_content(cls, content: bytes) -> "Vocabulary":
        """Return the vocabulary whose file has this `content`; raise `ValueError` if it is damaged."""
        lines = content.decode().split("\n")[:-1]
        return cls([_unescape(line) for line in lines])


def _escape(token: str) -> str:
    """Return `token` with backslashes, white space and characters that cannot be printed as Python escapes."""
    return "".join(f"\\U{ord(character):08x}" if _needs_escape(character) else character for character in token)


def _needs_escape(character: str) -> bool:
    if character == ZERO_WIDTH_JOINER:
        return False
    return character == "\\" or not character.isprintable() or character.isspace()


def _unescape(line: str) -> str:
    """Return the token whose escaped form is `line`."""
    return str(regex.sub(r"\\U([0-9a-f]{8})", lambda match: chr(int(match[1], 16)), line))
