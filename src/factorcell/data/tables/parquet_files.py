"""Read Parquet files, and folders of Parquet files such as those that Spark and DuckDB write.

A folder is one table: the rows of its files, in the order of the paths of the files. Folders may be nested. A folder
with the name `key=value` (Hive partitioning) adds the text column `key` to the rows of its files. Files and folders
with other names that begin with `_` or `.` are skipped.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import parquet as pq

from factorcell.data.tables import chunks
from factorcell.data.tables.chunks import Chunk, Content, Table, UnknownKindError, arrow_chunks, format_names, one_line
from factorcell.errors import UserError
from factorcell.io import memory

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"  # Hive, Spark and DuckDB write this text for a missing value of a partition


@dataclass(frozen=True)
class ParquetFile:
    """A Parquet file of a table."""

    content: Content
    stored_columns: tuple[str, ...]  # the names of the columns that the file itself contains
    row_count: int
    partition_values: dict[str, str | None]  # by partition column; the same in all rows of the file

    @classmethod
    def open(cls, content: Content, partition_values: dict[str, str | None]) -> "ParquetFile":
        """Read the columns and the number of rows from the footer of a file."""
        try:
            with content.open() as stream, pq.ParquetFile(stream) as file:
                return cls(content, tuple(file.schema_arrow.names), file.metadata.num_rows, partition_values)
        except (pa.ArrowInvalid, OSError) as error:
            raise UserError(f"{content.path}: not a Parquet file, or damaged ({one_line(error)})") from None

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.stored_columns, *self.partition_values)

    def read(self, columns: Sequence[str]) -> Iterator[Chunk]:
        """Yield chunks of `columns`, which may be columns of the file or partition columns."""
        path, stored_columns = self.content.path, [name for name in columns if name not in self.partition_values]
        if not stored_columns:
            for begin in range(0, self.row_count, chunks.CHUNK_ROWS):
                row_count = min(chunks.CHUNK_ROWS, self.row_count - begin)
                yield {name: [self.partition_values[name]] * row_count for name in columns}
            return
        try:
            with self.content.open() as stream, pq.ParquetFile(stream) as file:
                sizes = [_stored_bytes(file.metadata.row_group(index), columns) for index in range(file.num_row_groups)]
                memory.check(max(sizes, default=0), f"{path}: its largest row group")
                for chunk in arrow_chunks(file.iter_batches(chunks.CHUNK_ROWS, columns=stored_columns), str(path)):
                    row_count = len(chunk[stored_columns[0]])
                    yield {name: chunk.get(name) or [self.partition_values[name]] * row_count for name in columns}
        except (pa.ArrowInvalid, OSError) as error:
            raise UserError(f"{path}: damaged ({one_line(error)})") from None


def _stored_bytes(group: pq.RowGroupMetaData, columns: Sequence[str]) -> int:
    """Return the size of `columns` in a row group, decompressed."""
    leaves = [group.column(index) for index in range(group.num_columns)]
    # Parquet stores a nested column, such as a list, as leaves, whose paths begin with its name.
    return sum(leaf.total_uncompressed_size for leaf in leaves if leaf.path_in_schema.split(".")[0] in columns)


def open_parquet(content: Content) -> Table:
    """Open a Parquet file."""
    file = ParquetFile.open(content, {})
    return Table(str(content.path), file.columns, file.read, file.row_count)


def open_parquet_folder(folder: Path) -> Table:
    """Open a folder of Parquet files as one table."""
    files = [ParquetFile.open(Content(path), _partition_values(path, folder)) for path in _find_files(folder)]
    expected_keys = format_names(files[0].partition_values) or "none"
    for file in files:
        if (keys := format_names(file.partition_values) or "none") != expected_keys:
            problem = f"expected folders with the partition keys {expected_keys}, got {keys}"
            raise UserError(f"{file.content.path}: {problem}")

    def read(columns: tuple[str, ...]) -> Iterator[Chunk]:
        for file in files:  # all files are checked before the first is read
            if missing := [name for name in columns if name not in file.columns]:
                problem = f"no column {missing[0]!r}; it has {format_names(file.columns)}"
                raise UserError(f"{file.content.path}: {problem}")
        for file in files:
            yield from file.read(columns)

    columns = tuple(dict.fromkeys(name for file in files for name in file.columns))
    return Table(str(folder), columns, read, sum(file.row_count for file in files))


def _find_files(folder: Path) -> list[Path]:
    """Return the Parquet files of a folder, sorted by path; raise `UserError` if it has other files or no file."""
    paths = []
    problem = f"{folder}: expected a table file or a folder of Parquet files (*.parquet), got"

    def raise_user_error(error: OSError) -> None:
        raise UserError(f"{error.filename}: cannot be read ({error.strerror})")

    for parent, folder_names, file_names in os.walk(folder, onerror=raise_user_error):
        # `os.walk` then visits the remaining folders, in this order.
        folder_names[:] = sorted(name for name in folder_names if not _is_skipped(name))
        for name in sorted(name for name in file_names if not _is_skipped(name)):
            path = Path(parent, name)
            if path.suffix.lower() != ".parquet":
                raise UnknownKindError(f"{problem} a folder with {path.relative_to(folder)}")
            paths.append(path)
    if not paths:
        raise UnknownKindError(f"{problem} a folder without files")
    return sorted(paths)


def _is_skipped(name: str) -> bool:
    """Return whether a file or folder, such as `_SUCCESS`, does not belong to the table; `_key=value` does."""
    return name.startswith(("_", ".")) and "=" not in name


def _partition_values(path: Path, folder: Path) -> dict[str, str | None]:
    """Return the value of each partition key, from the names of the folders between `folder` and the file `path`."""
    parts = [name.split("=", 1) for name in path.parent.relative_to(folder).parts if "=" in name]
    try:
        values = {unquote(key, errors="strict"): unquote(value, errors="strict") for key, value in parts}
        json.dumps(values, ensure_ascii=False).encode()  # fails for names that are not UTF-8
    except UnicodeError:
        raise UserError(f"{path}: expected partition folders named in UTF-8") from None
    return {key: None if value == HIVE_NULL else value for key, value in values.items()}
