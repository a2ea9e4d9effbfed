"""Read a table file as stored bytes, as decompressed bytes or as lines of text.

The package reads a table file several times: to find the names of its columns, to guess their kinds, to compute its
cache key, and to read its rows. If the file changes between or during these reads, `Content` raises a `UserError`.
"""

import hashlib
import io
import lzma
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from factorcell.errors import UserError

MAX_ROW_LENGTH = 1 << 24  # maximum number of characters of a line of a text file, or of a row of a CSV file
ARROW_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}  # Arrow's names, by the ending of the file name
COMPRESSIONS = (*ARROW_COMPRESSIONS, ".xz")  # endings of the names of compressed files
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")  # byte order marks
UTF32_MARKS = (b"\xff\xfe\0\0", b"\0\0\xfe\xff")


class Content:
    """A file that must not change after this object is created; reading a changed file raises a `UserError`.

    Args:
        path: The path of the file, which must not be empty.
        compression: The item of `COMPRESSIONS` with which the file name ends; an empty string for other files.
    """

    def __init__(self, path: Path, compression: str = "") -> None:
        if not path.is_file():
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
            with self.open_decompressed() as stream, io.TextIOWrapper(stream, "utf-8-sig", newline=newline) as decoder:
                first_bytes = stream.peek(4)[:4]
                # In UTF-16 without a byte order mark, one of the two bytes of an ASCII character is 0.
                is_utf16 = first_bytes.startswith(UTF16_MARKS) or first_bytes[:2].count(0) == 1
                if is_utf16 or first_bytes in UTF32_MARKS:
                    encoding = "UTF-32" if first_bytes in UTF32_MARKS else "UTF-16"
                    raise UserError(f"{self.path}: expected UTF-8, got {encoding}; convert it to UTF-8")
                read_line = partial(decoder.readline, MAX_ROW_LENGTH + 1)  # one more character than is allowed
                for line_number, line in enumerate(iter(read_line, ""), 1):
                    if len(line) > MAX_ROW_LENGTH:
                        raise UserError(f"{self.path} line {line_number}: longer than {MAX_ROW_LENGTH:,} characters")
                    yield line
        except UnicodeDecodeError:
            raise self._encoding_error() from None
        except (OSError, EOFError, lzma.LZMAError) as error:
            raise UserError(f"{self.path}: damaged ({' '.join(str(error).split())})") from None

    def _encoding_error(self) -> UserError:
        """Return the error about the first line that is not UTF-8."""
        with self.open_decompressed() as stream:
            read_line = partial(stream.readline, 4 * MAX_ROW_LENGTH)  # a character of UTF-8 has at most 4 bytes
            for line_number, line in enumerate(iter(read_line, b""), 1):
                try:
                    line.decode()
                except UnicodeDecodeError as error:
                    location = f"byte 0x{line[error.start]:02x} at column {error.start + 1}"
                    return UserError(f"{self.path} line {line_number}: not UTF-8 ({location}); convert it first")
        raise AssertionError("every line is UTF-8")

    def digest(self) -> bytes:
        """Return the SHA-256 digest of the file as it is stored."""
        with self.open() as file:
            return hashlib.file_digest(file, "sha256").digest()
