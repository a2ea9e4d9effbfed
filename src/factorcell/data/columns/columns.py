"""Read the context columns of a table: determine their kinds and encode their values with a schema."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.config import HISTORY_COLUMN, DataConfig
from factorcell.data.columns.context import Ragged
from factorcell.data.columns.declarations import new_variables, parse_column
from factorcell.data.columns.readers import (
    READERS,
    CategoryReader,
    ColumnReader,
    NumberReader,
    PromptReader,
    earlier_texts,
)
from factorcell.data.columns.schema import ContextSchema
from factorcell.data.columns.values import read_times
from factorcell.data.tables.chunks import Table
from factorcell.data.tables.tables import open_table
from factorcell.data.tokenizers.tokenizer import Tokenizer
from factorcell.errors import UserError
from factorcell.io.arrays import mapped
from factorcell.options.limits import check_unknown


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
        self.table, self.config, self.schema, self.row_count = table, config, schema, 0
        self.readers = list[ColumnReader]()
        self.times: list[Any] | None = None  # the time of each text, if the prompts are earlier texts of the table
        for variable in new_variables(table, config) if schema is None else schema.variables:
            column, is_user = variable.source_column, variable.source_column == config.user
            policy = "expected" if variable.name in optional else unknown
            if policy == "error" and config.anonymous and is_user:
                policy = "group"  # the schema has no names of users, so all users are unknown
            is_missing_allowed = schema is not None and policy == "expected" and column not in table.repeated_columns
            if column not in (*table.columns, HISTORY_COLUMN) and not is_missing_allowed:
                raise table.missing_column_error(column, (("unknown", "expected"),))
            reader_class = READERS.get(variable.kind, NumberReader)
            reader = reader_class(variable, table, None if schema is None else policy)
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
            self.times.extend(chunk.get(self.config.time) or [None] * row_count)
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
                # A missing time is before all times.
                seconds = read_times(self.times, lambda row: f"{self.table.place(row)}: {self.config.time}", -np.inf)
                prompts = earlier_texts(texts, self._users(), np.array(seconds), self.config, tokenizer.specials)
            else:
                prompts = reader.ids_of_rows(tokenizer)
            encoded["prompt"].append(prompts)
        if self.config.anonymous:
            schema = schema.anonymize(self.config.user)
        return {
            "schema": schema,
            "categories": self._join_columns(encoded["category"], np.int32),
            "numbers": self._join_columns(encoded["number"], np.float32),
            "vectors": tuple(encoded["vector"]),
            "words": tuple(encoded["text"]),
            "prompts": tuple(encoded["prompt"]),
            "users": self._users(),
        }

    def _join_columns(self, columns: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
        """Return the columns of all rows as an array (rows, columns)."""
        if not columns:
            return np.zeros((self.row_count, 0), dtype)
        return mapped(lambda *parts: np.stack(parts, axis=1).astype(dtype), *columns)

    def _users(self) -> NDArray[np.int32]:
        """Return the provisional id of the user of each text (rows,); an empty array without a column of users."""
        readers = [reader for reader in self.readers if isinstance(reader, CategoryReader) and reader.is_private]
        return readers[0].values.array() if readers else np.zeros(0, np.int32)


def with_context(options: DataConfig, *columns: str) -> DataConfig:
    """Return `options` with `columns` as the only context columns."""
    return replace(options, context=columns, user="", time="", prompt_history=0, anonymous=False)


def check_columns(source: Any, config: DataConfig) -> None:
    """Raise `UserError` if a table lacks the text column or a context column of training.

    A command that reads several tables calls this function first, so that it fails before its work begins.
    """
    table = open_table(source)
    context_columns = [parse_column(text).name for text in config.columns]
    for name in (config.text, *context_columns, *([config.time] if config.time else [])):
        if name not in (*table.columns, HISTORY_COLUMN):
            error = table.missing_column_error(name)
            if name == config.text:
                raise error
            raise UserError(f"{error.message}; the table must have every context column of training")
