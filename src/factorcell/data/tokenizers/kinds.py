"""The kinds of tokenizers: how a config and a run folder select one.

The kinds are `word`, `space` (split at white space only), `char` (Unicode code points after NFC), `grapheme` (grapheme
clusters, such as a letter with its accents, a flag or a family emoji), `bpe` (pieces of words) and `pretrained`.
"""

from pathlib import Path
from typing import Any

from factorcell.config import EXTENSIBLE, KIND_CHECKS, Config, PretrainedTokenizerOptions
from factorcell.data.tokenizers.bpe import BpeTokenizer, PretrainedTokenizer
from factorcell.data.tokenizers.tokenizer import (
    CharacterTokenizer,
    GraphemeTokenizer,
    SpaceTokenizer,
    Tokenizer,
    WordTokenizer,
)
from factorcell.errors import UserError
from factorcell.io import input_files

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
    """Return the tokenizer that `Tokenizer.save` wrote; raise a `UserError` if a file is missing or damaged."""
    cls = tokenizer_class(config.tokenizer.kind)
    contents = {name: input_files.read_bytes(folder / name) for name in cls.FILES}
    try:
        return cls.from_contents(config.tokenizer, contents)
    except (ValueError, OverflowError) as error:
        raise UserError(f"{folder / cls.FILES[0]}: damaged ({error})") from None
