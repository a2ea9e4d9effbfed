"""The context columns of a table: the kind of each, and all of them encoded by a schema."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.choices import UNKNOWN_POLICIES
from factorcell.config import DataConfig, Notice, UserError, choose
from factorcell.data.chunks import Table
from factorcell.data.readers import CategoryColumn, Column, NumberColumn, Ragged, TextColumn, VectorColumn
from factorcell.data.schema import COLUMN_KINDS, PERIODS, TIME_KINDS, ContextSchema, Variable
from factorcell.data.tables import open_table
from factorcell.data.values import is_missing, short_repr, to_number

GUESS_ROWS = 100_000  # a kind is guessed from this many rows at most
FEW = 20  # at most this many whole numbers are taken for the names of categories, such as ratings
NEARLY = 0.9  # share of a column's values that are numbers, from which the others may be mistakes

READERS: dict[str, type[Column]] = {"category": CategoryColumn, "text": TextColumn, "vector": VectorColumn}


class ContextColumns:
    """The context columns of a table as they are read, by a `schema`, or by one that they make.

    Without a `schema` their kinds follow from the config, or are guessed from the first rows.
    """

    def __init__(
        self,
        table: Table,
        config: DataConfig,
        schema: ContextSchema | None = None,
        unknown: str = "error",
        optional: Sequence[str] = (),
    ) -> None:
        """Open a reader for each variable; `unknown` is the policy, and `expected` that of the `optional` ones."""
        choose("policy for unknown values", unknown, UNKNOWN_POLICIES)
        self.config, self.schema = config, schema
        self.readers = list[Column]()
        for variable in _new_variables(table, config) if schema is None else schema.variables:
            column, policy = variable.source_column, "expected" if variable.name in optional else unknown
            if schema is None:
                policy = "error"
            elif policy == "error" and config.anonymous and column == config.user:
                policy = "group"  # no name was kept, so all users are unknown
            if column not in table.columns and policy != "expected":
                raise table.missing_column_error(column, (("unknown", "expected"),))
            reader = READERS.get(variable.kind, NumberColumn)(variable, table.name, policy, known=schema is not None)
            if isinstance(reader, CategoryColumn):
                reader.private = column == config.user
            self.readers.append(reader)
        self.names = [reader.column for reader in self.readers if reader.column in table.columns]

    def add(self, chunk: Mapping[str, list[Any]], rows: int, before: int) -> None:
        """Take a chunk of so many rows; `before` rows came earlier."""
        for reader in self.readers:
            reader.add(chunk.get(reader.column) or [None] * rows, before)

    def arrays(self, rows: int) -> dict[str, Any]:
        """Return the fields of a `Corpus` that come from context columns, its schema among them."""
        schema = self.schema or ContextSchema(tuple(reader.variable(self.config) for reader in self.readers))
        categories, numbers = list[NDArray[Any]](), list[NDArray[Any]]()
        vectors, bags, users = list[NDArray[np.float32]](), list[Ragged](), np.zeros(0, np.int32)
        lists: dict[str, list[Any]] = {"category": categories, "vector": vectors, "text": bags}
        for reader, variable in zip(self.readers, schema.variables, strict=True):
            lists.get(variable.kind, numbers).append(reader.array(variable))
            if isinstance(reader, CategoryColumn) and reader.private:
                users = reader.provisional()
                if self.config.anonymous:
                    schema = schema.anonymize([variable.name])
        return {
            "schema": schema,
            "categories": np.ascontiguousarray(np.array(categories, np.int32).reshape(-1, rows).T),
            "numbers": np.ascontiguousarray(np.array(numbers, np.float32).reshape(-1, rows).T),
            "vectors": tuple(vectors),
            "bags": tuple(bags),
            "users": users,
        }


def parse_column(text: str) -> tuple[str, str | None, float]:
    """`NAME`, `NAME:KIND` or `NAME:cyclic=PERIOD` -> name, kind and period (0: none)."""
    name, colon, given = text.rpartition(":")
    if not colon:
        return text, None, 0.0
    kind, equals, period = given.partition("=")
    choose("kind of context column", kind, COLUMN_KINDS)
    if kind != "cyclic":
        if equals:
            raise UserError(f"context column {text!r}: only cyclic takes a period")
        return name, kind, PERIODS.get(kind, 0.0)
    number = to_number(period)
    if number is None or number <= 0:
        raise UserError(f"context column {text!r}: say its period, a number above 0, as in {name}:cyclic=24")
    return name, kind, number


def check_columns(source: Any, config: DataConfig) -> None:
    """`UserError` if a table lacks the text or a context column of training: at once, before anything is read.

    For callers who offer no policy for what is missing.
    """
    table = open_table(source)
    for name in (config.text, *(parse_column(text)[0] for text in config.columns)):
        if name not in table.columns:
            lacking = table.missing_column_error(name)
            every = "it must have every context column of training"
            raise lacking if name == config.text else UserError(f"{lacking.message}; {every}")


def _new_variables(table: Table, config: DataConfig) -> list[Variable]:
    """The variables of training data, named by their columns, or by column and kind."""
    wanted = [parse_column(text) for text in config.columns]
    columns = [column for column, _, _ in wanted]
    names = []
    for column, kind, _ in wanted:
        if column not in table.columns:
            raise table.missing_column_error(column)
        names.append(f"{column}.{kind}" if kind in TIME_KINDS or (kind and columns.count(column) > 1) else column)
        if names.count(names[-1]) > 1 or (kind is None and columns.count(column) > 1):
            added = column in (config.user, config.time)
            need = "--user or --time adds it already" if added else "each time needs a kind of its own"
            raise UserError(f"context column {names[-1]!r} is named twice; {need}")
    guesses = _guess(table, [column for column, kind, _ in wanted if kind is None])
    return [
        Variable(name, kind or guesses[column], column=column if column != name else "", period=period)
        for name, (column, kind, period) in zip(names, wanted, strict=True)
    ]


def _guess(table: Table, names: list[str]) -> dict[str, str]:
    """Guess the kinds of columns from their first rows: a number if all values are, and not just a few whole ones.

    A `Notice` names the first value of a column that a few values keep from being a number.
    """
    numbers = {name: list[float]() for name in names}
    others = {name: list[tuple[int, Any]]() for name in names}  # row and value
    done = 0
    for chunk in table.chunks(names) if names else ():
        for name in names:
            for row, value in enumerate(chunk[name], done + 1):
                if (number := to_number(value)) is not None:
                    numbers[name].append(number)
                elif not is_missing(value):
                    others[name].append((row, value))
        done += len(chunk[names[0]])
        if done >= GUESS_ROWS:
            break
    kinds = dict.fromkeys(names, "category")
    for name, odd in others.items():
        distinct = set(numbers[name])
        if len(distinct) <= FEW and all(map(float.is_integer, distinct)):
            continue
        if not odd:
            kinds[name] = "number"
        elif len(odd) <= (1 - NEARLY) * (len(numbers[name]) + len(odd)):
            row, value = odd[0]
            more = f", like {len(odd) - 1:,} other values" if len(odd) > 1 else ""
            read = f"all else are numbers, so {name} is read as a category; say {name}:number or {name}:category"
            what = f"{table.name} row {row}: {name} is {short_repr(value)}, no number{more}; {read}"
            warnings.warn(Notice(what), stacklevel=2)
    return kinds
