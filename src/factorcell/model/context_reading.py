"""Read the contexts of texts from tables and from mappings, for context adapters (`context_model`)."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from factorcell.config import HISTORY_COLUMN, Config, Notice, UserError
from factorcell.data.arrow import class_name
from factorcell.data.cache import prepare
from factorcell.data.chunks import Chunk, Table
from factorcell.data.columns import parse_column
from factorcell.data.context import Context
from factorcell.data.rows import is_row, to_rows
from factorcell.data.schema import ContextSchema
from factorcell.data.tables import feature_classes, is_column, open_table, without_tensor
from factorcell.data.tokenizer import new_tokenizer
from factorcell.model.reading import TextModel
from factorcell.model.value_names import name_line

_NO_TEXT = "(no text)"  # the text column of a table of which only the contexts are read


def read_schema(source: Any, columns: Sequence[str], *, min_count: int = 50) -> ContextSchema:
    """Determine the context variables from the columns of a training table.

    Args:
        source: A table of any supported type, such as a path, a list of rows, a data frame or a `datasets.Dataset`.
        columns: The context columns, `NAME` or `NAME:KIND`.
        min_count: Values of a category with fewer rows are rare and share one embedding.

    Returns:
        The schema, which `get_context_model` and `ContextModel.read_contexts` use.

    Raises:
        UserError: A column is missing or has an invalid value.
    """
    if isinstance(columns, str):
        raise UserError(f"columns: expected a list of names, got {columns!r}")
    if not columns:
        return ContextSchema()
    config = _text_config().with_options(context=tuple(columns), min_context_count=min_count)
    names = [name for name, _, _ in map(parse_column, columns)]
    schema = prepare(_with_empty_texts(source, names, {}), config, report_counts=False).schema
    classes = feature_classes(source)
    variables = [replace(variable, classes=classes.get(variable.source_column, ())) for variable in schema.variables]
    schema = ContextSchema(tuple(variables))
    for variable in schema.categories:
        if len(variable.values) == 1:  # the unknown value
            problem = f"no value has {min_count:,} rows, so the column changes nothing"
            warnings.warn(Notice(f"{variable.name}: {problem}; lower min_count"), stacklevel=2)
    return schema


def read_names(source: Any, schema: ContextSchema) -> list[str]:
    """Return the names of the category values of each row as text, with a line such as "city: Oslo" for each column.

    A pretrained model that reads them before a text knows what they mean. Rare, missing and new values have an empty
    name, "city:", which a model that was trained with names has therefore read.

    Args:
        source: A table of any supported type with all context columns.
        schema: The context variables.

    Returns:
        The text of each row, which ends with a line feed, or is empty if no column is a category.

    Raises:
        UserError: A column is missing or has an invalid value.
    """
    values = ContextReader(schema).read_table(source).categories.clamp(min=0).tolist()  # a missing value becomes rare
    return ["".join(map(name_line, schema.categories, row)) for row in values]


class ContextReader(TextModel):
    """Reads contexts with a schema.

    Args:
        schema: The context variables.
    """

    def __init__(self, schema: ContextSchema) -> None:
        self.config, self.schema = _text_config(), schema
        self.tokenizer = new_tokenizer(self.config)
        self._classes = {variable.source_column: variable.classes for variable in schema.variables if variable.classes}

    def read_table(self, source: Any, unknown: str = "group") -> Context:
        """Return the contexts of a table with all context columns; other columns are ignored.

        `unknown` says how to read a value that the schema does not have: group, expected or error.
        """
        table = _with_empty_texts(source, self.schema.columns(), self._classes)
        corpus = self.prepare(table, unknown=unknown, report_counts=False)
        return corpus.context(np.arange(len(corpus)))

    def read_mappings(self, context: Any) -> Context:
        """Return the contexts of a mapping from columns to values, or of a table.

        Columns that are missing have their expected values; an unknown column or value raises `UserError`.
        """
        if isinstance(context, str):
            raise UserError(f"context: expected columns with their values or a table of them, got {context!r}")
        vectors = [variable.source_column for variable in self.schema.vectors]
        contexts = [_single_context(context, vectors)] if is_row(context, vectors) else to_rows(context)
        contexts = [
            {
                name: class_name(without_tensor(value), self._classes[name]) if name in self._classes else value
                for name, value in row.items()
            }
            for row in contexts
        ]
        try:
            corpus = self.read([""] * len(contexts), contexts)
        except UserError as error:  # its remedies are arguments of `read_contexts`
            remedy = '; read_contexts(rows, unknown="group") reads unknown values' if error.remedies else ""
            raise UserError(f"{error.message}{remedy}") from None
        return corpus.context(np.arange(len(corpus)))


class ContextCollator:
    """A collator for data loaders and for the `Trainer` of `transformers`, which adds the contexts to a batch.

    Args:
        collator: The collator for tokens, such as `DataCollatorForLanguageModeling`.
        schema: The context variables, whose columns the features have.
    """

    def __init__(self, collator: Callable[[list[dict[str, Any]]], Any], schema: ContextSchema) -> None:
        self.collator, self._reader, self._columns = collator, ContextReader(schema), schema.columns()

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> Any:
        """Return a batch of the features, with the contexts under the name `context`; other texts are omitted."""
        for name in self._columns:
            if not all(name in feature for feature in features):
                problem = f"expected the context column {name}, got {', '.join(features[0])}"
                raise UserError(f"features: {problem}; with the Trainer, set remove_unused_columns=False")
        rows = [{name: feature[name] for name in self._columns} for feature in features]
        inputs = [
            {name: value for name, value in feature.items() if name not in self._columns and not isinstance(value, str)}
            for feature in features
        ]
        batch = self.collator(inputs)
        if self._columns:
            batch["context"] = self._reader.read_table(rows)
        return batch


def _single_context(row: Any, vectors: Sequence[str]) -> dict[str, Any]:
    """Return a row as a mapping; raise `UserError` if some columns have a list of values, and others a single value."""
    context = dict(row)
    lists = [name for name, value in context.items() if name not in vectors and is_column(value)]
    single = [name for name in context if name not in lists]
    if lists and single:
        problem = f"got a list for {lists[0]} and a single value for {single[0]}"
        raise UserError(f"context: expected a single value for each column, or a list for each column; {problem}")
    return context


def _text_config() -> Config:
    return Config.of(text=_NO_TEXT, tokenizer="char")


def _with_empty_texts(source: Any, columns: Iterable[str], classes: Mapping[str, Sequence[str]]) -> Table:
    """Return a table with an empty text in each row, in place of its texts; it must have the given columns.

    `classes` has the name of each class number of a column. The rows of a data set have the numbers.
    """
    table = open_table(source)
    for name in columns:
        if name not in (*table.columns, HISTORY_COLUMN):
            raise table.missing_column_error(name)

    def read(names: tuple[str, ...]) -> Iterator[Chunk]:
        columns_read = tuple(name for name in names if name != _NO_TEXT) or table.columns[:1]
        for chunk in table.read(columns_read):
            values_by_column = {
                name: [class_name(value, classes[name]) for value in values] if name in classes else values
                for name, values in chunk.items()
            }
            yield {**values_by_column, _NO_TEXT: [""] * len(chunk[columns_read[0]])}

    return replace(table, columns=(*table.columns, _NO_TEXT), read=read, digest=None)
