"""The bytes of a file of rows, decompressed or as lines.

A table is read several times: its header, its first rows to guess kinds, all of it for the key of the cache, its rows.
A file that changes between two of these reads, or during one, is an error.
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

BLOCK = 1 << 20  # bytes read at once
MAX_ROW_LENGTH = 1 << 24  # characters of the longest line of a text file, and of the longest row of a CSV file
ARROW = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}  # what Arrow calls what it unpacks
COMPRESSIONS = (*ARROW, ".xz")
UTF16 = (b"\xff\xfe", b"\xfe\xff")  # byte order marks
UTF32 = (b"\xff\xfe\0\0", b"\0\0\xfe\xff")


class Content:
    """The file `path` as it is when this is made."""

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
            UserError: It cannot be read, has changed since this was made, or changes before the block ends.
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
                self._check()  # a change explains any other error
                raise
            self._check()

    def _check(self) -> None:
        if not self.path.exists() or _state(self.path.stat()) != self.state:
            raise UserError(f"{self.path}: changed while it was read; try again when nothing writes to it")

    @contextmanager
    def unpacked(self) -> Iterator[Any]:
        """Open the file to read from its beginning, decompressed."""
        with self.open() as file:
            if self.compression == ".xz":
                with lzma.open(file) as stream:
                    yield io.BufferedReader(stream)
            elif self.compression:
                yield io.BufferedReader(pa.CompressedInputStream(file, ARROW[self.compression]))
            else:
                yield file

    def lines(self, newline: str | None = None) -> Iterator[str]:
        """Yield the lines of a text file with their ends, which `newline` says as `open` does; none is over `ROW` long.

        Raises:
            UserError: The file is damaged, is not UTF-8, or has a longer line.
        """
        try:
            with self.unpacked() as stream, io.TextIOWrapper(stream, "utf-8-sig", newline=newline) as text:
                start = stream.peek(4)[:4]
                if start in UTF32:
                    raise UserError(f"{self.path}: UTF-32; convert it to UTF-8")
                if start.startswith(UTF16) or (len(start) > 1 and start[:2].count(0) == 1):
                    raise UserError(f"{self.path}: UTF-16; convert it to UTF-8")
                for number, line in enumerate(iter(partial(text.readline, MAX_ROW_LENGTH + 1), ""), 1):
                    if len(line) > MAX_ROW_LENGTH:
                        raise UserError(f"{self.path} line {number}: longer than {MAX_ROW_LENGTH:,} characters")
                    yield line
        except UnicodeDecodeError:
            raise self._not_utf8() from None
        except (OSError, EOFError, lzma.LZMAError) as error:
            raise UserError(f"{self.path}: damaged ({' '.join(str(error).split())})") from None

    def _not_utf8(self) -> UserError:
        """The error about the first line that is not UTF-8."""
        with self.unpacked() as stream:
            for number, line in enumerate(iter(partial(stream.readline, 4 * MAX_ROW_LENGTH), b""), 1):
                try:
                    line.decode()
                except UnicodeDecodeError as error:
                    byte = f"byte 0x{line[error.start]:02x} at column {error.start + 1}"
                    return UserError(f"{self.path} line {number}: not UTF-8 ({byte}); convert it first")
        raise AssertionError("every line is UTF-8")

    def line_count(self) -> int | None:
        """The number of lines of a text file, which is about its number of rows; None for a compressed file."""
        if self.compression:
            return None
        with self.open() as file:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(BLOCK), b""))

    def digest(self) -> bytes:
        """Return the SHA-256 of the file."""
        with self.open() as file:
            return hashlib.file_digest(file, "sha256").digest()


def _state(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
