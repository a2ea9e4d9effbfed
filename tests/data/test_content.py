"""A file that changes while it is read is an error."""

import gzip
import io
import json
import lzma
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from factorcell.data.tables import chunks, tables
from factorcell.data.tables.chunks import Chunk, Content
from factorcell.data.tables.tables import open_table
from factorcell.errors import UserError

CHANGED = "changed while it was read; try again when nothing writes to it"


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "CHUNK_ROWS", 3)
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 3)


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"c" * 100)


def alter(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(130)
        file.write(b"x")


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"b" * 200)
    other.replace(path)


@pytest.mark.parametrize("change", [append, alter, replace, lambda path: os.truncate(path, 150)])
def test_a_file_that_changed_is_an_error(tmp_path: Path, change: Callable[[Path], None]) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a" * 200)
    content = Content(path)
    with content.open():
        pass
    with pytest.raises(UserError, match=CHANGED), content.open():
        change(path)
    with pytest.raises(UserError, match=CHANGED), content.open():
        pass


ROWS = [{"text": f"text {number}", "city": "Oslo"} for number in range(1000)]


def csv_bytes() -> bytes:
    return b"text,city\n" + b"".join(f"{row['text']},{row['city']}\n".encode() for row in ROWS)


def json_bytes() -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)


def parquet_bytes() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS), sink, row_group_size=50)
    return sink.getvalue()


WRITERS: dict[str, Callable[[], bytes]] = {
    "t.csv": csv_bytes,
    "t.jsonl": json_bytes,
    "t.parquet": parquet_bytes,
    "t.csv.gz": lambda: gzip.compress(csv_bytes()),
    "t.jsonl.xz": lambda: lzma.compress(json_bytes()),
}


def texts(chunks: Iterator[Chunk]) -> list[str]:
    return [text for chunk in chunks for text in chunk["text"]]


@pytest.mark.parametrize("name", WRITERS)
def test_a_table_that_is_rewritten_between_two_reads_is_an_error(name: str, tmp_path: Path) -> None:
    path, content = tmp_path / name, WRITERS[name]()
    path.write_bytes(content)
    table = open_table(path)
    assert texts(table.chunks(["text"])) == [row["text"] for row in ROWS]
    path.write_bytes(bytes(reversed(content)))
    with pytest.raises(UserError, match=rf"{name}: {CHANGED}"):
        texts(table.chunks(["text"]))
