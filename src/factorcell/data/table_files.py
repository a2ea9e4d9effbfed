"""Readers of table files: the format follows from the name of the file."""

import json
import lzma
from collections.abc import Callable, Collection, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from factorcell.config import UserError
from factorcell.data import chunks
from factorcell.data.arrow import one_line
from factorcell.data.chunks import Chunk, Table, UnknownKindError
from factorcell.data.content import COMPRESSIONS, ROW, Content
from factorcell.data.csv_faults import encoding
from factorcell.data.csv_files import csv_table
from factorcell.data.parquet_files import content_of, parquet_folder, parquet_table

FORMATS = (".csv", ".tsv", ".jsonl", ".parquet")
FIRST = 1 << 20  # characters of JSON lines whose keys are read at once


def open_file(path: Path) -> Table:
    """Open a table file, or a folder of Parquet files."""
    if path.is_dir():
        return parquet_folder(path)
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in COMPRESSIONS else ""
    kind = suffixes[-1] if suffixes else ""
    if kind not in FORMATS or (kind == ".parquet" and compression):
        valid = f"{', '.join(FORMATS)} (text files also with {', '.join(COMPRESSIONS)})"
        raise UnknownKindError(f"{path}: unknown kind of file; its name must end in {valid}")
    readers = {".csv": csv_table, ".tsv": csv_table, ".jsonl": _json_lines, ".parquet": parquet_table}
    return readers[kind](content_of(path, compression))


def line_count(table: Table) -> int | None:
    """Return the number of lines of a text file, which is about its number of rows; None for a compressed file."""
    content = table.content
    if not isinstance(content, Content) or content.path.suffix.lower() not in (".csv", ".tsv", ".jsonl"):
        return None
    with content.open() as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 24), b""))


def _json_row(line: str, where: str) -> dict[str, Any]:
    """The object that one line holds."""
    try:
        row = json.loads(line)
        if "\\u" in line:
            json.dumps(row, ensure_ascii=False).encode()  # half of a surrogate pair is not valid Unicode
    except UnicodeEncodeError:
        raise UserError(f"{where}: not valid JSON (half of a surrogate pair)") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not valid JSON ({getattr(error, 'msg', error)})") from None
    if not isinstance(row, dict):
        raise UserError(f"{where}: not an object; each line is one JSON object")
    return row


class LineColumns(Collection[str]):
    """The columns of JSON lines: the keys of all lines.

    The first lines are read at once and mostly have all keys; the others are read only to find a key that these lack.
    """

    def __init__(self, lines: Callable[[], Iterator[tuple[int, dict[str, Any]]]]) -> None:
        """Read the first of the `lines`: the length and the object of each."""
        self.lines, self.first, read = lines, set[str](), 0
        for length, row in lines():
            self.first.update(row)
            read += length
            if read >= FIRST:
                break

    @cached_property
    def all(self) -> tuple[str, ...]:
        """The keys of all lines, in order of appearance."""
        return tuple(dict.fromkeys(key for _, row in self.lines() for key in row))

    def __contains__(self, name: object) -> bool:
        return name in self.first or name in self.all

    def __bool__(self) -> bool:
        return bool(self.first or self.all)

    def __iter__(self) -> Iterator[str]:
        return iter(self.all)

    def __len__(self) -> int:
        return len(self.all)


def _json_lines(content: Content) -> Table:
    """Open a file of JSON lines; a key that a line lacks is a missing value."""
    path = content.path

    def lines() -> Iterator[tuple[int, dict[str, Any]]]:
        try:
            for number, line in enumerate(content.lines("utf-8-sig"), 1):
                if line.strip():
                    yield len(line), _json_row(line, f"{path} line {number}")
        except UnicodeDecodeError:
            raise UserError(encoding(content, "not UTF-8")) from None
        except (OSError, EOFError, lzma.LZMAError) as error:
            raise UserError(f"{path}: damaged ({one_line(error)})") from None

    def read(columns: tuple[str, ...]) -> Iterator[Chunk]:
        chunk: Chunk = {name: [] for name in columns}
        size = length = 0
        for characters, row in lines():
            for name in columns:
                chunk[name].append(row.get(name))
            size, length = size + 1, length + characters
            if size == chunks.CHUNK or length > ROW:
                yield chunk
                chunk, size, length = {name: [] for name in columns}, 0, 0
        if size:
            yield chunk

    return Table(str(path), LineColumns(lines), read, content)
