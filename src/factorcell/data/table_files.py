"""Readers of table files: the format follows from the name of the file."""

import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet as pq

from factorcell.config import UserError
from factorcell.data import chunks
from factorcell.data.arrow import batches, one_line, plain
from factorcell.data.chunks import Chunk, Table, UnknownKindError, listed
from factorcell.data.content import COMPRESSIONS, ROW, Content
from factorcell.data.csv_faults import encoding
from factorcell.data.csv_files import csv_table

FORMATS = (".csv", ".tsv", ".jsonl", ".parquet")


def open_file(path: Path) -> Table:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in COMPRESSIONS else ""
    kind = suffixes[-1] if suffixes else ""
    if kind not in FORMATS or (kind == ".parquet" and compression):
        valid = f"{', '.join(FORMATS)} (text files also with {', '.join(COMPRESSIONS)})"
        raise UnknownKindError(f"{path}: unknown kind of file; its name must end in {valid}")
    if not path.is_file():
        raise UserError(f"{path}: there is no such file")
    if path.stat().st_size == 0:
        raise UserError(f"{path}: the file is empty")
    readers = {".csv": csv_table, ".tsv": csv_table, ".jsonl": _json_lines, ".parquet": _parquet}
    return readers[kind](Content(path, compression))


def line_count(table: Table) -> int | None:
    """About how many rows a text file has: its lines. None where that cannot be told without unpacking it."""
    if table.content is None or table.content.path.suffix.lower() not in (".csv", ".tsv", ".jsonl"):
        return None
    with table.content.open() as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 24), b""))


def _parquet(content: Content) -> Table:
    path = content.path
    try:
        with content.open() as raw, pq.ParquetFile(raw) as file:
            names, rows = tuple(file.schema_arrow.names), file.metadata.num_rows
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}: not a Parquet file, or damaged ({one_line(error)})") from None

    def read(columns: tuple[str, ...]) -> Iterator[Chunk]:
        try:
            with content.open() as raw:
                yield from plain(batches(raw, columns, chunks.CHUNK, str(path)), str(path))
        except (pa.ArrowInvalid, OSError) as error:
            raise UserError(f"{path}: damaged ({one_line(error)})") from None

    return Table(str(path), names, read, content, rows)


def _json_row(line: str, where: str) -> dict[str, Any]:
    """The object that one line holds."""
    try:
        row = json.loads(line)
        if "\\u" in line:
            json.dumps(row, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except UnicodeEncodeError:
        raise UserError(f"{where}: not valid JSON (half of a surrogate pair)") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not valid JSON ({getattr(error, 'msg', error)})") from None
    if not isinstance(row, dict):
        raise UserError(f"{where}: not an object; each line is one JSON object")
    return row


def _json_lines(content: Content) -> Table:
    path = content.path

    def lines() -> Iterator[tuple[int, int, dict[str, Any]]]:
        try:
            for number, line in enumerate(content.lines("utf-8-sig"), 1):
                if line.strip():
                    yield number, len(line), _json_row(line, f"{path} line {number}")
        except UnicodeDecodeError:
            raise UserError(encoding(content, "not UTF-8")) from None
        except (OSError, EOFError, lzma.LZMAError) as error:
            raise UserError(f"{path}: damaged ({one_line(error)})") from None

    first = next(lines(), None)
    names = tuple(first[2]) if first else ()

    def read(columns: tuple[str, ...]) -> Iterator[Chunk]:
        chunk: Chunk = {name: [] for name in columns}
        size = length = 0
        for number, characters, row in lines():
            for name in columns:
                if name not in row:
                    raise UserError(f"{path} line {number}: no {name!r}; the first line has {listed(names)}")
                chunk[name].append(row[name])
            size, length = size + 1, length + characters
            if size == chunks.CHUNK or length > ROW:
                yield chunk
                chunk, size, length = {name: [] for name in columns}, 0, 0
        if size:
            yield chunk

    return Table(str(path), names, read, content)
