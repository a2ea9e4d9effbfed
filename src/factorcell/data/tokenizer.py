"""Text to tokens to ids and back.

Kinds: `word` (the pattern below), `space` (split at white space only), `char` (Unicode code points after NFC) and
`grapheme` (what a reader calls a character: a letter with its accents, a flag, a family of emoji).

The word tokenizer, after NFC: a word is letters, marks and digits, with apostrophes and hyphens inside (`don't`,
`well-kept`) and, between digits, one of . , : / (`3.50`, `10:30`); a run of one repeated mark (`...`, `!!`) is one
token; any other visible character stands alone.
"""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import regex

from factorcell import files
from factorcell.config import Config, UserError
from factorcell.data.vocabulary import SPECIAL_IDS, SPECIAL_TOKENS, Specials, Vocabulary
from factorcell.option_fields import (
    EXTENSIBLE,
    KIND_CHECKS,
    CharacterOptions,
    GraphemeOptions,
    SpaceOptions,
    TokenizerOptions,
    WordOptions,
)

WORD = regex.compile(
    r"[\p{L}\p{M}\p{N}_]+(?:['’\-][\p{L}\p{M}\p{N}]+|(?<=\p{N})[.,:/]\p{N}+)*|([^\s\p{L}\p{M}\p{N}])\1*|\S"
)
GRAPHEME = regex.compile(r"\X")
CONTENT = regex.compile(r"[\p{L}\p{N}$%]")
CLOSING = regex.compile(r"[.,;:!?%)\]}»”…]+")
OPENING = regex.compile(r"[(\[{«“$#@]+")
QUOTE = '"'  # opens and closes by turns
SENTENCE = regex.compile(r"(?:^|[.!?…] )[(\[{«“\"$#@]*\p{Ll}|(?<=^|[\s(\"])i(?=$|[\s.,;:!?)\"…'’])")


class Tokenizer:
    """Base of all tokenizers: splits and joins texts, and numbers tokens by a `Vocabulary`.

    A subclass defines `Options`, `split` and `join`. One with another set of ids, such as merged pieces, also replaces
    `trained`, `contents`, `from_contents`, `tokens`, `specials`, `encode` and `decode`.

    Args:
        options: The options of its kind, an instance of `Options`.
        vocabulary: The tokens that have ids. Without one the tokenizer is new: it can split, and be `trained`.
    """

    Options: ClassVar[type[TokenizerOptions]] = TokenizerOptions
    FILES: ClassVar[tuple[str, ...]] = ("vocabulary.txt",)  # the names of `contents`
    is_character_level: ClassVar[bool] = False  # tokens are so short that a cut text ends at the end of a token

    def __init__(self, options: Any, vocabulary: Vocabulary | None = None) -> None:
        self.options, self._vocabulary = options, vocabulary or Vocabulary(SPECIAL_TOKENS)

    def __len__(self) -> int:
        """Return the number of tokens, special tokens included."""
        return len(self.tokens)

    def split(self, text: str) -> list[str]:
        """Return the tokens of one text, in the vocabulary or not."""
        raise NotImplementedError

    def join(self, tokens: Sequence[str]) -> str:
        """Return readable text; what the first tokens are joined to stays the same when more follow."""
        raise NotImplementedError

    @property
    def tokens(self) -> Sequence[str]:
        """The name of every id, special tokens included."""
        return self._vocabulary.tokens

    @property
    def specials(self) -> Specials:
        """The ids of the unknown token, the start and the end of a text."""
        return SPECIAL_IDS

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """Return the ids of tokens; the id of the unknown token for those without one."""
        return self._vocabulary.encode(tokens)

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Return the tokens of ids."""
        names = self.tokens
        return [names[index] for index in ids]

    def train(self, counts: Mapping[str, int]) -> Self:
        """Return a tokenizer with a vocabulary from `counts`, how often training has each token of `split`."""
        options = self.options
        return type(self)(options, Vocabulary.build(counts, options.min_count, options.max_vocabulary))

    def contents(self) -> dict[str, bytes]:
        """Return the content of each of `FILES`, from which `from_contents` makes the same tokenizer."""
        return {self.FILES[0]: self._vocabulary.content()}

    @classmethod
    def from_contents(cls, options: Any, contents: Mapping[str, bytes]) -> Self:
        """Return the tokenizer with these options that `contents` describes; `ValueError` if it is damaged."""
        return cls(options, Vocabulary.from_content(contents[cls.FILES[0]]))

    def normalize(self, text: str) -> str:
        """Return `text` as it is before it is split: NFC, in lower case if the options say so."""
        text = unicodedata.normalize("NFC", text)
        return text.lower() if self.options.lowercase else text

    def normalize_fully(self, text: str) -> str:
        """Return `text` normalized until that changes nothing: lower-casing can leave letters that NFC would join."""
        return self.normalize(self.normalize(text))

    def is_restorable(self, text: str) -> bool:
        """Return whether the tokens of `text`, none of them out of vocabulary, determine the text exactly."""
        return self.join(self.split(text)) == text

    def can_follow(self, tokens: Sequence[str], more: Sequence[str]) -> bool:
        """Return whether `more` may follow `tokens`, whose last may be cut: joined and split they are the same tokens.

        No text can then be written in two ways.
        """
        both = [*tokens, *more]
        return self.split(self.join(both)) == both

    def save(self, folder: Path) -> None:
        """Write the files of this tokenizer into `folder`."""
        for name, content in self.contents().items():
            files.write(folder / name, content)


class WordTokenizer(Tokenizer):
    """Words, numbers and punctuation marks."""

    Options = WordOptions

    def split(self, text: str) -> list[str]:
        """Return the words and marks of a text."""
        return self._kept([match.group() for match in WORD.finditer(self.normalize(text))])

    def _kept(self, tokens: list[str]) -> list[str]:
        if self.options.strip_punctuation:
            return [token for token in tokens if CONTENT.search(token)]
        return tokens

    def join(self, tokens: Sequence[str]) -> str:
        """Return text in which closing marks join the word before them and opening marks the word after."""
        text, quoted, open_before = "", False, True
        for token in tokens:
            closes = bool(CLOSING.fullmatch(token)) or (token == QUOTE and quoted)
            text += token if open_before or closes else f" {token}"
            quoted ^= token == QUOTE
            open_before = bool(OPENING.fullmatch(token)) or (token == QUOTE and quoted)
        return text

    def is_restorable(self, text: str) -> bool:
        """Return false: words do not keep white space."""
        return False


class SpaceTokenizer(WordTokenizer):
    """What stands between white space."""

    Options = SpaceOptions

    def split(self, text: str) -> list[str]:
        """Return the parts of a text between white space."""
        return self._kept(self.normalize(text).split())

    def join(self, tokens: Sequence[str]) -> str:
        """Return the tokens with a space between them."""
        return " ".join(tokens)

    def is_restorable(self, text: str) -> bool:
        """Return whether `text` has single spaces and no token of it is dropped or changed."""
        unchanged = self.normalize(text) == text == " ".join(text.split())
        return unchanged and not self.options.strip_punctuation


class CharacterTokenizer(Tokenizer):
    """Unicode code points after NFC."""

    Options: ClassVar[type[TokenizerOptions]] = CharacterOptions
    is_character_level = True

    def is_restorable(self, text: str) -> bool:
        """Return whether normalization leaves `text` as it is."""
        return self.normalize(text) == text

    def split(self, text: str) -> list[str]:
        """Return the code points of a text."""
        return list(self.normalize(text))

    def join(self, tokens: Sequence[str]) -> str:
        """Return the tokens one after the other."""
        return "".join(tokens)


class GraphemeTokenizer(CharacterTokenizer):
    """Grapheme clusters."""

    Options = GraphemeOptions

    def split(self, text: str) -> list[str]:
        """Return the grapheme clusters of a text."""
        return list(GRAPHEME.findall(self.normalize(text)))


TOKENIZERS: dict[str, type[Tokenizer]] = {
    "word": WordTokenizer,
    "space": SpaceTokenizer,
    "char": CharacterTokenizer,
    "grapheme": GraphemeTokenizer,
}


def register_tokenizer(name: str, cls: type[Tokenizer]) -> None:
    """Make `made` the tokenizer of the kind `name`, in this process.

    Raises:
        UserError: The name is taken, or the class has no `Options` of this kind.
    """
    EXTENSIBLE["tokenizer"].register(name, cls, KIND_CHECKS["tokenizer"])


def tokenizer_class(kind: str) -> type[Tokenizer]:
    """Return the tokenizer of a kind: a built-in one, a registered one, or one of an installed package."""
    found: type[Tokenizer] = EXTENSIBLE["tokenizer"].find_class(kind, TOKENIZERS, KIND_CHECKS["tokenizer"])
    return found


def tokenizer_files() -> tuple[str, ...]:
    """Return the names of the files that the tokenizers of this process write into a run folder."""
    known: list[Any] = [*TOKENIZERS.values(), *EXTENSIBLE["tokenizer"].registered.values()]
    return tuple(dict.fromkeys(name for made in known for name in made.FILES))


def new_tokenizer(config: Config) -> Tokenizer:
    """Return the tokenizer that a config names, without a vocabulary."""
    return tokenizer_class(config.tokenizer.kind)(config.tokenizer)


def load_tokenizer(config: Config, folder: Path) -> Tokenizer:
    """Return the tokenizer that `Tokenizer.save` wrote into `folder`.

    Raises:
        UserError: A file is missing or damaged.
    """
    made = tokenizer_class(config.tokenizer.kind)
    contents = {name: files.read(folder / name) for name in made.FILES}
    try:
        return made.from_contents(config.tokenizer, contents)
    except (ValueError, OverflowError) as error:
        raise UserError(f"{folder / made.FILES[0]}: damaged ({error})") from None


def sentence_case(text: str) -> str:
    """Return lower-case English text with a capital where a sentence begins, and in "I"."""
    return str(SENTENCE.sub(lambda found: found[0][:-1] + found[0][-1].upper(), text))
