"""All options of a run, each declared once with its help text, choices and limits.

A `Config` has six sections, which are dataclasses. In `tokenizer`, `backbone` and `head`, the option `kind` decides
which dataclass it is. The flags of the command line, the keys of TOML files and those of config.json are derived from
the fields. Apart from `kind`, no two sections have an option of the same name, so that sections need not be named
(`Config.of`). Other packages add kinds: classes with an attribute `Options`, a dataclass that extends `KindOptions`.
"""

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

from factorcell.errors import UserError, check_choice, check_format
from factorcell.io import input_files
from factorcell.options.columns import Column, column_texts
from factorcell.options.extensions import NONE, Extensions
from factorcell.options.limits import MAX_COUNT, MAX_FLOAT, MAX_SEED, Limits, is_names, plain

# Adapters that read the context before the text, as control codes or as text; the other adapters change weights.
INPUT_ADAPTERS = PREFIX, NAMES = "prefix", "names"
ADAPTERS = ("concat", "scale", "factor", *INPUT_ADAPTERS)
CELLS = ("coupled", "lstm", "gru", "tanh", "relu")
BASE_FACTS = ("base_digest", "base_precision")
RECORDED = (*BASE_FACTS, "max_dev_targets")  # fields that a training sets; users cannot set them
MAX_SIZE, MAX_LAYERS = 1_000_000, 100  # upper bounds of options; in practice, memory sets lower ones
FORMAT = 1  # the format number that config.json of a run folder contains
CONTEXT_LAYERS = ("tanh", "relu", "linear", "none")
LOW_RANK_BIASES = ("low_rank", "low_rank_each")  # softmax biases that read the embeddings of values
OUTPUT_BIASES = (*LOW_RANK_BIASES, "one_hot", "sparse", "hash")
PRECISIONS, DEVICES = ("auto", "float32", "bfloat16"), ("auto", "cpu", "cuda")
MAX_THREADS = 1024
HISTORY_COLUMN, MAX_PROMPT_HISTORY = "previous_texts", 20  # the column of the option `prompt_history`, and its limit
MIN_PROMPT_TOKENS = 100  # of a prompt at least this many tokens are read, if it has them

# Named models: the adaptations of the recurrent layer, and the adaptations of the softmax bias. The TACL paper defines
# the first four (section 2). `scalecell` rescales rows of the weights (thesis, section 3.2), and `prefix` reads the
# context as control codes.
MODELS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "unadapted": ((), ()),
    "softmaxbias": ((), ("low_rank",)),
    "concatcell": (("concat",), ("low_rank",)),
    "factorcell": (("concat", "factor"), ("low_rank",)),
    "scalecell": (("concat", "scale"), ("low_rank",)),
    "prefix": ((PREFIX,), ()),
}
PAPER_MODELS = ("unadapted", "softmaxbias", "concatcell", "factorcell")

DEVICE_HELP = "device to compute on; auto: a GPU if there is one"
PRECISION_HELP = (
    "number type of matrix products, and in training of the frozen weights of a base; auto: float32, but bfloat16 "
    "for a pretrained base on a GPU"
)


RATE: dict[str, Any] = {"high": 1, "excluded": "high"}  # limits of a dropout rate


def option(
    default: Any,
    help_text: str,
    low: float = 0,
    high: float | None = None,
    *,
    excluded: str = "",
    choices: tuple[str, ...] = (),
    metavar: str = "",
) -> Any:
    """Declare an option as a dataclass field with its default and its help text.

    A number is valid from `low` to `high`, if that is not None, without the end, "low" or "high", that is `excluded`.
    `choices` are the valid values of a choice, and `metavar` is the placeholder of a value in the help.
    """
    limits = None
    if isinstance(default, int | float) and not isinstance(default, bool):
        largest = MAX_COUNT if isinstance(default, int) else MAX_FLOAT
        limits = Limits(low, largest if high is None else high, isinstance(default, int), excluded)
    metadata = {"help": help_text, "choices": choices, "limits": limits, "metavar": metavar}
    return dataclasses.field(default=default, metadata=metadata)


def option_fields(cls: Any) -> list[dataclasses.Field[Any]]:
    """Return the fields of a section that users may set."""
    return [field for field in dataclasses.fields(cls) if field.name not in RECORDED]


def option_types(cls: Any) -> dict[str, type]:
    """Return the type of each option of a dataclass, which is that of its default: bool, int, float, str or tuple."""
    return {field.name: type(field.default) for field in dataclasses.fields(cls)}


def check_fields(section: Any) -> None:
    """Raise `UserError` unless every field of the dataclass `section` is valid; convert values to plain ones."""
    for field in dataclasses.fields(section):
        object.__setattr__(section, field.name, _check_value(field, getattr(section, field.name)))


def _check_value(field: dataclasses.Field[Any], value: Any) -> Any:
    """Return the value of an option as a plain value of its type; raise `UserError` if it is not valid."""
    name, option_type, value = field.name, type(field.default), plain(value)
    choices, limits = field.metadata.get("choices"), field.metadata.get("limits")
    if option_type is tuple and not is_names(value):
        raise UserError(f"{name} is {value!r}; it must be a list of names")
    if option_type is float and type(value) is int and abs(value) <= MAX_FLOAT:
        value = float(value)
    value_type: type = type(value)
    if value_type is not option_type:
        raise UserError(f"{name} is {value!r:.60}; it must be of type {option_type.__name__}")
    if option_type is tuple and choices:  # `none` is an empty list of choices
        value = tuple(item for item in value if item != NONE)
    for item in value if option_type is tuple else (value,):
        if name in EXTENSIBLE:
            EXTENSIBLE[name].check_choice(name, item)
        elif choices:
            check_choice(name, item, choices)
    return limits.check(name, value) if limits else value


@dataclass(frozen=True)
class KindOptions:
    """Base class of the options of one kind of tokenizer, backbone or head.

    A subclass is a frozen dataclass in which the default of `kind` is the name of the kind. The other fields are bool,
    int, float, str or tuple[str, ...], and may be declared by `option`, which adds help texts and limits.
    """

    kind: str = ""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class TokenizerOptions(KindOptions):
    """The options that every tokenizer has."""

    lowercase: bool = option(False, "convert the text to lower case")
    min_count: int = option(2, "tokens that occur less often in the training texts are out of vocabulary", 1)
    max_vocabulary: int = option(
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
    min_count: int = option(2, "pairs that occur less often in the training texts are not merged", 1)
    max_vocabulary: int = option(
        0, "maximum size of the vocabulary; 0: chosen from the number of words in the training texts"
    )


@dataclass(frozen=True)
class PretrainedTokenizerOptions(TokenizerOptions):
    """Options of the tokenizer of the pretrained model that `base` names; its vocabulary is fixed."""

    kind: str = "pretrained"


@dataclass(frozen=True)
class RecurrentOptions(KindOptions):
    """Options of the backbone with recurrent layers."""

    kind: str = "recurrent"
    cell: str = option(
        "coupled",
        "recurrent cell; coupled: an LSTM with coupled input and forget gates, as in the papers",
        choices=CELLS,
    )
    layers: int = option(1, "recurrent layers, each with its own adapters", 1, MAX_LAYERS)
    hidden_size: int = option(200, "size d of the hidden state", 1, MAX_SIZE)
    layer_norm: bool = option(False, "normalize the gates and the memory of each layer (Ba et al. 2016)")
    variational: bool = option(
        False,
        "variational dropout (Gal and Ghahramani 2016): one mask for all steps of a text, and recurrent dropout of the "
        "hidden state",
    )
    dropout_recurrent: float = option(
        0.0,
        "dropout rate of the new values for the memory (Semeniuta et al. 2016); with the option variational, dropout "
        "rate of the hidden state before it is multiplied by the recurrent weights",
        **RATE,
    )
    dropout_input: float = option(0.0, "dropout rate of the token embeddings", **RATE)
    dropout_output: float = option(
        0.0, "dropout rate of the hidden states, before the softmax or the next layer", **RATE
    )


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
    shared_rank: int = option(
        32, "rank of the LoRA of a frozen pretrained model that all contexts share; 0: none", 0, MAX_SIZE
    )
    prefix_vectors: int = option(0, "vectors made from the context that are read before each text", 0, 1000)
    layers: int = option(4, "layers of a new model", 1, MAX_LAYERS)
    hidden_size: int = option(256, "size of the vectors of a new model", 1, MAX_SIZE)
    dropout_input: float = option(0.0, "dropout rate of the token embeddings", **RATE)
    dropout_output: float = option(0.0, "dropout rate of the vectors before the softmax", **RATE)
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
DEFAULT_KINDS = {section: next(iter(kinds)) for section, kinds in OPTION_KINDS.items()}
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
    if backbone != HuggingFaceOptions.kind:
        for name in names:
            if name not in option_types(options_class("backbone", backbone)):
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
    for option_name, option_type in option_types(options).items():
        if option_type not in (bool, int, float, str, tuple):
            expected = "expected a default of type bool, int, float, str or tuple"
            raise UserError(f"{name!r}: option {option_name!r}: {expected}, got {option_type.__name__}")
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


@dataclass(frozen=True)
class DataConfig:
    """Options that decide which columns of a table are read, and how."""

    text: str = option("text", "column with the text", metavar="COLUMN")
    context: tuple[str, ...] = option(
        (),
        "context column: NAME or NAME:KIND (repeatable); KIND is one of category, number, longitude, text, "
        "prompt, vector, cyclic=PERIOD, and for times hour, weekday, yearday; KIND=NOTATION reads cells in a "
        "notation: point, comma, day-first or month-first; without KIND, the values decide: category or number",
        metavar="NAME[:KIND]",
    )
    user: str = option(
        "", "column with the author of each text, a context that can be learned online for new users", metavar="COLUMN"
    )
    time: str = option("", "column with the time of writing, which orders the texts of each user", metavar="COLUMN")
    prompt_history: int = option(
        0, "read this many earlier texts of the user before the text (only with user)", 0, MAX_PROMPT_HISTORY
    )
    max_tokens: int = option(
        200, "cut texts after this many tokens; of a prompt, half as many are read, but at least 100", 1, MAX_SIZE
    )
    min_context_count: int = option(
        0,
        "treat category values with fewer training texts as one unknown value; 0: a 600th of the texts, from 5 to 50; "
        "in columns of kind text, a word must occur this often, or 5 times if that is less",
    )
    min_user_count: int = option(
        15, "treat users with fewer training texts as one unknown user, from which new users start", 1
    )
    anonymous: bool = option(False, "store no user names; the run then treats all users as unknown")
    min_text_users: int = option(
        3, "store a text as a popular completion if at least this many users wrote it (only with user)", 1
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "context", column_texts(self.context))
        check_fields(self)
        if self.anonymous and not self.user:
            raise UserError("anonymous requires the column with the author of each text; set user")
        if self.prompt_history and not self.user:
            raise UserError("prompt_history requires the column with the author of each text; set user")

    @property
    def columns(self) -> tuple[str, ...]:
        """All context columns, by name or by name and kind, including those of `user` and prompts."""
        user = (f"{self.user}:category",) if self.user else ()
        history = (f"{HISTORY_COLUMN}:prompt",) if self.prompt_history else ()
        return (*self.context, *user, *history)

    @property
    def max_prompt_tokens(self) -> int:
        """The number of tokens of a prompt that are read, the last ones."""
        return max(MIN_PROMPT_TOKENS, self.max_tokens // 2)

    def min_value_count(self, texts: int) -> int:
        """Return the smallest count of a frequent category value: by default a 600th of the texts, from 5 to 50."""
        return self.min_context_count or min(50, max(5, texts // 600))


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the context vector and the token embeddings, and the adaptations of the model."""

    adapt: tuple[str, ...] = option(
        ("concat", "factor"),
        "how the context adapts the backbone (repeatable); concat: shifts the bias, scale: rescales the outputs, "
        "factor: adds a matrix of low rank to the weights, prefix: reads control codes before the text, names: reads "
        "the names of categories, such as city: Oslo, before the text; the default is concat and factor, with "
        "a pretrained base names and factor, and for characters with users concat, or concat and factor",
        choices=ADAPTERS,
    )
    output_bias: tuple[str, ...] = option(
        ("low_rank",),
        "what shifts the softmax bias (repeatable); low_rank: the context vector, low_rank_each: the embedding of each "
        "variable, one_hot: a coefficient for each token and value, sparse: like one_hot, with an l1 penalty, hash: "
        "coefficients in hash buckets; the default is low_rank, and none with a pretrained base or for characters with "
        "users",
        choices=OUTPUT_BIASES,
    )
    embedding_size: int = option(150, "size e of a token embedding", 1, MAX_SIZE)
    variable_size: int = option(16, "size of the embedding of a variable that is not a number", 1, MAX_SIZE)
    context_size: int = option(16, "size k of the context vector", 1, MAX_SIZE)
    context_layer: str = option(
        "tanh",
        "activation of the layer that combines the context variables; none: no layer, for a single variable",
        choices=CONTEXT_LAYERS,
    )
    rank: int = option(12, "rank r of the matrix that factor adds to the weights; 0: no such matrix", 0, MAX_SIZE)
    dropout_context: float = option(
        0.0, "rate at which training replaces category values by the unknown value, to train its embedding", **RATE
    )

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class TrainingConfig:
    """Options of training."""

    epochs: float = option(
        10.0, "passes over the training texts, with at least one step; fractions are allowed", high=1e6, excluded="low"
    )
    steps: int = option(0, "training steps; 0: those of epochs")
    min_users: int = option(
        0,
        "learn a token of a text only if at least this many users wrote it after the same 3 tokens (tokenizers word "
        "and space: after the same 1 token); 0: learn all tokens",
    )
    batch_tokens: int = option(4000, "tokens per batch, including padding", 1)
    learning_rate: float = option(1e-3, "peak learning rate of Adam")
    token_rate: float = option(
        1.0, "factor on the learning rate of parameters with one row per token or context value, such as embeddings"
    )
    weight_decay: float = option(0.0, "decoupled weight decay of the matrices, as in AdamW")
    sparse_l1: tuple[str, ...] = option(
        ("1e-6",),
        "l1 penalty of the sparse softmax bias in nats per target: NUMBER, or NAME=NUMBER for one variable "
        "(repeatable)",
        metavar="[NAME=]NUMBER",
    )
    samples: int = option(
        0, "compute the softmax in training over this many sampled tokens and the target; 0: over all tokens"
    )
    evaluations: int = option(10, "evaluations on the development texts, at equal intervals", 1)
    patience: int = option(0, "stop after this many evaluations without improvement; 0: never")
    max_dev_targets: int = 0  # the number of development targets that evaluations read; 0: all
    ngram_mixture: bool = option(False, "mix the trained model with n-gram counts of its texts if that is better")
    seed: int = option(0, "random seed of the initial weights, the order of texts and dropout", 0, MAX_SEED)
    threads: int = option(0, "number of threads; 0: one per core", 0, MAX_THREADS)
    precision: str = option("auto", PRECISION_HELP, choices=PRECISIONS)
    device: str = option("auto", DEVICE_HELP, choices=DEVICES)

    def __post_init__(self) -> None:
        check_fields(self)
        for item in self.sparse_l1:
            parse_assignment(item)
        if self.ngram_mixture and self.min_users:
            raise UserError("ngram_mixture: n-gram counts would reveal what min_users protects; use only one of them")


def parse_assignment(text: str) -> tuple[str, float]:
    """Parse an item of `sparse_l1`, NUMBER or NAME=NUMBER, into a variable (empty: all variables) and the number."""
    name, _, number = text.rpartition("=")
    try:
        return name, Limits(0, MAX_FLOAT, whole=False).parse(number)
    except UserError as error:
        raise UserError(f"sparse_l1 {text!r}: expected NUMBER or NAME=NUMBER; {error}") from None


def sparse_penalties(texts: Iterable[str], variables: Sequence[str]) -> list[float]:
    """Return the l1 penalty that the items of `sparse_l1` set for each of the `variables`; 0 if no item sets one."""
    numbers = dict(map(parse_assignment, texts))
    for name in numbers.keys() - {"", *variables}:
        check_choice("variable in sparse_l1", name, variables)
    return [numbers.get(name, numbers.get("", 0.0)) for name in variables]


def selected_kinds(sections: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the kinds, by section, that options (by section and name) select by `kind`, `base` or `architecture`.

    Raise `UserError` for unknown sections and options that contradict each other.
    """
    names = [field.name for field in dataclasses.fields(Config)]
    if not isinstance(sections, Mapping):
        raise UserError(f"expected the sections {', '.join(names)}, got a {type(sections).__name__}")
    kinds: dict[str, str] = {}
    for section, content in sections.items():
        check_choice("section", section, names)
        if not isinstance(content, Mapping):
            raise UserError(f"{section}: expected a table of options, got {content!r:.60}")
        if section in OPTION_KINDS and "kind" in content:
            kinds[section] = plain(content["kind"])
            if not isinstance(kinds[section], str):
                raise UserError(f"kind in [{section}] is {content['kind']!r:.60}; it must be of type str")
    return kinds_of_transformer({**sections.get("backbone", {}), **kinds}) | kinds


def section_types(kinds: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the dataclass of each section of a `Config`; `kinds` maps sections to kinds other than the default.

    Raise `UserError` if a kind does not exist, or if two sections have an option of the same name.
    """
    types: dict[str, Any] = {"data": DataConfig, "model": ModelConfig, "training": TrainingConfig}
    types |= {section: options_class(section, kind) for section, kind in {**DEFAULT_KINDS, **(kinds or {})}.items()}
    types = {item.name: types[item.name] for item in dataclasses.fields(Config)}  # in this order
    section_by_option: dict[str, str] = {}
    for section, cls in types.items():
        for item in dataclasses.fields(cls):
            first = section_by_option.setdefault(item.name, section)
            if item.name != "kind" and first != section:
                raise UserError(f"[{first}] and [{section}] both have the option {item.name!r}; rename one of them")
    return types


@dataclass(frozen=True)
class Config:
    """All options of a run, in six sections; raises `UserError` if an option is not valid or contradicts another."""

    data: DataConfig = DataConfig()
    tokenizer: TokenizerOptions = dataclasses.field(default_factory=WordOptions)
    model: ModelConfig = ModelConfig()
    backbone: KindOptions = dataclasses.field(default_factory=RecurrentOptions)
    head: KindOptions = dataclasses.field(default_factory=SoftmaxOptions)
    training: TrainingConfig = TrainingConfig()

    def __post_init__(self) -> None:
        if self.training.min_users and not self.data.user:
            raise UserError("min_users requires the column with the author of each text; set user")
        if self.training.min_users and "hash" in self.model.output_bias:
            problem = "a hashed bias would reveal which user wrote a word"
            raise UserError(f"output_bias: {problem}, which min_users protects; use only one of them")

    @classmethod
    def of(cls, **options: Any) -> "Config":
        """Create a config from options as in `options_by_section`: `Config.of(tokenizer="char", rank=8)`."""
        return cls.from_dict(options_by_section(options))

    def with_options(self, **options: Any) -> "Config":
        """Return a copy of this config with changed options, as in `options_by_section`.

        If a kind changes, its options get their defaults.
        """
        return Config.from_dict(options_by_section({"steps": self.training.steps, **options, "config": self}))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "") -> "Config":
        """Create a config from nested dicts of plain values; missing options get their defaults.

        Args:
            values: Options by section and name.
            where: The source that error messages name, if any.

        Raises:
            UserError: A section or an option is unknown, or a value is invalid.
        """
        try:
            types = section_types(selected_kinds(values))
            return cls(**{name: _create_section(types[name], name, values.get(name, {})) for name in types})
        except UserError as error:
            raise UserError(f"{where}: {error}" if where else str(error)) from None

    def to_dict(self) -> dict[str, Any]:
        """Return the options as nested dicts of plain values, ready for JSON."""
        return dataclasses.asdict(self)

    def to_toml(self) -> str:
        """Return this config as TOML that `load` can read."""
        lines = []
        for section, values in self.to_dict().items():
            lines.append(f"[{section}]")
            lines += [f"{name} = {_to_toml(value)}" for name, value in values.items()]
        return "\n".join(lines) + "\n"

    def format_options(self, names: Iterable[str]) -> str:
        """Format the options `names` with their values in one line, with values in TOML notation."""
        values = {name: value for section in self.to_dict().values() for name, value in section.items()}
        return ", ".join(f"{name} {_to_toml(values[name])}" for name in names)

    @property
    def model_name(self) -> str:
        """The name of this config in `MODELS`; if it has no such name, the adaptations joined by +."""
        adapt, output_bias = self.model.adapt, self.model.output_bias
        names = (name for name, adaptations in MODELS.items() if adaptations == (adapt, output_bias))
        return next(names, "+".join((*adapt, *output_bias)))


def option_sections(kinds: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the section of each option that a config with these kinds has."""
    fields = [(section, field) for section, cls in section_types(kinds).items() for field in option_fields(cls)]
    return {field.name: section for section, field in fields if field.name != "kind"}


def options_by_section(
    options: Mapping[str, Any], others: Iterable[str] = (), minutes: float | None = None
) -> dict[str, dict[str, Any]]:
    """Return options that are named without their sections, as on the command line, by section, or raise a `UserError`.

    Args:
        options: Options by name. `tokenizer`, `backbone` and `head` select kinds, `model` a model in `MODELS`. `config`
            is a `Config` or the path of a file of options. The other options override `model`; both override `config`.
        others: Further names that the error about an unknown name may suggest.
        minutes: A time limit of the training, which replaces the steps and passes of `config`, as new `epochs` do.
    """
    options = dict(options)
    model, config = options.pop("model", None), options.pop("config", None)
    base_options = config.to_dict() if isinstance(config, Config) else read_options(config) if config else {}
    if base_options and (minutes is not None or "epochs" in options):
        training = base_options.get("training", {})
        base_options["training"] = {name: training[name] for name in training if name not in ("steps", "epochs")}
    kinds = kinds_of_transformer(options)
    kinds |= {section: options.pop(section) for section in OPTION_KINDS if section in options}
    kinds_in_file = DEFAULT_KINDS | selected_kinds(base_options)
    changed = {section for section, kind in kinds.items() if kind != kinds_in_file[section]}
    if "backbone" in changed and kinds_in_file["tokenizer"] == PretrainedTokenizerOptions.kind:
        changed.add("tokenizer")  # it is that of the base in the file
    base_options = {section: content for section, content in base_options.items() if section not in changed}
    specified: dict[str, dict[str, Any]] = {name: {} for name in section_types()}
    specified |= {section: {"kind": kind} for section, kind in kinds.items()}
    if model:
        adapt, output_bias = MODELS[check_choice("model", model, MODELS)]
        specified["model"] = {"adapt": adapt, "output_bias": output_bias}
    kinds = selected_kinds(base_options) | kinds
    names = option_sections(kinds)
    for name, value in options.items():
        check_choice("option", name, (*names, *OPTION_KINDS, "config", "model", *others))
        specified[names[name]][name] = value
    return {section: {**base_options.get(section, {}), **values} for section, values in specified.items()}


def read_options(path: str | Path) -> dict[str, Any]:
    """Return the options in a TOML or JSON file, by section and name; raise `UserError` if it is not valid.

    They include the number of development targets, so that trainings with the config of a run read the same ones.
    """
    path = Path(path)
    values = input_files.read_options_file(path)
    if path.suffix == ".json" and isinstance(values, dict):
        check_format(values.pop("format", FORMAT), FORMAT, path)
    Config.from_dict(values, where=str(path))
    return {
        section: {name: value for name, value in content.items() if name not in BASE_FACTS}
        for section, content in values.items()
    }


def _to_toml(value: Any) -> str:
    """Return a value in JSON, which is TOML, except that TOML requires the escape of DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _create_section(cls: Any, name: str, content: Any) -> Any:
    """Create the section `name` from the dict `content`; raise `UserError` if an option is unknown or invalid."""
    names = [item.name for item in dataclasses.fields(cls)]
    for key in content:
        check_choice(f"key in [{name}]", key, names)
    return cls(**content)


# The options by name, for editors and type checkers; a test compares them with the fields.


class TrainingOptions(TypedDict, total=False):
    """Options of the section `training`, which a fine-tuning may change."""

    epochs: float
    steps: int
    min_users: int
    batch_tokens: int
    learning_rate: float
    token_rate: float
    weight_decay: float
    sparse_l1: Sequence[str]
    samples: int
    evaluations: int
    patience: int
    ngram_mixture: bool
    seed: int
    threads: int
    precision: str
    device: str


class Options(TrainingOptions, total=False):
    """Options of `fit` by name (docs/options.md); other packages may add options of their kinds."""

    config: Any
    model: str
    text: str
    context: Sequence[str | Column]
    user: str
    time: str
    prompt_history: int
    max_tokens: int
    min_context_count: int
    min_user_count: int
    anonymous: bool
    min_text_users: int
    tokenizer: str
    lowercase: bool
    min_count: int
    max_vocabulary: int
    adapt: Sequence[str]
    output_bias: Sequence[str]
    embedding_size: int
    variable_size: int
    context_size: int
    context_layer: str
    rank: int
    dropout_context: float
    backbone: str
    cell: str
    layers: int
    hidden_size: int
    layer_norm: bool
    variational: bool
    dropout_recurrent: float
    dropout_input: float
    dropout_output: float
    base: str
    architecture: str
    train_base: bool
    target_modules: Sequence[str]
    shared_rank: int
    prefix_vectors: int
    head: str
