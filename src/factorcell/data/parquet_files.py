"""Read Parquet files, and folders of Parquet files such as those that Spark and DuckDB write.

A folder is one table, with its files in the order of their paths. Folders may be nested, and a folder `key=value` (Hive
partitioning) adds the text column `key` to the rows of its files. Names that begin with `_` or `.` are skipped.
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

from factorcell import memory
from factorcell.config import UserError
from factorcell.data import chunks
from factorcell.data.arrow import one_line, to_python_values
from factorcell.data.chunks import Chunk, Table, UnknownKindError, format_names
from factorcell.data.content import Content

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"  # Hive, Spark and DuckDB write this text for a missing value of a partition


@dataclass(frozen=True)
class ParquetFile:
    """A Parquet file with its columns, its number of rows, and the value of each partition column."""

    content: Content
    columns: tuple[str, ...]
    rows: int
    partition: dict[str, str | None]

    @classmethod
    def open(cls, content: Content, partition: dict[str, str | None]) -> "ParquetFile":
        """Read the columns and the number of rows from the footer of a file."""
        try:
            with content.open() as raw, pq.ParquetFile(raw) as file:
                return cls(content, tuple(file.schema_arrow.names), file.metadata.num_rows, partition)
        except (pa.ArrowInvalid, OSError) as error:
            raise UserError(f"{content.path}: not a Parquet file, or damaged ({one_line(error)})") from None

    def read(self, columns: Sequence[str]) -> Iterator[Chunk]:
        """Yield chunks of `columns`; a partition column has the same value in all rows."""
        stored = [name for name in columns if name not in self.partition]
        if not stored:
            for begin in range(0, self.rows, chunks.CHUNK_ROWS):
                size = min(chunks.CHUNK_ROWS, self.rows - begin)
                yield {name: [self.partition[name]] * size for name in columns}
            return
        for chunk in self._read_stored(stored):
            size = len(chunk[stored[0]])
            yield {name: chunk[name] if name in chunk else [self.partition[name]] * size for name in columns}

    def _read_stored(self, columns: list[str]) -> Iterator[Chunk]:
        """Yield chunks of columns that the file itself contains."""
        path = self.content.path
        try:
            with self.content.open() as raw, pq.ParquetFile(raw) as file:
                _check_memory(file, columns, str(path))
                yield from to_python_values(file.iter_batches(chunks.CHUNK_ROWS, columns=columns), str(path))
        except (pa.ArrowInvalid, OSError) as error:
            raise UserError(f"{path}: damaged ({one_line(error)})") from None


def _check_memory(file: pq.ParquetFile, columns: Sequence[str], where: str) -> None:
    """Raise `UserError` if the largest row group of `columns` does not fit into memory."""
    # Parquet stores a nested column, such as a list, as leaves: columns with paths that begin with its name.
    paths = [file.schema.column(index).path for index in range(len(file.schema))]
    leaves = [index for index, path in enumerate(paths) if path.split(".")[0] in columns]
    groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
    sizes = [sum(group.column(leaf).total_uncompressed_size for leaf in leaves) for group in groups]
    memory.check(max(sizes, default=0), f"{where}: its largest row group")


def parquet_table(content: Content) -> Table:
    """Open a Parquet file."""
    file = ParquetFile.open(content, {})
    return Table(str(content.path), file.columns, file.read, content.digest, file.rows)


def parquet_folder(folder: Path) -> Table:
    """Open a folder of Parquet files as one table."""
    files = [ParquetFile.open(Content(path), _partition(path, folder)) for path in _paths(folder)]
    keys = tuple(files[0].partition)
    for file in files:
        if tuple(file.partition) != keys:
            expected, actual = (format_names(names) or "none" for names in (keys, tuple(file.partition)))
            raise UserError(f"{file.content.path}: expected folders with the partition keys {expected}, got {actual}")

    def read(columns: tuple[str, ...]) -> Iterator[Chunk]:
        for file in files:
            available = (*file.columns, *keys)
            for name in columns:
                if name not in available:
                    raise UserError(f"{file.content.path}: no column {name!r}; it has {format_names(available)}")
        for file in files:
            yield from file.read(columns)

    def digest() -> bytes:
        parts = [(file.content.path.relative_to(folder).as_posix(), file.content.digest().hex()) for file in files]
        return hashlib.sha256(json.dumps(parts).encode()).digest()

    columns = tuple(dict.fromkeys(name for file in files for name in (*file.columns, *keys)))
    return Table(str(folder), columns, read, digest, sum(file.rows for file in files))


def _paths(folder: Path) -> list[Path]:
    """Return the Parquet files of a folder, sorted by path; raise `UserError` if it has other files or no file."""
    paths = []
    expected = f"{folder}: expected a table file or a folder of Parquet files (*.parquet), got"

    def fail(error: OSError) -> None:
        raise UserError(f"{error.filename}: cannot be read ({error.strerror})")

    for parent, folders, names in os.walk(folder, onerror=fail):
        folders[:] = sorted(name for name in folders if not _is_skipped(name))
        for name in sorted(names):
            path = Path(parent, name)
            if _is_skipped(name):
                continue
            if path.suffix.lower() != ".parquet":
                raise UnknownKindError(f"{expected} a folder with {path.relative_to(folder)}")
            paths.append(path)
    if not paths:
        raise UnknownKindError(f"{expected} a folder without files")
    return sorted(paths)


def _is_skipped(name: str) -> bool:
    """Return whether a file or folder, such as `_SUCCESS`, does not belong to the table.

    The key of a partition folder may begin with an underscore; such a folder belongs to the table.
    """
    return name.startswith(("_", ".")) and "=" not in name


def _partition(path: Path, folder: Path) -> dict[str, str | None]:
    """Return the value of each partition key from the folders between `folder` and the file `path`."""
    parts = [part.split("=", 1) for part in path.relative_to(folder).parts[:-1] if "=" in part]
    try:
        names = {unquote(key, errors="strict"): unquote(value, errors="strict") for key, value in parts}
        json.dumps(names, ensure_ascii=False).encode()
    except UnicodeError:
        raise UserError(f"{path}: expected partition folders named in UTF-8") from None
    return {key: None if value == HIVE_NULL else value for key, value in names.items()}
