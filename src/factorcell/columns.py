"""Context columns: what a column holds, its values as ids or numbers, and what is wrong with one that does not fit.

A category is compared by its name, and 5, 5.0, "5" and "5.0" have the same: a rating read from a file and one given
in Python agree. A missing category (null or an empty field) has the expected value; a missing number is an error
unless the caller chose `unknown="expected"`.
"""

import difflib
import math
import re
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.config import DataConfig, UserError, choose
from factorcell.context import MISSING, RARE, ContextSchema, Variable
from factorcell.tables import Table

KINDS = ("category", "number")
UNKNOWN_POLICIES = ("error", "group", "expected")
GUESS_ROWS = 100_000  # a kind is guessed from this many rows at most
LARGEST = float(np.finfo(np.float32).max)
FEW = 20  # at most this many whole numbers are taken for the names of categories, such as ratings


def category_name(value: Any) -> str:
    """The name of a category: whole floats lose their point, so that 5, 5.0, "5" and "5.0" are one value."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    text = str(value)
    whole = text[: text.index(".")] if re.fullmatch(r"-?\d+\.0+", text) else text
    return "0" if whole == "-0" else whole


def is_missing(value: Any) -> bool:
    """Null, an empty field, or not a number."""
    if isinstance(value, (str, int)):
        return value == ""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or _is_nan(value)


def _is_nan(value: Any) -> bool:
    return isinstance(value, (float, np.floating)) and math.isnan(value)


def to_number(value: Any) -> float | None:
    """A number that 32 bits hold, or None."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) <= LARGEST else None


class _Names(dict[Any, int]):
    """Provisional ids of category values, 1 upwards in order of appearance; 0 is a missing one."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[str, int] = {}

    def __missing__(self, value: Any) -> int:
        if is_missing(value):
            return 0
        name = category_name(value)
        self[value] = index = self.names.setdefault(name, len(self.names) + 1)
        return index


class Categories:
    """A categorical column as it is read."""

    def __init__(self, name: str, where: str, known: Variable | None, unknown: str) -> None:
        self.name, self.where, self.known, self.unknown = name, where, known, unknown
        self.ids = _Names()
        self.rows: list[NDArray[np.int32]] = []

    def add(self, values: list[Any], before: int) -> None:
        """Take one chunk; `before` rows came earlier."""
        seen = len(self.ids.names)
        try:
            rows = np.fromiter(map(self.ids.__getitem__, values), dtype=np.int32, count=len(values))
        except TypeError:  # not hashable
            row, value = next((r, v) for r, v in enumerate(values, before + 1) if isinstance(v, (list, dict, set)))
            kind = type(value).__name__
            raise UserError(f"{self.where} row {row}: {self.name} is a {kind}, not the name of a category") from None
        self.rows.append(rows)
        if self.known and self.unknown == "error" and len(self.ids.names) > seen:
            for name in islice(self.ids.names, seen, None):
                if name not in self.known.values[1:]:
                    row = before + int(np.flatnonzero(rows == self.ids.names[name])[0]) + 1
                    raise UserError(self._never(name, row))

    def _never(self, name: str, row: int) -> str:
        values = self.known.values[1:] if self.known else ()
        near = difflib.get_close_matches(name, values, n=3) or values[:5]
        more = ", ..." if len(values) > len(near) else ""
        rare = " or is a rare one" if self.known and self.known.rare else ""
        return (
            f"{self.where} row {row}: {self.name} {name!r} was never seen in training{rare}; it knows "
            f"{len(values)} values ({', '.join(near)}{more}); choose unknown=group or unknown=expected to go on"
        )

    def variable(self, min_count: int) -> Variable:
        """The variable that this column makes: frequent values by falling count, rare ones grouped."""
        counts = np.bincount(np.concatenate(self.rows), minlength=len(self.ids.names) + 1)[1:].tolist()
        named = sorted(zip(self.ids.names, counts, strict=True), key=lambda pair: (-pair[1], pair[0]))
        kept = [(name, count) for name, count in named if count >= min_count and name != RARE]
        grouped = sum(counts) - sum(count for _, count in kept)
        return Variable(
            self.name,
            "category",
            values=(RARE, *(name for name, _ in kept)),
            counts=(grouped, *(count for _, count in kept)),
            rare=len(named) - len(kept),
        )

    def array(self, variable: Variable) -> NDArray[np.int32]:
        """The ids of all rows in `variable`."""
        index = {name: row for row, name in enumerate(variable.values)}
        other = MISSING if self.unknown == "expected" else 0
        final = [MISSING, *(index.get(name, other) for name in self.ids.names)]
        return np.array(final, dtype=np.int32)[np.concatenate(self.rows)]


class Numbers:
    """A numeric column as it is read."""

    def __init__(self, name: str, where: str, unknown: str) -> None:
        self.name, self.where, self.unknown = name, where, unknown
        self.rows: list[NDArray[np.float64]] = []

    def add(self, values: list[Any], before: int) -> None:
        """Take one chunk; `before` rows came earlier."""
        numbers = [to_number(value) for value in values]
        for row, (value, number) in enumerate(zip(values, numbers, strict=True), before + 1):
            if number is None and not (self.unknown == "expected" and is_missing(value)):
                got = "empty" if is_missing(value) else repr(value)
                raise UserError(
                    f"{self.where} row {row}: {self.name} is {got}, not a number (a category? say {self.name}:category)"
                )
        self.rows.append(np.array([math.nan if number is None else number for number in numbers]))

    def variable(self, min_count: int) -> Variable:
        """The variable that this column makes, with its moments and range."""
        rows = np.concatenate(self.rows)
        rows = rows[~np.isnan(rows)]
        if not len(rows):
            return Variable(self.name, "number")
        deviation = float(rows.std()) or 1.0
        low, high = float(rows.min()), float(rows.max())
        return Variable(self.name, "number", mean=float(rows.mean()), deviation=deviation, low=low, high=high)

    def array(self, variable: Variable) -> NDArray[np.float64]:
        """The values of all rows."""
        return np.concatenate(self.rows)


def parse_column(text: str) -> tuple[str, str | None]:
    """`NAME` or `NAME:KIND` -> name and kind."""
    name, colon, kind = text.rpartition(":")
    if not colon:
        return text, None
    return name, choose("kind of context column", kind, KINDS)


def column_readers(
    table: Table,
    config: DataConfig,
    schema: ContextSchema | None,
    unknown: str,
    optional: tuple[str, ...] = (),
) -> list[Categories | Numbers]:
    """A reader for every context column: as the schema says, or as the config says, or guessed from the first rows."""
    choose("policy for unknown values", unknown, UNKNOWN_POLICIES)
    if schema is not None:
        policy = {v.name: "expected" if v.name in optional else unknown for v in schema.variables}
        for variable in schema.variables:
            if variable.name not in table.columns and policy[variable.name] != "expected":
                have = ", ".join(table.columns)
                raise UserError(
                    f"{table.name}: no column {variable.name!r}; it has {have} (unknown=expected goes on without)"
                )
        return [
            Numbers(variable.name, table.name, policy[variable.name])
            if variable.kind == "number"
            else Categories(variable.name, table.name, variable, policy[variable.name])
            for variable in schema.variables
        ]
    wanted = [parse_column(text) for text in config.context]
    names = [name for name, _ in wanted]
    if len(set(names)) < len(names):
        raise UserError(f"context column {max(names, key=names.count)!r} is named twice")
    for name in names:
        if name not in table.columns:
            raise UserError(f"{table.name}: no column {name!r}; it has {', '.join(table.columns)}")
    guesses = _guess(table, [name for name, kind in wanted if kind is None])
    return [
        Numbers(name, table.name, "error")
        if (kind or guesses[name]) == "number"
        else Categories(name, table.name, None, "group")
        for name, kind in wanted
    ]


def _guess(table: Table, names: list[str]) -> dict[str, str]:
    """A column is a number if all its first values are, and they are not just a few whole ones."""
    values: dict[str, set[Any]] = {name: set() for name in names}
    if not names:
        return {}
    rows = 0
    for chunk in table.chunks(names):
        for name in names:
            try:
                values[name].update(chunk[name])
            except TypeError:  # not hashable, so no number; the reader will say in which row
                values[name].update(map(repr, chunk[name]))
        rows += len(chunk[names[0]])
        if rows >= GUESS_ROWS:
            break
    return {name: _kind(seen) for name, seen in values.items()}


def _kind(values: set[Any]) -> str:
    numbers = [to_number(value) for value in values if not is_missing(value)]
    whole = [number for number in numbers if number is not None]
    if not numbers or len(whole) < len(numbers):
        return "category"
    few = len(set(whole)) <= FEW and all(number.is_integer() for number in whole)
    return "category" if few else "number"
