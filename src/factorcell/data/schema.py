"""The schema of a model's context: its variables, with properties of their columns in the training table.

For a category these are its frequent values, for a number its mean and standard deviation. A Bloom filter (Bloom 1970)
identifies the values that training grouped as rare, without storing their names. A value that training never saw passes
the filter with the probability

    (1 - exp(-k n / m))^k < 1 %      n values in the filter, m bits of the filter, k bits per value (probes)

The filter has no false negatives: a rare value is never reported as unseen. The filter does not protect a name that can
be guessed, because anyone who has the filter can test a name (docs/privacy.md).
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

UNKNOWN_VALUE = "<unknown>"  # row 0 of every category: all rare values, and unseen values with `unknown="group"`
MISSING = -1
TIME_KINDS = ("hour", "weekday", "yearday")  # several of them may be read from one column
PERIODS = {"hour": 24.0, "weekday": 7.0, "yearday": 365.25, "longitude": 360.0}
COLUMN_KINDS = ("category", "number", *PERIODS, "cyclic", "text", "vector")
# Pairs of a sine and a cosine that encode a periodic number. With three pairs, any function of the seven days of a week
# is linear in the waves.
HARMONICS = 3
BITS_PER_VALUE = 12  # m / n of a large Bloom filter
PROBES = 7  # k of every Bloom filter; a change would make the filters in run folders invalid
MIN_BITS = 1024  # minimum m; in a smaller filter the bits of different values coincide too often


@dataclass(frozen=True)
class Variable:
    """One context variable. A field that a variable of this kind does not use has its default.

    Attributes:
        name: The name of the variable.
        kind: One of `COLUMN_KINDS`.
        values: The values of a category, of which the first is `UNKNOWN_VALUE`, or the words of a text.
        counts: The number of training texts with each value of a category.
        rare_count: How many values of a category were grouped as rare.
        mean: The mean of a number in training.
        deviation: The standard deviation of a number in training.
        low: The smallest number in training.
        high: The largest number in training.
        column: The column of the table, if its name differs from `name`.
        period: The period of a periodic number; 0 for other kinds.
        means: The mean of each number of a vector of D numbers (D,), or of each wave (`waves`) of a periodic number.
        deviations: The standard deviations of the numbers or waves whose means are `means`.
        shares: The weight of each word of a text in the mean embedding of all training texts.
        min_count: Values of a category with fewer training texts are rare.
        rare_filter: The Bloom filter of the rare values of a category, in hexadecimal digits; empty if unavailable.
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
        """The column of the table that contains the variable."""
        return self.column or self.name

    @property
    def counts_by_value(self) -> dict[str, float]:
        """The number of training texts with each value of a category."""
        return dict(zip(self.values, map(float, self.counts), strict=True))

    def frequencies(self) -> list[float]:
        """Return the share of training texts with each value; uniform if all counts are 0."""
        total = sum(self.counts)
        return [count / total if total else 1 / len(self.counts) for count in self.counts]

    def describe(self) -> str:
        """Return one line that describes how the column is read."""
        if self.kind == "number":
            return f"{self.name}: number, mean {self.mean:.4g}, from {self.low:.4g} to {self.high:.4g}"
        if self.period:
            return f"{self.name}: {self.kind}, period {self.period:g}, mean {self.mean:.4g}"
        if self.kind == "text":
            return f"{self.name}: text, {len(self.values):,} words"
        if self.kind == "vector":
            return f"{self.name}: vector of {len(self.means):,} numbers"
        if not self.rare_count:
            return f"{self.name}: category, {len(self.values) - 1:,} values, none rare"
        rare = f"{self.rare_count:,} rare values (under {self.min_count} texts) grouped"
        return f"{self.name}: category, {len(self.values) - 1:,} values, and {rare}"


@dataclass(frozen=True)
class ContextSchema:
    """The context variables of a model.

    Args:
        variables: The variables, in the order in which the context columns were specified.
    """

    variables: tuple[Variable, ...] = ()

    @property
    def categories(self) -> tuple[Variable, ...]:
        """The categorical variables, in the order of the columns of `Context.categories`."""
        return tuple(variable for variable in self.variables if variable.kind == "category")

    def columns(self, without: str = "") -> list[str]:
        """Return each column that contains a variable once, except the column `without`."""
        names = dict.fromkeys(variable.source_column for variable in self.variables)
        return [name for name in names if name != without]

    @property
    def numbers(self) -> tuple[Variable, ...]:
        """The numeric variables, periodic or not, in the order of the columns of `Context.numbers`."""
        return tuple(variable for variable in self.variables if variable.kind == "number" or variable.period)

    @property
    def vectors(self) -> tuple[Variable, ...]:
        """The vector variables, in the order of `Context.vectors`."""
        return tuple(variable for variable in self.variables if variable.kind == "vector")

    @property
    def texts(self) -> tuple[Variable, ...]:
        """The text variables, in the order of `Context.bags`."""
        return tuple(variable for variable in self.variables if variable.kind == "text")

    def variable(self, name: str) -> Variable:
        """Return a variable by its name.

        Raises:
            UserError: The schema has no variable of this name; the message lists the names.
        """
        choose("context variable", name, [variable.name for variable in self.variables])
        return next(variable for variable in self.variables if variable.name == name)

    def anonymize(self, names: Collection[str]) -> "ContextSchema":
        """Return a schema in which numbers replace the values of the categories `names`; `<1>` is the most frequent.

        The filters of rare values are removed too, so that no name can be recovered. In a table that is read with this
        schema, all values of these categories are unknown.
        """

        def without_values(variable: Variable) -> Variable:
            numbered = tuple(f"<{number}>" for number in range(1, len(variable.values)))
            return replace(variable, values=(UNKNOWN_VALUE, *numbered), rare_filter="")

        return ContextSchema(
            tuple(
                without_values(variable) if variable.name in names and variable.kind == "category" else variable
                for variable in self.variables
            )
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the schema as a dict that can be written as JSON."""
        return {"variables": [asdict(variable) for variable in self.variables]}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "ContextSchema":
        """Return the schema that `to_dict` converted to `content`.

        Raises:
            UserError: `content` is not a valid schema.
        """
        try:
            fields: list[dict[str, Any]] = [
                {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
                for entry in content["variables"]
            ]
            variables = tuple(Variable(**variable_fields) for variable_fields in fields)
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"not a context schema ({error})") from None
        if len({variable.name for variable in variables}) < len(variables):
            raise UserError("not a context schema (two variables have the same name)")
        for variable in variables:
            _check(variable)
        return cls(variables)

    @classmethod
    def load(cls, path: Path) -> "ContextSchema":
        """Return the schema in a JSON file.

        Raises:
            UserError: The file does not exist or is damaged.
        """
        try:
            return cls.from_dict(files.read_json(path))
        except UserError as error:
            raise UserError(str(error) if str(error).startswith(str(path)) else f"{path}: {error}") from None


def _check(variable: Variable) -> None:
    """Raise `UserError` unless the fields of a variable have valid types, ranges and lengths."""
    for name, hint in typing.get_type_hints(Variable).items():
        if not _has_type(getattr(variable, name), hint):
            raise UserError(f"not a context schema ({name} of {variable.name!r:.60} has a wrong type)")
    choose("kind of context variable", variable.kind, COLUMN_KINDS)
    not_negative = (variable.rare_count, variable.min_count, variable.period, *variable.counts, *variable.shares)
    parallel = {"category": ("values", "counts"), "text": ("values", "shares")}  # fields of equal length
    first, second = parallel.get(variable.kind, ("means", "deviations"))
    if min(not_negative) < 0:
        raise UserError(f"not a context schema (a count, share or period of {variable.name!r:.60} is negative)")
    if min(variable.deviation, *variable.deviations, 1) <= 0:
        raise UserError(f"not a context schema (a standard deviation of {variable.name!r:.60} is not above 0)")
    if len(getattr(variable, first)) != len(getattr(variable, second)):
        raise UserError(f"not a context schema ({first} and {second} of {variable.name!r} differ in length)")


def _has_type(value: Any, hint: Any) -> bool:
    if typing.get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_has_type(item, typing.get_args(hint)[0]) for item in value)
    return type(value) in (int, float) and math.isfinite(value) if hint is float else type(value) is hint


def waves(period: float, harmonics: int = HARMONICS) -> tuple[list[float], list[float]]:
    """Return the frequencies w and the phases p of the waves sin(w x + p) that encode a periodic number x.

    Each harmonic has two waves: a sine (p = 0) and a cosine (p = pi / 2).
    """
    frequencies = [2 * math.pi * harmonic / period for harmonic in range(1, harmonics + 1) for _ in range(2)]
    return frequencies, [0.0, math.pi / 2] * harmonics


def bloom_filter(names: Collection[str]) -> str:
    """Return the Bloom filter of `names` in hexadecimal digits; empty without names."""
    if not names:
        return ""
    content = bytearray(math.ceil(max(MIN_BITS, BITS_PER_VALUE * len(names)) / 8))
    for name in names:
        for position in _probe_positions(name, 8 * len(content)):
            content[position // 8] |= 1 << position % 8
    return content.hex()


def may_contain(content: bytes, name: str) -> bool:
    """Return whether `name` passes the Bloom filter with these bytes; names outside the filter pass by coincidence."""
    if not content:
        return False
    positions = _probe_positions(name, 8 * len(content))
    return all(content[position // 8] >> position % 8 & 1 for position in positions)


def _probe_positions(name: str, size: int) -> list[int]:
    """Return the positions of a name's bits in a filter of `size` bits, from two hashes (Kirsch, Mitzenmacher 2006)."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    first, step = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little") | 1
    return [(first + probe * step) % size for probe in range(PROBES)]
