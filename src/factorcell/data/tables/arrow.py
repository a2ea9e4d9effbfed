"""Convert Arrow batches to Python values. The error about a value that Python cannot represent names its row."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc

from factorcell.data.columns.values import to_float64
from factorcell.errors import UserError

# Names of extension types, as text and as they are in the metadata of a field.
UNSUPPORTED_EXTENSIONS = ("pandas.period", "pandas.interval", b"pandas.period", b"pandas.interval")
CONVERSION_ERRORS = (ValueError, OverflowError, TypeError, pa.ArrowException)


def to_python_values(
    batches: Iterable[pa.RecordBatch], where: str, classes: Mapping[str, Sequence[str]] | None = None
) -> Iterator[dict[str, list[Any]]]:
    """Yield each non-empty batch as a dict from column to values.

    Binary columns become text, and the class numbers of a Hugging Face data set become the names of the classes.
    `to_float64` converts 16- and 32-bit floats.

    Args:
        batches: Batches of one table.
        where: The name of the table, for messages.
        classes: The names of the classes of columns; default: those in the metadata of the batches.

    Raises:
        UserError: A value cannot be read; the message names the table, the row and the column.
    """
    row_offset = 0
    for batch in batches:
        if batch.num_rows:
            names_by_column = class_names(batch.schema) if classes is None else classes
            yield {
                field.name: _column_values(
                    batch.column(index), field, names_by_column.get(field.name), where, row_offset
                )
                for index, field in enumerate(batch.schema)
            }
        row_offset += batch.num_rows


def class_names(schema: pa.Schema) -> Mapping[str, Sequence[str]]:
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


def _column_values(
    column: pa.Array, field: pa.Field, names_of_classes: Sequence[str] | None, where: str, row_offset: int
) -> list[Any]:
    """Return the values of a column; `row_offset` is the number of rows of the table before this batch."""
    # Extension types are in the field's type if pandas has registered them with Arrow, otherwise in its metadata.
    extension = getattr(field.type, "extension_name", None) or (field.metadata or {}).get(b"ARROW:extension:name", b"")
    if extension in UNSUPPORTED_EXTENSIONS:
        problem = f"column {field.name} contains pandas periods or intervals, which cannot be read"
        raise UserError(f"{where}: {problem}; convert the column to text with .astype(str)")
    try:
        values = _to_list(column)
    except CONVERSION_ERRORS:
        values = []
        for row, scalar in enumerate(column, row_offset + 1):
            try:
                value = scalar.as_py()
                values.append(value.decode() if isinstance(value, bytes) else value)
            except CONVERSION_ERRORS as error:
                reason = f"{scalar.type}: {one_line(error)}"
                raise UserError(f"{where} row {row}: cannot read {field.name} ({reason})") from None
    return [class_name(value, names_of_classes) for value in values] if names_of_classes else values


def _to_list(column: pa.Array) -> list[Any]:
    """Return the values of a column; raise one of `CONVERSION_ERRORS` if a value cannot be converted."""
    arrow_type = column.type
    if pa.types.is_dictionary(arrow_type):
        distinct_values = _to_list(column.dictionary)
        return [None if index is None else distinct_values[index] for index in column.indices.to_pylist()]
    if pa.types.is_float16(arrow_type):
        return [None if value is None else to_float64(np.float16(value)) for value in column.to_pylist()]
    if pa.types.is_float32(arrow_type):
        # As in `to_float64`, a fraction is converted through its shortest text, which Arrow writes.
        is_integer = pc.equal(pc.floor(column), column)
        column = pc.if_else(is_integer, column.cast(pa.float64()), column.cast(pa.string()).cast(pa.float64()))
    elif _is_binary(arrow_type):
        column = column.cast(pa.large_string())
    values: list[Any] = column.to_pylist()
    return values


def _is_binary(arrow_type: pa.DataType) -> bool:
    """Return whether the values of a type are bytes."""
    is_variable_size = str(arrow_type).endswith("binary")
    return is_variable_size or pa.types.is_binary_view(arrow_type) or pa.types.is_fixed_size_binary(arrow_type)


def class_name(value: Any, names_of_classes: Sequence[str]) -> Any:
    """Return the name of a class number, None for -1 (a row without a class), and any other value unchanged.

    A number may be a float, as in a column of pandas with a missing value.
    """
    if not (isinstance(value, Real) and float(value).is_integer()):
        return value
    number = int(float(value))
    if 0 <= number < len(names_of_classes):
        return names_of_classes[number]
    return None if number == -1 else value
