"""Large arrays in memory-mapped temporary files, computed block by block.

An array of at most `MAX_BYTES` is an ordinary one. A larger one is a memory-mapped file without a name, which the
system deletes when no process uses it, also after a crash. Its pages take memory only until another program needs it.
The files are in the folder of the environment variable TMPDIR, by default /var/tmp, which is on a disk.
"""

import os
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from factorcell.errors import UserError
from factorcell.io import memory

MAX_BYTES = 1 << 22  # size of the largest array in memory
BLOCK = 1 << 18  # number of items that are computed at once
DISK_FOLDER = Path("/var/tmp")


class GrowingArray:
    """An array to which rows are appended; when it becomes large, a temporary file."""

    def __init__(self) -> None:
        self._parts, self._part_bytes = list[NDArray[Any]](), 0
        self._row_count = self._file_bytes = 0
        self._file: BinaryIO | None = None

    def __len__(self) -> int:
        return self._row_count

    def append(self, rows: NDArray[Any]) -> None:
        """Add rows of the type and shape of the first ones; `rows` must not change later."""
        self._parts.append(rows)
        self._row_count += len(rows)
        self._part_bytes += rows.nbytes
        if self._part_bytes > MAX_BYTES:
            self._write_parts()

    def array(self) -> NDArray[Any]:
        """Return all rows; there must be a first part, which may be empty."""
        if self._file is None:
            self._parts = [np.concatenate(self._parts)] if len(self._parts) > 1 else self._parts
            return self._parts[0]
        dtype, row_shape = self._parts[0].dtype, self._parts[0].shape[1:]
        self._write_parts()
        # With "r+", the array can be changed as one in memory.
        return np.asarray(np.memmap(self._file, dtype, "r+", shape=(self._row_count, *row_shape)))

    def _write_parts(self) -> None:
        """Move all parts to the file; an empty part with the type and shape of rows remains."""
        folder = temporary_folder()
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0, dir=folder)  # noqa: SIM115 (closed with the array)
                weakref.finalize(self, self._file.close)
            for part in self._parts:
                content = np.ascontiguousarray(part).reshape(-1).view(np.uint8).data
                while content:
                    content = content[self._file.write(content) :]
        except OSError as error:
            size = memory.format_bytes(self._file_bytes + self._part_bytes)
            problem = f"cannot write {size} of a table that is larger than memory ({error.strerror})"
            raise UserError(f"{folder}: {problem}; set TMPDIR to a folder on a disk with more space") from None
        self._file_bytes += self._part_bytes
        self._parts, self._part_bytes = [self._parts[0][:0].copy()], 0


def temporary_folder() -> Path:
    """Return the folder of temporary files; /tmp may be in memory and is used only if /var/tmp does not exist."""
    default = DISK_FOLDER if DISK_FOLDER.is_dir() else tempfile.gettempdir()
    return Path(os.environ.get("TMPDIR") or default)


def blocks(count: int, size: int = 0) -> Iterator[slice]:
    """Yield slices of at most `size` of `count` items, by default `BLOCK`; of no items, one empty slice."""
    size = size or BLOCK
    return (slice(begin, min(begin + size, count)) for begin in range(0, max(1, count), size))


def lists_per_block(offsets: NDArray[np.int64], size: int = 0) -> int:
    """Return how many lists have about `size` items in total, by default `BLOCK`; at most so many."""
    size = size or BLOCK
    return min(size, 1 + size * (len(offsets) - 1) // max(1, int(offsets[-1])))


def list_blocks(offsets: NDArray[np.int64], size: int = 0) -> Iterator[slice]:
    """Yield slices of `lists_per_block` lists."""
    return blocks(len(offsets) - 1, lists_per_block(offsets, size))


def join(parts: Iterable[NDArray[Any]]) -> NDArray[Any]:
    """Return arrays joined along their first axis; there must be at least one."""
    joined = GrowingArray()
    for part in parts:
        joined.append(part)
    return joined.array()


def mapped(function: Callable[..., NDArray[Any]], *arrays: NDArray[Any]) -> NDArray[Any]:
    """Return `function(*arrays)` of arrays of equal length, for a function that computes each row by itself."""
    return join(function(*(array[block] for array in arrays)) for block in blocks(len(arrays[0])))


def take(array: NDArray[Any], rows: NDArray[Any]) -> NDArray[Any]:
    """Return the `rows` of an array."""
    return mapped(lambda part: array[part], rows)


def indices_where(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the indices of the true items."""
    return join(block.start + np.flatnonzero(mask[block]) for block in blocks(len(mask)))


def to_offsets(sizes: NDArray[Any]) -> NDArray[np.int64]:
    """Return the index of the first item of each list, followed by the number of items, from the sizes of the lists."""
    offsets, total = GrowingArray(), 0
    offsets.append(np.zeros(1, np.int64))
    for block in blocks(len(sizes)):
        offsets.append(total + np.cumsum(sizes[block], dtype=np.int64))
        total += int(sizes[block].sum())
    return offsets.array()


def count_ids(ids: NDArray[Any], size: int) -> NDArray[np.int64]:
    """Return how often each of the ids 0 to `size` - 1 occurs (size,)."""
    counts = np.zeros(size, np.int64)
    for block in blocks(len(ids), 4 * BLOCK):
        counts += np.bincount(ids[block], minlength=size)
    return counts


def permutation(generator: np.random.Generator, count: int) -> NDArray[np.int64]:
    """Return `generator.permutation(count)`."""
    order = join(np.arange(block.start, block.stop) for block in blocks(count))
    generator.shuffle(order)
    return order
