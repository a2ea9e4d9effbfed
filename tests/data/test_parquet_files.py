"""Folders of Parquet files, compared with the same rows in memory."""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from factorcell.data.tables import chunks
from factorcell.data.tables.parquet_files import HIVE_NULL
from factorcell.data.tables.tables import open_table
from factorcell.errors import UserError

ROWS = [
    {"text": f"text {n}", "stars": n % 5, "city": ("Oslo", "São Paulo/BR", None)[n % 3], "year": str(2024 + n % 2)}
    for n in range(30)
]


def write(folder: Path, rows: list[dict[str, Any]], name: str = "part-0.parquet") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / name)
    return folder


def read(source: Any, *columns: str) -> list[tuple[Any, ...]]:
    return [row for chunk in open_table(source).chunks(columns) for row in zip(*chunk.values(), strict=True)]


@pytest.mark.parametrize("columns", [("text", "stars"), ("city", "text", "year"), ("year", "city"), ("stars",)])
def test_a_partitioned_folder_has_the_rows_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: tuple[str, ...]
) -> None:
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 3)
    pq.write_to_dataset(pa.Table.from_pylist(ROWS), tmp_path / "t", partition_cols=["city", "year"])
    assert (tmp_path / "t" / f"city={HIVE_NULL}").is_dir()
    table = open_table(str(tmp_path / "t"))
    assert set(table.columns) == {"text", "stars", "city", "year"}
    assert table.row_count == len(ROWS)
    expected = [tuple(row[name] for name in columns) for row in ROWS]
    assert sorted(map(repr, read(tmp_path / "t", *columns))) == sorted(map(repr, expected))


def test_files_are_read_in_the_order_of_their_paths(tmp_path: Path) -> None:
    for index, name in enumerate(("b/part-0.parquet", "a/part-1.parquet", "part-2.parquet", "a/part-0.parquet")):
        write((tmp_path / name).parent, [{"text": name, "index": index}], Path(name).name)
    names = [name for (name,) in read(tmp_path, "text")]
    assert names == ["a/part-0.parquet", "a/part-1.parquet", "b/part-0.parquet", "part-2.parquet"]


def test_a_column_that_a_file_lacks_is_an_error_only_if_it_is_read(tmp_path: Path) -> None:
    write(tmp_path, [{"text": "a", "city": "Oslo"}], "0.parquet")
    write(tmp_path, [{"text": "b", "stars": 5}], "1.parquet")
    assert read(tmp_path, "text") == [("a",), ("b",)]
    with pytest.raises(UserError, match=r"0\.parquet: no column 'stars'; it has text, city$"):
        read(tmp_path, "text", "stars")


def test_the_value_of_a_partition_folder_replaces_the_column_of_a_file(tmp_path: Path) -> None:
    write(tmp_path / "city=Nice", [{"text": "a", "city": "Oslo"}])
    assert read(tmp_path, "city", "text") == [("Nice", "a")]


@pytest.mark.parametrize("name", [b"city=caf%E9", b"city=caf\xe9", b"caf%E9=1"])
def test_partitions_that_are_not_utf8_are_errors(name: bytes, tmp_path: Path) -> None:
    write(tmp_path / "t", ROWS)
    os.mkdir(os.path.join(os.fsencode(tmp_path / "t"), name))
    (tmp_path / "t" / "part-0.parquet").rename(tmp_path / "t" / os.fsdecode(name) / "part-0.parquet")
    with pytest.raises(UserError, match=r"part-0\.parquet: expected partition folders named in UTF-8"):
        open_table(tmp_path / "t")


def add(folder: Path) -> None:
    write(folder, ROWS[:1], "part-9.parquet")


def move(folder: Path) -> None:
    (folder / "part-0.parquet").rename(folder / "part-1.parquet")


def change(folder: Path) -> None:
    write(folder, ROWS[1:])


def test_a_file_that_changes_while_the_folder_is_read_is_an_error(tmp_path: Path) -> None:
    folder = write(tmp_path / "t", ROWS)
    table = open_table(folder)
    list(table.chunks(["text"]))
    add(folder)
    assert sum(len(chunk["text"]) for chunk in table.chunks(["text"])) == len(ROWS)
    change(folder)
    with pytest.raises(UserError, match=r"part-0\.parquet: changed while it was read"):
        list(table.chunks(["text"]))


def test_a_folder_that_cannot_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "t" / "year=2024", ROWS)

    def refuse(folder: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(UserError, match=r"t: cannot be read \(Permission denied\)"):
        open_table(tmp_path / "t")
