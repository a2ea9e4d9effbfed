"""All options of a run, each declared once with its help text, choices and limits.

A `Config` has six sections. `data`, `model` and `training` are fixed dataclasses. `tokenizer`, `backbone` and `head`
are tagged choices: the option `kind` decides which dataclass holds the other options of that section. Flags of the
command line, TOML files and the JSON in a run folder all follow from the fields of these dataclasses.

Every option but `kind` has a name of its own in all sections, so that a flat list of options is unambiguous
(`Config.of`). A package can add kinds: `register_tokenizer`, `register_backbone`, `register_head`, or entry points.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from factorcell import assignments, input_files
from factorcell.limits import MAX_SEED
from factorcell.limits import UserError as UserError
from factorcell.limits import check_format as check_format
from factorcell.limits import choose as choose
from factorcell.option_fields import (
    ADAPTERS,
    MAX_LAYERS,
    MAX_SIZE,
    OPTION_KINDS,
    PREFIX,
    RecurrentOptions,
    SoftmaxOptions,
    WordOptions,
    check_fields,
    options_class,
    rate_option,
)
from factorcell.option_fields import EXTENSIBLE as EXTENSIBLE
from factorcell.option_fields import KindOptions as KindOptions
from factorcell.option_fields import TokenizerOptions as TokenizerOptions
from factorcell.option_fields import float_option as float_option
from factorcell.option_fields import int_option as int_option
from factorcell.option_fields import option as option

FORMAT = 1  # of run folders: the number in their config.json
CONTEXT_LAYERS = ("tanh", "relu", "linear", "none")
LOW_RANK_BIASES = ("low_rank", "low_rank_each")  # softmax biases of few columns, which join the product
OUTPUT_BIASES = (*LOW_RANK_BIASES, "one_hot", "sparse", "hash")
LOSSES = ("full", "sampled")
PRECISIONS, DEVICES = ("auto", "float32", "bfloat16"), ("auto", "cpu", "cuda")
THREADS = 1024  # the most there may be

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


@dataclass(frozen=True)
class DataConfig:
    """What is read from a table."""

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
    max_tokens: int = int_option(200, "cut texts after this many tokens", 1, MAX_SIZE)
    min_context_count: int = int_option(50, "rarer values of a category are grouped as one unknown value", 1)
    min_user_count: int = int_option(15, "users with fewer texts are grouped as one, whom new users start as", 1)
    anonymous: bool = option(
        False, "keep no name of a user: the vectors of users are numbered, and new texts are of unknown ones", rare=True
    )
    min_text_count: int = int_option(
        3, "texts seen less often are not kept as popular completions (with user)", 1, rare=True
    )
    min_text_users: int = int_option(
        3, "texts of fewer people are not kept as popular completions (with user)", 1, rare=True
    )
    min_context_word: int = int_option(5, "a word seen less often in a text context is left out of it", 1, rare=True)
    max_context_words: int = int_option(
        10_000, "at most this many words of a text context, the most frequent", 1, rare=True
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.anonymous and not self.user:
            raise UserError("anonymous leaves out the names of users; it needs the column that says who writes (user)")

    @property
    def columns(self) -> tuple[str, ...]:
        """The context columns, as `context` names them: the user's and those of the time among them."""
        user = (f"{self.user}:category",) if self.user else ()
        return (*self.context, *user, *(f"{self.time}:{kind}" for kind in ("hour", "weekday") if self.time))


@dataclass(frozen=True)
class ModelConfig:
    """Size of the context vector and of the token embeddings, and what a context changes in the model."""

    adapt: tuple[str, ...] = option(
        ("concat", "factor"), "what context changes in the backbone (repeatable)", choices=ADAPTERS
    )
    output_bias: tuple[str, ...] = option(
        ("low_rank",), "what context changes in the softmax bias (repeatable)", choices=OUTPUT_BIASES
    )
    embedding_size: int = int_option(150, "e, size of a token embedding", 1, MAX_SIZE)
    variable_size: int = int_option(16, "size of the embedding of one context variable", 1, MAX_SIZE, rare=True)
    number_size: int = int_option(64, "width of the network over the numeric context variables", 1, MAX_SIZE, rare=True)
    number_layers: int = int_option(2, "tanh layers of that network; 0: it has none", 0, MAX_LAYERS, rare=True)
    context_size: int = int_option(16, "k, size of the joint context vector", 1, MAX_SIZE)
    context_layer: str = option(
        "tanh", "what follows the layer that joins variables; none: no such layer", choices=CONTEXT_LAYERS, rare=True
    )
    rank: int = int_option(12, "r, rank of the FactorCell's change of W; 0: no change", 0, MAX_SIZE)
    dropout_context: float = rate_option(
        "rate at which a category is read as the unknown value, so that this one is learned as well", rare=True
    )

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class TrainingConfig:
    """How a model is trained."""

    epochs: float = float_option(10.0, "passes over the training data", 0, 1_000_000)
    max_user_texts: int = int_option(
        0, "at most this many texts of each user in an epoch, drawn anew for each; 0: all", 0, rare=True
    )
    min_users: int = int_option(
        0, "learn a token only where so many users wrote it after the same 3 (words: 1); 0: all", 0, rare=True
    )
    canaries: int = int_option(
        0, "random texts planted for `audit`, which measures what is memorised: to measure only", 0, 100_000, rare=True
    )
    batch_tokens: int = int_option(4000, "tokens in a batch, padding counted", 1)
    learning_rate: float = float_option(1e-3, "peak rate of Adam")
    token_rate: float = float_option(
        1.0, "factor on the rate of what has a row a token: embeddings, adapted softmax biases", rare=True
    )
    warmup: float = float_option(0.02, "share of the steps over which the rate rises", 0, 1, rare=True)
    decay: str = option(
        "cosine", "how the rate falls after the warm-up", choices=("cosine", "linear", "none"), rare=True
    )
    weight_decay: float = float_option(0.0, "decoupled weight decay of the matrices", rare=True)
    value_prior: float = float_option(
        0.0, "nats a target for a squared unit of values' embeddings, hashed buckets", rare=True
    )
    sparse_l1: tuple[str, ...] = option(
        ("1e-6",),
        "l1 penalty of the sparse softmax bias, in nats a target: NUMBER, or NAME=NUMBER of one variable (repeatable)",
        metavar="[NAME=]NUMBER",
        rare=True,
    )
    clip: float = float_option(1.0, "largest norm of the gradient; 0: not clipped", rare=True)
    loss: str = option("full", "softmax of the training loss: full, or sampled for each batch", choices=LOSSES)
    samples: int = int_option(1000, "negative samples of a batch (sampled loss)", 1, rare=True)
    evaluations: int = int_option(10, "evaluations on the development set, evenly over the steps", 1)
    patience: int = int_option(0, "stop after this many evaluations without a better one; 0: never", 0)
    log_every: int = int_option(50, "steps between rows of the log", 1, rare=True)
    save_every: int = int_option(500, "steps between checkpoints", 1, rare=True)
    seed: int = int_option(0, "seed of the weights, the order and the dropout", 0, MAX_SEED)
    threads: int = int_option(0, "threads of the computation; 0: one per core", 0, THREADS)
    precision: str = option("auto", "numbers in matrix products of training; auto: the faster ones", choices=PRECISIONS)
    device: str = option("auto", "where to compute; auto: a GPU if there is one", choices=DEVICES)

    def __post_init__(self) -> None:
        check_fields(self)
        for item in self.sparse_l1:
            assignments.parse_assignment("sparse_l1", item)


def selected_kinds(sections: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the kinds that options by section and name choose."""
    return {section: sections[section]["kind"] for section in OPTION_KINDS if "kind" in sections.get(section, {})}


def section_types(kinds: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the dataclass of each section of a `Config`; `kinds` of tagged sections, by default the first.

    Raises:
        UserError: A kind does not exist, or two sections have an option of the same name.
    """
    chosen = {section: next(iter(known)) for section, known in OPTION_KINDS.items()} | dict(kinds or {})
    tokenizer, backbone, head = (options_class(section, chosen[section]) for section in OPTION_KINDS)
    types: dict[str, Any] = {
        "data": DataConfig,
        "tokenizer": tokenizer,
        "model": ModelConfig,
        "backbone": backbone,
        "head": head,
        "training": TrainingConfig,
    }
    sections: dict[str, str] = {}
    for section, made in types.items():
        for one in dataclasses.fields(made):
            if one.name != "kind" and sections.setdefault(one.name, section) != section:
                raise UserError(f"[{sections[one.name]}] and [{section}] both have the option {one.name!r}; rename one")
    return types


def section_of(name: str, kinds: Mapping[str, str] | None = None) -> str:
    """Return the section that has the option `name`.

    Raises:
        UserError: No section has it, with these `kinds`.
    """
    names = {
        field.name: section for section, made in section_types(kinds).items() for field in dataclasses.fields(made)
    }
    names.pop("kind")
    return names[choose("option", name, names)]


@dataclass(frozen=True)
class Config:
    """All options of one run."""

    data: DataConfig = DataConfig()
    tokenizer: TokenizerOptions = field(default_factory=WordOptions)
    model: ModelConfig = ModelConfig()
    backbone: KindOptions = field(default_factory=RecurrentOptions)
    head: KindOptions = field(default_factory=SoftmaxOptions)
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
        return cls.from_dict(read_options(path))

    @classmethod
    def of(cls, **options: Any) -> "Config":
        """Return a config from options without their sections: `Config.of(tokenizer="char", rank=8)`.

        Raises:
            UserError: No section has an option of that name, or its value is not valid.
        """
        return cls().with_options(**options)

    def with_options(self, **options: Any) -> "Config":
        """Return this config with other values of `options`, named without their sections.

        `tokenizer`, `backbone` and `head` name a kind; another kind than before starts from its own defaults.
        """
        kinds = {section: str(options.pop(section, self.kinds[section])) for section in OPTION_KINDS}
        types = section_types(kinds)
        values: dict[str, dict[str, Any]] = {section: {} for section in types}
        for name, value in options.items():
            values[section_of(name, kinds)][name] = value
        changed = {
            section: dataclasses.replace(getattr(self, section), **values[section])
            if type(getattr(self, section)) is made
            else made(**values[section])
            for section, made in types.items()
        }
        return Config(**changed)

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of the tokenizer, the backbone and the head, by section."""
        return {section: getattr(self, section).kind for section in OPTION_KINDS}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "config") -> "Config":
        """The config of nested plain values; what is missing keeps its default."""
        names = list(section_types())
        if not isinstance(values, Mapping):
            raise UserError(f"{where}: must hold the sections {', '.join(names)}, not a {type(values).__name__}")
        try:
            for name, content in values.items():
                choose("section", name, names)
                if not isinstance(content, Mapping):
                    raise UserError(f"{name} must be a table of options, not {content!r:.60}")
            types = section_types(selected_kinds(values))
            return cls(**{name: _section(types[name], name, content) for name, content in values.items()})
        except UserError as error:
            raise UserError(f"{where}: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values, ready for JSON."""
        return dataclasses.asdict(self)

    def to_toml(self) -> str:
        """Return this config as TOML that `load` reads back."""
        lines = []
        for section, values in self.to_dict().items():
            lines.append(f"[{section}]")
            lines += [f"{name} = {_toml(value)}" for name, value in values.items()]
        return "\n".join(lines) + "\n"

    def format_options(self, names: Iterable[str]) -> str:
        """Return the options of these names with their values in the notation of TOML, in one line."""
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


def read_options(path: str | Path) -> dict[str, Any]:
    """Return the options in a TOML or JSON file, by section and name.

    Raises:
        UserError: The file is not valid or holds an option that does not exist.
    """
    path = Path(path)
    values = input_files.read_options_file(path)
    if path.suffix == ".json" and isinstance(values, dict):
        check_format(values.pop("format", FORMAT), FORMAT, path)
    Config.from_dict(values, where=str(path))
    return dict(values)


def _toml(value: Any) -> str:
    """A plain value in the notation of TOML."""
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):  # JSON escapes as TOML does, but for the delete character, which TOML wants escaped too
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _section(kind: Any, name: str, content: Any) -> Any:
    fields = [field.name for field in dataclasses.fields(kind)]
    for key in content:
        choose(f"key in [{name}]", key, fields)
    return kind(**content)
