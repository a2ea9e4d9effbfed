"""Fields of options with their checks, and the kinds of tokenizers, backbones and heads with their options.

A kind of another package is a class with an attribute `Options`, a dataclass that extends `KindOptions`.
`EXTENSIBLE` holds, by option, the names that other packages may add to.
"""

import dataclasses
import typing
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from factorcell.extensions import Extensions
from factorcell.limits import MAX_COUNT, MAX_FLOAT, Limits, UserError, choose

PREFIX = "prefix"  # reads the context as control codes; the other adapters change weights
ADAPTERS = ("concat", "scale", "factor", PREFIX)
CELLS = ("coupled", "lstm", "gru", "tanh", "relu")
LARGEST_HASH = 1 << 30  # so that the sum of two hashes has 32 bits
MAX_SIZE, MAX_LAYERS = 1_000_000, 100  # the largest there may be; memory sets a bound before


def option(
    default: Any,
    text: str,
    *,
    choices: tuple[str, ...] = (),
    limits: Limits | None = None,
    metavar: str = "",
    rare: bool = False,
) -> Any:
    """A dataclass field with its help text, and its valid choices or, of a number, its limits.

    `metavar` stands for a value in the help of the command line, where a `rare` one comes last.
    """
    about = {"help": text, "choices": choices, "limits": limits, "metavar": metavar, "rare": rare}
    return dataclasses.field(default=default, metadata=about)


def int_option(default: int, text: str, low: int, high: int = MAX_COUNT, *, rare: bool = False) -> Any:
    """The field of a whole number from `low` to `high`."""
    return option(default, text, limits=Limits(low, high), rare=rare)


def float_option(default: float, text: str, low: float = 0.0, high: float = MAX_FLOAT, *, rare: bool = False) -> Any:
    """The field of a number from `low` to `high`."""
    return option(default, text, limits=Limits(low, high, whole=False), rare=rare)


def rate_option(text: str, *, rare: bool = False) -> Any:
    """The field of a share that is dropped: not all, and by default nothing."""
    return option(0.0, text, limits=Limits(0, 1, whole=False, below=True), rare=rare)


def check_fields(section: Any) -> None:
    """Check every field of `section` against its type, its choices and its limits."""
    hints = typing.get_type_hints(type(section))
    for field in dataclasses.fields(section):
        value, limits = getattr(section, field.name), field.metadata.get("limits")
        value = _typed(field.name, value, hints[field.name])
        for item in value if isinstance(value, tuple) else (value,):
            if field.name in EXTENSIBLE:
                EXTENSIBLE[field.name].choose(field.name, item)
            elif choices := field.metadata.get("choices"):
                choose(field.name, item, choices)
        if limits is not None:
            limits.check(field.name, value)
        object.__setattr__(section, field.name, value)


def _typed(name: str, value: Any, hint: Any) -> Any:
    """`value` as the type `hint`; lists become tuples and whole numbers floats where a field says so."""
    if typing.get_origin(hint) is tuple:
        if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
            return tuple(value)
        raise UserError(f"{name} is {value!r}; it must be a list of names")
    if hint is float and type(value) is int and abs(value) <= MAX_FLOAT:
        return float(value)
    if type(value) is not hint:
        raise UserError(f"{name} is {value!r:.60}; it must be of type {hint.__name__}")
    return value


@dataclass(frozen=True)
class KindOptions:
    """Base of the options of one kind of tokenizer, backbone or head; a subclass sets `kind` to its name.

    Fields may be plain or made by `option`, `whole` and `real`, which give them a help text, choices and limits.
    """

    kind: str = ""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class TokenizerOptions(KindOptions):
    """Options that every tokenizer with a vocabulary of counted tokens has."""

    lowercase: bool = option(False, "lower-case the text")
    min_count: int = int_option(2, "a token seen less often in training is out of vocabulary", 1)
    max_vocabulary: int = int_option(50_000, "at most this many tokens, the most frequent", 1)


@dataclass(frozen=True)
class WordOptions(TokenizerOptions):
    """Words, numbers and punctuation marks."""

    kind: str = "word"
    lowercase: bool = option(True, "lower-case the text")
    strip_punctuation: bool = option(False, "drop tokens without a letter, digit, $ or %", rare=True)


@dataclass(frozen=True)
class SpaceOptions(WordOptions):
    """Tokens separated by white space."""

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
    layers: int = int_option(1, "recurrent layers, each with adapters of its own", 1, MAX_LAYERS)
    hidden_size: int = int_option(200, "d, size of the recurrent layer", 1, MAX_SIZE)
    layer_norm: bool = option(False, "normalise gates and memory over the hidden units (Ba et al. 2016)", rare=True)
    variational: bool = option(
        False, "dropout: one mask a text, and the recurrent one on h (Gal and Ghahramani 2016)", rare=True
    )
    dropout_recurrent: float = rate_option(
        "drop rate of the candidate (Semeniuta et al. 2016); if variational, of h where it is fed back"
    )
    dropout_input: float = rate_option("drop rate of the token embeddings")
    dropout_output: float = rate_option("drop rate of the hidden states given to the softmax or the next layer")
    dropout_token: float = rate_option("rate at which whole input tokens are replaced by zero", rare=True)


@dataclass(frozen=True)
class SoftmaxOptions(KindOptions):
    """A softmax over the token embeddings of the input layer."""

    kind: str = "softmax"
    hash_size: int = int_option(
        1 << 22, "buckets of the hashed softmax bias (the next prime)", 1, LARGEST_HASH, rare=True
    )
    bloom_size: int = int_option(
        1 << 26, "bits of its filter of pairs seen in training; 0: no filter, all pairs", 0, LARGEST_HASH, rare=True
    )


# The built-in kinds of each tagged section, the default first; other packages add their own (`EXTENSIBLE`).
OPTION_KINDS: dict[str, dict[str, type[KindOptions]]] = {
    "tokenizer": {"word": WordOptions, "space": SpaceOptions, "char": CharacterOptions, "grapheme": GraphemeOptions},
    "backbone": {"recurrent": RecurrentOptions},
    "head": {"softmax": SoftmaxOptions},
}
EXTENSIBLE = {
    "adapt": Extensions("adapter", ADAPTERS),
    "cell": Extensions("cell", CELLS),
    **{section: Extensions(section, tuple(kinds)) for section, kinds in OPTION_KINDS.items()},
}
KIND_HELP = {
    "tokenizer": "how text becomes tokens: words, parts between spaces, characters or graphemes",
    "backbone": "what reads the tokens",
    "head": "what turns the vectors of the backbone into probabilities of tokens",
}


def options_class(section: str, kind: str) -> type[KindOptions]:
    """Return the dataclass of the options of a `kind` of tokenizer, backbone or head.

    Raises:
        UserError: No kind of this `section` has this name, neither here nor in an installed package.
    """
    known = OPTION_KINDS[section]
    return known[kind] if kind in known else EXTENSIBLE[section].find_class(kind, {}, KIND_CHECKS[section]).Options


def check_kind(name: str, made: Any, base: type[KindOptions] = KindOptions) -> None:
    """Raise `UserError` unless `made` is a class whose attribute `Options`, a `base`, is for the kind `name`."""
    options = getattr(made, "Options", None)
    if not (isinstance(made, type) and isinstance(options, type) and issubclass(options, base)):
        raise UserError(
            f"{name!r} is {made!r:.60}; expected a class with `Options`, a dataclass that extends {base.__name__}"
        )
    for field in dataclasses.fields(options):
        if not isinstance(field.default, (bool, int, float, str, tuple)):
            expected = "expected a default that is a bool, int, float, str or a tuple of str"
            raise UserError(f"{name!r}: option {field.name!r}: {expected}, got {field.default!r:.60}")
    if options().kind != name:
        raise UserError(f"{name!r}: expected Options.kind to be {name!r} by default, got {options().kind!r}")


KIND_CHECKS: dict[str, Callable[[str, Any], None]] = {
    "tokenizer": partial(check_kind, base=TokenizerOptions),
    "backbone": check_kind,
    "head": check_kind,
}
