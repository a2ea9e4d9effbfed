"""Sources that are not tables, the same table in other encodings, and endless files."""

import gzip
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from factorcell import Run
from factorcell.data.tables import chunks as contents
from factorcell.data.tables.parquet_files import HIVE_NULL
from tests.faults.tables import (
    COMPRESSIONS,
    LINES,
    PARQUET,
    PLAIN,
    ROWS,
    WIDE,
    Expected,
    check_outcome,
    delimited,
    json_lines,
    parquet,
    rows_with_change,
    rows_without_column,
    scores,
)

TABLE = pa.Table.from_pylist(ROWS)


class Capsule:
    """A table that only has the Arrow PyCapsule interface, like polars data frames."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)


# Unusual and invalid sources in Python.
SOURCES: list[tuple[str, Any, Expected]] = [
    ("no rows", [], "empty, no columns and no rows"),
    ("one row", ROWS[0], 1),
    ("row of nothing", [{}], "empty, no columns and no rows"),
    ("a number", 5, "expected a path, rows, a data frame or an Arrow table, got int"),
    ("bytes", PLAIN, "bytes"),
    ("an iterator", iter(ROWS), "list_iterator"),
    ("rows and a number", [*ROWS, 5], "row 5: expected a dict from column to value, got int"),
    ("lists", [list(row.values()) for row in ROWS], "row 1: expected a dict from column to value, got list"),
    ("columns of two lengths", {"text": ["a", "b"], "city": ["a"]}, "in-memory table: column city has 1 rows"),
    ("columns of no length", {name: [] for name in ROWS[0]}, "no rows"),
    ("rows that lack a key", [ROWS[0], rows_without_column("city")[1]], 2),
    ("no text", rows_without_column("text"), "no column 'text'"),
    ("half a pair in a name", [{**row, "\ud800": 1} for row in rows_without_column("text")], "it has city"),
    ("10,000 columns", WIDE, 4),
    ("frame of nothing", pd.DataFrame(), "empty, no columns and no rows"),
    ("frame of no rows", pd.DataFrame(ROWS)[:0], "no rows"),
    ("frame with a column twice", pd.DataFrame([["a", "b"]], columns=["text", "text"]), "the header has 'text' twice"),
    ("frame that mixes types", pd.DataFrame(rows_with_change(2, city=5)), 4),
    ("frame of intervals", pd.DataFrame(ROWS).assign(city=pd.cut([1, 2, 3, 4], 2)), 4),
    ("frame of sparse numbers", pd.DataFrame(ROWS).assign(temp=pd.arrays.SparseArray([0.0, 0.0, 1.0, 0.0])), 4),
    ("frame of nested values", pd.DataFrame(rows_with_change(2, city=[1])), "row 2: city is a list"),
    ("frame of bytes", pd.DataFrame(rows_with_change(2, city=b"\xff")), "row 2: city: expected text"),
    ("frame of times", pd.DataFrame(ROWS).assign(when=pd.Timestamp("2026-01-01T10:00")), 4),
    ("frame of the last times", pd.DataFrame(ROWS).assign(when=pd.Timestamp.max), 4),
    ("table of no rows", pa.Table.from_pylist(ROWS)[:0], "no rows"),
    ("table with a column twice", pa.Table.from_arrays([pa.array(["a"])] * 2, ["text"] * 2), "has 'text' twice"),
    ("stream", pa.RecordBatchReader.from_batches(TABLE.schema, TABLE.to_batches()), 4),
    ("frame of another library", Capsule(TABLE), 4),
]


@pytest.mark.parametrize("role", ["train", pytest.param("dev", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("source", "expected"), [case[1:] for case in SOURCES], ids=[case[0] for case in SOURCES])
def test_python_sources(source: Any, expected: Expected, role: str, run: Run) -> None:
    check_outcome(source, role, run, expected)


@pytest.mark.parametrize(
    ("source", "role", "expected"),
    [
        (np.zeros((2, 2)), "train", "got ndarray"),
        (np.zeros((2, 2)), "dev", "value 1: expected a text"),  # new texts need no table
        (pd.DataFrame(ROWS).assign(when=pd.NaT), "train", "when is empty in all rows; leave the column out"),
        (pd.DataFrame(ROWS).assign(when=pd.NaT), "dev", 4),
    ],
)
def test_python_sources_whose_outcome_depends_on_the_role(source: Any, role: str, expected: Expected, run: Run) -> None:
    check_outcome(source, role, run, expected)


@pytest.mark.parametrize("column", [pd.Series(["a"]), pa.array(["a"])])
def test_a_column_of_texts_can_be_read_with_a_run_but_not_for_training(column: Any, run: Run) -> None:
    check_outcome(column, "train", run, type(column).__name__)
    assert len(run.prepare(column)) == 1


# Paths that are not regular files.


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_link_to_itself(path: Path) -> None:
    path.symlink_to(path)


def make_unreadable_file(path: Path) -> None:
    """Create a file without read permission."""
    path.write_bytes(PLAIN)
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read all files")


PLACES: dict[str, tuple[Callable[[Path], None], str]] = {
    "nothing": (lambda path: None, "there is no such file"),
    "folder": (
        Path.mkdir,
        "expected a table file or a folder of Parquet files (*.parquet), got a folder without files",
    ),
    "pipe": (make_pipe, "there is no such file"),
    "loop": (make_link_to_itself, "there is no such file"),
    "link to nothing": (lambda path: path.symlink_to("none.csv"), "there is no such file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "there is no such file"),
    "null": (lambda path: path.symlink_to("/dev/null"), "there is no such file"),
    "locked": (make_unreadable_file, "cannot be read (Permission denied)"),
}


@pytest.mark.parametrize("end", [".csv", ".jsonl", ".parquet", ".tsv.gz"])
@pytest.mark.parametrize("place", PLACES)
def test_paths_that_are_not_regular_files(place: str, end: str, run: Run, tmp_path: Path) -> None:
    path, (make, message) = tmp_path / f"table{end}", PLACES[place]
    make(path)
    check_outcome(path, "train", run, message)


def parquet_without_rows() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS)[:0], sink)
    return sink.getvalue()


# Folders: their files, and the expected outcome.
FOLDERS: list[tuple[str, dict[str, bytes], Expected]] = [
    ("Spark", {"part-0.snappy.parquet": PARQUET, "_SUCCESS": b"", ".part-0.crc": b"x", "_log/0.json": b"{}"}, 4),
    ("several", {"part-0.parquet": PARQUET, "part-1.parquet": PARQUET}, 8),
    ("nested", {"a/b/c.parquet": PARQUET, "d.parquet": PARQUET}, 8),
    (
        "Hive",
        {f"city={row['city']}/who={row['who']}/{n}.parquet": parquet([row]) for n, row in enumerate(ROWS)},
        4,
    ),
    ("Hive without a value", {f"city={HIVE_NULL}/0.parquet": parquet(rows_without_column("city"))}, 4),
    ("no rows in one", {"0.parquet": parquet(ROWS), "1.parquet": parquet_without_rows()}, 4),
    ("no rows", {"0.parquet": parquet_without_rows()}, "no rows"),
    ("only hidden files", {"_SUCCESS": b"", ".hidden": b""}, "got a folder without files"),
    ("CSV", {"part-0.csv": PLAIN}, "expected a table file or a folder of Parquet files (*.parquet), got a folder with"),
    ("JSON lines", {"a/part-0.jsonl": LINES}, "got a folder with a/part-0.jsonl"),
    ("Parquet and CSV", {"0.parquet": PARQUET, "1.csv": PLAIN}, "got a folder with 1.csv"),
    ("a damaged file", {"0.parquet": PARQUET, "1.parquet": PARQUET[:100]}, "1.parquet: not a Parquet file"),
    ("an empty file", {"0.parquet": PARQUET, "1.parquet": b""}, "1.parquet: the file is empty"),
    (
        "a column is missing",
        {"0.parquet": PARQUET, "1.parquet": parquet(rows_without_column("city"))},
        "1.parquet: no column 'city'",
    ),
    ("text is missing", {"0.parquet": parquet(rows_without_column("text"))}, "no column 'text'"),
    (
        "other keys",
        {"a=1/0.parquet": PARQUET, "b=1/1.parquet": PARQUET},
        "expected folders with the partition keys a, got b",
    ),
    ("keys in one only", {"0.parquet": PARQUET, "b=1/1.parquet": PARQUET}, "b=1/1.parquet: expected folders"),
]


@pytest.mark.parametrize("role", ["train", pytest.param("dev", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("files", "expected"), [case[1:] for case in FOLDERS], ids=[case[0] for case in FOLDERS])
def test_folders_of_files(files: dict[str, bytes], expected: Expected, role: str, run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "table"
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    check_outcome(folder, role, run, expected)


# The same rows in other encodings.
ENCODINGS: dict[str, bytes] = {
    "bom.csv": b"\xef\xbb\xbf" + PLAIN,
    "windows.csv": delimited(ROWS, newline="\r\n"),
    "carriage.csv": delimited(ROWS, newline="\r"),
    "blank-lines.csv": PLAIN.replace(b"\n", b"\n\n"),
    "no-end.csv": PLAIN.rstrip(),
    "tabs.tsv": delimited(ROWS, "\t"),
    "more.csv": delimited(WIDE),
    "carriage.jsonl": json_lines(ROWS, "\r"),
    "escaped.jsonl": LINES.replace(b"sea", rb"\u0073ea"),
    "turned.jsonl": json_lines([dict(reversed(row.items())) for row in ROWS]),
    "groups.parquet": parquet(ROWS, row_group_size=1),
    "pages.parquet": parquet(ROWS, data_page_size=1, use_dictionary=False),
    **{f"packed.csv{end}": pack(PLAIN) for end, pack in COMPRESSIONS.items()},
    **{f"packed.jsonl{end}": pack(LINES) for end, pack in COMPRESSIONS.items()},
    "members.csv.gz": gzip.compress(PLAIN[:50]) + gzip.compress(PLAIN[50:]),
}


@pytest.mark.parametrize("name", ENCODINGS)
def test_the_same_rows_have_the_same_scores(name: str, run: Run, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(ENCODINGS[name])
    corpus = check_outcome(path, "dev", run, len(ROWS))
    assert corpus is not None
    assert run.nats(corpus).tobytes() == scores(run).tobytes()


# Endless rows.


@pytest.mark.parametrize("end", ["", *(pytest.param(end, marks=pytest.mark.slow) for end in COMPRESSIONS)])
@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        (".csv", PLAIN + b"x" * 100_000, "line 6: longer than 4,096 characters"),
        (
            ".csv",
            PLAIN + b'"' + b"x\n" * 50_000,
            "line 6: a row is longer than 4,096 characters; a quote that opens a field may not be closed",
        ),
        (".csv", PLAIN + b"\xff" * 100_000, "line 6: not UTF-8 (byte 0xff at column 1)"),
        (".csv", b"x" * 100_000, "line 1: longer than 4,096 characters"),
        (".csv", b'"' + b"x\n" * 100_000, "line 1: a row is longer than 4,096 characters; a quote that opens a field"),
        (".jsonl", LINES + b"[" * 100_000, "line 5: longer than 4,096 characters"),
        (".jsonl", LINES + b" " * 100_000, "line 5: longer than 4,096 characters"),
        (".jsonl", b'{"text": "' + b"x" * 100_000, "line 1: longer than 4,096 characters"),
    ],
    ids=["long row", "open quote", "no letters", "long header", "open header", "deep line", "blank line", "long line"],
)
def test_endless_rows_are_refused(
    kind: str,
    content: bytes,
    message: str,
    end: str,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contents, "MAX_ROW_LENGTH", 4096)
    path = tmp_path / f"t{kind}{end}"
    path.write_bytes(COMPRESSIONS.get(end, bytes)(content))
    check_outcome(path, "train", run, message)


def test_row_groups_larger_than_the_memory_are_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.Table.from_pylist(rows_with_change(2, text="x" * 2_000_000)), path)
    monkeypatch.setenv("FACTORCELL_MAX_MEMORY", "0.001")
    check_outcome(path, "train", run, "its largest row group would take about 2 MiB of memory")
