"""Fields of the dataclasses of options: a default, a help text, choices and limits; and the checks of their values.

`EXTENSIBLE` holds, by option, the names that other packages may add to.
"""

import dataclasses
import types
import typing
from dataclasses import dataclass
from typing import Any

from factorcell.extensions import Extensions
from factorcell.limits import LARGEST, MANY, Limits, UserError, choose

PREFIX = "prefix"  # reads the context as control codes; the other adapters change weights
ADAPTERS = ("concat", "scale", "factor", PREFIX)
CELLS = ("coupled", "lstm", "gru", "tanh", "relu")
LARGEST_HASH = 1 << 30  # so that the sum of two hashes has 32 bits
SIZES, LAYERS = 1_000_000, 100  # the largest there may be; memory sets a bound before
TOKENIZERS, BACKBONES, HEADS = ("word", "space", "char", "grapheme"), ("recurrent",), ("softmax",)
EXTENSIBLE = {
    "adapt": Extensions("adapter", ADAPTERS),
    "cell": Extensions("cell", CELLS),
    "tokenizer": Extensions("tokenizer", TOKENIZERS),
    "backbone": Extensions("backbone", BACKBONES),
    "head": Extensions("head", HEADS),
}


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
class KindOptions:
    """Base of the options of one kind of tokenizer, backbone or head; a subclass sets `kind` to its name.

    Fields may be plain or made by `option`, `whole` and `real`, which give them a help text, choices and limits.
    """

    kind: str = ""

    def __post_init__(self) -> None:
        check_fields(self)
