"""The schema of a model's context: the context variables, each with statistics of its column in the training table.

The schema stores the frequent values of a category, and the mean and standard deviation of a number. Training groups
the other values of a category as rare; their names are not stored, so later tables do not distinguish them from values
that training never saw.
"""

import math
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from factorcell.data.columns.values import NUMBER_NOTATIONS, TIME_KINDS, TIME_NOTATIONS
from factorcell.errors import UserError, check_choice
from factorcell.io import files

UNKNOWN_VALUE = "<unknown>"  # value 0 of every category: rare values, and unseen values with `unknown="group"`
MISSING = -1  # the id of a missing category value
EXPECTED_READING = "read as the expected value of the column"  # clause of notices about missing values
# The periods of the periodic kinds, except that of the kind cyclic, which the user sets.
PERIODS = {"hour": 24.0, "weekday": 7.0, "yearday": 365.25, "longitude": 360.0}
NUMBER_KINDS = ("number", *PERIODS, "cyclic")
NAMED_NUMBER_KINDS = ("number", "longitude")  # those of which a model can read the number as text
# The notations of the cells of each kind that is read as a number, in addition to cells that can mean one thing only
NOTATIONS = {kind: TIME_NOTATIONS if kind in TIME_KINDS else tuple(NUMBER_NOTATIONS) for kind in NUMBER_KINDS}
COLUMN_KINDS = ("category", *NUMBER_KINDS, "text", "prompt", "vector")
# The number of pairs of a sine and a cosine that encode a periodic number. With three pairs, any function of the seven
# days of a week is a weighted sum of the waves plus a constant.
HARMONICS = 3


@dataclass(frozen=True)
class Variable:
    """One context variable. A field that does not apply to the kind of the variable has its default value.

    Attributes:
        name: The name of the variable.
        kind: One of `COLUMN_KINDS`.
        values: For a category, `UNKNOWN_VALUE` and then the frequent values; for a text, the words.
        counts: The number of training texts with each value of a category.
        rare_count: How many values of a category were grouped as rare.
        mean, deviation: The mean and the standard deviation of a number, periodic or not, in training.
        low, high: The smallest and the largest number in training; only for numbers that are not periodic.
        column: The column of the table, if its name differs from `name`.
        period: The period of a periodic number; 0 for other kinds.
        means, deviations: For a vector of D numbers, the mean and the standard deviation of each number (D,); for a
            periodic number, those of each of its waves (`wave_parameters`).
        shares: For a text, the weight of each word in the mean embedding of all training texts.
        min_count: For a category, the minimum number of training texts of a frequent value.
        notation: For a number or a time, the notation of its cells; empty for cells that can mean one thing only.
        unknown_count: For a category, the number of training texts with the name `UNKNOWN_VALUE` in their cell.
        classes: For a category of a class column of a data set, the name of each class number.
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
    notation: str = ""
    unknown_count: int = 0
    classes: tuple[str, ...] = ()

    @property
    def source_column(self) -> str:
        """The column of the table that contains the variable."""
        return self.column or self.name

    @cached_property
    def index_by_value(self) -> dict[str, int]:
        """The index of each value in `values`; cached, because every request needs it."""
        return {value: index for index, value in enumerate(self.values)}

    @property
    def is_all_rare(self) -> bool:
        """Whether the variable is a category without frequent values: all values are read as the unknown value."""
        return self.kind == "category" and len(self.values) == 1

    @property
    def counts_by_value(self) -> dict[str, float]:
        """The number of training texts with each value of a category."""
        return dict(zip(self.values, map(float, self.counts), strict=True))

    def frequencies(self) -> list[float]:
        """Return the share of training texts with each value; all shares are equal if all counts are 0."""
        total = sum(self.counts)
        return [count / total if total else 1 / len(self.counts) for count in self.counts]

    def describe(self) -> str:
        """Return the name and the details of the variable, such as "city (202 values, 410 rare)"."""
        return f"{self.name} ({self.details})"

    @property
    def details(self) -> str:
        """The number of values of a category, or the kind of another variable with its statistics."""
        details = {
            "number": f"number from {self.low:.4g} to {self.high:.4g}, mean {self.mean:.4g}",
            "text": f"text, {len(self.values):,} words",
            "prompt": "prompt",
            "vector": f"vector of {len(self.means):,} numbers",
            "category": f"{len(self.values) - 1:,} values"
            + (f", {self.rare_count:,} rare (fewer than {self.min_count} texts)" if self.rare_count else ""),
        }
        return details.get(self.kind, f"{self.kind}, period {self.period:g}, mean {self.mean:.4g}")


@dataclass(frozen=True)
class ContextSchema:
    """The context variables of a model, in the order in which the context columns were specified."""

    variables: tuple[Variable, ...] = ()

    def of_kinds(self, *kinds: str) -> tuple[Variable, ...]:
        """Return the variables of these kinds."""
        return tuple(variable for variable in self.variables if variable.kind in kinds)

    @cached_property
    def categories(self) -> tuple[Variable, ...]:
        """The categorical variables, in the order of the columns of `Context.categories`."""
        return self.of_kinds("category")

    def columns(self, without: str = "") -> list[str]:
        """Return the name of each column that contains a variable, once each, except the column `without`."""
        names = dict.fromkeys(variable.source_column for variable in self.variables)
        return [name for name in names if name != without]

    @cached_property
    def numbers(self) -> tuple[Variable, ...]:
        """The numeric variables, periodic or not, in the order of the columns of `Context.numbers`."""
        return self.of_kinds(*NUMBER_KINDS)

    @cached_property
    def vectors(self) -> tuple[Variable, ...]:
        """The vector variables, in the order of `Context.vectors`."""
        return self.of_kinds("vector")

    @cached_property
    def texts(self) -> tuple[Variable, ...]:
        """The variables of kind text, in the order of `Context.words`."""
        return self.of_kinds("text")

    @cached_property
    def prompts(self) -> tuple[Variable, ...]:
        """The prompts, in the order of `Context.prompts`."""
        return self.of_kinds("prompt")

    @property
    def embedded(self) -> "ContextSchema":
        """The schema of the variables that have embeddings: all except prompts, which the language model reads."""
        return ContextSchema(self.of_kinds(*(kind for kind in COLUMN_KINDS if kind != "prompt")))

    def named_variables(self, user: str = "") -> tuple[Variable, ...]:
        """Return what a model can read as text: categories with frequent values, except `user`, and numbers."""
        categories = [each for each in self.categories if not each.is_all_rare and each.source_column != user]
        return (*categories, *self.of_kinds(*NAMED_NUMBER_KINDS))

    def variable(self, name: str) -> Variable:
        """Return a variable by its name; raise `UserError` if there is none."""
        check_choice("context variable", name, [variable.name for variable in self.variables])
        return next(variable for variable in self.variables if variable.name == name)

    def anonymize(self, column: str) -> "ContextSchema":
        """Return a schema in which the values of the category in `column` are replaced by `<1>`, `<2>` and so on.

        `<1>` replaces the most frequent value. In a table that is read with the new schema, all values of this category
        are unknown.
        """
        variables = []
        for variable in self.variables:
            if variable.source_column == column and variable.kind == "category":
                placeholders = (f"<{number}>" for number in range(1, len(variable.values)))
                variable = replace(variable, values=(UNKNOWN_VALUE, *placeholders))
            variables.append(variable)
        return ContextSchema(tuple(variables))

    def to_dict(self) -> dict[str, Any]:
        """Return the schema as a dict that can be written as JSON."""
        return {"variables": [asdict(variable) for variable in self.variables]}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "ContextSchema":
        """Return the schema that `to_dict` converted to `content`; raise `UserError` if it is not valid."""

        def as_tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
            return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}

        try:
            variables = tuple(Variable(**as_tuples(fields)) for fields in content["variables"])
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"not a context schema ({error})") from None
        if len({variable.name for variable in variables}) < len(variables):
            raise UserError("not a context schema (two variables have the same name)")
        for variable in variables:
            _check_fields(variable)
        return cls(variables)

    @classmethod
    def load(cls, path: Path) -> "ContextSchema":
        """Return the schema in a JSON file; raise `UserError` if it does not exist or is damaged."""
        try:
            return cls.from_dict(files.read_json(path))
        except UserError as error:
            raise UserError(str(error) if str(error).startswith(str(path)) else f"{path}: {error}") from None


def _check_fields(variable: Variable) -> None:
    """Raise `UserError` unless the fields of a variable have valid types, ranges and lengths."""

    def check(is_valid: bool, problem: str) -> None:
        if not is_valid:
            raise UserError(f"not a context schema ({problem} of {variable.name!r:.60})")

    for name, hint in typing.get_type_hints(Variable).items():
        value, item_types = getattr(variable, name), typing.get_args(hint)
        items, item_type = (value, item_types[0]) if item_types else ((value,), hint)
        check(isinstance(value, tuple) == bool(item_types), f"wrong type of the field {name}")
        accepted_types = (int, float) if item_type is float else (item_type,)  # not bool, a subclass of int
        check(all(type(item) in accepted_types for item in items), f"wrong type of the field {name}")
        check(item_type is not float or all(map(math.isfinite, items)), f"infinity or NaN in the field {name}")
    check_choice("kind of context variable", variable.kind, COLUMN_KINDS)
    check_choice("notation", variable.notation, ("", *NOTATIONS.get(variable.kind, ())))
    counts = (variable.rare_count, variable.unknown_count, variable.min_count, *variable.counts)
    check(min(variable.period, *counts, *variable.shares) >= 0, "negative count, share or period")
    check(min([variable.deviation, *variable.deviations]) > 0, "standard deviation not above 0")
    parts = {"category": (variable.values, variable.counts), "text": (variable.values, variable.shares)}
    first, second = parts.get(variable.kind, (variable.means, variable.deviations))
    check(len(first) == len(second), "lists of different lengths")


def wave_parameters(period: float, harmonics: int = HARMONICS) -> tuple[list[float], list[float]]:
    """Return the frequencies w and the phases p of the waves sin(w x + p) that encode a periodic number x.

    Each harmonic has two waves: a sine (p = 0) and a cosine (p = pi / 2).
    """
    frequencies = [2 * math.pi * harmonic / period for harmonic in range(1, harmonics + 1) for _ in range(2)]
    return frequencies, [0.0, math.pi / 2] * harmonics
