"""Tables: all types of sources give the same rows, and errors name the line."""

import gzip
import io
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import csv
from pyarrow import parquet as pq

from factorcell.data.tables import chunks, tables
from factorcell.data.tables.tables import open_table
from factorcell.errors import UserError
from tests.faults.tables import COMPRESSIONS

ROWS = [
    {"text": 'she said "no", twice', "city": "Oslo"},
    {"text": "line one\nline two", "city": "Nice"},
    {"text": "ça va, Ålesund?", "city": ""},
    {"text": "", "city": "007"},
]


def read(source: Any, *columns: str) -> list[dict[str, Any]]:
    chunks = open_table(source).chunks(columns or ("text", "city"))
    return [dict(zip(chunk, values, strict=True)) for chunk in chunks for values in zip(*chunk.values(), strict=True)]


def csv_bytes() -> bytes:
    stream = io.BytesIO()
    csv.write_csv(pa.Table.from_pylist(ROWS), stream)
    return stream.getvalue()


def tsv_bytes() -> bytes:
    return "".join(
        "\t".join(cells).replace("\n", " ") + "\n" for cells in [list(ROWS[0]), *map(dict.values, ROWS)]
    ).encode()


def json_bytes() -> bytes:
    return "".join(json.dumps(row) + "\n" for row in ROWS).encode()


@pytest.mark.parametrize("compression", ["", *COMPRESSIONS])
@pytest.mark.parametrize("kind", [".csv", ".tsv", ".jsonl"])
def test_text_files_of_all_kinds_have_the_same_rows(tmp_path: Path, kind: str, compression: str) -> None:
    content = {".csv": csv_bytes(), ".tsv": tsv_bytes(), ".jsonl": json_bytes()}[kind]
    path = tmp_path / f"rows.v1{kind}{compression}"
    path.write_bytes(COMPRESSIONS.get(compression, bytes)(content))
    one_line = [{name: value.replace("\n", " ") for name, value in row.items()} for row in ROWS]
    assert read(path) == (one_line if kind == ".tsv" else ROWS)
    assert read(str(path), "city") == [{"city": row["city"]} for row in ROWS]


def test_parquet_values_have_their_types(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": ["a", "b"], "lat": [1.5, None]}), path)
    assert read(path, "text", "lat") == [{"text": "a", "lat": 1.5}, {"text": "b", "lat": None}]
    assert open_table(path).row_count == 2


def test_tables_in_memory_have_the_same_rows() -> None:
    assert read(ROWS) == ROWS
    assert read(ROWS[0]) == ROWS[:1]
    columns = {name: [row[name] for row in ROWS] for name in ROWS[0]}
    assert read(columns) == read(pa.table(columns)) == read(pd.DataFrame(columns)) == ROWS
    assert read(pa.RecordBatch.from_pylist(ROWS)) == ROWS
    assert read([{"text": "a"}, {"text": "b", "city": "Oslo"}])[0]["city"] is None


def test_hugging_face_datasets_have_the_same_rows() -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    whole = datasets.Dataset.from_list(ROWS)
    assert read(whole) == ROWS
    assert read(whole.select([2, 0])) == [ROWS[2], ROWS[0]]


@given(st.lists(st.tuples(st.text(), st.text()), min_size=1, max_size=20))
def test_any_text_survives_a_csv_file(tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, str]]) -> None:
    import csv as text_csv

    pairs = [(a.replace("\r", "").replace("\0", ""), b.replace("\r", "").replace("\0", "")) for a, b in pairs]
    pairs = [(a.encode("utf-8", "ignore").decode(), b.encode("utf-8", "ignore").decode()) for a, b in pairs]
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = text_csv.writer(file, quoting=text_csv.QUOTE_ALL)
        writer.writerows([("text", "city"), *pairs])
    assert [(row["text"], row["city"]) for row in read(path)] == pairs


def test_long_tables_are_read_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "CHUNK_ROWS", 7)
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 7)
    rows = [{"text": f"t{index}"} for index in range(50)]
    pd.DataFrame(rows).to_csv(tmp_path / "t.csv", index=False)
    pd.DataFrame(rows).to_parquet(tmp_path / "t.parquet")
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for source in (rows, tmp_path / "t.csv", tmp_path / "t.parquet", tmp_path / "t.jsonl"):
        parts = list(open_table(source).chunks(["text"]))
        assert max(len(chunk["text"]) for chunk in parts) <= 7
        assert [text for chunk in parts for text in chunk["text"]] == [row["text"] for row in rows]


def test_a_byte_order_mark_and_a_quoted_header_are_read(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xef\xbb\xbf" + b'"text","the ""city"""\na,b\n')
    assert open_table(path).columns == ("text", 'the "city"')
    assert read(path, "text") == [{"text": "a"}]


@pytest.mark.parametrize("name", ["a.TSV", "a.tsv.gz", "my.csv.tsv"])
def test_the_last_ending_determines_the_delimiter(tmp_path: Path, name: str) -> None:
    content = b"text\tcity\na, b\tOslo\n"
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert list(open_table(tmp_path / name).chunks(["text", "city"])) == [{"text": ["a, b"], "city": ["Oslo"]}]


def test_empty_lines_are_rows_only_in_files_with_one_column(tmp_path: Path) -> None:
    (tmp_path / "two.csv").write_text("text,city\na,Oslo\n\nb,Nice\n\n", encoding="utf-8")
    (tmp_path / "one.csv").write_text("text\na\n\nb\n", encoding="utf-8")
    assert [chunk["text"] for chunk in open_table(tmp_path / "two.csv").chunks(["text"])] == [["a", "b"]]
    assert [chunk["text"] for chunk in open_table(tmp_path / "one.csv").chunks(["text"])] == [["a", "", "b"]]


@pytest.mark.parametrize(
    ("content", "line"), [("a,b\n1,2\n\n3\n", 4), ('a,b\n"1\n1",2\n3,4\n5\n', 5), ("a,b\r\n1,2\r\n3\r\n", 3)]
)
def test_a_row_with_a_wrong_number_of_columns_is_reported_with_its_line(
    tmp_path: Path, content: str, line: int
) -> None:
    (tmp_path / "t.csv").write_bytes(content.encode())
    with pytest.raises(UserError, match=rf"line {line}: expected 2 columns \(a, b\), got 1"):
        list(open_table(tmp_path / "t.csv").chunks(["a"]))


@pytest.mark.parametrize(("kind", "value"), [("csv", "1"), ("jsonl", "1"), ("rows", "1"), ("frame", 1.0)])
def test_a_table_with_many_columns_is_read_in_linear_time(kind: str, value: Any, tmp_path: Path) -> None:
    names = ["text", *(f"column {number}" for number in range(100_000))]
    row = dict.fromkeys(names, value)
    if kind == "csv":
        (tmp_path / "t.csv").write_text(f"{','.join(row)}\n{','.join(row.values())}\n", encoding="utf-8")
    elif kind == "jsonl":
        (tmp_path / "t.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    frame = pd.DataFrame(np.ones((1, len(names))), columns=names)
    source = {"rows": [row], "frame": frame}.get(kind, tmp_path / f"t.{kind}")
    begin = time.process_time()
    table = open_table(source)
    assert tuple(table.columns) == tuple(names)
    assert list(table.chunks(["text", "column 5"])) == [{"text": [value], "column 5": [value]}]
    with pytest.raises(
        UserError, match=r"no column 'city'; it has text, column 0, .*\.\.\. \(100,001 in all\)$"
    ) as error:
        list(table.chunks(["city"]))
    assert len(str(error.value)) < 500
    assert time.process_time() - begin < 10


@pytest.mark.parametrize(
    ("column", "hint"),
    [("citty", " (did you mean 'city'?)"), ("text,city", " (name each column by itself)"), ("stars", "")],
)
def test_a_missing_column_is_reported_with_a_hint(column: str, hint: str) -> None:
    with pytest.raises(UserError) as error:
        list(open_table(ROWS).chunks([column]))
    assert str(error.value) == f"in-memory table: no column {column!r}{hint}; it has text, city"


def test_columns_of_a_data_frame_that_are_not_read_may_have_any_type() -> None:
    frame = pd.DataFrame({"text": ["a", "b"], "stars": [5, "5"], 7: [1, 2]})
    assert list(open_table(frame).chunks(["7", "text"])) == [{"7": [1, 2], "text": ["a", "b"]}]


@pytest.mark.parametrize(
    "rows",
    [
        [{"text": "a"}, {"text": "b", "city": "Oslo"}],
        [{"text": "a", "city": "Oslo"}, {"text": "b"}],
        [{"city": "Oslo"}, {"text": "b"}, {}],
        [{}, {"text": "b", "city": None}],
        [{"text": str(number)} for number in range(20_000)] + [{"city": "Oslo"}],
    ],
)
def test_json_lines_may_lack_keys(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert "city" in open_table(path).columns
    assert "stars" not in open_table(path).columns
    table, expected = open_table(path), open_table(rows)
    assert tuple(table.columns) == tuple(expected.columns)
    assert len(table.columns) == 2
    assert read(path) == read(rows)
    with pytest.raises(UserError, match=f"no column 'stars'; it has {', '.join(expected.columns)}$"):
        read(path, "stars")
