"""Convert arguments of the Python interface to rows or lists of values.

An argument may be of any type that `open_table` supports.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from factorcell.data.columns.values import category_name_or_none, short_repr
from factorcell.data.tables.chunks import UnknownKindError
from factorcell.data.tables.tables import is_column, open_table, to_value_list
from factorcell.errors import UserError

Row = Mapping[str, Any]
Value = TypeVar("Value")


def has_rows(source: Any) -> bool:
    """Return whether a table of any supported type has at least one row."""
    # `open_table` raises an error for a table without columns, such as an empty list.
    if hasattr(source, "__len__") and not isinstance(source, (str, Mapping)):
        return len(source) > 0
    try:
        table = open_table(source)
    except UnknownKindError:
        return True  # the function that reads the source raises an error that describes the problem
    return next(table.read(table.columns[:1]), None) is not None


def to_rows(source: Any) -> list[Row]:
    """Return the rows of a table of any supported type; each item of a list may be a row or a table of one row."""
    if isinstance(source, (list, tuple)):
        return [to_row(item) for item in source]
    if isinstance(source, Mapping) and not source:  # a row without values
        return [source]
    if hasattr(source, "__len__") and not isinstance(source, (str, Mapping)) and not len(source):
        return []
    table = open_table(source)
    rows = list[Row]()
    for chunk in table.read(table.columns):
        rows += [dict(zip(chunk, row_values, strict=True)) for row_values in zip(*chunk.values(), strict=True)]
    return rows


def to_texts(source: Any) -> list[Any] | None:
    """Return the texts of a list of texts, an array or a column of a data frame; None for a table of any type.

    Raises:
        UserError: A value is not a text.
    """
    is_array = hasattr(source, "dtype") or isinstance(source, (pa.Array, pa.ChunkedArray))
    is_list = isinstance(source, Sequence) and not isinstance(source, (str, bytes))
    if not is_array and not (is_list and any(isinstance(item, str) for item in source)):
        return None
    texts = to_values(source, "texts")
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise UserError(f"texts: value {number}: expected a text, got {short_repr(text)}")
    return texts


def is_row(source: Any, vectors: Collection[str] = ()) -> bool:
    """Return whether an object is a single row: a mapping from columns to values, or a row of a pandas data frame.

    A mapping from columns to lists is a table, except that an empty mapping is a row without values.

    Args:
        source: The object.
        vectors: The columns whose values are lists of numbers.
    """
    if isinstance(source, Mapping):
        values = [_first(value) if name in vectors else value for name, value in source.items()]
        return not (values and all(map(is_column, values)))
    return hasattr(source, "iloc") and not hasattr(source, "columns")


def _first(values: Any) -> Any:
    """Return the first of several values; None if there is none."""
    return next(iter(values), None) if is_column(values) else values


def to_contexts(context: Any, count: int, vectors: Collection[str] = ()) -> list[Row]:
    """Return the contexts of `count` texts; `context` is None, one context for all texts, or a context for each.

    `vectors` are the columns whose values are lists of numbers.

    Raises:
        UserError: The number of contexts is not `count`.
    """
    if context is None:
        return [{}] * count
    if is_row(context, vectors):
        return [dict(context)] * count
    contexts = to_rows(context)
    if len(contexts) != count:
        raise UserError(f"context: expected one, or one for each of {count:,} texts, got {len(contexts):,}")
    return contexts


def to_row(source: Any) -> Row:
    """Return a row as a mapping from column to value; `source` is such a mapping or a table of one row."""
    if isinstance(source, Mapping):
        return source
    if source is None or isinstance(source, (str, Path, int, float, list, tuple)):
        raise UserError(f"context: expected a mapping from column to value, got {short_repr(source)}")
    rows = to_rows(source)
    if len(rows) != 1:
        raise UserError(f"context: expected one row, got {len(rows):,}")
    return rows[0]


def distinct_category_names(values: Any, argument: str) -> list[str]:
    """Return the distinct category names of `values`; error messages begin with `argument`, the argument's name."""
    names = category_names(values, argument)
    if None in names:
        raise UserError(f"{argument}: expected values of a category, got a missing value")
    return list(dict.fromkeys(name for name in names if name is not None))


def key_by_category_name(entries: Mapping[Any, Value], argument: str) -> dict[str, Value]:
    """Return `entries` with their keys replaced by category names.

    Raises:
        UserError: A key is missing, or two keys have the same name; the message begins with `argument`.
    """
    names = distinct_category_names(entries.keys(), argument)
    if len(names) < len(entries):
        raise UserError(f"{argument}: expected each value once, got {len(entries):,} keys for {len(names):,} values")
    return dict(zip(names, entries.values(), strict=True))


def category_names(values: Any, argument: str, count: int | None = None) -> list[str | None]:
    """Return the category name of each value, or None for a missing value.

    Raises:
        UserError: A value cannot be a category, or the number of values is not `count`; the message begins with
            `argument`.
    """
    names = list[str | None]()
    for number, value in enumerate(to_values(values, argument), 1):
        try:
            names.append(category_name_or_none(value))
        except UserError as error:
            raise error.with_message(f"{argument}: value {number}: {error.message}") from None
    if count is not None and len(names) != count:
        raise UserError(f"{argument}: expected one value for each of {count:,} texts, got {len(names):,}")
    return names


def to_values(values: Any, argument: str) -> list[Any]:
    """Check that an argument is a list, an array or a column, and return its values as Python objects.

    Raises:
        UserError: `values` has another type; the message begins with `argument`. Strings, mappings and tables raise
            this error too, although Python can iterate over their characters, keys or columns.
    """
    is_table = hasattr(values, "columns") or hasattr(values, "column_names")
    is_sequence = is_column(values) or (isinstance(values, Iterable) and getattr(values, "ndim", 1) > 0)
    if isinstance(values, (str, bytes, Mapping)) or is_table or not is_sequence:
        raise UserError(f"{argument}: expected a list of values, got {short_repr(values)}")
    return to_value_list(values) if is_column(values) else list(values)
