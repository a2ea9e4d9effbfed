"""The schema of a context: its variables, and what training found in their columns.

A Bloom filter (Bloom 1970) tells which values training grouped as rare, without their names.

    n values, m bits, k probes      a value never seen passes with probability (1 - exp(-k n / m))^k, under 1 %

It has no false negatives: no value that training saw is taken for one never seen. Whoever has the filter and guesses a
name can ask it too, so it hides no name that can be guessed (docs/privacy.md).
"""

import hashlib
import math
import typing
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from factorcell import files
from factorcell.config import UserError, choose

UNKNOWN_VALUE = (
    "<unknown>"  # row 0 of every category: all rare values, and values never seen where the caller allows them
)
MISSING = -1
TIME_KINDS = ("hour", "weekday", "yearday")  # what of a time is read: several may be read of one column
PERIODS = {"hour": 24.0, "weekday": 7.0, "yearday": 365.25, "longitude": 360.0}
COLUMN_KINDS = ("category", "number", *PERIODS, "cyclic", "text", "vector")
HARMONICS = 3  # waves of a periodic number: with three, any function of the seven days of a week is linear in them
BITS = 12  # of a Bloom filter, for each value
PROBES = 7  # of every filter, also of those that are kept
FEWEST = 1024  # bits of a filter: in a smaller one the probes of different values fall together


@dataclass(frozen=True)
class Variable:
    """One context variable: its name, its kind, and what training found in its column.

    `values` and `counts` of a category (row 0 is `RARE`); moments and range of a number, and its `period` (0: none);
    `means` and `deviations` of a vector (D) or of the waves of a periodic number; of a text, its words as `values` and
    their `shares` of the mean embedding of all texts. `grouped` is the filter of the rare values of a category
    (`bloom_filter`); without one it is unknown which values were rare. `column` is where it is
    read, if not in the column of its name.
    """

    name: str
    kind: str
    values: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()
    rare_count: int = 0
    mean: float = 0.0
    deviation: float = 1.0
    low: float = 0.0
    high: float = 0.0
    column: str = ""
    period: float = 0.0
    means: tuple[float, ...] = ()
    deviations: tuple[float, ...] = ()
    shares: tuple[float, ...] = ()
    min_count: int = 0
    rare_filter: str = ""

    @property
    def source_column(self) -> str:
        """The column that it is read from."""
        return self.column or self.name

    @property
    def counts_by_value(self) -> dict[str, float]:
        """How often training has each value of a category."""
        return dict(zip(self.values, map(float, self.counts), strict=True))

    def frequencies(self) -> list[float]:
        """The share of training texts of every value; uniform where nothing was counted."""
        total = sum(self.counts)
        return [count / total if total else 1 / len(self.counts) for count in self.counts]

    def describe(self) -> str:
        """One line that says how the column is read."""
        if self.kind == "number":
            return f"{self.name}: number, mean {self.mean:.4g}, from {self.low:.4g} to {self.high:.4g}"
        if self.period:
            return f"{self.name}: {self.kind}, period {self.period:g}, mean {self.mean:.4g}"
        if self.kind == "text":
            return f"{self.name}: text, {len(self.values):,} words"
        if self.kind == "vector":
            return f"{self.name}: vector of {len(self.means):,} numbers"
        rare = (
            f", and {self.rare_count:,} rare ones (under {self.min_count} texts) grouped"
            if self.rare_count
            else ", none rare"
        )
        return f"{self.name}: category, {len(self.values) - 1:,} values{rare}"


@dataclass(frozen=True)
class ContextSchema:
    """The context variables of a model, in the order of their columns."""

    variables: tuple[Variable, ...] = ()

    @property
    def categories(self) -> tuple[Variable, ...]:
        """The categorical variables; their order is that of the columns of `Context.categories`."""
        return tuple(variable for variable in self.variables if variable.kind == "category")

    def columns(self, without: str = "") -> list[str]:
        """The columns that the variables are read from, each once, but for `without`."""
        return [
            name for name in dict.fromkeys(variable.source_column for variable in self.variables) if name != without
        ]

    @property
    def numbers(self) -> tuple[Variable, ...]:
        """The numeric variables, periodic or not; their order is that of the columns of `Context.numbers`."""
        return tuple(variable for variable in self.variables if variable.kind == "number" or variable.period)

    @property
    def vectors(self) -> tuple[Variable, ...]:
        """The vectors; their order is that of `Context.vectors`."""
        return tuple(variable for variable in self.variables if variable.kind == "vector")

    @property
    def texts(self) -> tuple[Variable, ...]:
        """The texts; their order is that of `Context.bags`."""
        return tuple(variable for variable in self.variables if variable.kind == "text")

    def variable(self, name: str) -> Variable:
        """The variable of that name, or a `UserError` that lists the names there are."""
        choose("context variable", name, [variable.name for variable in self.variables])
        return next(variable for variable in self.variables if variable.name == name)

    def anonymize(self, names: Collection[str]) -> "ContextSchema":
        """The same, but that the values of the categories `names` are numbered, `<1>` the most frequent.

        No name can be found out from a number, and nothing of rare ones is kept; a table that is read by this schema
        has unknown values only.
        """
        return ContextSchema(
            tuple(
                replace(
                    v, values=(UNKNOWN_VALUE, *(f"<{number}>" for number in range(1, len(v.values)))), rare_filter=""
                )
                if v.name in names and v.kind == "category"
                else v
                for v in self.variables
            )
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"variables": [asdict(variable) for variable in self.variables]}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "ContextSchema":
        """The schema that `to_dict` wrote."""
        try:
            fields: list[dict[str, Any]] = [
                {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
                for entry in content["variables"]
            ]
            variables = tuple(Variable(**named) for named in fields)
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"not a context schema ({error})") from None
        if len({variable.name for variable in variables}) < len(variables):
            raise UserError("not a context schema (two variables of one name)")
        for variable in variables:
            _check(variable)
        return cls(variables)

    @classmethod
    def load(cls, path: Path) -> "ContextSchema":
        """The schema in a file; a `UserError` names a file that is missing or damaged."""
        try:
            return cls.from_dict(files.read_json(path))
        except UserError as error:
            raise UserError(str(error) if str(error).startswith(str(path)) else f"{path}: {error}") from None


def _check(variable: Variable) -> None:
    """Raise `UserError` unless the fields of a variable have their types, are in range and fit together."""
    for name, hint in typing.get_type_hints(Variable).items():
        if not _is_of(getattr(variable, name), hint):
            raise UserError(f"not a context schema ({name} of {variable.name!r:.60} is of another type)")
    choose("kind of context variable", variable.kind, COLUMN_KINDS)
    counts = (variable.rare_count, variable.min_count, variable.period, *variable.counts, *variable.shares)
    parallel = {"category": ("values", "counts"), "text": ("values", "shares")}  # fields of one length
    first, second = parallel.get(variable.kind, ("means", "deviations"))
    if min(counts) < 0 or min(variable.deviation, *variable.deviations, 1) <= 0:
        raise UserError(f"not a context schema (a number of {variable.name!r:.60} is out of range)")
    if len(getattr(variable, first)) != len(getattr(variable, second)):
        raise UserError(f"not a context schema ({first} and {second} of {variable.name!r} differ in length)")


def _is_of(value: Any, hint: Any) -> bool:
    if typing.get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_is_of(item, typing.get_args(hint)[0]) for item in value)
    return type(value) in (int, float) and math.isfinite(value) if hint is float else type(value) is hint


def waves(period: float, harmonics: int = HARMONICS) -> tuple[list[float], list[float]]:
    """Turns and phases of the waves sin(turn x + phase) of a number x: the sine and cosine of each harmonic."""
    turns = [2 * math.pi * harmonic / period for harmonic in range(1, harmonics + 1) for _ in range(2)]
    return turns, [0.0, math.pi / 2] * harmonics


def bloom_filter(names: Collection[str]) -> str:
    """The filter of `names`, in hexadecimal digits; empty where there are none."""
    if not names:
        return ""
    bits = bytearray(-(-max(FEWEST, BITS * len(names)) // 8))
    for name in names:
        for place in _places(name, 8 * len(bits)):
            bits[place // 8] |= 1 << place % 8
    return bits.hex()


def may_contain(bits: bytes, name: str) -> bool:
    """Whether `name` is among the names of a filter, whose hexadecimal digits stand for `bits`, or passes for one."""
    return bool(bits) and all(bits[place // 8] >> place % 8 & 1 for place in _places(name, 8 * len(bits)))


def _places(name: str, size: int) -> list[int]:
    """The bits that a name sets, by two hashes for all probes (Kirsch and Mitzenmacher 2006)."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    first, step = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little") | 1
    return [(first + probe * step) % size for probe in range(PROBES)]
