"""Text to tokens and back.

Units: `word` (the tokeniser below), `space` (split at white space only), `char` (Unicode code points after NFC) and
`grapheme` (what a reader calls a character: a letter with its accents, a flag, a family of emoji).

The word tokeniser, after NFC: a word is letters, marks and digits, with apostrophes and hyphens inside (`don't`,
`well-kept`) and, between digits, one of . , : / (`3.50`, `10:30`); a run of one repeated mark (`...`, `!!`) is one
token; any other visible character stands alone.
"""

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Protocol

import regex

from factorcell.config import DataConfig
from factorcell.data.vocabulary import Specials, Vocabulary

WORD = regex.compile(
    r"[\p{L}\p{M}\p{N}_]+(?:['’\-][\p{L}\p{M}\p{N}]+|(?<=\p{N})[.,:/]\p{N}+)*|([^\s\p{L}\p{M}\p{N}])\1*|\S"
)
GRAPHEME = regex.compile(r"\X")
CONTENT = regex.compile(r"[\p{L}\p{N}$%]")


def normalized(text: str, data: DataConfig) -> str:
    """Return `text` as a run with `data` reads it, before it is split: NFC, in lower case if `data` says so."""
    text = unicodedata.normalize("NFC", text)
    return text.lower() if data.lowercase else text


def splitter(data: DataConfig) -> Callable[[str], list[str]]:
    """The function that splits one text into tokens as `data` says."""
    units: dict[str, Callable[[str], list[str]]] = {
        "word": lambda text: [match.group() for match in WORD.finditer(text)],
        "space": str.split,
        "char": list,
        "grapheme": GRAPHEME.findall,
    }
    cut = units[data.unit]

    def split_text(text: str) -> list[str]:
        tokens = cut(normalized(text, data))
        if data.strip_punctuation and data.unit in ("word", "space"):
            tokens = [token for token in tokens if CONTENT.search(token)]
        return tokens

    return split_text


def split(text: str, data: DataConfig) -> list[str]:
    """The tokens of one text."""
    return splitter(data)(text)


CLOSING = regex.compile(r"[.,;:!?%)\]}»”…]+")
OPENING = regex.compile(r"[(\[{«“$#@]+")
QUOTE = '"'  # opens and closes by turns
SENTENCE = regex.compile(r"(?:^|[.!?…] )[(\[{«“\"$#@]*\p{Ll}|(?<=^|[\s(\"])i(?=$|[\s.,;:!?)\"…'’])")


def join(tokens: Sequence[str], unit: str) -> str:
    """Readable text: exact for characters; for words, closing marks join the word before, opening ones the next.

    What is joined of the first tokens stays as it is when more follow.
    """
    if unit in ("char", "grapheme"):
        return "".join(tokens)
    if unit == "space":
        return " ".join(tokens)
    text, quoted, open_before = "", False, True
    for token in tokens:
        closes = bool(CLOSING.fullmatch(token)) or (token == QUOTE and quoted)
        text += token if open_before or closes else f" {token}"
        quoted ^= token == QUOTE
        open_before = bool(OPENING.fullmatch(token)) or (token == QUOTE and quoted)
    return text


def sentence_case(text: str) -> str:
    """Lower-case English text with a capital where a sentence begins, and in "I"."""
    return str(SENTENCE.sub(lambda found: found[0][:-1] + found[0][-1].upper(), text))


class Tokenizer(Protocol):
    """How a model reads and writes text: the seam for tokens of another kind, such as pieces of words."""

    @property
    def specials(self) -> Specials:
        """The ids of the unknown token, the start and the end of a text."""
        ...

    def __len__(self) -> int:
        """The number of tokens, the special ones among them."""
        ...

    def split(self, text: str) -> list[str]:
        """The tokens of one text, known or not."""
        ...

    def join(self, tokens: Sequence[str]) -> str:
        """Readable text; what is joined of the first tokens stays as it is when more follow."""
        ...

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """Ids of tokens; that of the unknown token where there is none."""
        ...

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Tokens of ids."""
        ...

    def follows(self, tokens: Sequence[str], more: Sequence[str]) -> bool:
        """Whether `more` may follow `tokens`, whose last may have been cut: joined and split they come out the same.

        So that no text can be written in two ways.
        """
        ...


class TextTokenizer:
    """The `Tokenizer` of a vocabulary of whole words or characters, split as the config of a run says."""

    def __init__(self, vocabulary: Vocabulary, data: DataConfig) -> None:
        self.vocabulary, self.data = vocabulary, data

    @property
    def specials(self) -> Specials:
        """See `Tokenizer`."""
        return self.vocabulary.specials

    def __len__(self) -> int:
        return len(self.vocabulary)

    @cached_property
    def split(self) -> Callable[[str], list[str]]:
        """See `Tokenizer`."""
        return splitter(self.data)

    def join(self, tokens: Sequence[str]) -> str:
        """See `Tokenizer`."""
        return join(tokens, self.data.unit)

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """See `Tokenizer`."""
        return self.vocabulary.encode(tokens)

    def decode(self, ids: Iterable[int]) -> list[str]:
        """See `Tokenizer`."""
        return self.vocabulary.decode(ids)

    def follows(self, tokens: Sequence[str], more: Sequence[str]) -> bool:
        """See `Tokenizer`."""
        both = [*tokens, *more]
        return self.split(self.join(both)) == both
