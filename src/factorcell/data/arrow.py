"""Convert Arrow batches to Python values; a value that Python cannot represent raises an error that names its row."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc

from factorcell.config import UserError
from factorcell.data.values import to_float64

UNSUPPORTED_EXTENSIONS = ("pandas.period", "pandas.interval", b"pandas.period", b"pandas.interval")
CONVERSION_ERRORS = (ValueError, OverflowError, TypeError, pa.ArrowException)


def to_python_values(batches: Iterable[pa.RecordBatch], where: str) -> Iterator[dict[str, list[Any]]]:
    """Yield each non-empty batch as a dict from column to values.

    Binary columns become text, 16- and 32-bit floats are converted by `to_float64`, and the class numbers of a Hugging
    Face data set become the names of the classes.

    Args:
        batches: Batches of one table.
        where: The name of the table, for messages.

    Raises:
        UserError: A value cannot be read; the message names the table, the row and the column.
    """
    first_row = 0
    for batch in batches:
        if batch.num_rows:
            names = class_names(batch.schema)
            yield {
                field.name: _column_values(batch.column(index), field, names.get(field.name), where, first_row)
                for index, field in enumerate(batch.schema)
            }
        first_row += batch.num_rows


def class_names(schema: pa.Schema) -> dict[str, list[str]]:
    """Return the class names of each `ClassLabel` column from the metadata that Hugging Face `datasets` writes."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (LookupError, ValueError, TypeError):
        return {}
    if not isinstance(features, Mapping):
        return {}
    return {
        column: feature["names"]
        for column, feature in features.items()
        if isinstance(feature, Mapping) and feature.get("_type") == "ClassLabel" and feature.get("names")
    }


def one_line(error: object) -> str:
    """Return the message of an error with each run of white space replaced by one space."""
    return " ".join(str(error).split())


def _column_values(column: pa.Array, field: pa.Field, names: list[str] | None, where: str, first_row: int) -> list[Any]:
    """Return the values of a column; `first_row` is the number of rows of the table before this batch."""
    extension = getattr(field.type, "extension_name", None) or (field.metadata or {}).get(b"ARROW:extension:name", b"")
    if extension in UNSUPPORTED_EXTENSIONS:
        problem = f"column {field.name} contains pandas periods or intervals, which cannot be read"
        raise UserError(f"{where}: {problem}; convert the column to text with .astype(str)")
    try:
        values = _values(column)
    except CONVERSION_ERRORS:
        values = []
        for row, scalar in enumerate(column, first_row + 1):
            try:
                value = scalar.as_py()
                values.append(value.decode() if isinstance(value, bytes) else value)
            except CONVERSION_ERRORS as error:
                reason = f"{scalar.type}: {one_line(error)}"
                raise UserError(f"{where} row {row}: cannot read {field.name} ({reason})") from None
    return [_class_name(value, names) for value in values] if names else values


def _values(column: pa.Array) -> list[Any]:
    """Return the values of a column; raise an error of Arrow or Python if a value cannot be converted."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        values = _values(column.dictionary)
        return [None if index is None else values[index] for index in column.indices.to_pylist()]
    if pa.types.is_float16(kind):
        return [None if value is None else to_float64(np.float16(value)) for value in column.to_pylist()]
    if pa.types.is_float32(kind):
        # As in `to_float64`, a fraction is converted through its shortest text, which Arrow writes.
        is_integer = pc.equal(pc.floor(column), column)
        column = pc.if_else(is_integer, column.cast(pa.float64()), column.cast(pa.string()).cast(pa.float64()))
    elif str(kind).endswith("binary") or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        column = column.cast(pa.large_string())
    values_list: list[Any] = column.to_pylist()
    return values_list


def _class_name(value: Any, names: list[str]) -> Any:
    """Return the name of a class number, None for -1 (a row without a class), and any other value unchanged."""
    if not isinstance(value, int):
        return value
    if 0 <= value < len(names):
        return names[value]
    return None if value == -1 else value
