"""Kinds of tokenizers, backbones and heads: the options of each, by name.

A kind of another package is a class with an attribute `Options`, a dataclass that extends `KindOptions`.
"""

from dataclasses import dataclass
from typing import Any

from factorcell.limits import UserError
from factorcell.option_fields import (
    CELLS,
    EXTENSIBLE,
    LARGEST_HASH,
    LAYERS,
    SIZES,
    KindOptions,
    drop_rate,
    option,
    whole,
)


@dataclass(frozen=True)
class TokenizerOptions(KindOptions):
    """Options that every tokenizer with a vocabulary of counted tokens has."""

    lowercase: bool = option(False, "lower-case the text (default: words yes, characters no)")
    min_count: int = whole(2, "a token seen less often in training is out of vocabulary", 1)
    max_vocabulary: int = whole(50_000, "at most this many tokens, the most frequent", 1)


@dataclass(frozen=True)
class WordOptions(TokenizerOptions):
    """Words, numbers and punctuation marks."""

    kind: str = "word"
    lowercase: bool = option(True, "lower-case the text")
    strip_punctuation: bool = option(False, "drop tokens without a letter, digit, $ or %", rare=True)


@dataclass(frozen=True)
class SpaceOptions(WordOptions):
    """What stands between white space."""

    kind: str = "space"


@dataclass(frozen=True)
class CharacterOptions(TokenizerOptions):
    """Unicode code points."""

    kind: str = "char"
    lowercase: bool = option(False, "lower-case the text")


@dataclass(frozen=True)
class GraphemeOptions(CharacterOptions):
    """Letters with their accents, flags, emoji: what a reader calls a character."""

    kind: str = "grapheme"


@dataclass(frozen=True)
class RecurrentOptions(KindOptions):
    """Layers of recurrent cells."""

    kind: str = "recurrent"
    cell: str = option(
        "coupled", "kind of recurrent layer; coupled: the LSTM of the papers; packages may add names", choices=CELLS
    )
    layers: int = whole(1, "recurrent layers, each with adapters of its own", 1, LAYERS)
    hidden_size: int = whole(200, "d, size of the recurrent layer", 1, SIZES)
    layer_norm: bool = option(False, "normalise gates and memory over the hidden units (Ba et al. 2016)", rare=True)
    variational: bool = option(
        False, "dropout: one mask a text, and the recurrent one on h (Gal and Ghahramani 2016)", rare=True
    )
    dropout_recurrent: float = drop_rate(
        "drop rate of the candidate (Semeniuta et al. 2016); if variational, of h where it is fed back"
    )
    dropout_input: float = drop_rate("drop rate of the token embeddings")
    dropout_output: float = drop_rate("drop rate of the hidden states given to the softmax or the next layer")
    dropout_token: float = drop_rate("rate at which whole input tokens are replaced by zero", rare=True)


@dataclass(frozen=True)
class SoftmaxOptions(KindOptions):
    """A softmax over the token embeddings of the input layer."""

    kind: str = "softmax"
    hash_size: int = whole(1 << 22, "buckets of the hashed softmax bias (the next prime)", 1, LARGEST_HASH, rare=True)
    bloom_size: int = whole(
        1 << 26, "bits of its filter of pairs seen in training; 0: no filter, all pairs", 0, LARGEST_HASH, rare=True
    )


# The built-in kinds of each tagged section, the default first; other packages add their own (`EXTENSIBLE`).
KINDS: dict[str, dict[str, type[KindOptions]]] = {
    "tokenizer": {"word": WordOptions, "space": SpaceOptions, "char": CharacterOptions, "grapheme": GraphemeOptions},
    "backbone": {"recurrent": RecurrentOptions},
    "head": {"softmax": SoftmaxOptions},
}
KIND_HELP = {
    "tokenizer": "how text becomes tokens: words, what stands between spaces, characters or graphemes",
    "backbone": "what reads the tokens",
    "head": "what turns the vectors of the backbone into probabilities of tokens",
}


def options_class(section: str, kind: str) -> type[KindOptions]:
    """Return the dataclass of the options of a `kind` of tokenizer, backbone or head.

    Raises:
        UserError: No kind of this `section` has this name, neither here nor in an installed package.
    """
    if kind in KINDS[section]:
        return KINDS[section][kind]
    found: type[KindOptions] = EXTENSIBLE[section].find(kind, check_kind).Options
    return found


def check_kind(name: str, made: Any) -> None:
    """Raise `UserError` unless `made` is a class whose attribute `Options` holds the options of the kind `name`."""
    options = getattr(made, "Options", None)
    if not (isinstance(made, type) and isinstance(options, type) and issubclass(options, KindOptions)):
        raise UserError(
            f"{name!r} is {made!r:.60}; expected a class with `Options`, a dataclass that extends KindOptions"
        )
    if options().kind != name:
        raise UserError(f"{name!r}: expected Options.kind to be {name!r} by default, got {options().kind!r}")
