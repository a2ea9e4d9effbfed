"""The bytes of a file, the same whenever they are read.

A table is read several times: its header, its first rows to guess kinds, all of it for the key of the cache, its rows.
Whoever comes to a block first notes its SHA-256, and whoever comes later holds the block against it. So what is parsed
is what was hashed, in any order and at random places, while other processes do with the file what they like.
"""

import hashlib
import io
import lzma
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from factorcell.config import UserError

BLOCK = 1 << 20  # bytes with one digest
ROW = 1 << 24  # characters of the longest line of a text file, and of the longest row of a CSV file
ARROW = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}  # what Arrow calls what it unpacks
COMPRESSIONS = (*ARROW, ".xz")
UTF16 = (b"\xff\xfe", b"\xfe\xff")  # byte order marks
UTF32 = (b"\xff\xfe\0\0", b"\0\0\xfe\xff")


class Content:
    """What the file `path` has when this is made; what is appended later is not seen."""

    def __init__(self, path: Path, compression: str = "") -> None:
        if not path.is_file():
            raise UserError(f"{path}: there is no such file")
        self.path, self.compression, self.size = path, compression, path.stat().st_size
        self.digests: dict[int, bytes] = {}  # of the blocks that were read
        if not self.size:
            raise UserError(f"{path}: the file is empty")

    def open(self) -> BinaryIO:
        """A file to read. It raises a `UserError` where it cannot be read, or a block is no more what it was."""
        try:
            return io.BufferedReader(_Blocks(self), BLOCK)
        except OSError as error:
            raise UserError(f"{self.path}: cannot be read ({error.strerror})") from None

    def unpacked(self) -> Any:
        """A file to read from its beginning, decompressed."""
        file = self.open()
        if self.compression == ".xz":
            return io.BufferedReader(lzma.open(file))
        return io.BufferedReader(pa.CompressedInputStream(file, ARROW[self.compression])) if self.compression else file

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
                for number, line in enumerate(iter(partial(text.readline, ROW + 1), ""), 1):
                    if len(line) > ROW:
                        raise UserError(f"{self.path} line {number}: longer than {ROW:,} characters")
                    yield line
        except UnicodeDecodeError:
            raise self._not_utf8() from None
        except (OSError, EOFError, lzma.LZMAError) as error:
            raise UserError(f"{self.path}: damaged ({' '.join(str(error).split())})") from None

    def _not_utf8(self) -> UserError:
        """The error about the first line that is not UTF-8."""
        with self.unpacked() as stream:
            for number, line in enumerate(iter(partial(stream.readline, 4 * ROW), b""), 1):
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
        """Of all bytes: those that were read, and those that will be."""
        with self.open() as file:
            while file.read(BLOCK):
                pass
        return hashlib.sha256(b"".join(digest for _, digest in sorted(self.digests.items()))).digest()

    def checked(self, number: int, block: bytes) -> bytes:
        """The block `number` as it was just read, if it is what it was."""
        digest = hashlib.sha256(block).digest()
        whole = len(block) == min(BLOCK, self.size - number * BLOCK)
        if not whole or self.digests.setdefault(number, digest) != digest:
            raise UserError(f"{self.path}: changed while it was read; try again when nothing writes to it")
        return block


class _Blocks(io.RawIOBase):
    """A file that reads whole blocks, and has each one checked."""

    def __init__(self, content: Content) -> None:
        self.content, self.place = content, 0
        self.file = content.path.open("rb", buffering=0)
        self.number, self.block = -1, b""  # the last one read

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.place = offset + (0, self.place, self.content.size)[whence]
        return self.place

    def tell(self) -> int:
        return self.place

    def readinto(self, buffer: Any) -> int:
        if self.place >= self.content.size:
            return 0
        number, within = divmod(self.place, BLOCK)
        if number != self.number:
            self.number, self.block = number, self.content.checked(number, self._read(number))
        part = self.block[within : within + len(buffer)]
        buffer[: len(part)] = part
        self.place += len(part)
        return len(part)

    def _read(self, number: int) -> bytes:
        """The bytes of a block as they are now."""
        self.file.seek(number * BLOCK)
        block, wanted = b"", min(BLOCK, self.content.size - number * BLOCK)
        while len(block) < wanted and (part := self.file.read(wanted - len(block))):
            block += part
        return block

    def close(self) -> None:
        self.file.close()
        super().close()
