"""Any table as a stream of column chunks: files, and tables in memory."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from factorcell.config import UserError
from factorcell.data.arrow import one_line, plain
from factorcell.data.chunks import CHUNK, Chunk, Table
from factorcell.data.table_files import open_file
from factorcell.data.values import is_missing, widened
from factorcell.visible import visible

GIVEN = "the columns given"  # the name of a table of columns, in errors
NARROW: dict[str, Any] = {"float16": np.float16, "halffloat": np.float16, "float32": np.float32, "float": np.float32}


def open_table(source: Any) -> Table:
    """Return a `Table` of any source of rows.

    Args:
        source: A path; a row (dict) or a list of rows; a dict from column to a list or an array; a pandas data frame; a
            Hugging Face data set; or anything with the Arrow PyCapsule interface, such as an Arrow table or stream, a
            polars data frame, or a DuckDB result.

    Raises:
        UserError: The source is none of these, or cannot be read.
    """
    if isinstance(source, (str, Path)):
        return open_file(Path(source))
    if isinstance(source, Mapping):
        if source and all(hasattr(values, "with_format") for values in source.values()):
            raise UserError(f"this data set has splits; give one of them ({', '.join(source)})")
        if source and all(isinstance(v, (list, tuple)) or hasattr(v, "tolist") for v in source.values()):
            lists = {name: plain_list(v) if hasattr(v, "tolist") else v for name, v in source.items()}
            if all(isinstance(values, (list, tuple)) for values in lists.values()):
                return _from_columns(lists)
        return _from_rows([source])
    if isinstance(source, (list, tuple)):
        return _from_rows(source)
    if hasattr(source, "with_format") and hasattr(source, "num_rows"):  # a Hugging Face dataset, not a stream
        return _from_arrow(source.with_format("arrow")[:])
    if hasattr(source, "iloc") and hasattr(source, "columns"):  # a pandas data frame
        return _from_pandas(source)
    if hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__"):
        return _from_capsule(source)
    raise UserError(f"expected a path, rows, a data frame or an Arrow table, got {type(source).__name__}")


def _from_rows(rows: Sequence[Mapping[str, Any]]) -> Table:
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise UserError(f"row {number} is {type(row).__name__}; a row is a dict from column to value")
    columns = tuple(dict.fromkeys(name for row in rows for name in row))

    def read(names: tuple[str, ...]) -> Iterator[Chunk]:
        for begin in range(0, len(rows), CHUNK):
            part = rows[begin : begin + CHUNK]
            yield {name: [row.get(name) for row in part] for name in names}

    return Table("the rows given", columns, read, rows=len(rows))


def _from_columns(columns: Mapping[str, Sequence[Any]]) -> Table:
    sizes = {name: len(values) for name, values in columns.items()}
    rows = max(sizes.values())
    for name, size in sizes.items():
        if size != rows:
            raise UserError(f"{GIVEN}: {name} has {size} rows, another has {rows}")

    def read(names: tuple[str, ...]) -> Iterator[Chunk]:
        for begin in range(0, rows, CHUNK):
            yield {name: list(columns[name][begin : begin + CHUNK]) for name in names}

    return Table(GIVEN, tuple(columns), read, rows=rows)


def _from_arrow(table: pa.Table, name: str = "the table given") -> Table:
    def read(names: tuple[str, ...]) -> Iterator[Chunk]:
        return plain(table.select(list(names)).to_batches(max_chunksize=CHUNK), name)

    return Table(name, tuple(table.column_names), read, rows=table.num_rows)


def _from_capsule(source: Any) -> Table:
    """A table of anything with the Arrow PyCapsule interface: polars, DuckDB, Arrow streams, and so on."""
    try:
        return _from_arrow(pa.table(source))
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise UserError(f"expected a table, got {type(source).__name__} ({one_line(error)})") from None


def _from_pandas(frame: Any) -> Table:
    columns = {str(name): place for place, name in enumerate(frame.columns)}

    def read(names: tuple[str, ...]) -> Iterator[Chunk]:
        for begin in range(0, len(frame), CHUNK):
            part = frame.iloc[begin : begin + CHUNK]
            yield {name: plain_list(part.iloc[:, columns[name]]) for name in names}

    return Table("the data frame given", tuple(map(str, frame.columns)), read, rows=len(frame))


def plain_list(values: Any) -> list[Any]:
    """The values of an array or a pandas column as Python objects; intervals and periods of pandas as text.

    Numbers of 16 or 32 bits are `widened`.
    """
    if hasattr(values, "sparse"):
        values = values.sparse.to_dense()
    kind = str(getattr(values, "dtype", "")).lower()
    narrow = NARROW.get(kind.removesuffix("[pyarrow]"))
    if narrow is not None and values.ndim == 1:
        return [None if is_missing(value) else widened(narrow(value)) for value in values]
    listed: list[Any] = values.tolist()
    if kind == "category" or kind.startswith(("interval", "period")):
        return [str(value) if type(value).__name__ in ("Interval", "Period") else value for value in listed]
    return listed


def name_of(source: Any) -> str:
    """A table as results name it: its file without the folder, with what cannot be seen escaped, or "rows"."""
    return visible(Path(source).name) if isinstance(source, (str, Path)) else "rows"
