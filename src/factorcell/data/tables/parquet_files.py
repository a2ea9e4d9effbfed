"""Read Parquet files, and folders of Parquet files such as those that Spark and DuckDB write.

A folder is one table: the rows of its files, in the order of the paths of the files. Folders may be nested. A folder
with the name `key=value` (Hive partitioning) adds the text column `key` to the rows of its files. Files and folders
with other names that begin with `_` or `.` are skipped.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import parquet as pq

from factorcell.data.content import Content
from factorcell.data.tables import chunks
from factorcell.data.tables.arrow import one_line, to_python_values
from factorcell.data.tables.chunks import Chunk, Table, UnknownKindError, format_names
from factorcell.errors import UserError
from factorcell.io import memory

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"  # Hive, Spark and DuckDB write this text for a missing value of a partition


@dataclass(frozen=True)
class ParquetFile:
    """A Parquet file of a table.

    Attributes:
        content: The file.
        columns: The names of the columns that the file itself contains.
        row_count: The number of rows.
        partition_values: The value of each partition column; it is the same in all rows of the file.
    """

    content: Content
    columns: tuple[str, ...]
    row_count: int
    partition_values: dict[str, str | None]

    @classmethod
    def open(cls, content: Content, partition_values: dict[str, str | None]) -> "ParquetFile":
        """Read the columns and the number of rows from the footer of a file."""
        try:
            with content.open() as stream, pq.ParquetFile(stream) as file:
                return cls(content, tuple(file.schema_arrow.names), file.metadata.num_rows, partition_values)
        except (pa.ArrowInvalid, OSError) as error:
            raise UserError(f"{content.path}: not a Parquet file, or damaged ({one_line(error)})") from None

    def read(self, columns: Sequence[str]) -> Iterator[Chunk]:
        """Yield chunks of `columns`, which may be columns of the file or partition columns."""
        stored_columns = [name for name in columns if name not in self.partition_values]
        if not stored_columns:
            for begin in range(0, self.row_count, chunks.CHUNK_ROWS):
                chunk_size = min(chunks.CHUNK_ROWS, self.row_count - begin)
                yield {name: [self.partition_values[name]] * chunk_size for name in columns}
            return
        for chunk in self._read_stored(stored_columns):
            chunk_size = len(chunk[stored_columns[0]])
            yield {
                name: chunk[name] if name in chunk else [self.partition_values[name]] * chunk_size for name in columns
            }

    def _read_stored(self, columns: list[str]) -> Iterator[Chunk]:
        """Yield chunks of `columns`; the file must store every one of them, so none may be a partition column."""
        path = self.content.path
        try:
            with self.content.open() as stream, pq.ParquetFile(stream) as file:
                _check_memory(file, columns, str(path))
                yield from to_python_values(file.iter_batches(chunks.CHUNK_ROWS, columns=columns), str(path))
        except (pa.ArrowInvalid, OSError) as error:
            raise UserError(f"{path}: damaged ({one_line(error)})") from None


def _check_memory(file: pq.ParquetFile, columns: Sequence[str], where: str) -> None:
    """Raise `UserError` if the largest row group of `columns` does not fit into memory."""
    # Parquet stores a nested column, such as a list, as leaves: columns with paths that begin with its name.
    paths = [file.schema.column(index).path for index in range(len(file.schema))]
    leaves = [index for index, path in enumerate(paths) if path.split(".")[0] in columns]
    row_groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
    sizes = [sum(group.column(leaf).total_uncompressed_size for leaf in leaves) for group in row_groups]
    memory.check(max(sizes, default=0), f"{where}: its largest row group")


def open_parquet(content: Content) -> Table:
    """Open a Parquet file."""
    file = ParquetFile.open(content, {})
    return Table(str(content.path), file.columns, file.read, content.digest, file.row_count)


def open_parquet_folder(folder: Path) -> Table:
    """Open a folder of Parquet files as one table."""
    files = [ParquetFile.open(Content(path), _partition_values(path, folder)) for path in _find_files(folder)]
    partition_keys = tuple(files[0].partition_values)
    for file in files:
        file_keys = tuple(file.partition_values)
        if file_keys != partition_keys:
            expected, actual = format_names(partition_keys) or "none", format_names(file_keys) or "none"
            raise UserError(f"{file.content.path}: expected folders with the partition keys {expected}, got {actual}")

    def read(columns: tuple[str, ...]) -> Iterator[Chunk]:
        # All files are checked before the first is read, so that a missing column is reported at once.
        for file in files:
            available_columns = (*file.columns, *partition_keys)
            for name in columns:
                if name not in available_columns:
                    raise UserError(
                        f"{file.content.path}: no column {name!r}; it has {format_names(available_columns)}"
                    )
        for file in files:
            yield from file.read(columns)

    def digest() -> bytes:
        digests = [(file.content.path.relative_to(folder).as_posix(), file.content.digest().hex()) for file in files]
        return hashlib.sha256(json.dumps(digests).encode()).digest()

    columns = tuple(dict.fromkeys(name for file in files for name in (*file.columns, *partition_keys)))
    return Table(str(folder), columns, read, digest, sum(file.row_count for file in files))


def _find_files(folder: Path) -> list[Path]:
    """Return the Parquet files of a folder, sorted by path; raise `UserError` if it has other files or no file."""
    paths = []
    problem = f"{folder}: expected a table file or a folder of Parquet files (*.parquet), got"

    def raise_user_error(error: OSError) -> None:
        raise UserError(f"{error.filename}: cannot be read ({error.strerror})")

    for parent, folder_names, file_names in os.walk(folder, onerror=raise_user_error):
        # `os.walk` then visits the remaining folders, in this order.
        folder_names[:] = sorted(name for name in folder_names if not _is_skipped(name))
        for name in sorted(file_names):
            path = Path(parent, name)
            if _is_skipped(name):
                continue
            if path.suffix.lower() != ".parquet":
                raise UnknownKindError(f"{problem} a folder with {path.relative_to(folder)}")
            paths.append(path)
    if not paths:
        raise UnknownKindError(f"{problem} a folder without files")
    return sorted(paths)


def _is_skipped(name: str) -> bool:
    """Return whether a file or folder, such as `_SUCCESS`, does not belong to the table.

    The key of a partition folder may begin with an underscore; such a folder belongs to the table.
    """
    return name.startswith(("_", ".")) and "=" not in name


def _partition_values(path: Path, folder: Path) -> dict[str, str | None]:
    """Return the value of each partition key, from the names of the folders between `folder` and the file `path`."""
    folder_names = path.parent.relative_to(folder).parts
    keys_and_values = [name.split("=", 1) for name in folder_names if "=" in name]
    try:
        value_by_key = {
            unquote(key, errors="strict"): unquote(value, errors="strict") for key, value in keys_and_values
        }
        json.dumps(value_by_key, ensure_ascii=False).encode()  # fails for names that are not UTF-8
    except UnicodeError:
        raise UserError(f"{path}: expected partition folders named in UTF-8") from None
    return {key: None if value == HIVE_NULL else value for key, value in value_by_key.items()}
