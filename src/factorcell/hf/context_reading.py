"""Read the contexts of texts from tables and from mappings, for context adapters (`context_model`)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from factorcell.config import DataConfig
from factorcell.data.columns.columns import ContextColumns
from factorcell.data.columns.context import Context
from factorcell.data.columns.rows import is_row, to_rows
from factorcell.data.columns.schema import ContextSchema
from factorcell.data.table_findings import CONTEXTS, number_findings
from factorcell.data.tables.chunks import Chunk, Table, class_name
from factorcell.data.tables.tables import is_column, open_table
from factorcell.errors import UserError, check_choice
from factorcell.io.findings import report
from factorcell.nn.value_names import name_line

_ANY_COLUMN = "(any)"


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


class ContextReader:
    """Reads contexts with a schema.

    Args:
        schema: The context variables.
    """

    def __init__(self, schema: ContextSchema) -> None:
        self.schema, self._config = schema, DataConfig()
        self._columns = schema.columns()
        self._vectors = [variable.source_column for variable in schema.vectors]
        self._classes = {variable.source_column: variable.classes for variable in schema.variables if variable.classes}

    def read_table(self, source: Any, unknown: str = "group") -> Context:
        """Return the contexts of a table with all context columns; other columns are ignored.

        `unknown` says how to read a value that the schema does not have: group, expected or error.
        """
        table = open_table(source)
        for name in self._columns:
            if name not in table.columns:
                raise table.missing_column_error(name)
        return self._read(table, unknown)

    def read_mappings(self, context: Any) -> Context:
        """Return the contexts of a mapping from columns to values, or of a table.

        Columns that are missing have their expected values; an unknown column or value raises `UserError`.
        """
        if isinstance(context, str):
            raise UserError(f"context: expected columns with their values or a table of them, got {context!r}")
        rows = [_single_context(context, self._vectors)] if is_row(context, self._vectors) else to_rows(context)
        columns = {name for row in rows for name in row}
        for name in sorted(columns, key=str):
            check_choice("context column", name, self._columns)
        absent = [variable.name for variable in self.schema.variables if variable.source_column not in columns]
        # A column that no context has: a table has at least one column.
        table = replace(open_table([{**row, _ANY_COLUMN: None} for row in rows]), name=CONTEXTS)
        try:
            return self._read(table, "error", absent)
        except UserError as error:  # its remedies are arguments of `read_contexts`
            row_name = "contexts row 1" if len(rows) == 1 else "contexts row"
            remedy = '; read_contexts(rows, unknown="group") reads unknown values' if error.remedies else ""
            raise UserError(f"{error.message.replace(row_name, 'context', 1)}{remedy}") from None

    def _read(self, table: Table, unknown: str, optional: Sequence[str] = ()) -> Context:
        """Return the contexts of a table; the columns of the variables `optional` may be missing."""
        table = with_class_names(table, self._classes)
        columns = ContextColumns(table, self._config, self.schema, unknown, optional)
        add_rows(columns, table)
        fields = columns.corpus_fields()
        report(*number_findings(self.schema, fields["numbers"], table.name))
        return Context.of(fields["categories"], fields["numbers"], fields["vectors"], fields["words"])


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


def add_rows(columns: ContextColumns, table: Table) -> None:
    """Read all rows of a table."""
    for chunk in table.chunks(columns.names or table.columns[:1]):
        columns.add(chunk, len(next(iter(chunk.values()))))


def with_class_names(table: Table, classes: Mapping[str, Sequence[str]]) -> Table:
    """Return a table with the names of classes in place of their numbers, which the rows of a data set have.

    `classes` has the name of each class number of a column.
    """
    if not classes:
        return table

    def read(names: tuple[str, ...]) -> Iterator[Chunk]:
        for chunk in table.read(names):
            yield {
                name: [class_name(value, classes[name]) for value in values] if name in classes else values
                for name, values in chunk.items()
            }

    return replace(table, read=read)
