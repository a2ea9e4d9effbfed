"""Any table as a stream of column chunks: files, and tables in memory."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from factorcell.config import UserError
from factorcell.data.arrow import plain
from factorcell.data.chunks import CHUNK, Chunk, Table
from factorcell.data.table_files import open_file

GIVEN = "the columns given"  # the name of a table of columns, in errors


def open_table(source: Any) -> Table:
    """A `Table` from a path, a row (dict) or a list of rows, a dict of columns, a pandas, Arrow or HF table."""
    if isinstance(source, (str, Path)):
        return open_file(Path(source))
    if isinstance(source, Mapping):
        if source and all(hasattr(values, "with_format") for values in source.values()):
            raise UserError(f"this data set has splits; give one of them ({', '.join(source)})")
        if source and all(isinstance(v, (list, tuple)) or hasattr(v, "tolist") for v in source.values()):
            lists = {name: v.tolist() if hasattr(v, "tolist") else v for name, v in source.items()}
            if all(isinstance(values, (list, tuple)) for values in lists.values()):
                return _from_columns(lists)
        return _from_rows([source])
    if isinstance(source, (list, tuple)):
        return _from_rows(source)
    if isinstance(source, pa.RecordBatch):
        return _from_arrow(pa.Table.from_batches([source]))
    if isinstance(source, pa.Table):
        return _from_arrow(source)
    if hasattr(source, "with_format") and hasattr(source, "num_rows"):  # a Hugging Face dataset, not a stream
        return _from_arrow(source.with_format("arrow")[:])
    if hasattr(source, "iloc") and hasattr(source, "columns"):  # a pandas data frame
        return _from_pandas(source)
    raise UserError(
        f"cannot read a table from {type(source).__name__}; give a path, rows, a data frame or an Arrow table"
    )


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


def _from_pandas(frame: Any) -> Table:
    columns = {str(name): place for place, name in enumerate(frame.columns)}

    def read(names: tuple[str, ...]) -> Iterator[Chunk]:
        wanted = frame.iloc[:, [columns[name] for name in names]]
        try:
            table = pa.Table.from_pandas(wanted, preserve_index=False)
        except pa.ArrowException as error:
            raise UserError(f"the data frame given: a column mixes types ({error.args[-1]})") from None
        yield from _from_arrow(table).chunks(names)

    return Table("the data frame given", tuple(map(str, frame.columns)), read, rows=len(frame))


def name_of(source: Any) -> str:
    """A table as results name it: its file without the folder, or "rows"."""
    return Path(source).name if isinstance(source, (str, Path)) else "rows"
