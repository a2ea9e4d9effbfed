"""Convert Arrow batches to plain Python values, and read the batches of a Parquet file within memory.

A value that Python cannot hold is an error that names its row.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc
from pyarrow import parquet as pq

from factorcell import memory
from factorcell.config import UserError
from factorcell.data.values import widened

BATCH = 1 << 30  # bytes that the values of a dictionary may take in one batch

PANDAS = ("pandas.period", "pandas.interval", b"pandas.period", b"pandas.interval")  # types of columns
BEYOND = (ValueError, OverflowError, TypeError, pa.ArrowException)  # of a value that Python has no form for


def plain(batches: Iterable[pa.RecordBatch], where: str) -> Iterator[dict[str, list[Any]]]:
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
                field.name: _values(batch.column(place), field, names.get(field.name), where, before)
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
    """What an error of Arrow or the system says, in one line."""
    return " ".join(str(error).split())


def _values(column: pa.Array, field: pa.Field, names: list[str] | None, where: str, before: int) -> list[Any]:
    """The values of a column; `before` rows came earlier."""
    extension = getattr(field.type, "extension_name", None) or (field.metadata or {}).get(b"ARROW:extension:name", b"")
    if extension in PANDAS:
        raise UserError(f"{where}: {field.name} has pandas periods or intervals; store them as text: .astype(str)")
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    try:
        if _is_binary(kind):
            column = (column.dictionary_decode() if kind is not column.type else column).cast(pa.large_string())
        elif pa.types.is_float32(kind):
            column = _widened(column)
        elif pa.types.is_float16(kind):
            return [None if value is None else widened(np.float16(value)) for value in column.to_pylist()]
        values: list[Any] = column.to_pylist()
    except BEYOND:
        values = _one_by_one(column, field.name, where, before)
    return [_class_name(value, names) for value in values] if names else values


def _widened(column: pa.Array) -> pa.Array:
    """The function `widened` for a column of 32 bits: Arrow, too, writes the shortest text of a number."""
    whole = pc.equal(pc.floor(column), column)
    return pc.if_else(whole, column.cast(pa.float64()), column.cast(pa.string()).cast(pa.float64()))


def _is_binary(kind: pa.DataType) -> bool:
    tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
    return any(test(kind) for test in tests)


def _class_name(value: Any, names: list[str]) -> Any:
    """The name of a class; None for -1, which stands for an unlabelled row."""
    if isinstance(value, int):
        return names[value] if 0 <= value < len(names) else None if value == -1 else value
    return value


def _one_by_one(column: pa.Array, name: str, where: str, before: int) -> list[Any]:
    """The values of a column, each read by itself, so that an error can name the row."""
    values = []
    for row, value in enumerate(column, before + 1):
        try:
            plain = value.as_py()
            values.append(plain.decode() if isinstance(plain, bytes) else plain)
        except BEYOND as error:
            why = f"{value.type}: {one_line(error)}"
            raise UserError(f"{where} row {row}: cannot read {name} ({why})") from None
    return values


def batches(raw: BinaryIO, columns: Sequence[str], rows: int, where: str) -> Iterator[pa.RecordBatch]:
    """Batches of at most `rows` of a Parquet file; a `UserError` where a row group of the `columns` is beyond memory.

    A small file can repeat a large value of a dictionary in millions of rows: the larger it is, the fewer rows at once.
    """
    with pq.ParquetFile(raw) as file:
        metadata, schema = file.metadata, file.schema
        leaves = [n for n in range(len(schema)) if schema.column(n).path.split(".")[0] in columns]
        sizes: list[int] = []  # of the row groups, in memory
        large: dict[str, list[int]] = {}  # the row groups in which the dictionary of a column may be
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            chunks = [group.column(leaf) for leaf in leaves]
            sizes.append(sum(chunk.total_uncompressed_size for chunk in chunks))
            for chunk in chunks:
                strings = chunk.physical_type == "BYTE_ARRAY" and chunk.has_dictionary_page
                if strings and chunk.total_uncompressed_size * rows > BATCH:
                    large.setdefault(chunk.path_in_schema, []).append(number)
        memory.check(max(sizes, default=0), f"{where}: its largest row group")
        longest = max((_longest(raw, path, groups) for path, groups in large.items()), default=1)
        yield from file.iter_batches(max(1, min(rows, BATCH // longest)), columns=list(columns))


def _longest(raw: BinaryIO, path: str, groups: Sequence[int]) -> int:
    """The bytes of the longest value in the dictionaries of a column; at least 1."""
    longest = 1
    file = pq.ParquetFile(raw, read_dictionary=[path], buffer_size=1 << 20)
    for group in groups:
        for batch in file.iter_batches(1, row_groups=[group], columns=[path]):
            column = batch.column(0)
            while pa.types.is_list(column.type):
                column = column.values
            if pa.types.is_dictionary(column.type):
                longest = max(longest, pc.max(pc.binary_length(column.dictionary)).as_py() or 1)
            break
    return longest
