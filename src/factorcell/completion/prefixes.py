"""How a completer reads typed text: as the tokens of a tokenizer of characters, or as bytes that pieces of words cover.

The tokens of a typed prefix are its characters or graphemes. `TypedCharacters` completes them with further tokens.
`TypedPieces` completes them with the tokens of the whole text, because the last piece of the prefix may continue.
"""

from collections.abc import Sequence
from typing import Any

from factorcell.completion import compiled
from factorcell.completion.pieces import PieceEngine
from factorcell.completion.search import Ids
from factorcell.data.tokenizers.bpe import BpeTokenizer
from factorcell.data.tokenizers.tokenizer import Tokenizer
from factorcell.errors import UserError
from factorcell.runs.run import Run


class TypedCharacters:
    """Reads typed text as the tokens of a tokenizer of characters or graphemes."""

    returns_whole_texts = False  # whether the search returns the tokens of whole texts, not only those after the prefix

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def engine(self, run: Run) -> Any:
        """Return the engine that searches for completions."""
        return compiled.new_engine(run.predictor, run.precision)

    def split(self, text: str) -> tuple[str, ...]:
        """Return the tokens of a typed text."""
        return tuple(self.tokenizer.split(text))

    def count(self, tokens: Sequence[str]) -> int:
        """Return how many tokens of the model a whole text has."""
        return len(tokens)

    def min_count(self, tokens: Sequence[str]) -> int:
        """Return the minimum number of tokens of the model in a text that begins with the typed text."""
        return len(tokens)

    def ids(self, tokens: Sequence[str]) -> Sequence[int]:
        """Return a typed text in the form that the engine reads."""
        return self.tokenizer.encode(tokens)

    def whole_tokens(self, tokens: Sequence[str], ids: Ids) -> list[str]:
        """Return the tokens of the model of a typed text and its completion `ids`."""
        return [*tokens, *self.tokenizer.decode(ids)]


class TypedPieces(TypedCharacters):
    """Reads typed text as characters, which pieces of words cover."""

    returns_whole_texts = True

    def __init__(self, tokenizer: BpeTokenizer) -> None:
        super().__init__(tokenizer)
        self.pieces = tokenizer

    def engine(self, run: Run) -> Any:
        """Return the engine that searches for completions."""
        return PieceEngine(run.predictor, self.pieces, run.config.data.max_tokens - 1)

    def split(self, text: str) -> tuple[str, ...]:
        """Return the characters of a typed text."""
        return tuple(text)

    def count(self, tokens: Sequence[str]) -> int:
        """Return how many pieces a whole text has."""
        return len(self.tokenizer.split("".join(tokens)))

    def min_count(self, tokens: Sequence[str]) -> int:
        """Return how many pieces are certain in a text that begins with the typed text, which may continue them."""
        return len(self.pieces.certain_tokens("".join(tokens)))

    def ids(self, tokens: Sequence[str]) -> Sequence[int]:
        """Return the bytes of a typed text."""
        return "".join(tokens).encode()

    def whole_tokens(self, tokens: Sequence[str], ids: Ids) -> list[str]:
        """Return the tokens of a whole text, which are `ids`."""
        return self.tokenizer.decode(ids)


def typed_reader(run: Run) -> TypedCharacters:
    """Return how typed text is read with the tokenizer of a run.

    Raises:
        UserError: The tokenizer has neither characters nor pieces of words.
    """
    if isinstance(run.tokenizer, BpeTokenizer):
        return TypedPieces(run.tokenizer)
    if run.tokenizer.is_character_level:
        return TypedCharacters(run.tokenizer)
    expected = f"expected tokenizer char, grapheme, bpe or pretrained, got {run.config.tokenizer.kind}"
    raise UserError(f"{run.folder}: completion: {expected}; train with --tokenizer char")
