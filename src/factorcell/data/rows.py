"""Arguments of the Python interface that are rows, or a value for each text, in any form in which a table may come."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from factorcell.config import UserError
from factorcell.data.chunks import UnknownKindError
from factorcell.data.tables import is_column, open_table, plain_list
from factorcell.data.values import category_name_or_none, short_repr

Row = Mapping[str, Any]
V = TypeVar("V")


def has_rows(source: Any) -> bool:
    """Return whether a table has a row; a list, a data frame and a file without rows are alike, columns or not."""
    if hasattr(source, "__len__") and not isinstance(source, (str, Mapping)):
        return len(source) > 0
    try:
        table = open_table(source)
    except UnknownKindError:
        return True  # the function that reads it raises the error
    return next(table.read(table.columns[:1]), None) is not None


def to_rows(source: Any) -> list[Row]:
    """Return the rows of anything that `open_table` reads; a row of a list may itself be a table with one row."""
    if isinstance(source, (list, tuple)):
        return [to_row(one) for one in source]
    if isinstance(source, Mapping) and not source:
        return [source]
    if hasattr(source, "__len__") and not isinstance(source, (str, Mapping)) and not len(source):
        return []
    table = open_table(source)
    chunks = table.read(table.columns)
    return [dict(zip(chunk, values, strict=True)) for chunk in chunks for values in zip(*chunk.values(), strict=True)]


def to_row(source: Any) -> Row:
    """Return one row, column -> value, from a mapping or a table with one row."""
    if isinstance(source, Mapping):
        return source
    if source is None or isinstance(source, (str, Path, int, float, list, tuple)):
        raise UserError(f"context: expected a mapping from column to value, got {short_repr(source)}")
    rows = to_rows(source)
    if len(rows) != 1:
        raise UserError(f"context: expected one row, got {len(rows):,}")
    return rows[0]


def distinct_category_names(values: Any, what: str) -> list[str]:
    """Return the names of category values, each once; `what` names the argument in a `UserError`."""
    names = category_names(values, what)
    if None in names:
        raise UserError(f"{what}: expected values of a category, got a missing one")
    return list(dict.fromkeys(name for name in names if name is not None))


def key_by_category_name(entries: Mapping[Any, V], what: str) -> dict[str, V]:
    """Return a mapping by the category names of its keys; `UserError` if a key is missing or two have one name."""
    names = distinct_category_names(entries.keys(), what)
    if len(names) < len(entries):
        raise UserError(f"{what}: expected each value once, got {len(entries):,} keys for {len(names):,} values")
    return dict(zip(names, entries.values(), strict=True))


def category_names(values: Any, what: str, count: int | None = None) -> list[str | None]:
    """Return the category name of each value, None where missing; `UserError` unless there are `count` of them."""
    labels = list[str | None]()
    for number, value in enumerate(to_values(values, what), 1):
        try:
            labels.append(category_name_or_none(value))
        except UserError as error:
            raise error.with_message(f"{what}: value {number}: {error.message}") from None
    if count is not None and len(labels) != count:
        raise UserError(f"{what}: expected one for each of {count:,} texts, got {len(labels):,}")
    return labels


def to_values(values: Any, what: str) -> list[Any]:
    """Return the values of a list, an array or a column as Python objects; `what` names the argument in a `UserError`.

    A string, a mapping and a table are errors, although Python iterates over their characters, keys and columns.
    """
    is_table = hasattr(values, "columns") or hasattr(values, "column_names")
    if isinstance(values, (str, bytes, Mapping)) or is_table or not (isinstance(values, Iterable) or is_column(values)):
        raise UserError(f"{what}: expected a list of values, got {short_repr(values)}")
    listed = plain_list(values) if is_column(values) else list(values)
    if not isinstance(listed, list):  # an array without dimensions
        raise UserError(f"{what}: expected a list of values, got {short_repr(values)}")
    return listed
