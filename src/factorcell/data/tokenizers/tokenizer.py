"""Tokenizers that split texts into words, characters or graphemes, and the base class of all tokenizers.

The word tokenizer normalizes texts to NFC. A word consists of letters, marks and digits. It may contain apostrophes and
hyphens inside (`don't`, `well-kept`), and one of the marks . , : / between digits (`3.50`, `10:30`). A run of one
repeated punctuation mark (`...`, `!!`) is one token, and so is any other visible character.
"""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import regex

from factorcell.config import CharacterOptions, GraphemeOptions, SpaceOptions, TokenizerOptions, WordOptions
from factorcell.data.text_folds import lower_case, with_final_sigma
from factorcell.errors import UserError
from factorcell.io import files

WORD = regex.compile(
    r"[\p{L}\p{M}\p{N}_]+(?:['’\-][\p{L}\p{M}\p{N}]+|(?<=\p{N})[.,:/]\p{N}+)*|([^\s\p{L}\p{M}\p{N}])\1*|\S"
)
GRAPHEME = regex.compile(r"\X")
CONTENT = regex.compile(r"[\p{L}\p{N}$%]")  # a token without such a character is punctuation
CLOSING = regex.compile(r"[.,;:!?%)\]}»”…]+")  # marks that follow a word without a space
OPENING = regex.compile(r"[(\[{«“$#@]+")  # marks that precede a word without a space
QUOTE = '"'  # opens and closes alternately
# Each match ends with a letter that `sentence_case` capitalizes.
LOWERCASE_START = regex.compile(r"(?:^|[.!?…] )[(\[{«“\"$#@]*\p{Ll}|(?<=^|[\s(\"])i(?=$|[\s.,;:!?)\"…'’])")
ESCAPE = regex.compile(r"\\U([0-9a-f]{8})")  # in a vocabulary file
# White space, backslashes and invisible characters, except the joiner of emoji
ESCAPED = regex.compile(r"[\\\p{Z}[\p{C}--\u200d]]", regex.V1)


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


class Tokenizer:
    """Base of all tokenizers: splits and joins texts, and converts tokens to ids.

    A subclass defines `split`, `join` and `Options`, the class of its options. A subclass with other ids also overrides
    `train`, `contents`, `from_contents`, `tokens`, `specials`, `encode` and `decode`.

    Attributes:
        FILES: The names of the files that store the tokenizer in a run folder.
        is_character_level: Whether each token is one character or grapheme.
        unit: What a token is, for the unit of perplexities: "perplexity per word".
        specials: The ids of the unknown token, the start token and the end token.
        is_subword: Whether tokens are pieces of words. The pieces of a text then depend on the text around them, and a
            tokenizer without a vocabulary splits into the words that `train` cuts into pieces.

    Args:
        options: The options, an instance of `Options`.
        tokens: The tokens in the order of their ids, the special tokens first; without others, the tokenizer can only
            `split`, `join` and `train`.
    """

    Options: ClassVar[type[TokenizerOptions]] = TokenizerOptions
    FILES: ClassVar[tuple[str, ...]] = ("vocabulary.txt",)
    is_character_level: ClassVar[bool] = False
    unit: ClassVar[str] = "token"
    is_subword: ClassVar[bool] = False
    specials: Specials = SPECIAL_IDS

    def __init__(self, options: Any, tokens: Sequence[str] = SPECIAL_TOKENS) -> None:
        self.options, self._tokens = options, [*tokens]
        if tuple(tokens[: len(SPECIAL_TOKENS)]) != SPECIAL_TOKENS:
            first_tokens = " ".join(tokens[: len(SPECIAL_TOKENS)])
            raise UserError(f"vocabulary: expected {' '.join(SPECIAL_TOKENS)} first, got {first_tokens!r}")
        if len({*tokens}) < len(tokens):
            raise UserError("vocabulary: expected each token once, got a token twice")

    @property
    def restores_texts(self) -> bool:
        """Whether tokens store white space, so that texts can be completed and counted."""
        return self.is_character_level or self.is_subword

    @property
    def is_lossless(self) -> bool:
        """Whether the tokens of each text determine its normalized text, so that bits per byte are exact."""
        return self.is_character_level

    @property
    def known_count(self) -> int:
        """The number of tokens that a pretrained model knows; later ones were added to its tokenizer."""
        return len(self)

    def __len__(self) -> int:
        """Return the number of tokens in the vocabulary, special tokens included."""
        return len(self.tokens)

    def split(self, text: str) -> list[str]:
        """Return the tokens of a text, in-vocabulary or not."""
        raise NotImplementedError

    def split_all(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the tokens of each text."""
        return [self.split(text) for text in texts]

    def join(self, tokens: Sequence[str]) -> str:
        """Return the text of `tokens`; the text of more tokens must begin with the text of the first ones."""
        raise NotImplementedError

    @property
    def tokens(self) -> Sequence[str]:
        """The token of each id, special tokens included."""
        return self._tokens

    @cached_property
    def _id_by_token(self) -> dict[str, int]:
        return {token: token_id for token_id, token in enumerate(self.tokens) if token_id > END}

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """Return the id of each token; an out-of-vocabulary token has the id of the unknown token."""
        id_by_token, unknown = self._id_by_token, self.specials.unknown
        return [id_by_token.get(token, unknown) for token in tokens]

    def encode_words(self, words: Iterable[str]) -> list[Sequence[int]]:
        """Return the ids of each of the tokens that `split` returned before `train`: by default, one id per token."""
        return [(token_id,) for token_id in self.encode(words)]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Return the token of each id."""
        tokens = self.tokens
        return [tokens[token_id] for token_id in ids]

    def train(self, counts: Mapping[str, int]) -> Self:
        """Return a tokenizer of this class with the most frequent tokens of the training texts.

        Args:
            counts: How often each token that `split` returns occurs in the training texts.
        """
        min_count, max_size = self.options.min_count, self.options.max_vocabulary
        tokens = [token for token, count in counts.items() if count >= min_count and token not in SPECIAL_TOKENS]
        tokens.sort(key=lambda token: (-counts[token], token))
        return type(self)(self.options, [*SPECIAL_TOKENS, *tokens[:max_size]])

    def contents(self) -> dict[str, bytes]:
        """Return the content of each file of `FILES` by name, for `from_contents`.

        By default, the file has one token per line, with white space and backslashes escaped.
        """
        lines = (ESCAPED.sub(lambda match: f"\\U{ord(match[0]):08x}", token) + "\n" for token in self.tokens)
        return {self.FILES[0]: "".join(lines).encode()}

    @classmethod
    def from_contents(cls, options: Any, contents: Mapping[str, bytes]) -> Self:
        """Return the tokenizer with these options and the content of its files, which `Tokenizer.contents` returned.

        Raises:
            ValueError: A file is damaged.
        """
        lines = contents[cls.FILES[0]].decode().split("\n")[:-1]
        return cls(options, [ESCAPE.sub(lambda match: chr(int(match[1], 16)), line) for line in lines])

    def normalize(self, text: str) -> str:
        """Return `text` in NFC, in lower case if the options require it."""
        if not self.options.lowercase:
            return unicodedata.normalize("NFC", text)
        return lower_case(text) if self.restores_texts else with_final_sigma(lower_case(text))

    def written(self, text: str) -> str:
        """Return a complete text of joined tokens as people write it, where lower case changed its letters."""
        return with_final_sigma(text) if self.options.lowercase else text

    def readable(self, token: str) -> str:
        """Return `token` as reports show it."""
        return token

    def save(self, folder: Path) -> None:
        """Write the files of the tokenizer into `folder`."""
        for name, content in self.contents().items():
            files.write(folder / name, content)


def without_punctuation(tokens: Iterable[str]) -> list[str]:
    """Return the tokens that have a letter, a digit, $ or %."""
    return [token for token in tokens if CONTENT.search(token)]


@lru_cache(maxsize=100_000)
def _split_part(part: str) -> tuple[str, ...]:
    """Return the tokens of a part of a text between white space."""
    return tuple(match.group() for match in WORD.finditer(part))


class WordTokenizer(Tokenizer):
    """Splits into words, numbers and punctuation marks."""

    Options = WordOptions
    unit = "word"

    def split(self, text: str) -> list[str]:
        return list(chain.from_iterable(map(_split_part, self.normalize(text).split())))

    def join(self, tokens: Sequence[str]) -> str:
        text, is_in_quotes = "", False
        follows_opening = True  # no space precedes the first token
        for token in tokens:
            is_closing = bool(CLOSING.fullmatch(token)) or (token == QUOTE and is_in_quotes)
            text += token if follows_opening or is_closing else f" {token}"
            if token == QUOTE:
                is_in_quotes = not is_in_quotes
            follows_opening = bool(OPENING.fullmatch(token)) or (token == QUOTE and is_in_quotes)
        return text


class SpaceTokenizer(WordTokenizer):
    """Splits at white space only."""

    Options = SpaceOptions

    def split(self, text: str) -> list[str]:
        return self.normalize(text).split()

    def join(self, tokens: Sequence[str]) -> str:
        return " ".join(tokens)


class CharacterTokenizer(Tokenizer):
    """Splits into Unicode code points after NFC."""

    Options: ClassVar[type[TokenizerOptions]] = CharacterOptions
    is_character_level = True
    unit = "character"

    def split(self, text: str) -> list[str]:
        return list(self.normalize(text))

    def join(self, tokens: Sequence[str]) -> str:
        return "".join(tokens)


class GraphemeTokenizer(CharacterTokenizer):
    """Splits into grapheme clusters after NFC."""

    Options = GraphemeOptions
    unit = "grapheme"

    def split(self, text: str) -> list[str]:
        return list(GRAPHEME.findall(self.normalize(text)))


def sentence_case(text: str) -> str:
    """Capitalize the first letter of each sentence and the word "I" in lower-case English text."""
    return str(LOWERCASE_START.sub(lambda match: match[0][:-1] + match[0][-1].upper(), text))
