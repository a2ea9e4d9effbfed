"""The kinds of tokenizers, and how a config and a run folder select one.

The kinds are `word` (see below), `space` (split at white space only), `char` (Unicode code points after NFC),
`grapheme` (grapheme clusters, such as a letter with its accents, a flag or a family emoji) and `bpe` (pieces of words,
`bpe.BpeTokenizer`).

The word tokenizer normalizes texts to NFC. A word consists of letters, marks and digits. It may contain apostrophes and
hyphens inside (`don't`, `well-kept`), and one of the marks . , : / between digits (`3.50`, `10:30`). A run of one
repeated punctuation mark (`...`, `!!`) is one token, and so is any other visible character.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import regex

from factorcell.config import Config
from factorcell.data.tokenizers.base_tokenizer import Tokenizer as Tokenizer
from factorcell.data.tokenizers.bpe import BpeTokenizer
from factorcell.data.tokenizers.pretrained_tokenizer import PretrainedTokenizer
from factorcell.errors import UserError
from factorcell.io import files
from factorcell.options.option_fields import (
    EXTENSIBLE,
    KIND_CHECKS,
    CharacterOptions,
    GraphemeOptions,
    PretrainedTokenizerOptions,
    SpaceOptions,
    TokenizerOptions,
    WordOptions,
)

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


def without_punctuation(tokens: Iterable[str]) -> list[str]:
    """Return the tokens that have a letter, a digit, $ or %."""
    return [token for token in tokens if CONTENT.search(token)]


class WordTokenizer(Tokenizer):
    """Splits into words, numbers and punctuation marks."""

    Options = WordOptions
    unit = "word"

    def split(self, text: str) -> list[str]:
        """Return the words, numbers and punctuation marks of a text."""
        return [match.group() for match in WORD.finditer(self.normalize(text))]

    def join(self, tokens: Sequence[str]) -> str:
        """Return the tokens with spaces between them, except before closing marks and after opening marks."""
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
        """Return the parts of a text between white space."""
        return self.normalize(text).split()

    def join(self, tokens: Sequence[str]) -> str:
        """Return the tokens with a space between them."""
        return " ".join(tokens)


class CharacterTokenizer(Tokenizer):
    """Splits into Unicode code points after NFC."""

    Options: ClassVar[type[TokenizerOptions]] = CharacterOptions
    is_character_level = True
    unit = "character"

    def split(self, text: str) -> list[str]:
        """Return the code points of a text."""
        return list(self.normalize(text))

    def join(self, tokens: Sequence[str]) -> str:
        """Return the concatenated tokens."""
        return "".join(tokens)


class GraphemeTokenizer(CharacterTokenizer):
    """Splits into grapheme clusters after NFC."""

    Options = GraphemeOptions
    unit = "grapheme"

    def split(self, text: str) -> list[str]:
        """Return the grapheme clusters of a text."""
        return list(GRAPHEME.findall(self.normalize(text)))


TOKENIZERS: dict[str, type[Tokenizer]] = {
    "word": WordTokenizer,
    "space": SpaceTokenizer,
    "char": CharacterTokenizer,
    "grapheme": GraphemeTokenizer,
    "bpe": BpeTokenizer,
    "pretrained": PretrainedTokenizer,
}


def register_tokenizer(name: str, cls: type[Tokenizer]) -> None:
    """Make a tokenizer of another package available in this process.

    Args:
        name: The kind of the tokenizer, which selects it as in `--tokenizer NAME`.
        cls: The class of the tokenizer.

    Raises:
        UserError: The name is in use, or the class does not define `Options` for this kind.
    """
    EXTENSIBLE["tokenizer"].register(name, cls, KIND_CHECKS["tokenizer"])


def tokenizer_class(kind: str) -> type[Tokenizer]:
    """Return the class of the tokenizer `kind`, which is built in, registered, or defined by an installed package."""
    cls: type[Tokenizer] = EXTENSIBLE["tokenizer"].find_class(kind, TOKENIZERS, KIND_CHECKS["tokenizer"])
    return cls


def tokenizer_files() -> tuple[str, ...]:
    """Return the names of all files that a built-in or registered tokenizer writes into a run folder."""
    classes: list[Any] = [*TOKENIZERS.values(), *EXTENSIBLE["tokenizer"].registered.values()]
    return tuple(dict.fromkeys(name for cls in classes for name in cls.FILES))


def new_tokenizer(config: Config) -> Tokenizer:
    """Return a tokenizer of the kind that `config` selects; only that of a pretrained model has a vocabulary."""
    if config.tokenizer.kind == PretrainedTokenizerOptions.kind:
        return PretrainedTokenizer.of_base(config)
    return tokenizer_class(config.tokenizer.kind)(config.tokenizer)


def load_tokenizer(config: Config, folder: Path) -> Tokenizer:
    """Return the tokenizer whose files `Tokenizer.save` wrote into `folder`.

    Raises:
        UserError: A file is missing or damaged.
    """
    cls = tokenizer_class(config.tokenizer.kind)
    contents = {name: files.read(folder / name) for name in cls.FILES}
    try:
        return cls.from_contents(config.tokenizer, contents)
    except (ValueError, OverflowError) as error:
        raise UserError(f"{folder / cls.FILES[0]}: damaged ({error})") from None


def sentence_case(text: str) -> str:
    """Capitalize the first letter of each sentence and the word "I" in lower-case English text."""
    return str(LOWERCASE_START.sub(lambda match: match[0][:-1] + match[0][-1].upper(), text))
