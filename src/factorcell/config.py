"""Every option once: what it is called, what it means, what it may be.

A `Config` is three frozen dataclasses: what is read (`DataConfig`), what is trained (`ModelConfig`) and how
(`TrainingConfig`). The command line, the TOML files and the JSON in a run folder all follow from the fields below.
"""

import dataclasses
import json
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from factorcell import assignments, inputs
from factorcell.extensions import Extensions
from factorcell.limits import LARGEST, MANY, SEEDS, Limits
from factorcell.limits import UserError as UserError
from factorcell.limits import check_format as check_format
from factorcell.limits import choose as choose

FORMAT = 1  # of run folders: the number in their config.json
UNITS = ("word", "space", "char", "grapheme")
PREFIX = "prefix"  # reads the context as control codes; the other adapters change weights
ADAPTERS = ("concat", "scale", "factor", PREFIX)
CELLS = ("coupled", "lstm", "gru", "tanh", "relu")
CONTEXT_LAYERS = ("tanh", "relu", "linear", "none")
EXTENSIBLE = {"adapt": Extensions("adapter", ADAPTERS), "cell": Extensions("cell", CELLS)}  # by the option of each
INSIDE = ("low_rank", "low_rank_each")  # softmax biases of few columns, which join the product
OUTPUT_BIASES = (*INSIDE, "one_hot", "sparse", "hash")
LOSSES = ("full", "sampled", "sampled_text")
PRECISIONS, DEVICES = ("auto", "float32", "bfloat16"), ("auto", "cpu", "cuda")
LARGEST_HASH = 1 << 30  # so that the sum of two hashes has 32 bits
SIZES, LAYERS, THREADS = 1_000_000, 100, 1024  # the largest there may be; memory sets a bound before

# Named models by what they adapt: (recurrent layer, softmax bias). The first four are those of the TACL paper (section
# 2); the others rescale rows (thesis, section 3.2) and read the context as control codes.
MODELS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "unadapted": ((), ()),
    "softmaxbias": ((), ("low_rank",)),
    "concatcell": (("concat",), ("low_rank",)),
    "factorcell": (("concat", "factor"), ("low_rank",)),
    "scalecell": (("concat", "scale"), ("low_rank",)),
    "prefix": ((PREFIX,), ()),
}
PAPER_MODELS = ("unadapted", "softmaxbias", "concatcell", "factorcell")


class Notice(UserWarning):
    """What a user should know although the work goes on: one line that says what happened, and where."""


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


def whole(default: int, text: str, low: int, high: int = MANY, *, rare: bool = False) -> Any:
    """The field of a whole number from `low` to `high`."""
    return option(default, text, limits=Limits(low, high), rare=rare)


def real(default: float, text: str, low: float = 0.0, high: float = LARGEST, *, rare: bool = False) -> Any:
    """The field of a number from `low` to `high`."""
    return option(default, text, limits=Limits(low, high, whole=False), rare=rare)


def drop_rate(text: str, *, rare: bool = False) -> Any:
    """The field of a share that is dropped: not all, and by default nothing."""
    return option(0.0, text, limits=Limits(0, 1, whole=False, below=True), rare=rare)


def _check(section: Any) -> None:
    """Check every field of `section` against its type, its choices and its limits."""
    hints = typing.get_type_hints(type(section))
    for field in dataclasses.fields(section):
        value, limits = getattr(section, field.name), field.metadata["limits"]
        value = _typed(field.name, value, hints[field.name])
        for item in value if isinstance(value, tuple) else (value,):
            if field.name in EXTENSIBLE:
                EXTENSIBLE[field.name].choose(field.name, item)
            elif field.metadata["choices"]:
                choose(field.name, item, field.metadata["choices"])
        if limits is not None:
            limits.check(field.name, value)
        object.__setattr__(section, field.name, value)


def _typed(name: str, value: Any, hint: Any) -> Any:
    """`value` as the type `hint`; lists become tuples and whole numbers floats where a field says so."""
    if typing.get_origin(hint) is types.UnionType:
        if value is None:
            return None
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    if typing.get_origin(hint) is tuple:
        if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
            return tuple(value)
        raise UserError(f"{name} is {value!r}; it must be a list of names")
    if hint is float and type(value) is int and abs(value) <= LARGEST:
        return float(value)
    if type(value) is not hint:
        raise UserError(f"{name} is {value!r:.60}; it must be of type {hint.__name__}")
    return value


@dataclass(frozen=True)
class DataConfig:
    """What is read from a table, and how text becomes tokens."""

    text: str = option("text", "column with the text", metavar="COLUMN")
    context: tuple[str, ...] = option(
        (),
        "context column: NAME or NAME:KIND (repeatable); the kind is category, number, hour, weekday or yearday (of a "
        "time), longitude, cyclic=PERIOD, text or vector",
        metavar="NAME[:KIND]",
    )
    user: str = option(
        "", "column that says who writes: a context that new users learn online, text by text", metavar="COLUMN"
    )
    time: str = option("", "column with the time of writing, whose hour and weekday are context", metavar="COLUMN")
    unit: str = option("word", "unit of text: word, space (split at spaces only), char or grapheme", choices=UNITS)
    lowercase: bool | None = option(None, "lower-case the text (default: words yes, characters no)")
    strip_punctuation: bool = option(False, "drop tokens without a letter, digit, $ or % (word units)", rare=True)
    min_count: int = whole(2, "a token seen less often in training is out of vocabulary", 1)
    max_vocabulary: int = whole(50_000, "at most this many tokens, the most frequent", 1)
    max_tokens: int = whole(200, "cut texts after this many tokens", 1, SIZES)
    min_context_count: int = whole(50, "rarer values of a category are grouped as one unknown value", 1)
    min_user_count: int = whole(15, "users with fewer texts are grouped as one, whom new users start as", 1)
    anonymous: bool = option(
        False, "keep no name of a user: the vectors of users are numbered, and new texts are of unknown ones", rare=True
    )
    min_text_count: int = whole(
        3, "texts seen less often are not kept as popular completions (with user)", 1, rare=True
    )
    min_text_users: int = whole(
        3, "texts of fewer people are not kept as popular completions (with user)", 1, rare=True
    )
    min_context_word: int = whole(5, "a word seen less often in a text context is left out of it", 1, rare=True)
    max_context_words: int = whole(10_000, "at most this many words of a text context, the most frequent", 1, rare=True)

    def __post_init__(self) -> None:
        _check(self)
        if self.anonymous and not self.user:
            raise UserError("anonymous leaves out the names of users; it needs the column that says who writes (user)")
        if self.lowercase is None:
            object.__setattr__(self, "lowercase", self.unit in ("word", "space"))

    @property
    def columns(self) -> tuple[str, ...]:
        """The context columns, as `context` names them: the user's and those of the time among them."""
        user = (f"{self.user}:category",) if self.user else ()
        return (*self.context, *user, *(f"{self.time}:{kind}" for kind in ("hour", "weekday") if self.time))


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the language model, and what a context changes in it."""

    adapt: tuple[str, ...] = option(
        ("concat", "factor"), "what context changes in the recurrent layer (repeatable)", choices=ADAPTERS
    )
    output_bias: tuple[str, ...] = option(
        ("low_rank",), "what context changes in the softmax bias (repeatable)", choices=OUTPUT_BIASES
    )
    cell: str = option(
        "coupled", "kind of recurrent layer; coupled: the LSTM of the papers; packages may add names", choices=CELLS
    )
    layers: int = whole(1, "recurrent layers, each with adapters of its own", 1, LAYERS)
    embedding_size: int = whole(150, "e, size of a token embedding", 1, SIZES)
    hidden_size: int = whole(200, "d, size of the recurrent layer", 1, SIZES)
    variable_size: int = whole(16, "size of the embedding of one context variable", 1, SIZES, rare=True)
    number_size: int = whole(64, "width of the network over the numeric context variables", 1, SIZES, rare=True)
    number_layers: int = whole(2, "tanh layers of that network; 0: it has none", 0, LAYERS, rare=True)
    context_size: int = whole(16, "k, size of the joint context vector", 1, SIZES)
    context_layer: str = option(
        "tanh", "what follows the layer that joins variables; none: no such layer", choices=CONTEXT_LAYERS, rare=True
    )
    rank: int = whole(12, "r, rank of the FactorCell's change of W; 0: no change", 0, SIZES)
    hash_size: int = whole(1 << 22, "buckets of the hashed softmax bias (the next prime)", 1, LARGEST_HASH, rare=True)
    bloom_size: int = whole(
        1 << 26, "bits of its filter of pairs seen in training; 0: no filter, all pairs", 0, LARGEST_HASH, rare=True
    )
    layer_norm: bool = option(False, "normalise gates and memory over the hidden units (Ba et al. 2016)", rare=True)
    variational: bool = option(
        False, "dropout: one mask a text, and the recurrent one on h (Gal and Ghahramani 2016)", rare=True
    )
    dropout_recurrent: float = drop_rate(
        "drop rate of the candidate (Semeniuta et al. 2016); if variational, of h where it is fed back"
    )
    dropout_input: float = drop_rate("drop rate of the token embeddings")
    dropout_output: float = drop_rate("drop rate of the hidden states given to the softmax or the next layer")
    dropout_context: float = drop_rate(
        "rate at which a category is read as the unknown value, so that this one is learned as well", rare=True
    )
    dropout_token: float = drop_rate("rate at which whole input tokens are replaced by zero", rare=True)

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True)
class TrainingConfig:
    """How a model is trained."""

    epochs: float = real(10.0, "passes over the training data", 0, 1_000_000)
    max_user_texts: int = whole(
        0, "at most this many texts of each user in an epoch, drawn anew for each; 0: all", 0, rare=True
    )
    min_users: int = whole(
        0, "learn a token only where so many users wrote it after the same 3 (words: 1); 0: all", 0, rare=True
    )
    canaries: int = whole(
        0, "random texts planted for `audit`, which measures what is memorised: to measure only", 0, 100_000, rare=True
    )
    batch_tokens: int = whole(4000, "tokens in a batch, padding counted", 1)
    learning_rate: float = real(1e-3, "peak rate of Adam")
    token_rate: float = real(
        1.0, "factor on the rate of what has a row a token: embeddings, adapted softmax biases", rare=True
    )
    warmup: float = real(0.02, "share of the steps over which the rate rises", 0, 1, rare=True)
    decay: str = option(
        "cosine", "how the rate falls after the warm-up", choices=("cosine", "linear", "none"), rare=True
    )
    weight_decay: float = real(0.0, "decoupled weight decay of the matrices", rare=True)
    value_prior: float = real(0.0, "nats a target for a squared unit of values' embeddings, hashed buckets", rare=True)
    sparse_l1: tuple[str, ...] = option(
        ("1e-6",),
        "l1 penalty of the sparse softmax bias, in nats a target: NUMBER, or NAME=NUMBER of one variable (repeatable)",
        metavar="[NAME=]NUMBER",
        rare=True,
    )
    clip: float = real(1.0, "largest norm of the gradient; 0: not clipped", rare=True)
    loss: str = option("full", "softmax of the training loss: full, or sampled for each batch or text", choices=LOSSES)
    samples: int = whole(1000, "negative samples of a batch, or of each text (sampled loss)", 1, rare=True)
    evaluations: int = whole(10, "evaluations on the development set, evenly over the steps", 1)
    patience: int = whole(0, "stop after this many evaluations without a better one; 0: never", 0)
    log_every: int = whole(50, "steps between rows of the log", 1, rare=True)
    save_every: int = whole(500, "steps between checkpoints", 1, rare=True)
    seed: int = whole(0, "seed of the weights, the order and the dropout", 0, SEEDS)
    threads: int = whole(0, "threads of each process; 0: all cores, shared between them", 0, THREADS)
    precision: str = option("auto", "numbers in matrix products of training; auto: the faster ones", choices=PRECISIONS)
    device: str = option("auto", "where to compute; auto: a GPU if there is one", choices=DEVICES)

    def __post_init__(self) -> None:
        _check(self)
        for item in self.sparse_l1:
            assignments.parsed("sparse_l1", item)


@dataclass(frozen=True)
class Config:
    """All options of one run."""

    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()

    def __post_init__(self) -> None:
        for name in ("max_user_texts", "min_users"):
            if getattr(self.training, name) and not self.data.user:
                raise UserError(f"{name} counts users; it needs the column that says who writes (user)")

    @classmethod
    def load(cls, path: str | Path) -> "Config":
        """Read a TOML or JSON file, such as config.json of a run.

        `UserError` names a file that is not valid and a key that does not exist.
        """
        return cls.from_dict(said_in(path))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "config") -> "Config":
        """The config of nested plain values; what is missing keeps its default."""
        sections: dict[str, Any] = {field.name: field.type for field in dataclasses.fields(cls)}
        if not isinstance(values, Mapping):
            raise UserError(f"{where}: must hold the sections {', '.join(sections)}, not a {type(values).__name__}")
        try:
            for name in values:
                choose("section", name, sections)
            return cls(**{name: _section(sections[name], name, content) for name, content in values.items()})
        except UserError as error:
            raise UserError(f"{where}: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values, ready for JSON."""
        return dataclasses.asdict(self)

    def to_toml(self) -> str:
        """This config as TOML that `load` reads back; an option that is None is omitted."""
        lines = []
        for section, values in self.to_dict().items():
            lines.append(f"[{section}]")
            lines += [f"{name} = {_toml(value)}" for name, value in values.items() if value is not None]
        return "\n".join(lines) + "\n"

    def told(self, names: Iterable[str]) -> str:
        """Options of these names with their values as TOML has them, in one line."""
        values = {name: value for section in self.to_dict().values() for name, value in section.items()}
        return ", ".join(f"{name} {_toml(values[name])}" for name in names)

    @property
    def model_name(self) -> str:
        """The name of the model class: one of `MODELS`, else what it adapts."""
        adapted = (self.model.adapt, self.model.output_bias)
        named = (name for name, parts in MODELS.items() if parts == adapted)
        return next(named, "+".join(sum(adapted, ())) or "unadapted")

    def with_model(self, name: str) -> "Config":
        """This config with the adaptations of one of `MODELS`."""
        adapt, output_bias = MODELS[choose("model", name, MODELS)]
        return dataclasses.replace(self, model=dataclasses.replace(self.model, adapt=adapt, output_bias=output_bias))


def said_in(path: str | Path) -> dict[str, Any]:
    """What a TOML or JSON file says, by section and option; `UserError` if it is not valid."""
    path = Path(path)
    said = inputs.parsed(path)
    if path.suffix == ".json" and isinstance(said, dict):
        check_format(said.pop("format", FORMAT), FORMAT, path)
    Config.from_dict(said, where=str(path))
    return dict(said)


def _toml(value: Any) -> str:
    """A plain value in the notation of TOML."""
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):  # JSON escapes as TOML does, but for the delete character, which TOML wants escaped too
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _section(kind: Any, name: str, content: Any) -> Any:
    if not isinstance(content, Mapping):
        raise UserError(f"{name} must be a table of options, not {content!r:.60}")
    fields = [field.name for field in dataclasses.fields(kind)]
    for key in content:
        choose(f"key in [{name}]", key, fields)
    return kind(**content)
