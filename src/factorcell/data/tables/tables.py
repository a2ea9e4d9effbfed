"""Open any supported source of rows as a `Table`: files, folders and tables in memory."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa

from factorcell.data.columns.values import is_missing
from factorcell.data.tables.chunks import (
    CHUNK_ROWS,
    COMPRESSIONS,
    Chunk,
    Content,
    Table,
    UnknownKindError,
    arrow_chunks,
    one_line,
)
from factorcell.data.tables.parquet_files import open_parquet, open_parquet_folder
from factorcell.data.tables.text_files import open_csv, open_json_lines
from factorcell.errors import UserError
from factorcell.io.output import escape_hidden

FORMATS: dict[str, Callable[[Content], Table]] = {
    ".csv": open_csv,
    ".tsv": open_csv,
    ".jsonl": open_json_lines,
    ".parquet": open_parquet,
}
IN_MEMORY = "in-memory table"  # the name of tables in memory, for messages
# The table that was read from each Arrow stream, because a stream can be read only once.
READ_STREAMS: WeakKeyDictionary[pa.RecordBatchReader, pa.Table] = WeakKeyDictionary()
# Beginnings of the names of types of 16- and 32-bit floats in NumPy, pandas and Arrow
NARROW_FLOATS = ("float16", "float32", "halffloat", "float[")


def open_table(source: Any) -> Table:
    """Open a source of rows.

    Args:
        source: A path; a row (dict) or a list of rows; a dict from column to a list or an array; a pandas data frame; a
            `Dataset` or `IterableDataset` of Hugging Face; or anything with the Arrow PyCapsule interface, such as an
            Arrow table or stream, a polars data frame, or a DuckDB result.

    Returns:
        A table, which can be read repeatedly.

    Raises:
        UserError: The source has another type, or cannot be read.
    """
    if isinstance(source, Table):
        return source
    if isinstance(source, (str, Path)):
        return _open_file(Path(source))
    if isinstance(source, Mapping):
        if source and all(hasattr(values, "with_format") for values in source.values()):
            raise UserError(f"expected a data set, got a dict of splits; pass one of them ({', '.join(source)})")
        if source and all(map(is_column, source.values())):
            columns = {name: to_value_list(values) for name, values in source.items()}
            if all(isinstance(values, list) for values in columns.values()):  # false for arrays without dimensions
                return _table_from_columns(columns)
        return _table_from_rows([source])
    if isinstance(source, (list, tuple)):
        return _table_from_rows(source)
    if hasattr(source, "with_format") and hasattr(source, "select_columns"):  # a Hugging Face data set
        return _table_from_data_set(source)
    if hasattr(source, "iloc") and hasattr(source, "columns"):  # a pandas data frame
        names = tuple(map(str, source.columns))
        return _sliced_table(names, len(source), lambda name, rows: to_value_list(source.iloc[rows, names.index(name)]))
    if _has_arrow_interface(source):
        return _table_from_arrow(source)
    raise UserError(f"expected a path, rows, a data frame or an Arrow table, got {type(source).__name__}")


def is_table_path(path: Path) -> bool:
    """Return whether `open_table` reads a path: a folder, or a file whose name ends as that of a table."""
    return os.path.isdir(path) or _endings(path)[0] in FORMATS


def _endings(path: Path) -> tuple[str, str]:
    """Return the ending of the name of a file, and that of its compression, in lower case; or empty texts."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in COMPRESSIONS else ""
    return suffixes[-1] if suffixes else "", compression


def _open_file(path: Path) -> Table:
    """Open a folder of Parquet files or a single file; the ending of the file name determines the format."""
    if os.path.isdir(path):  # false for a name that is too long, where the method of `Path` raises an error
        return open_parquet_folder(path)
    ending, compression = _endings(path)
    if ending not in FORMATS or (ending == ".parquet" and compression):
        valid_endings = f"{', '.join(FORMATS)} (text files also with {', '.join(COMPRESSIONS)})"
        raise UnknownKindError(f"{path}: unknown kind of file; its name must end in {valid_endings}")
    return FORMATS[ending](Content(path, compression))


def _sliced_table(columns: Sequence[str], row_count: int, read_slice: Callable[[str, slice], list[Any]]) -> Table:
    """Return an in-memory table; `read_slice` returns the values of one column in a slice of the rows."""

    def read(names: tuple[str, ...]) -> Iterator[Chunk]:
        for begin in range(0, row_count, CHUNK_ROWS):
            yield {name: read_slice(name, slice(begin, begin + CHUNK_ROWS)) for name in names}

    return Table(IN_MEMORY, tuple(columns), read, row_count=row_count)


def _table_from_rows(rows: Sequence[Mapping[str, Any]]) -> Table:
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise UserError(f"row {number}: expected a dict from column to value, got {type(row).__name__}")
    columns = dict.fromkeys(name for row in rows for name in row)

    def read_slice(name: str, slice_of_rows: slice) -> list[Any]:
        return [_without_tensor(row.get(name)) for row in rows[slice_of_rows]]

    return _sliced_table(tuple(columns), len(rows), read_slice)


def _without_tensor(value: Any) -> Any:
    """Return the number or the list of numbers in a tensor of PyTorch, and any other value unchanged."""
    if not _is_tensor(value):
        return value
    numbers = to_value_list(value.reshape(-1))
    return numbers if value.ndim else numbers[0]


def _is_tensor(value: Any) -> bool:
    return type(value).__module__ == "torch" and hasattr(value, "ndim")


def _table_from_columns(columns: Mapping[str, list[Any]]) -> Table:
    row_count = max(map(len, columns.values()))
    for name, values in columns.items():
        if len(values) != row_count:
            raise UserError(f"{IN_MEMORY}: column {name} has {len(values)} rows, but another column has {row_count}")
    return _sliced_table(tuple(columns), row_count, lambda name, rows: columns[name][rows])


def _table_from_arrow(source: Any) -> Table:
    """Return a table of any object with the Arrow PyCapsule interface, such as a polars data frame."""
    is_stream = isinstance(source, pa.RecordBatchReader)
    try:
        table = READ_STREAMS[source] if is_stream and source in READ_STREAMS else pa.table(source)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise UserError(f"expected a table, got {type(source).__name__} ({one_line(error)})") from None
    if is_stream:
        READ_STREAMS[source] = table

    def read(names: tuple[str, ...]) -> Iterator[Chunk]:
        return arrow_chunks(table.select(list(names)).to_batches(max_chunksize=CHUNK_ROWS), IN_MEMORY)

    return Table(IN_MEMORY, tuple(table.column_names), read, row_count=table.num_rows)


def _table_from_data_set(data_set: Any) -> Table:
    """Return a table that reads the requested columns of a data set in batches; a streamed one is streamed again."""
    # A streamed data set may not know its columns before its first row.
    columns = data_set.column_names or tuple(next(iter(data_set), ()))
    # The batches of a streamed data set may lack its features, or have those from before a change.
    classes = feature_classes(data_set) if data_set.features else None

    def read(names: tuple[str, ...]) -> Iterator[Chunk]:
        tables = data_set.select_columns(list(names)).with_format("arrow").iter(CHUNK_ROWS)
        return arrow_chunks((batch for table in tables for batch in table.to_batches()), IN_MEMORY, classes)

    return Table(IN_MEMORY, tuple(columns), read, row_count=getattr(data_set, "num_rows", None))


def feature_classes(source: Any) -> dict[str, tuple[str, ...]]:
    """Return the name of each class number in the class columns of a data set; none of another source."""
    features = getattr(source, "features", None)
    if not isinstance(features, Mapping):
        return {}
    names = {column: getattr(feature, "names", None) for column, feature in features.items()}
    return {column: tuple(classes) for column, classes in names.items() if classes}


def is_column(values: Any) -> bool:
    """Return whether an object holds several values: a list, an array, or a column of pandas, Arrow or a data set."""
    if isinstance(values, (str, bytes)) or getattr(values, "ndim", 1) == 0:  # also a number of NumPy
        return False
    return isinstance(values, Sequence) or hasattr(values, "tolist") or _has_arrow_interface(values)


def to_value_list(values: Any) -> list[Any]:
    """Return the values of a list, an array or a column as Python objects.

    Intervals and periods of pandas become text; `to_float64` converts 16- and 32-bit floats.
    """
    if isinstance(values, Sequence):
        return list(values)
    if _has_arrow_interface(values) and not hasattr(values, "iloc"):
        column = pa.chunked_array(values if hasattr(values, "__arrow_c_stream__") else [pa.array(values)])
        return _arrow_values(column)
    if _is_tensor(values):
        values = values.detach().cpu()
        values = np.asarray(values.float() if str(values.dtype) == "torch.bfloat16" else values)
    if hasattr(values, "sparse"):
        values = values.sparse.to_dense()
    type_name = str(getattr(values, "dtype", "")).lower()
    if type_name == "category":
        categorical = getattr(values, "cat", values).remove_unused_categories()
        categorical = getattr(categorical, "cat", categorical)  # of a series, the result is a series
        categories = to_value_list(categorical.categories)
        return [categories[code] if code >= 0 else None for code in categorical.codes.tolist()]
    if type_name.startswith(NARROW_FLOATS) and values.ndim == 1:
        return _arrow_values(pa.array(values, from_pandas=True))
    if isinstance(values, np.ndarray) and values.dtype.kind == "M" and values.ndim == 1:
        return list(values)  # `tolist` would return integers for times in nanoseconds
    value_list: list[Any] = values.tolist()
    if type_name.startswith(("interval", "period")):
        return [value if is_missing(value) else str(value) for value in value_list]
    return value_list


def _arrow_values(column: Any) -> list[Any]:
    chunks = arrow_chunks(pa.table({"value": column}).to_batches(), IN_MEMORY)
    return [value for chunk in chunks for value in chunk["value"]]


def _has_arrow_interface(source: Any) -> bool:
    return hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__")


def table_name(source: Any) -> str:
    """Return the name of a table for results: its file name with invisible characters escaped, or "rows" in memory."""
    return escape_hidden(Path(source).name) if isinstance(source, (str, Path)) else "rows"
