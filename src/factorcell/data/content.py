"""Read a table file as stored bytes, as decompressed bytes or as lines of text.

The package reads a table file several times: to find the names of its columns, to guess their kinds, to compute its
cache key, and to read its rows. If the file changes between or during these reads, `Content` raises a `UserError`.
"""

import hashlib
import io
import lzma
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from factorcell.errors import UserError

BLOCK_BYTES = 1 << 20  # number of bytes that are read at once to count lines
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
        self.path, self.compression, self.state = path, compression, _file_state(path.stat())
        if not path.stat().st_size:
            raise UserError(f"{path}: the file is empty")

    @contextmanager
    def open(self) -> Iterator[io.BufferedReader]:
        """Open the file for reading.

        Raises:
            UserError: The file cannot be read, or has changed since this object was created, or changes while the
                context manager is active.
        """
        try:
            file = self.path.open("rb")
        except OSError as error:
            raise UserError(f"{self.path}: cannot be read ({error.strerror})") from None
        with file:
            self._check_unchanged()
            try:
                yield file
            except Exception:
                self._check_unchanged()  # a change of the file explains any other error
                raise
            self._check_unchanged()

    def _check_unchanged(self) -> None:
        if not self.path.exists() or _file_state(self.path.stat()) != self.state:
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
        """Yield the lines of a text file with their line ends; `newline` is an argument of `io.TextIOWrapper`.

        Raises:
            UserError: The file is damaged, is not UTF-8, or has a line of more than `MAX_ROW_LENGTH` characters.
        """
        try:
            with self.open_decompressed() as stream, io.TextIOWrapper(stream, "utf-8-sig", newline=newline) as decoder:
                first_bytes = stream.peek(4)[:4]
                if first_bytes in UTF32_MARKS:
                    raise UserError(f"{self.path}: expected UTF-8, got UTF-32; convert it to UTF-8")
                # In UTF-16 without a byte order mark, one of the two bytes of an ASCII character is 0.
                if first_bytes.startswith(UTF16_MARKS) or (len(first_bytes) > 1 and first_bytes[:2].count(0) == 1):
                    raise UserError(f"{self.path}: expected UTF-8, got UTF-16; convert it to UTF-8")
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

    def line_count(self) -> int | None:
        """Return the number of lines of the file, as an estimate of its number of rows; None for a compressed file."""
        if self.compression:
            return None
        with self.open() as file:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(BLOCK_BYTES), b""))

    def digest(self) -> bytes:
        """Return the SHA-256 digest of the file as it is stored."""
        with self.open() as file:
            return hashlib.file_digest(file, "sha256").digest()


def _file_state(stat: os.stat_result) -> tuple[int, ...]:
    """Return numbers of which at least one differs after the file is replaced or written."""
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns
