"""Read the context columns of a table: determine their kinds and encode their values with a schema."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.config import HISTORY_COLUMN, DataConfig
from factorcell.data.columns.context import Ragged
from factorcell.data.columns.readers import (
    READERS,
    CategoryReader,
    ColumnReader,
    NumberReader,
    PromptReader,
    earlier_texts,
)
from factorcell.data.columns.schema import COLUMN_KINDS, PERIODS, TIME_KINDS, ContextSchema, Variable
from factorcell.data.columns.values import is_missing, short_repr, to_number, to_seconds
from factorcell.data.tables.chunks import Table
from factorcell.data.tables.tables import open_table
from factorcell.data.tokenizers.tokenizer import Tokenizer
from factorcell.errors import UserError, check_choice
from factorcell.io.findings import Finding, report
from factorcell.options.limits import check_unknown

GUESS_ROWS = 100_000  # number of rows from which the kind of a column is guessed
MAX_RATINGS = 20  # a column of at most this many different whole numbers, such as ratings, is a category
MIN_NUMBER_SHARE = 0.9  # if at least this share of the values are numbers, the others are reported as likely mistakes


class ContextColumns:
    """The readers of all context columns of a table.

    Without a `schema`, the method `corpus_fields` creates a new one from all values.

    Args:
        table: The table.
        config: The options of the columns.
        schema: The schema of a trained model, or None in training.
        unknown: The policy for category values that are not in `schema` (`ColumnReader.unknown`).
        optional: The names of variables for which the policy is "expected"; their columns may be missing.
        tokenizer: The tokenizer that splits prompts, with or without a vocabulary; None if there are no prompts.

    Attributes:
        readers: A reader for each variable.
        names: The columns that the table contains, once each.
        row_count: The number of rows that were added.
    """

    def __init__(
        self,
        table: Table,
        config: DataConfig,
        schema: ContextSchema | None = None,
        unknown: str = "error",
        optional: Sequence[str] = (),
        tokenizer: Tokenizer | None = None,
    ) -> None:
        check_unknown(unknown)
        if schema is None and config.time and config.time not in table.columns:
            raise table.missing_column_error(config.time)
        self.config, self.schema, self.row_count = config, schema, 0
        self.readers = list[ColumnReader]()
        self.times: list[float] | None = None  # the time of each text, if the prompts are earlier texts of the table
        for variable in _new_variables(table, config) if schema is None else schema.variables:
            column, is_user = variable.source_column, variable.source_column == config.user
            policy = "expected" if variable.name in optional else unknown
            if policy == "error" and config.anonymous and is_user:
                policy = "group"  # the schema has no names of users, so all users are unknown
            if column not in (*table.columns, HISTORY_COLUMN) and (schema is None or policy != "expected"):
                raise table.missing_column_error(column, (("unknown", "expected"),))
            reader_class = READERS.get(variable.kind, NumberReader)
            reader = reader_class(variable, table.name, None if schema is None else policy)
            if isinstance(reader, CategoryReader):
                reader.is_private = is_user
            if isinstance(reader, PromptReader) and tokenizer is not None:
                reader.read_with(tokenizer, config)
            if column == HISTORY_COLUMN and column not in table.columns and variable.name not in optional:
                self.times = []
            self.readers.append(reader)
        columns = [reader.column for reader in self.readers] + ([config.time] if self.times is not None else [])
        self.names = [column for column in dict.fromkeys(columns) if column in table.columns]

    def add(self, chunk: Mapping[str, list[Any]], row_count: int) -> None:
        """Add a chunk of `row_count` rows."""
        rows = range(self.row_count + 1, self.row_count + 1 + row_count)
        for reader in self.readers:
            reader.add(chunk.get(reader.column) or [None] * row_count, rows)
        if self.times is not None:
            # Values that are not times are before all times.
            seconds = map(to_seconds, chunk.get(self.config.time) or [None] * row_count)
            self.times += (-np.inf if second is None else second for second in seconds)
        self.row_count += row_count

    def corpus_fields(self, text_fields: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the fields of a `Corpus` that come from context columns, including its schema.

        `text_fields` are the fields of the corpus that come from texts: earlier texts of a user are read from them.
        Without prompts, they are not read.
        """
        schema = self.schema or ContextSchema(tuple(reader.build_variable(self.config) for reader in self.readers))
        encoded: dict[str, list[Any]] = {"category": [], "number": [], "vector": [], "text": [], "prompt": []}
        for reader, variable in zip(self.readers, schema.variables, strict=True):
            if not isinstance(reader, PromptReader):
                encoded["number" if isinstance(reader, NumberReader) else variable.kind].append(reader.encode(variable))
                continue
            assert text_fields is not None
            texts, tokenizer = Ragged(text_fields["tokens"], text_fields["offsets"]), text_fields["tokenizer"]
            if variable.source_column == HISTORY_COLUMN and self.times is not None:
                times = np.array(self.times)
                prompts = earlier_texts(texts, self._users(), times, self.config, tokenizer.specials)
            else:
                prompts = reader.ids_of_rows(tokenizer)
            encoded["prompt"].append(prompts)
        if self.config.anonymous:
            schema = schema.anonymize(self.config.user)
        categories, numbers = np.array(encoded["category"], np.int32), np.array(encoded["number"], np.float32)
        return {
            "schema": schema,
            "categories": np.ascontiguousarray(categories.reshape(-1, self.row_count).T),
            "numbers": np.ascontiguousarray(numbers.reshape(-1, self.row_count).T),
            "vectors": tuple(encoded["vector"]),
            "words": tuple(encoded["text"]),
            "prompts": tuple(encoded["prompt"]),
            "users": self._users(),
        }

    def _users(self) -> NDArray[np.int32]:
        """Return the provisional id of the user of each text (rows,); an empty array without a column of users."""
        readers = [reader for reader in self.readers if isinstance(reader, CategoryReader) and reader.is_private]
        return readers[0].all_values() if readers else np.zeros(0, np.int32)


def parse_column(text: str) -> tuple[str, str | None, float]:
    """Parse `NAME`, `NAME:KIND` or `NAME:cyclic=PERIOD`; return the name, the kind or None, and the period or 0."""
    name, colon, kind_and_period = text.rpartition(":")
    if not colon:
        return text, None, 0.0
    kind, equals, period_text = kind_and_period.partition("=")
    check_choice("kind of context column", kind, COLUMN_KINDS)
    if kind != "cyclic":
        if equals:
            raise UserError(f"context column {text!r}: a period can be set only for the kind cyclic")
        return name, kind, PERIODS.get(kind, 0.0)
    period = to_number(period_text)
    if period is None or period <= 0:
        example = f"a period above 0, as in {name}:cyclic=24"
        raise UserError(f"context column {text!r}: expected {example}, got {period_text!r}")
    return name, kind, period


def with_context(options: DataConfig, *columns: str) -> DataConfig:
    """Return `options` with `columns` as the only context columns."""
    return replace(options, context=columns, user="", time="", prompt_history=0, anonymous=False)


def check_columns(source: Any, config: DataConfig) -> None:
    """Raise `UserError` if a table lacks the text column or a context column of training.

    A command that reads several tables calls this function first, so that it fails before its work begins.
    """
    table = open_table(source)
    context_columns = [name for name, _, _ in map(parse_column, config.columns)]
    for name in (config.text, *context_columns, *([config.time] if config.time else [])):
        if name not in (*table.columns, HISTORY_COLUMN):
            error = table.missing_column_error(name)
            if name == config.text:
                raise error
            raise UserError(f"{error.message}; the table must have every context column of training")


def _new_variables(table: Table, config: DataConfig) -> list[Variable]:
    """Return the variables of a training table, before their values are read.

    A variable has the name of its column. The kind is appended to the name for the parts of a time, such as `hour`, and
    for a column that has several variables.
    """
    declarations = [parse_column(text) for text in config.columns]
    columns = [column for column, _, _ in declarations]
    names = []
    for column, kind, _ in declarations:
        if column not in (*table.columns, HISTORY_COLUMN):
            raise table.missing_column_error(column)
        is_repeated = columns.count(column) > 1
        name = f"{column}.{kind}" if kind in TIME_KINDS or (kind and is_repeated) else column
        if name in names or (kind is None and is_repeated):
            is_user = column == config.user
            remedy = "--user already adds it" if is_user else "set a different kind for each use"
            if kind is None and not is_user:
                remedy += f", such as {column}:category"
            raise UserError(f"context column {name!r} is specified twice; {remedy}")
        names.append(name)
    guessed_kinds = _guess_kinds(table, [column for column, kind, _ in declarations if kind is None])
    return [
        Variable(name, kind or guessed_kinds[column], column=column if column != name else "", period=period)
        for name, (column, kind, period) in zip(names, declarations, strict=True)
    ]


def _guess_kinds(table: Table, names: list[str]) -> dict[str, str]:
    """Guess the kind of each column, number or category, from about the first `GUESS_ROWS` rows.

    The kind is number if all values are numbers, unless they are at most `MAX_RATINGS` different whole numbers. If most
    but not all values are numbers, a finding names the first value that is not a number.
    """
    values_by_column = {name: list[Any]() for name in names}
    for chunk in table.chunks(names) if names else ():
        for name in names:
            values_by_column[name] += chunk[name]
        if len(values_by_column[names[0]]) >= GUESS_ROWS:
            break
    kinds = dict.fromkeys(names, "category")
    for name, values in values_by_column.items():
        numbers = [to_number(value) for value in values]
        distinct_numbers = {number for number in numbers if number is not None}
        if len(distinct_numbers) <= MAX_RATINGS and all(map(float.is_integer, distinct_numbers)):
            continue
        others = [row for row, number in enumerate(numbers) if number is None and not is_missing(values[row])]
        number_count = sum(number is not None for number in numbers)
        if not others:
            kinds[name] = "number"
        elif len(others) <= (1 - MIN_NUMBER_SHARE) * (number_count + len(others)):
            like_others = f", like {len(others) - 1:,} other values" if len(others) > 1 else ""
            value = short_repr(values[others[0]])
            problem = f"{table.name} row {others[0] + 1}: {name} is {value}, not a number{like_others}"
            remedy = f"set {name}:number or {name}:category"
            text = f"{problem}; the remaining values are numbers, but {name} is read as a category; {remedy}"
            report(Finding("mixed kinds", text))
    return kinds
