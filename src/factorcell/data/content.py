"""Read the bytes of a table file, decompressed or as lines.

A table file is read several times: for its header, to guess the kinds of its columns, to compute its cache key, and for
its rows. If the file changes between or during these reads, `Content` raises a `UserError`.
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

from factorcell.config import UserError

BLOCK_BYTES = 1 << 20  # number of bytes that are read at once to count lines
MAX_ROW_LENGTH = 1 << 24  # maximum number of characters of a line of a text file, or of a row of a CSV file
ARROW_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}  # file ending to Arrow's name
COMPRESSIONS = (*ARROW_COMPRESSIONS, ".xz")
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")  # byte order marks
UTF32_MARKS = (b"\xff\xfe\0\0", b"\0\0\xfe\xff")


class Content:
    """A file that must not change after this object is created; reading a changed file raises a `UserError`."""

    def __init__(self, path: Path, compression: str = "") -> None:
        if not path.is_file():
            raise UserError(f"{path}: there is no such file")
        self.path, self.compression, self.state = path, compression, _state(path.stat())
        if not path.stat().st_size:
            raise UserError(f"{path}: the file is empty")

    @contextmanager
    def open(self) -> Iterator[io.BufferedReader]:
        """Open the file to read.

        Raises:
            UserError: The file cannot be read, or has changed since this object was created, or changes while the
                context manager is active.
        """
        try:
            file = self.path.open("rb")
        except OSError as error:
            raise UserError(f"{self.path}: cannot be read ({error.strerror})") from None
        with file:
            self._check()
            try:
                yield file
            except Exception:
                self._check()  # a change of the file explains any other error
                raise
            self._check()

    def _check(self) -> None:
        if not self.path.exists() or _state(self.path.stat()) != self.state:
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
        """Yield the lines of a text file with their line ends; `newline` has the meaning that it has in `open`.

        Raises:
            UserError: The file is damaged, is not UTF-8, or has a line of more than `MAX_ROW_LENGTH` characters.
        """
        try:
            with self.open_decompressed() as stream, io.TextIOWrapper(stream, "utf-8-sig", newline=newline) as text:
                start = stream.peek(4)[:4]
                if start in UTF32_MARKS:
                    raise UserError(f"{self.path}: expected UTF-8, got UTF-32; convert it to UTF-8")
                # In UTF-16 without a byte order mark, one of the two bytes of an ASCII character is 0.
                if start.startswith(UTF16_MARKS) or (len(start) > 1 and start[:2].count(0) == 1):
                    raise UserError(f"{self.path}: expected UTF-8, got UTF-16; convert it to UTF-8")
                for number, line in enumerate(iter(partial(text.readline, MAX_ROW_LENGTH + 1), ""), 1):
                    if len(line) > MAX_ROW_LENGTH:
                        raise UserError(f"{self.path} line {number}: longer than {MAX_ROW_LENGTH:,} characters")
                    yield line
        except UnicodeDecodeError:
            raise self._encoding_error() from None
        except (OSError, EOFError, lzma.LZMAError) as error:
            raise UserError(f"{self.path}: damaged ({' '.join(str(error).split())})") from None

    def _encoding_error(self) -> UserError:
        """Return the error about the first line that is not UTF-8."""
        with self.open_decompressed() as stream:
            for number, line in enumerate(iter(partial(stream.readline, 4 * MAX_ROW_LENGTH), b""), 1):
                try:
                    line.decode()
                except UnicodeDecodeError as error:
                    byte = f"byte 0x{line[error.start]:02x} at column {error.start + 1}"
                    return UserError(f"{self.path} line {number}: not UTF-8 ({byte}); convert it first")
        raise AssertionError("every line is UTF-8")

    def line_count(self) -> int | None:
        """Return the number of lines of a text file, as an estimate of its rows; None for a compressed file."""
        if self.compression:
            return None
        with self.open() as file:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(BLOCK_BYTES), b""))

    def digest(self) -> bytes:
        """Return the SHA-256 of the file."""
        with self.open() as file:
            return hashlib.file_digest(file, "sha256").digest()


def _state(stat: os.stat_result) -> tuple[int, ...]:
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns
