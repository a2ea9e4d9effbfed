"""Tables, as `open_table` returns them for all kinds of sources, the files that they are read from, and their chunks.

The package reads a table file several times: to find the names of its columns, to guess their kinds, and to read its
rows. If the file changes between or during these reads, `Content` raises a `UserError`.

A chunk is a dict from column to a list of values. All values of CSV and TSV files are strings, and an empty field is an
empty string; the column readers (`readers`) interpret the strings.
"""

import io
import json
import lzma
import os
import re
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc

from factorcell.data.columns.values import to_float64
from factorcell.errors import CONTINUE_ANYWAY, UserError, nearest_hint
from factorcell.io.output import escape_hidden

CHUNK_ROWS = 8192  # maximum number of rows of a chunk
MAX_NAMES_SHOWN = 20  # maximum number of column names that an error message lists
# Names of extension types, as text and as they are in the metadata of a field.
UNSUPPORTED_EXTENSIONS = ("pandas.period", "pandas.interval", b"pandas.period", b"pandas.interval")
CONVERSION_ERRORS = (ValueError, OverflowError, TypeError, pa.ArrowException)
MAX_ROW_LENGTH = 1 << 24  # maximum number of characters of a line of a text file, or of a row of a CSV file
ARROW_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}  # Arrow's names, by the ending of the file name
COMPRESSIONS = (*ARROW_COMPRESSIONS, ".xz")  # endings of the names of compressed files
CONVERT = "convert it, for example from Windows: iconv -f WINDOWS-1252 -t UTF-8 OLD > NEW"
ESCAPED_BYTE = re.compile("[\udc80-\udcff]")  # a byte that is not UTF-8, in the error handler surrogateescape
# The first bytes of files that are not text in UTF-8, with the format and the remedy.
OTHER_FORMATS = {
    **dict.fromkeys((b"\xff\xfe\0\0", b"\0\0\xfe\xff"), "UTF-32; convert it to UTF-8"),
    **dict.fromkeys((b"\xff\xfe", b"\xfe\xff"), "UTF-16; convert it to UTF-8"),
    b"\x1f\x8b": "data compressed with gzip; add .gz to its name",
    b"BZh91AY&SY": "data compressed with bzip2; add .bz2 to its name",
    b"\xfd7zXZ\0": "data compressed with xz; add .xz to its name",
    b"\x28\xb5\x2f\xfd": "data compressed with zstd; add .zst to its name",
    b"PK\x03\x04": "a zip archive or an Excel workbook; extract the table from it, or save it as CSV",
    b"PAR1": "a Parquet file; change the end of its name to .parquet",
}

Chunk = dict[str, list[Any]]


class UnknownKindError(UserError):
    """The error about a path that is neither a table file nor a folder of Parquet files."""

    def with_remedy_for_texts(self) -> UserError:
        """Return this error for a caller that also accepts texts, because the path may be a text."""
        return self.with_message(f"{self.message}; to read a text, pass a list of texts")


class EmptyTableError(UserError):
    """The error about a table without rows."""


class Content:
    """A file that must not change after this object is created; reading a changed file raises a `UserError`.

    Args:
        path: The path of the file, which must not be empty.
        compression: The item of `COMPRESSIONS` with which the file name ends; an empty string for other files.
    """

    def __init__(self, path: Path, compression: str = "") -> None:
        if not os.path.isfile(path):
            raise UserError(f"{path}: there is no such file")
        self.path, self.compression = path, compression
        self.state, self.size = self._state(), path.stat().st_size
        self._file: weakref.ref[io.BufferedReader] | None = None  # the file that was opened last
        if not self.size:
            raise UserError(f"{path}: the file is empty")

    def _state(self) -> tuple[int, ...]:
        """Return numbers of which at least one differs after the file is replaced or written; empty without a file."""
        if not self.path.exists():
            return ()
        stat = self.path.stat()
        return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns

    @contextmanager
    def open(self) -> Iterator[io.BufferedReader]:
        """Open the file for reading; raise `UserError` if it cannot be read, or has changed when it is closed."""
        try:
            file = self.path.open("rb")
        except OSError as error:
            raise UserError(f"{self.path}: cannot be read ({error.strerror})") from None
        with file:
            self._file = weakref.ref(file)
            self._check_unchanged()
            try:
                yield file
            except Exception:
                self._check_unchanged()  # a change of the file explains any other error
                raise
            self._check_unchanged()

    @property
    def bytes_read(self) -> int:
        """The number of bytes that the current reader, or the last one, has read; for a display of progress."""
        file = None if self._file is None else self._file()
        return self.size if file is None or file.closed else file.tell()

    def _check_unchanged(self) -> None:
        if self._state() != self.state:
            raise UserError(f"{self.path}: changed while it was read; try again when nothing writes to it")

    @contextmanager
    def open_decompressed(self) -> Iterator[Any]:
        """Open the file and decompress it while it is read."""
        with self.open() as file:
            if self.compression == ".xz":
                with lzma.open(file) as stream:
                    yield io.BufferedReader(stream)
            elif self.compression:
                yield io.BufferedReader(pa.CompressedInputStream(file, ARROW_COMPRESSIONS[self.compression]))
            else:
                yield file

    def lines(self, newline: str | None = None) -> Iterator[str]:
        """Yield the lines of a text file with their line ends; `newline` is an argument of `io.TextIOWrapper`."""
        try:
            with (
                self.open_decompressed() as stream,
                io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline=newline) as decoder,
            ):
                beginning = stream.peek(10)
                # In UTF-16 without a byte order mark, one of the two bytes of an ASCII character is 0.
                mark = b"\xff\xfe" if beginning[:2].count(0) == 1 else beginning
                if problem := next((OTHER_FORMATS[other] for other in OTHER_FORMATS if mark.startswith(other)), ""):
                    raise UserError(f"{self.path}: expected text in UTF-8, got {problem}")
                read_line = partial(decoder.readline, MAX_ROW_LENGTH + 1)  # one more character than is allowed
                for line_number, line in enumerate(iter(read_line, ""), 1):
                    if not line.isascii() and (invalid := ESCAPED_BYTE.search(line)):
                        place = f"byte 0x{ord(invalid[0]) - 0xDC00:02x} at column {invalid.start() + 1}"
                        raise UserError(f"{self.path} line {line_number}: not UTF-8 ({place}); {CONVERT}")
                    if len(line) > MAX_ROW_LENGTH:
                        raise UserError(f"{self.path} line {line_number}: longer than {MAX_ROW_LENGTH:,} characters")
                    yield line
        except (OSError, EOFError, lzma.LZMAError) as error:
            raise UserError(f"{self.path}: damaged ({one_line(error)})") from None


@dataclass(frozen=True)
class Table:
    """A source of rows that can be read repeatedly.

    All reads of a table return the same content: if a file has changed since it was opened, reading it raises a
    `UserError`.

    Attributes:
        name: The name of the source, for messages.
        columns: The names of all columns; a name that the header has more than once is not one of them.
        read: A function that receives column names and yields chunks of these columns.
        row_count: The number of rows, if it is known without reading the source.
        file: The file of a table whose number of rows is unknown; its bytes show the progress.
        line_of: A function that returns the line of a text file in which a row begins; rows are counted from 1.
    """

    name: str
    columns: tuple[str, ...]
    read: Callable[[tuple[str, ...]], Iterator[Chunk]]
    row_count: int | None = None
    file: Content | None = None
    line_of: Callable[[int], int] | None = None
    repeated_columns: frozenset[str] = field(default=frozenset(), init=False)

    def __post_init__(self) -> None:
        if not self.columns:
            raise EmptyTableError(f"{self.name}: empty, no columns and no rows")
        counts = Counter(self.columns)
        object.__setattr__(self, "columns", tuple(name for name in self.columns if counts[name] == 1))
        object.__setattr__(self, "repeated_columns", frozenset(counts) - frozenset(self.columns))

    def place(self, row: int) -> str:
        """Return the table, the line of a text file, and the number of a row, for messages."""
        line = f" line {self.line_of(row)}," if self.line_of else ""
        return f"{self.name}{line} row {row}"

    def chunks(self, columns: Collection[str]) -> Iterator[Chunk]:
        """Yield chunks of `columns`; raise `UserError` if a column is missing or the table has no rows."""
        for name in columns:
            if name not in self.columns:
                raise self.missing_column_error(name)
        chunks = self.read(tuple(dict.fromkeys(columns)))
        if (first := next(chunks, None)) is None:
            raise EmptyTableError(f"{self.name}: no rows")
        yield first
        yield from chunks

    def missing_column_error(
        self, column: str, remedies: Iterable[tuple[str, str]] = (), outcome: str = CONTINUE_ANYWAY
    ) -> UserError:
        """Return the error about a missing column, with options that solve the problem.

        `outcome` says what the remedies achieve, as an infinitive for the message.
        """
        if repeated := self.repeated_columns & {column} if self.columns else self.repeated_columns:
            return UserError(f"{self.name}: the header has {min(repeated)!r} twice; rename one of these columns")
        hint = nearest_hint(column, self.columns)
        if "," in column and set(column.split(",")) <= set(self.columns):
            hint = " (name each column by itself)"
        message = f"{self.name}: no column {column!r}{hint}; it has {format_names(self.columns)}"
        return UserError(message, remedies, outcome)


def format_names(names: Collection[str]) -> str:
    """Return the first of `names` for a message, each cut to 60 characters; if not all, also the number of `names`."""
    shown_names = ", ".join(f"{escape_hidden(str(name)):.60}" for name in islice(names, MAX_NAMES_SHOWN))
    return shown_names + (f", ... ({len(names):,} in all)" if len(names) > MAX_NAMES_SHOWN else "")


def arrow_chunks(
    batches: Iterable[pa.RecordBatch], where: str, classes: Mapping[str, Sequence[str]] | None = None
) -> Iterator[Chunk]:
    """Yield the values of each non-empty Arrow batch as Python objects.

    Binary columns become text, and class numbers become the names of `classes`, by default those that Hugging Face
    `datasets` wrote to the metadata. `to_float64` converts 16- and 32-bit floats. A `UserError` about a value that
    cannot be read names the table (`where`), the row and the column.
    """
    row_offset = 0
    for batch in batches:
        if batch.num_rows:
            class_names = _class_names(batch.schema) if classes is None else classes
            chunk = Chunk()
            for field, column in zip(batch.schema, batch.columns, strict=True):
                values = _column_values(column, field, where, row_offset)
                if names := class_names.get(field.name):
                    values = [class_name(value, names) for value in values]
                chunk[field.name] = values
            yield chunk
        row_offset += batch.num_rows


def _class_names(schema: pa.Schema) -> Mapping[str, Sequence[str]]:
    """Return the class names of each `ClassLabel` column from the metadata that Hugging Face `datasets` writes."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"].items()
        return {
            column: feature["names"]
            for column, feature in features
            if isinstance(feature, Mapping) and feature.get("_type") == "ClassLabel"
        }
    except (LookupError, ValueError, TypeError, AttributeError):
        return {}


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


def _column_values(column: pa.Array, field: pa.Field, where: str, row_offset: int) -> list[Any]:
    """Return the values of a column; `row_offset` is the number of rows of the table before this batch."""
    # Extension types are in the field's type if pandas has registered them with Arrow, otherwise in its metadata.
    extension = getattr(field.type, "extension_name", None) or (field.metadata or {}).get(b"ARROW:extension:name", b"")
    if extension in UNSUPPORTED_EXTENSIONS:
        problem = f"column {field.name} contains pandas periods or intervals, which cannot be read"
        raise UserError(f"{where}: {problem}; convert the column to text with .astype(str)")
    try:
        return _to_list(column)
    except CONVERSION_ERRORS:
        values = []
        for row, scalar in enumerate(column, row_offset + 1):
            try:
                value = scalar.as_py()
                values.append(value.decode() if isinstance(value, bytes) else value)
            except CONVERSION_ERRORS as error:
                reason = f"{scalar.type}: {one_line(error)}"
                raise UserError(f"{where} row {row}: cannot read {field.name} ({reason})") from None
        return values


def _to_list(column: pa.Array) -> list[Any]:
    """Return the values of a column; raise one of `CONVERSION_ERRORS` if a value cannot be converted."""
    arrow_type = column.type
    if pa.types.is_dictionary(arrow_type) and len(column.dictionary) > len(column):
        return _to_list(column.dictionary_decode())
    if pa.types.is_dictionary(arrow_type):
        distinct_values = _to_list(column.dictionary)
        return [None if index is None else distinct_values[index] for index in column.indices.to_pylist()]
    if pa.types.is_float16(arrow_type):
        return [None if value is None else to_float64(np.float16(value)) for value in column.to_pylist()]
    if pa.types.is_float32(arrow_type):
        # As in `to_float64`, a fraction is converted through its shortest text, which Arrow writes.
        is_integer = pc.equal(pc.floor(column), column)
        column = pc.if_else(is_integer, column.cast(pa.float64()), column.cast(pa.string()).cast(pa.float64()))
    elif str(arrow_type).startswith(("binary", "large_binary", "fixed_size_binary")):
        column = column.cast(pa.large_string())
    values: list[Any] = column.to_pylist()
    return values


def one_line(error: object) -> str:
    """Return the message of an error with each run of white space replaced by one space."""
    return " ".join(str(error).split())
