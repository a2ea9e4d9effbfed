"""Any table as a stream of column chunks: files, and tables in memory."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa

from factorcell.config import UserError
from factorcell.data.arrow import one_line, to_python_values
from factorcell.data.chunks import CHUNK_ROWS, Chunk, Table, UnknownKindError
from factorcell.data.content import COMPRESSIONS, Content
from factorcell.data.parquet_files import parquet_folder, parquet_table
from factorcell.data.text_files import csv_table, json_table
from factorcell.data.values import is_missing, to_float64
from factorcell.escapes import escape_hidden

FORMATS: dict[str, Callable[[Content], Table]] = {
    ".csv": csv_table,
    ".tsv": csv_table,
    ".jsonl": json_table,
    ".parquet": parquet_table,
}
COLUMNS_IN_MEMORY = "the columns given"  # the name of a table of columns, in errors
READ_STREAMS: WeakKeyDictionary[pa.RecordBatchReader, pa.Table] = (
    WeakKeyDictionary()
)  # streams, which can be read only once
NARROW: dict[str, Any] = {"float16": np.float16, "halffloat": np.float16, "float32": np.float32, "float": np.float32}


def open_table(source: Any) -> Table:
    """Return a `Table` of any source of rows.

    Args:
        source: A path; a row (dict) or a list of rows; a dict from column to a list or an array; a pandas data frame; a
            Hugging Face data set; or anything with the Arrow PyCapsule interface, such as an Arrow table or stream, a
            polars data frame, or a DuckDB result.

    Raises:
        UserError: The source has another type, or cannot be read.
    """
    if isinstance(source, Table):
        return source
    if isinstance(source, (str, Path)):
        return _open_file(Path(source))
    if isinstance(source, Mapping):
        if source and all(hasattr(values, "with_format") for values in source.values()):
            raise UserError(f"this data set has splits; give one of them ({', '.join(source)})")
        if source and all(map(is_column, source.values())):
            lists = {name: plain_list(values) for name, values in source.items()}
            if all(isinstance(values, list) for values in lists.values()):
                return _from_columns(lists)
        return _from_rows([source])
    if isinstance(source, (list, tuple)):
        return _from_rows(source)
    if hasattr(source, "with_format") and hasattr(source, "num_rows"):  # a Hugging Face dataset, not a stream
        return _from_arrow(source.with_format("arrow")[:])
    if hasattr(source, "iloc") and hasattr(source, "columns"):  # a pandas data frame
        return _from_pandas(source)
    if _is_capsule(source):
        return _from_capsule(source)
    raise UserError(f"expected a path, rows, a data frame or an Arrow table, got {type(source).__name__}")


def _open_file(path: Path) -> Table:
    if path.is_dir():
        return parquet_folder(path)
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in COMPRESSIONS else ""
    kind = suffixes[-1] if suffixes else ""
    if kind not in FORMATS or (kind == ".parquet" and compression):
        valid = f"{', '.join(FORMATS)} (text files also with {', '.join(COMPRESSIONS)})"
        raise UnknownKindError(f"{path}: unknown kind of file; its name must end in {valid}")
    return FORMATS[kind](Content(path, compression))


def _sliced(name: str, columns: Sequence[str], rows: int, part: Callable[[str, slice], list[Any]]) -> Table:
    """A table of so many rows, of which `part` returns the values of a column in a slice."""

    def read(names: tuple[str, ...]) -> Iterator[Chunk]:
        for begin in range(0, rows, CHUNK_ROWS):
            yield {name: part(name, slice(begin, begin + CHUNK_ROWS)) for name in names}

    return Table(name, tuple(columns), read, row_count=rows)


def _from_rows(rows: Sequence[Mapping[str, Any]]) -> Table:
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise UserError(f"row {number} is {type(row).__name__}; a row is a dict from column to value")
    columns = dict.fromkeys(name for row in rows for name in row)
    return _sliced("the rows given", tuple(columns), len(rows), lambda name, at: [row.get(name) for row in rows[at]])


def _from_columns(columns: Mapping[str, Sequence[Any]]) -> Table:
    sizes = {name: len(values) for name, values in columns.items()}
    rows = max(sizes.values())
    for name, size in sizes.items():
        if size != rows:
            raise UserError(f"{COLUMNS_IN_MEMORY}: {name} has {size} rows, another has {rows}")
    return _sliced(COLUMNS_IN_MEMORY, tuple(columns), rows, lambda name, at: list(columns[name][at]))


def _from_arrow(table: pa.Table) -> Table:
    name = "the table given"

    def read(names: tuple[str, ...]) -> Iterator[Chunk]:
        return to_python_values(table.select(list(names)).to_batches(max_chunksize=CHUNK_ROWS), name)

    return Table(name, tuple(table.column_names), read, row_count=table.num_rows)


def _from_capsule(source: Any) -> Table:
    """A table of anything with the Arrow PyCapsule interface: polars, DuckDB, Arrow streams, and so on."""
    try:
        table = (
            READ_STREAMS[source]
            if isinstance(source, pa.RecordBatchReader) and source in READ_STREAMS
            else pa.table(source)
        )
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise UserError(f"expected a table, got {type(source).__name__} ({one_line(error)})") from None
    if isinstance(source, pa.RecordBatchReader):
        READ_STREAMS[source] = table
    return _from_arrow(table)


def _from_pandas(frame: Any) -> Table:
    places = {str(name): place for place, name in enumerate(frame.columns)}
    names = tuple(map(str, frame.columns))
    return _sliced("the data frame given", names, len(frame), lambda name, at: plain_list(frame.iloc[at, places[name]]))


def is_column(values: Any) -> bool:
    """Return whether an object holds several values: a list, an array, a pandas column, or a column of Arrow."""
    return isinstance(values, (list, tuple)) or hasattr(values, "tolist") or _is_capsule(values)


def plain_list(values: Any) -> list[Any]:
    """Return the values of a list, an array or a column as Python objects.

    Intervals and periods of pandas become text, and numbers of 16 or 32 bits are `widened`.
    """
    if isinstance(values, (list, tuple)):
        return list(values)
    if _is_capsule(values) and not hasattr(values, "iloc"):
        column = pa.chunked_array(values if hasattr(values, "__arrow_c_stream__") else [pa.array(values)])
        chunks = to_python_values(pa.table({"value": column}).to_batches(max_chunksize=CHUNK_ROWS), COLUMNS_IN_MEMORY)
        return [value for chunk in chunks for value in chunk["value"]]
    if hasattr(values, "sparse"):
        values = values.sparse.to_dense()
    kind = str(getattr(values, "dtype", "")).lower()
    if kind == "category":
        categorical = getattr(values, "cat", values)
        names = plain_list(categorical.categories)
        return [names[code] if code >= 0 else None for code in categorical.codes.tolist()]
    narrow = NARROW.get(kind.removesuffix("[pyarrow]"))
    if narrow is not None and values.ndim == 1:
        return [None if is_missing(value) else to_float64(narrow(value)) for value in values]
    if isinstance(values, np.ndarray) and values.dtype.kind == "M" and values.ndim == 1:
        return list(values)  # `tolist` makes numbers of nanoseconds
    listed: list[Any] = values.tolist()
    if kind.startswith(("interval", "period")):
        return [value if is_missing(value) else str(value) for value in listed]
    return listed


def _is_capsule(source: Any) -> bool:
    return hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__")


def table_name(source: Any) -> str:
    """A table as results name it: its file without the folder, with what cannot be seen escaped, or "rows"."""
    return escape_hidden(Path(source).name) if isinstance(source, (str, Path)) else "rows"
