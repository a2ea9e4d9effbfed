"""The valid range of every number that a user can set, and the choices and defaults of options outside of a `Config`.

The fields of a `Config` have their `Limits`; `NUMBER_LIMITS` has those of other options of commands and functions.
"""

import dataclasses
import math
import numbers
from dataclasses import dataclass
from typing import Any

from factorcell.errors import UserError, check_choice

MAX_COUNT = 1_000_000_000  # largest number of rows, tokens or values: more than a table has, and it fits into 32 bits
MAX_FLOAT = 1e38  # a bound that fits into a 32-bit float
MAX_SEED = 1 << 43  # training multiplies a seed by a million, and the product must fit into 63 bits


def plain(value: Any) -> Any:
    """Return a scalar, such as a number of NumPy or PyTorch, as a bool, int, float or str.

    A list or an array with one dimension becomes a tuple of plain values; other values stay as they are.
    """
    dimensions = getattr(value, "ndim", None)
    if isinstance(value, list | tuple) or dimensions == 1:
        return tuple(map(plain, value))
    if dimensions == 0 and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) else value


def is_names(value: Any) -> bool:
    """Return whether a plain value is a tuple of texts."""
    return isinstance(value, tuple) and all(isinstance(item, str) for item in value)


def make_plain(options: Any) -> None:
    """Replace the value of each field of the dataclass `options` by a plain value (`plain`)."""
    for field in dataclasses.fields(options):
        object.__setattr__(options, field.name, plain(getattr(options, field.name)))


@dataclass(frozen=True)
class Limits:
    """A range of valid numbers."""

    low: float
    high: float = MAX_COUNT
    whole: bool = True  # whether the number must be an integer
    excluded: str = ""  # "low" or "high" if this end itself is not valid

    def __str__(self) -> str:
        low, high = (str(end) if self.whole else f"{end:g}" for end in (self.low, self.high))
        ends = f"above {low} and at most {high}" if self.excluded == "low" else f"from {low} to {high}"
        exception = f" (without {high})" if self.excluded == "high" else ""
        return f"{'a whole number' if self.whole else 'a number'} {ends}{exception}"

    def contains(self, number: float) -> bool:
        """Return whether a number, which may be NaN, is valid."""
        return self.low <= number <= self.high and number != {"low": self.low, "high": self.high}.get(self.excluded)

    def check(self, name: str, value: Any) -> Any:
        """Return `value` as a plain number; raise `UserError`, which calls it `name`, if it is out of the limits."""
        value = plain(value)
        is_number = isinstance(value, int if self.whole else (int, float)) and not isinstance(value, bool)
        if not (is_number and self.contains(value)):
            raise UserError(f"{name} is {value!r:.60}; it must be {self}")
        return value

    def parse(self, text: str) -> Any:
        """Return the number that `text` contains; raise `UserError` if it is not a valid number."""
        try:
            number = int(text) if self.whole else float(text)
        except ValueError:
            number = math.nan
        if not self.contains(number):
            raise UserError(f"expected {self}, got {text!r:.60}")
        return number


# The limits of options that are not fields of a `Config`, by the name of the option in Python and on the command line.
NUMBER_LIMITS = {
    **dict.fromkeys(("cache_size", "every", "rows_per_user"), Limits(1)),
    **dict.fromkeys(("first", "samples", "top_k"), Limits(0)),
    **dict.fromkeys(("branching", "max_tokens", "trials", "width"), Limits(1, 1_000_000)),
    **dict.fromkeys(("min_tokens", "no_repeat_ngram"), Limits(0, 1_000_000)),
    **dict.fromkeys(("epochs", "max_memory", "minutes", "rate"), Limits(0, 1_000_000, whole=False, excluded="low")),
    **dict.fromkeys(("max_norm", "seconds"), Limits(0, MAX_COUNT, whole=False)),
    "count": Limits(1, 100_000),
    "deadline_ms": Limits(1, 10_000),
    "l1": Limits(0, MAX_FLOAT, whole=False),
    "length_penalty": Limits(0, 10, whole=False),
    "number": Limits(1, 10_000_000),
    "order": Limits(1, 12),
    "pad": Limits(0, 1 << 20),
    "port": Limits(0, 65_535),
    "rows": Limits(20),  # fewer rows cannot show whether a column helps
    "seed": Limits(0, (1 << 63) - 1),
    "seeds": Limits(1, 1000),
    "share": Limits(0, 1, whole=False),
    "threads": Limits(0, 1024),
    "typos": Limits(0, 2),
    "temperature": Limits(0, MAX_FLOAT, whole=False, excluded="low"),
    "top_p": Limits(0, 1, whole=False, excluded="low"),
    "workers": Limits(1, 1024),
    "within": Limits(0, math.inf, whole=False),
}

# Those that may be None: without a limit, or chosen by the function.
OPTIONAL = ("minutes", "order", "rows_per_user", "seconds", "width")


def check(**values: Any) -> list[Any]:
    """Return numbers, passed by their names in `NUMBER_LIMITS`, as plain numbers; raise a `UserError` otherwise."""
    return [
        None if value is None and name in OPTIONAL else NUMBER_LIMITS[name].check(name, value)
        for name, value in values.items()
    ]


# Policies for values that are rare in training or unseen: `error` refuses a value, `group` reads it as rare, and
# `expected` as a missing value. Tables are read with `group`, as training reads the development table, and contexts
# that a user types with `error`, because an unknown value is then probably a typing mistake.
UNKNOWN_POLICIES = ("error", "group", "expected")
PRIORS = ("conditional", "uniform", "training")  # prior probabilities of the values in a classification
PROPOSALS = ("rank", "unigram")  # distributions from which a classification samples tokens
PRESETS = ("quick", "good", "best")  # presets of the training time
MODEL_PARTS = ("embedding", "context", "backbone", "output_bias", "projection")  # parts that fine-tuning can train
EXPORT_FORMATS, WEB = ("lora", "merged", "gguf-lora", "onnx"), "web"  # `WEB` is that of completion models
GENERATION_METHODS = ("sample", "greedy", "beam", "stochastic")
ONLINE_OPTIMIZERS = ("adagrad", "adadelta", "sgd")
KEY_SCOPES = ("complete", "learn", "users", "admin")  # what an API key of the service permits
# Environment variable for the URL of the store. The URL is not an option, because it can contain a password, and all
# users of a machine can read the command lines of its processes.
STORE_VARIABLE = "FACTORCELL_STORE"
STORE_URLS = "sqlite:///FILE, postgresql://USER@HOST/DATABASE or redis://HOST:PORT/NUMBER"

# Options, by section of the config, that `training.rules` chooses from the training table unless the user sets them.
AUTOMATIC_OPTIONS: dict[str, tuple[str, ...]] = {
    "model": (
        *("adapt", "output_bias"),
        *("embedding_size", "context_size", "variable_size", "rank", "dropout_context"),
    ),
    "backbone": ("hidden_size", "layer_norm", "dropout_recurrent", "dropout_input", "dropout_output"),
    "training": (
        *("epochs", "batch_tokens", "learning_rate", "token_rate", "weight_decay", "samples"),
        *("evaluations", "patience", "ngram_mixture"),
    ),
}

ADVICE_ROWS = 100_000  # number of rows of a table that `advise` draws at random and reads
DEFAULT_VALUE_COUNT = 10  # number of most frequent values that are shown if the user does not name values
# Defaults of training on few texts: the exact loss, small steps and early stopping. The base run may have computed on a
# device or with threads that this machine lacks, and for a number of steps that fits another table.
SMALL_DATA_DEFAULTS: dict[str, Any] = {
    "epochs": 10.0,
    "steps": 0,
    "learning_rate": 1e-3,
    "token_rate": 1.0,
    "weight_decay": 0.0,
    "samples": 0,
    "evaluations": 20,
    "patience": 3,
    "device": "auto",
    "threads": 0,
}


def check_unknown(unknown: str) -> str:
    """Return `unknown` if it is a policy for values that training never saw; raise `UserError` otherwise."""
    return check_choice("policy for unknown values", unknown, UNKNOWN_POLICIES)
