"""Convert arguments of the Python interface to rows or lists of values, and rows of results to data frames.

An argument may be of any type that `open_table` supports; `argument` is its name, for messages.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from factorcell.data.columns.values import category_name_or_none, short_repr
from factorcell.data.tables.tables import is_column, open_table, to_value_list
from factorcell.errors import UserError

Row = Mapping[str, Any]
Value = TypeVar("Value")


class ResultRows(list[dict[str, Any]]):
    """A list of rows (dicts from column to value) that can become a data frame.

    run.score_rows(["lovely stay"]).to_pandas()
    """

    def to_pandas(self) -> Any:
        """Return the rows as a `pandas.DataFrame`; a value that a row lacks is missing.

        A column of dicts becomes one column for each key: `probabilities` of `Oslo` becomes `probabilities.Oslo`.

        Raises:
            UserError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise UserError("pandas is not installed: pip install pandas") from None
        return pandas.json_normalize(self)


def to_rows(source: Any) -> list[Row]:
    """Return the rows of a table of any supported type; each item of a list may be a row or a table of one row."""
    if isinstance(source, (list, tuple)):
        return [to_row(item) for item in source]
    if isinstance(source, Mapping) and not source:  # a row without values
        return [source]
    if hasattr(source, "__len__") and not isinstance(source, (str, Mapping)) and not len(source):
        return []  # `open_table` raises an error for a table without columns
    table = open_table(source)
    chunks = table.read(table.columns)
    return [dict(zip(chunk, row, strict=True)) for chunk in chunks for row in zip(*chunk.values(), strict=True)]


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


def is_row(source: Any, vectors: Collection[str] = ()) -> bool:
    """Return whether an object is a single row: a mapping from columns to values, or a row of a pandas data frame.

    A mapping from columns to lists is a table, except that an empty mapping is a row without values. In a row, the
    columns `vectors` have lists of numbers.
    """
    if not isinstance(source, Mapping):
        return hasattr(source, "iloc") and not hasattr(source, "columns")

    def has_several_values(name: str, value: Any) -> bool:
        if name in vectors and is_column(value):
            value = next(iter(value), None)
        return is_column(value)

    return not (source and all(has_several_values(name, value) for name, value in source.items()))


def to_contexts(context: Any, count: int, vectors: Collection[str] = ()) -> list[Row]:
    """Return the contexts of `count` texts; `context` is None, one context for all texts, or a context for each.

    `vectors` are the columns whose values are lists of numbers.
    """
    if context is None:
        return [{}] * count
    if is_row(context, vectors):
        return [dict(context)] * count
    contexts = to_rows(context)
    if len(contexts) != count:
        raise UserError(f"context: expected one, or one for each of {count:,} texts, got {len(contexts):,}")
    return contexts


def to_texts(source: Any) -> list[Any] | None:
    """Return the texts of a list of texts, an array or a column of a data frame; None for a table of any type."""
    is_array = hasattr(source, "dtype") or isinstance(source, (pa.Array, pa.ChunkedArray))
    is_list = isinstance(source, Sequence) and not isinstance(source, (str, bytes))
    if not is_array and not (is_list and any(isinstance(item, str) for item in source)):
        return None
    texts = to_values(source, "texts")
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise UserError(f"texts: value {number}: expected a text, got {short_repr(text)}")
    return texts


def to_values(values: Any, argument: str) -> list[Any]:
    """Return the values of an argument, which must be a list, an array or a column, as Python objects.

    Strings, mappings and tables are errors, although Python can iterate over their characters, keys or columns.
    """
    is_table = hasattr(values, "columns") or hasattr(values, "column_names")
    is_sequence = is_column(values) or (isinstance(values, Iterable) and getattr(values, "ndim", 1) > 0)
    if isinstance(values, (str, bytes, Mapping)) or is_table or not is_sequence:
        raise UserError(f"{argument}: expected a list of values, got {short_repr(values)}")
    return to_value_list(values) if is_column(values) else list(values)


def category_names(values: Any, argument: str, count: int | None = None) -> list[str | None]:
    """Return the category name of each of `count` values, or None for a missing value."""
    names = list[str | None]()
    for number, value in enumerate(to_values(values, argument), 1):
        try:
            names.append(category_name_or_none(value))
        except UserError as error:
            raise error.with_message(f"{argument}: value {number}: {error.message}") from None
    if count is not None and len(names) != count:
        raise UserError(f"{argument}: expected one value for each of {count:,} texts, got {len(names):,}")
    return names


def distinct_category_names(values: Any, argument: str) -> list[str]:
    """Return the distinct category names of `values`, of which none may be missing."""
    names = category_names(values, argument)
    if None in names:
        raise UserError(f"{argument}: expected values of a category, got a missing value")
    return list(dict.fromkeys(name for name in names if name is not None))


def key_by_category_name(entries: Mapping[Any, Value], argument: str) -> dict[str, Value]:
    """Return `entries` with their keys replaced by category names, which must differ."""
    names = distinct_category_names(entries.keys(), argument)
    if len(names) < len(entries):
        raise UserError(f"{argument}: expected each value once, got {len(entries):,} keys for {len(names):,} values")
    return dict(zip(names, entries.values(), strict=True))
