"""Text to tokens and back.

Units: `word` (the tokeniser below), `space` (split at white space only), `char` (Unicode code points after NFC) and
`grapheme` (what a reader calls a character: a letter with its accents, a flag, a family of emoji).

The word tokeniser, after NFC: a word is letters, marks and digits, with apostrophes and hyphens inside (`don't`,
`well-kept`) and, between digits, one of . , : / (`3.50`, `10:30`); a run of one repeated mark (`...`, `!!`) is one
token; any other visible character stands alone.
"""

import unicodedata
from collections.abc import Callable, Sequence

import regex

from factorcell.config import DataConfig

WORD = regex.compile(
    r"[\p{L}\p{M}\p{N}_]+(?:['’\-][\p{L}\p{M}\p{N}]+|(?<=\p{N})[.,:/]\p{N}+)*|([^\s\p{L}\p{M}\p{N}])\1*|\S"
)


GRAPHEME = regex.compile(r"\X")


CONTENT = regex.compile(r"[\p{L}\p{N}$%]")


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
        text = unicodedata.normalize("NFC", text)
        tokens = cut(text.lower() if data.lowercase else text)
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
