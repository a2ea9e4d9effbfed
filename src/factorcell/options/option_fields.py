"""Dataclass fields for options, and the built-in kinds of tokenizers, backbones and heads with their options.

A kind in another package is a class with an attribute `Options`, a dataclass that extends `KindOptions`.
Other packages can add choices to some options; `EXTENSIBLE` has the registry of the choices of each such option.
"""

import dataclasses
import functools
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from factorcell.errors import UserError, check_choice
from factorcell.options.extensions import NONE, Extensions
from factorcell.options.limits import MAX_COUNT, MAX_FLOAT, Limits, is_names, plain

# Adapters that read the context before the text, as control codes or as text; the other adapters change weights.
INPUT_ADAPTERS = PREFIX, NAMES = "prefix", "names"
ADAPTERS = ("concat", "scale", "factor", *INPUT_ADAPTERS)
CELLS = ("coupled", "lstm", "gru", "tanh", "relu")
RECORDED = ("base_digest", "base_precision", "max_dev_targets")  # fields that a training sets; they are no options
MAX_SIZE, MAX_LAYERS = 1_000_000, 100  # upper bounds of options; in practice, memory sets lower ones


# Help texts that explain the choices of an option.
CHOICE_HELP = {
    "context": "context column: NAME or NAME:KIND (repeatable); KIND is one of category, number, longitude, text, "
    "prompt, vector, cyclic=PERIOD, and for times hour, weekday, yearday; without KIND, the values decide: "
    "category or number",
    "prompt_history": "read this many earlier texts of the user before the text (only with user)",
    "adapt": (
        "how the context adapts the backbone (repeatable); concat: shifts the bias, scale: rescales the outputs, "
        "factor: adds a matrix of low rank to the weights, prefix: reads control codes before the text, names: reads "
        "the names of categories, such as city: Oslo, before the text; the default is concat and factor, with "
        "a pretrained base names and factor, and for characters with users concat, or concat and factor"
    ),
    "output_bias": (
        "what shifts the softmax bias (repeatable); low_rank: the context vector, low_rank_each: the embedding of each "
        "variable, one_hot: a coefficient for each token and value, sparse: like one_hot, with an l1 penalty, hash: "
        "coefficients in hash buckets; the default is low_rank, and none with a pretrained base or for characters with "
        "users"
    ),
    "context_layer": (
        "activation of the layer that combines the context variables; none: no layer, for a single variable"
    ),
    "cell": "recurrent cell; coupled: an LSTM with coupled input and forget gates, as in the papers",
    "device": (
        "device to compute on; auto: a GPU if there is one, but the processor for recurrent layers with layer "
        "normalization"
    ),
    "precision": (
        "number type of matrix products, and in training of the frozen weights of a base; auto: float32, but bfloat16 "
        "for a pretrained base on a GPU"
    ),
}


def option(
    default: Any,
    help_text: str,
    *,
    choices: tuple[str, ...] = (),
    limits: Limits | None = None,
    metavar: str = "",
) -> Any:
    """Declare an option as a dataclass field.

    Args:
        default: The default value.
        help_text: The help text.
        choices: The valid values, if the option is a choice.
        limits: The valid range, if the option is a number.
        metavar: The placeholder of the value in the help of the command line.

    Returns:
        A field with this metadata, for the body of a dataclass.
    """
    metadata = {"help": help_text, "choices": choices, "limits": limits, "metavar": metavar}
    return dataclasses.field(default=default, metadata=metadata)


def int_option(default: int, help_text: str, low: int, high: int = MAX_COUNT) -> Any:
    """Declare an option that is an integer from `low` to `high`."""
    return option(default, help_text, limits=Limits(low, high))


def float_option(default: float, help_text: str, low: float = 0.0, high: float = MAX_FLOAT) -> Any:
    """Declare an option that is a number from `low` to `high`."""
    return option(default, help_text, limits=Limits(low, high, whole=False))


def option_fields(cls: Any) -> list[dataclasses.Field[Any]]:
    """Return the fields of a section that users may set."""
    return [field for field in dataclasses.fields(cls) if field.name not in RECORDED]


def rate_option(help_text: str) -> Any:
    """Declare an option that is a dropout rate, from 0 (the default) to below 1."""
    return option(0.0, help_text, limits=Limits(0, 1, whole=False, below=True))


@functools.cache
def option_types(cls: Any) -> dict[str, type]:
    """Return the type of each option of a dataclass: bool, int, float, str, or tuple; raise `UserError` for others."""
    try:
        hints = typing.get_type_hints(cls)  # annotations may be strings (PEP 563)
    except (NameError, TypeError, SyntaxError, AttributeError) as error:
        raise UserError(f"{cls.__qualname__}: the type of an option cannot be resolved ({error})") from None
    hints = {field.name: hints[field.name] for field in dataclasses.fields(cls)}
    for name, hint in hints.items():
        if hint not in (bool, int, float, str, tuple[str, ...]):
            expected = "expected bool, int, float, str or tuple[str, ...]"
            raise UserError(f"option {name!r}: {expected}; got the type {hint!r:.60}")
    return {name: typing.get_origin(hint) or hint for name, hint in hints.items()}


def check_fields(section: Any) -> None:
    """Raise `UserError` unless every field of the dataclass `section` is valid; convert values to plain ones."""
    cls: Any = type(section)
    types = option_types(cls)
    for field in dataclasses.fields(section):
        value = _convert(field.name, getattr(section, field.name), types[field.name])
        choices = field.metadata.get("choices", ())
        if isinstance(value, tuple) and choices:  # `none` is an empty list of choices
            value = tuple(item for item in value if item != NONE)
        for item in value if isinstance(value, tuple) else (value,):
            if field.name in EXTENSIBLE:
                EXTENSIBLE[field.name].check_choice(field.name, item)
            elif choices:
                check_choice(field.name, item, choices)
        if (limits := field.metadata.get("limits")) is not None:
            value = limits.check(field.name, value)
        object.__setattr__(section, field.name, value)


def _convert(name: str, value: Any, option_type: type) -> Any:
    """Return `value` as a plain value of `option_type`; an integer becomes a float; raise `UserError` otherwise."""
    value = plain(value)
    if option_type is tuple and not is_names(value):
        raise UserError(f"{name} is {value!r}; it must be a list of names")
    if option_type is float and type(value) is int and abs(value) <= MAX_FLOAT:
        return float(value)
    if type(value) is not option_type:
        raise UserError(f"{name} is {value!r:.60}; it must be of type {option_type.__name__}")
    return value


@dataclass(frozen=True)
class KindOptions:
    """Base class of the options of one kind of tokenizer, backbone or head.

    A subclass is a frozen dataclass in which the default of `kind` is the name of the kind. The other fields may have
    plain defaults or be declared by `option`, `int_option` and `float_option`, which add help texts and limits. Their
    annotations are bool, int, float, str or tuple[str, ...].
    """

    kind: str = ""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class TokenizerOptions(KindOptions):
    """The options that every tokenizer has."""

    lowercase: bool = option(False, "convert the text to lower case")
    min_count: int = int_option(2, "tokens that occur less often in the training texts are out of vocabulary", 1)
    max_vocabulary: int = int_option(
        50_000, "maximum size of the vocabulary, which consists of the most frequent tokens", 1
    )


@dataclass(frozen=True)
class WordOptions(TokenizerOptions):
    """Options of the tokenizer whose tokens are words, numbers and punctuation marks."""

    kind: str = "word"
    lowercase: bool = option(True, "convert the text to lower case")


@dataclass(frozen=True)
class SpaceOptions(WordOptions):
    """Options of the tokenizer that splits texts at white space."""

    kind: str = "space"


@dataclass(frozen=True)
class CharacterOptions(TokenizerOptions):
    """Options of the tokenizer whose tokens are Unicode code points."""

    kind: str = "char"


@dataclass(frozen=True)
class GraphemeOptions(CharacterOptions):
    """Options of the tokenizer of grapheme clusters: letters with accents, flags and emoji are one token each."""

    kind: str = "grapheme"


@dataclass(frozen=True)
class BpeOptions(TokenizerOptions):
    """Options of the tokenizer of pieces of words, which are learned by byte-pair encoding of the training texts."""

    kind: str = "bpe"
    min_count: int = int_option(2, "pairs that occur less often in the training texts are not merged", 1)
    max_vocabulary: int = int_option(
        0, "maximum size of the vocabulary; 0: chosen from the number of words in the training texts", 0
    )


@dataclass(frozen=True)
class PretrainedTokenizerOptions(TokenizerOptions):
    """Options of the tokenizer of the pretrained model that `base` names; its vocabulary is fixed."""

    kind: str = "pretrained"


@dataclass(frozen=True)
class RecurrentOptions(KindOptions):
    """Options of the backbone with recurrent layers."""

    kind: str = "recurrent"
    cell: str = option("coupled", CHOICE_HELP["cell"], choices=CELLS)
    layers: int = int_option(1, "recurrent layers, each with its own adapters", 1, MAX_LAYERS)
    hidden_size: int = int_option(200, "size d of the hidden state", 1, MAX_SIZE)
    layer_norm: bool = option(False, "normalize the gates and the memory of each layer (Ba et al. 2016)")
    variational: bool = option(
        False,
        "variational dropout (Gal and Ghahramani 2016): one mask for all steps of a text, and recurrent dropout of the "
        "hidden state",
    )
    dropout_recurrent: float = rate_option(
        "dropout rate of the new values for the memory (Semeniuta et al. 2016); with the option variational, dropout "
        "rate of the hidden state before it is multiplied by the recurrent weights"
    )
    dropout_input: float = rate_option("dropout rate of the token embeddings")
    dropout_output: float = rate_option("dropout rate of the hidden states, before the softmax or the next layer")


@dataclass(frozen=True)
class HuggingFaceOptions(KindOptions):
    """Options of the backbone that is a causal language model of the Hugging Face library `transformers`."""

    kind: str = "huggingface"
    base: str = option(
        "",
        "pretrained Transformer to adapt: a folder, a GGUF file, or the name of a model on the hub; for a new "
        "Transformer, use the option architecture instead",
        metavar="MODEL",
    )
    architecture: str = option(
        "", "architecture of a new Transformer with random weights, such as llama, gpt2 or qwen2", metavar="NAME"
    )
    train_base: bool = option(False, "train the weights of a pretrained model too, not only the adapters")
    target_modules: tuple[str, ...] = option(
        (),
        "linear map to adapt, by its last name in the model, such as q_proj (repeatable); by default all in the layers",
        metavar="NAME",
    )
    shared_rank: int = int_option(
        32, "rank of the LoRA of a frozen pretrained model that all contexts share; 0: none", 0, MAX_SIZE
    )
    prefix_vectors: int = int_option(0, "vectors made from the context that are read before each text", 0, 1000)
    layers: int = int_option(4, "layers of a new model", 1, MAX_LAYERS)
    hidden_size: int = int_option(256, "size of the vectors of a new model", 1, MAX_SIZE)
    dropout_input: float = rate_option("dropout rate of the token embeddings")
    dropout_output: float = rate_option("dropout rate of the vectors before the softmax")
    base_digest: str = ""  # SHA-256 of the weights of the base; other weights are refused
    base_precision: str = ""  # the number type of the frozen weights of the base

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.base) == bool(self.architecture):
            values = f"{self.base!r} and {self.architecture!r}" if self.base else "neither"
            raise UserError(
                f"backbone {self.kind}: expected either base, a pretrained model, or architecture, that of a new "
                f"model; got {values}"
            )

    def __str__(self) -> str:
        return f"base {self.base!r}" if self.base else f"architecture {self.architecture!r}"

    @property
    def is_pretrained(self) -> bool:
        """Whether the weights are those of a pretrained model; otherwise, they begin at random values."""
        return bool(self.base)

    @property
    def is_frozen(self) -> bool:
        """Whether the weights of a pretrained model stay as they are."""
        return self.is_pretrained and not self.train_base

    @property
    def is_frozen_in_bfloat16(self) -> bool:
        """Whether the frozen weights of a pretrained model are stored in bfloat16."""
        return self.is_frozen and self.base_precision == "bfloat16"


@dataclass(frozen=True)
class SoftmaxOptions(KindOptions):
    """Options of the head with a softmax whose weights are the token embeddings."""

    kind: str = "softmax"


# The built-in kinds of the sections that have kinds; the first kind of a section is the default.
OPTION_KINDS: dict[str, dict[str, type[KindOptions]]] = {
    "tokenizer": {
        "word": WordOptions,
        "space": SpaceOptions,
        "char": CharacterOptions,
        "grapheme": GraphemeOptions,
        "bpe": BpeOptions,
        "pretrained": PretrainedTokenizerOptions,
    },
    "backbone": {"recurrent": RecurrentOptions, "huggingface": HuggingFaceOptions},
    "head": {"softmax": SoftmaxOptions},
}
EXTENSIBLE = {
    "adapt": Extensions("adapter", ADAPTERS),
    "cell": Extensions("cell", CELLS),
    **{section: Extensions(section, tuple(kinds)) for section, kinds in OPTION_KINDS.items()},
}
TRANSFORMER_OPTIONS = ("base", "architecture")  # each of them selects a Transformer as backbone
KIND_HELP = {
    "tokenizer": (
        "how text is split into tokens: words, parts between spaces, characters, graphemes, pieces of words, or as a "
        "pretrained model does"
    ),
    "backbone": "network that turns the tokens read so far into a vector",
    "head": "network that turns the vector of the backbone into probabilities of the next token",
}


def kinds_of_transformer(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the kinds, by section, that `base` or `architecture` among `options` select if no others are specified.

    Raise `UserError` if the options have a `backbone` without this option.
    """
    names = [name for name in TRANSFORMER_OPTIONS if name in options]
    backbone = str(options.get("backbone", HuggingFaceOptions.kind))
    if names and backbone != HuggingFaceOptions.kind:
        names_of_backbone = {field.name for field in dataclasses.fields(options_class("backbone", backbone))}
        for name in names:
            if name not in names_of_backbone:
                raise UserError(f"{name} requires backbone {HuggingFaceOptions.kind}, got {backbone}")
        return {}
    kinds = {"backbone": HuggingFaceOptions.kind} if names else {}
    return kinds | ({"tokenizer": PretrainedTokenizerOptions.kind} if options.get("base") else {})


def options_class(section: str, kind: str) -> type[KindOptions]:
    """Return the dataclass with the options of a `kind` of tokenizer, backbone or head, built in or of a package."""
    if kind in OPTION_KINDS[section]:
        return OPTION_KINDS[section][kind]
    options: type[KindOptions] = EXTENSIBLE[section].find_class(kind, {}, KIND_CHECKS[section]).Options
    return options


def check_kind(name: str, cls: Any, base: type[KindOptions] = KindOptions) -> None:
    """Raise `UserError` unless `cls` is a class whose attribute `Options` extends `base` and has the kind `name`."""
    options = getattr(cls, "Options", None)
    if not (isinstance(cls, type) and isinstance(options, type) and issubclass(options, base)):
        raise UserError(
            f"{name!r}: expected a class with `Options`, a dataclass that extends {base.__name__}, got {cls!r:.60}"
        )
    for field in dataclasses.fields(options):
        if field.default is dataclasses.MISSING:
            raise UserError(f"{name!r}: option {field.name!r}: expected a default, got none")
    try:
        kind = options().kind
    except UserError as error:
        raise UserError(f"{name!r}: {error}") from None
    if kind != name:
        raise UserError(f"{name!r}: expected Options.kind to be {name!r} by default, got {kind!r}")


KIND_CHECKS: dict[str, Callable[[str, Any], None]] = {
    "tokenizer": partial(check_kind, base=TokenizerOptions),
    "backbone": check_kind,
    "head": check_kind,
}
