"""Convert Arrow batches to plain Python values. A value that Python cannot hold is an error that names its row."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc

from factorcell.config import UserError
from factorcell.data.values import to_float64

PANDAS = ("pandas.period", "pandas.interval", b"pandas.period", b"pandas.interval")  # types of columns
BEYOND = (ValueError, OverflowError, TypeError, pa.ArrowException)  # of a value that Python has no form for


def to_python_values(batches: Iterable[pa.RecordBatch], where: str) -> Iterator[dict[str, list[Any]]]:
    """Yield each non-empty batch as a dict from column to values.

    Binary columns become text, numbers of 16 or 32 bits are `widened`, and the class numbers of a Hugging Face data set
    become the names of the classes.

    Raises:
        UserError: A value cannot be read; the message names `where`, row and column.
    """
    before = 0
    for batch in batches:
        if batch.num_rows:
            names = class_names(batch.schema)
            yield {
                field.name: _plain_column(batch.column(place), field, names.get(field.name), where, before)
                for place, field in enumerate(batch.schema)
            }
        before += batch.num_rows


def class_names(schema: pa.Schema) -> dict[str, list[str]]:
    """Return the names of the classes of each `ClassLabel` column, as `datasets` writes them into a schema."""
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
    """Return the message of an error of Arrow or the system in one line."""
    return " ".join(str(error).split())


def _plain_column(column: pa.Array, field: pa.Field, names: list[str] | None, where: str, before: int) -> list[Any]:
    """The values of a column; `before` rows came earlier."""
    extension = getattr(field.type, "extension_name", None) or (field.metadata or {}).get(b"ARROW:extension:name", b"")
    if extension in PANDAS:
        raise UserError(f"{where}: {field.name} has pandas periods or intervals; store them as text: .astype(str)")
    try:
        values = _values(column)
    except BEYOND:
        values = []
        for row, scalar in enumerate(column, before + 1):
            try:
                value = scalar.as_py()
                values.append(value.decode() if isinstance(value, bytes) else value)
            except BEYOND as error:
                why = f"{scalar.type}: {one_line(error)}"
                raise UserError(f"{where} row {row}: cannot read {field.name} ({why})") from None
    return [_class_name(value, names) for value in values] if names else values


def _values(column: pa.Array) -> list[Any]:
    kind = column.type
    if pa.types.is_dictionary(kind):
        values = _values(column.dictionary)
        return [None if place is None else values[place] for place in column.indices.to_pylist()]
    if pa.types.is_float16(kind):
        return [None if value is None else to_float64(np.float16(value)) for value in column.to_pylist()]
    if pa.types.is_float32(kind):  # Arrow, too, writes the shortest text of a number
        whole = pc.equal(pc.floor(column), column)
        column = pc.if_else(whole, column.cast(pa.float64()), column.cast(pa.string()).cast(pa.float64()))
    elif str(kind).endswith("binary") or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        column = column.cast(pa.large_string())
    plain_values: list[Any] = column.to_pylist()
    return plain_values


def _class_name(value: Any, names: list[str]) -> Any:
    """The name of a class; None for -1, which stands for an unlabelled row."""
    if isinstance(value, int):
        return names[value] if 0 <= value < len(names) else None if value == -1 else value
    return value
