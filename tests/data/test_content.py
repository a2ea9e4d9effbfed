"""Blocks against the bytes of the whole file, and what becomes of a file that others write to while it is read."""

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
from hypothesis import given, settings
from hypothesis import strategies as st

from factorcell.config import UserError
from factorcell.data import chunks, tables
from factorcell.data import content as contents
from factorcell.data.chunks import Chunk
from factorcell.data.content import Content
from factorcell.data.tables import open_table

CHANGED = "changed while it was read; try again when nothing writes to it"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "BLOCK", 64)
    monkeypatch.setattr(tables, "CHUNK", 3)
    monkeypatch.setattr(chunks, "CHUNK", 3)


@pytest.mark.parametrize("block", [1, 7, 64, 1000])
def test_any_place_is_that_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(contents, "BLOCK", block)
    path, written = tmp_path / "file", bytes(index * 7 % 251 for index in range(300))
    path.write_bytes(written)

    @settings(max_examples=30)
    @given(st.lists(st.tuples(st.integers(-300, 300), st.integers(0, 2), st.integers(-1, 400)), max_size=6))
    def check(steps: list[tuple[int, int, int]]) -> None:
        expected = io.BytesIO(written)
        with Content(path).open() as file:
            for offset, whence, size in steps:
                if min(expected.tell() * (whence == 1) + 300 * (whence == 2) + offset, 0) == 0:
                    assert file.seek(offset, whence) == expected.seek(offset, whence)
                assert file.read(size) == expected.read(size)

    check()


def test_a_digest_is_of_all_bytes_whatever_was_read_before(tmp_path: Path) -> None:
    path, found = tmp_path / "file", set()
    for place in (None, 0, 63, 64, 150, 199):
        written = bytearray(200)
        if place is not None:
            written[place] = 1
        path.write_bytes(written)
        content = Content(path)
        with content.open() as file:
            file.seek(130)
            file.read(5)
        found.add(content.digest())
        assert content.digest() == Content(path).digest()
    assert len(found) == 6


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


@pytest.mark.parametrize("change", [alter, replace, lambda path: os.truncate(path, 150), lambda path: path.touch()])
def test_a_block_that_changed_is_an_error(tmp_path: Path, change: Callable[[Path], None]) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a" * 200)
    content = Content(path)
    digest = content.digest()
    change(path)
    if path.read_bytes() == b"a" * 200:
        assert content.digest() == digest
        return
    with pytest.raises(UserError, match=CHANGED), content.open() as file:
        file.read()
    with pytest.raises(UserError, match=CHANGED):
        content.digest()


def test_what_is_appended_is_not_seen(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a" * 100)
    content = Content(path)
    append(path)
    digest = content.digest()
    append(path)
    with content.open() as file:
        assert file.read() == b"a" * 100
    assert content.digest() == digest


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
def test_a_table_that_is_rewritten_before_it_is_read_is_an_error(name: str, tmp_path: Path) -> None:
    path, written = tmp_path / name, WRITERS[name]()
    path.write_bytes(written)
    table = open_table(path)
    assert table.digest is not None
    digest = table.digest()
    path.unlink()
    path.write_bytes(written)
    assert texts(table.chunks(["text"])) == [row["text"] for row in ROWS]
    append(path)
    assert texts(table.chunks(["text"])) == [row["text"] for row in ROWS]
    assert table.digest() == digest
    path.write_bytes(bytes(reversed(written)))
    with pytest.raises(UserError, match=rf"{name}: {CHANGED}"):
        texts(table.chunks(["text"]))
