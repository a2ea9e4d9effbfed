"""Strange values in every kind of column, encoding and role: an error in one line, or as many texts as rows."""

import gzip
from collections.abc import Iterator
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from factorcell import Run, UserError
from factorcell.completion.replay import read_streams
from factorcell.config import Config
from tests.faults.tables import (
    ROLES,
    ROWS,
    Expected,
    Write,
    check_outcome,
    delimited,
    file,
    json_lines,
    parquet,
    scores,
    zstd,
)

TEXTUAL: dict[str, Write] = {  # encodings of text values
    "csv": file("t.csv", delimited),
    "tsv": file("t.tsv", lambda rows: delimited(rows, "\t")),
    "csv.gz": file("t.csv.gz", lambda rows: gzip.compress(delimited(rows))),
    "parquet": file("t.parquet", parquet),
    "arrow": lambda rows, _: pa.Table.from_pylist(rows),
    "frame": lambda rows, _: pd.DataFrame(rows),
    "columns": lambda rows, _: {name: [row[name] for row in rows] for name in rows[0]},
}
TYPED: dict[str, Write] = {
    "rows": lambda rows, _: rows,
    "jsonl": file("t.jsonl", json_lines),
    "jsonl.zst": file("t.jsonl.zst", lambda rows: zstd(json_lines(rows))),
}

BAD_NUMBERS = (
    *("9,99", "1.299,00", "1,299", "1'299.00", "19.99 €", "5%", "$5", "1.2.3", "\u2212-5", "5\u2212"),
    *("abc", "1e999", "-inf", "nan", "NaN", "0x10", "1,5", "1_000", "--1", " ", "\x00", "\u202e5", "1e39", "9" * 5000),
)
BAD_TIMES = (
    *("0000-01-01T00:00", "10000-01-01T00:00", "9999-12-31T23:59:60", "2026-02-30T10:00", "2026-13-01T10:00", "now"),
    *("-0001-01-01T00:00", "1768291200", "1e18", "NaT", "nan", "2026-01-01T25:00", "2026-01-01T10:00+99:00", "\x00"),
    *(
        "24-02-2015 11.35",
        "01/02/2026 10:00",
        "1/31/2026",
        "2026-01-01T24:00:01",
        "9999-12-31T24:00",
        "31 Foo 2026 10:00",
    ),
    *("9" * 5000, "10:00", "\u202e2026-01-01T10:00", "2026-01-01T10:00:00.5.5"),
)
GOOD_TIMES = ("9999-12-31T23:59:59.999999", "0001-01-01T00:00", "9999-12-31T23:59-14:00", "0001-01-01T00:00+14:00")
WRITTEN_TIMES = ("2026-01-01T24:00:00", "2026/1/31 14.30", "25-Sep-21 9:05 pm", "Sep 25, 2021 11:35")
BAD_VECTORS = (
    *("[1,]", "[1]", "[]", "[1, NaN]", "[1e999, 2]", "[[1], [2]]", '["a", "b"]', "[true, false]", "[1, null]", "{}"),
    *("5", "abc", "[" * 100_000, f"[{'9' * 400}, 1]", "[1, 2", "[1, 1e39]", "null", "[1, 2] x", "\x00"),
)
STRANGE_NAMES = (
    "\x1b[2J",
    "\u202egnp.exe",
    "a\x00b",
    " ",
    "\u2028",
    "é" * 1000,
    "x" * 1_000_000,
    '"',
    "'; --",
    "<b>",
    "nan",
)
DATETIME: Any = np.datetime64
Value = tuple[str, Any, Expected, Expected]  # column, value, outcome as train or dev, outcome as score

TEXT_VALUES: list[Value] = [
    *(("temp", value, "row 2: temp is ", "row 2: temp is ") for value in BAD_NUMBERS),
    *(("temp", value, 4, 4) for value in (" 5 ", "-0", "1e38", "1e-400", "\u22125.5")),
    ("temp", "", 4, 4),
    *(("turn", value, "row 2: turn is ", "row 2: turn is ") for value in BAD_NUMBERS),
    *(("turn", value, 4, 4) for value in ("-1", "1e30", "6", "1e-300")),
    *(("when", value, "row 2: when is ", "row 2: when is ") for value in BAD_TIMES),
    *(("when", value, 4, 4) for value in (*GOOD_TIMES, *WRITTEN_TIMES)),
    ("when", "", 4, 4),
    *(("vec", value, "row 2: vec ", "row 2: vec ") for value in BAD_VECTORS),
    *(("vec", value, 4, 4) for value in ("[1,2]", " [1e38, -0.0] ")),
    ("vec", "", 4, 4),
    *((name, value, 4, 4) for name in ("text", "city", "note", "who") for value in (*STRANGE_NAMES, "")),
]
OBJECT: Any = {"a": 1}
OTHER_VALUES: list[Value] = [  # values other than text
    *(("temp", value, "row 2: temp is ", "row 2: temp is ") for value in ([1], OBJECT, 10**400, float("inf"), [])),
    *(("temp", value, 4, 4) for value in (None, float("nan"))),
    *(("turn", value, "row 2: turn is ", "row 2: turn is ") for value in ([1], OBJECT, 10**400, float("-inf"))),
    *(("when", value, "row 2: when is ", "row 2: when is ") for value in (0, -1, 10**30, 1e300, [1], OBJECT, True)),
    *(("when", value, 4, 4) for value in (None, float("nan"))),
    *(("vec", value, "row 2: vec ", "row 2: vec ") for value in (5, [[1, 2]], [1, "a"], [1, 10**400], OBJECT, [])),
    *(("vec", value, "row 2: vec ", "row 2: vec ") for value in ([float("nan"), 1], [None, 1], [float("inf"), 1])),
    ("vec", None, 4, 4),
    *(
        (name, value, f"row 2: {name} is a ", f"row 2: {name} is a ")
        for name in ("city", "who")
        for value in ([1], OBJECT)
    ),
    *(("city", value, 4, 4) for value in (None, 5, 5.0, True, float("nan"), float("inf"), 10**400)),
    *(("note", value, "row 2: note is ", "row 2: note is ") for value in (5, [1], OBJECT, True, float("inf"))),
    ("note", None, 4, 4),
    *(("text", value, "row 2: text is ", "row 2: text is ") for value in (5, None, [1], OBJECT, True, float("nan"))),
]
PYTHON_VALUES: list[Value] = [  # values that only Python can represent
    *(("when", value, 4, 4) for value in (datetime.max, datetime.min, np.datetime64("9999-12-31T23:59:59"))),
    *(("when", value, "row 2: when is ", "row 2: when is ") for value in (date.max, time.max, b"2026-01-01T10:00")),
    *(
        ("when", DATETIME(value, unit), "row 2: when is ", "row 2: when is ")
        for value, unit in ((2**62, "s"), (-(2**62), "us"), (2**40, "D"), (10**15, "ms"), (8000, "Y"), (2**50, "h"))
    ),
    *(("when", value, 4, 4) for value in (pd.NaT, np.datetime64("NaT"), pd.NA)),
    *(("temp", value, 4, 4) for value in (Decimal("1.5"), np.float16(2), np.int64(3), np.bool_(True))),
    *(("temp", value, "row 2: temp is ", "row 2: temp is ") for value in (Decimal("1e999"), 1j, b"\xff", Ellipsis)),
    *((name, b"\xff", f"row 2: {name}: expected text", f"row 2: {name}: expected text") for name in ("city", "who")),
    *((name, value, 4, 4) for name in ("city", "who") for value in (b"Oslo", np.bool_(True), Decimal("1.50"), pd.NA)),
    *(("vec", value, 4, 4) for value in (np.zeros(2), (1, 2), np.ones(2, np.int8))),
    *(("vec", value, "row 2: vec ", "row 2: vec ") for value in (np.zeros((2, 2)), np.zeros(0), {1, 2}, b"[1, 2]")),
]


def value_cases() -> Iterator[Any]:
    """Yield each value in each encoding and role."""
    cases = [(case, writers) for case in TEXT_VALUES for writers in ({**TEXTUAL, **TYPED},)]
    cases += [(case, TYPED) for case in OTHER_VALUES]
    cases += [(case, {"rows": TYPED["rows"]}) for case in PYTHON_VALUES]
    for (name, value, expected, unknown), writers in cases:
        for kind, write in writers.items():
            for role in ROLES:
                slow = role != "train" or kind != ("csv" if "csv" in writers else "rows") or len(repr(value)) > 99_999
                marks = (pytest.mark.slow,) if slow else ()
                what = unknown if role == "score" else expected
                label = f"{role}-{kind}-{name}-{ascii(value)[:30]}"
                yield pytest.param(name, value, write, role, what, marks=marks, id=label)


@pytest.mark.parametrize(("name", "value", "write", "role", "expected"), list(value_cases()))
def test_values_in_every_encoding(
    name: str,
    value: Any,
    write: Write,
    role: str,
    expected: Expected,
    run: Run,
    tmp_path: Path,
) -> None:
    rows = [ROWS[0], {**ROWS[1], name: value}, *ROWS[2:]]
    corpus = check_outcome(write(rows, tmp_path), role, run, expected)
    if corpus is not None and role == "score" and write is not TYPED["rows"]:
        assert run.nats(corpus).tobytes() == scores(run, rows).tobytes()


# Columns of Arrow types that replace a plain column.
SECONDS = 253_402_300_800  # 10000-01-01
LIMITS = (SECONDS, 1 << 52, -(1 << 52), -62_135_596_801)


def column(name: str, kind: pa.DataType, *values: Any) -> tuple[str, str, pa.Array]:
    """Return a label, a name and a column with `values` in its first rows and nulls in the others."""
    label = f"{name}-{kind}-{ascii(values)[:30]}"
    return label, name, pa.array([*values, *[None] * (len(ROWS) - len(values))], kind)


def extreme_times() -> Iterator[tuple[str, str, pa.Array]]:
    """Yield times that Arrow can represent and Python cannot."""
    for unit, factor in (("s", 1), ("ms", 10**3), ("us", 10**6)):
        for seconds in LIMITS:
            if abs(seconds * factor) < 1 << 63:
                yield column("when", pa.timestamp(unit), 0, seconds * factor)
                yield column("when", pa.timestamp(unit, "UTC"), 0, seconds * factor)
    yield column("when", pa.date32(), 0, 2**31 - 1)
    yield column("when", pa.date32(), 0, -(2**31))
    yield column("when", pa.timestamp("s", "Asia/Tokyo"), 0, SECONDS - 1)


TEXT = pa.string()
BINARY = (pa.binary(), pa.large_binary(), pa.binary(3), pa.binary_view())
BROKEN = pa.Array.from_buffers(TEXT, 4, [None, pa.py_buffer(np.array([0, 1, 2, 3, 4], "i4")), pa.py_buffer(b"a\xffbc")])
COLUMNS: list[tuple[str, str, pa.Array, Expected]] = [
    *((*time_case, "row 2: cannot read when") for time_case in extreme_times()),
    (*column("when", pa.timestamp("ns"), *[2**63 - 1] * 4), 4),
    (*column("when", pa.timestamp("ns"), *[-(2**63) + 1] * 4), 4),
    (*column("when", pa.timestamp("us"), *[0] * 4), 4),
    (*column("when", pa.timestamp("us"), 0), 4),
    (*column("when", pa.duration("s"), 0, 1 << 62), "row 2: cannot read when"),
    (*column("when", pa.duration("s"), 0, 1, 2, 3), "row 1: when is "),
    (*column("when", pa.time32("s"), 0, 1, 2, 86_399), "row 1: when is datetime.time"),
    (*column("when", pa.date32(), 0, 1), "row 1: when is "),
    (*column("when", pa.int64(), 0, 1), "row 1: when is 0"),
    ("text-broken", "text", BROKEN, "row 2: cannot read text"),
    ("city-broken", "city", BROKEN, "row 2: cannot read city"),
    (*column("text", pa.binary(), b"a", b"b"), "row 3: text is None, not a text"),
    *((*column("text", kind, b"abc", b"sea", b"sun", b"ice"), 4) for kind in BINARY),
    *((*column("text", kind, b"a\xffb"), "row 1: cannot read text") for kind in BINARY),
    *((*column("city", kind, b"Oslo", b"Nice"), 4) for kind in (pa.binary(), pa.large_binary(), pa.binary_view())),
    ("city-dictionary-binary", "city", pa.array([b"Oslo", b"Nice", None, b"Oslo"]).dictionary_encode(), 4),
    (*column("text", pa.large_string(), *"abcd"), 4),
    (*column("text", pa.string_view(), *"abcd"), 4),
    (*column("text", TEXT, "a"), "row 2: text is None, not a text"),
    (*column("text", pa.null()), "row 1: text is None, not a text"),
    (*column("text", pa.list_(TEXT), ["a"]), "row 1: text is ['a'], not a text"),
    (*column("text", pa.int8(), 1), "row 1: text is 1, not a text"),
    ("text-dictionary", "text", pa.array(list("abab")).dictionary_encode(), 4),
    ("text-dictionary-null", "text", pa.array(["a", None, "b", "a"]).dictionary_encode(), "row 2: text is None"),
    ("city-dictionary", "city", pa.array(["Oslo", "Nice", "Oslo", None]).dictionary_encode(), 4),
    (*column("city", pa.bool_(), True, False), 4),
    (*column("city", pa.binary(), b"\xff", b"a"), "row 1: cannot read city"),
    (*column("city", pa.list_(TEXT), ["a"]), "row 1: city is a list"),
    (*column("city", pa.struct([("a", TEXT)]), {"a": "b"}), "row 1: city is a dict"),
    (*column("city", pa.decimal128(38, 0), 10**37), 4),
    (*column("temp", pa.decimal256(60, 0), 10**59, 1, 1, 1), "row 1: temp is "),
    (*column("temp", pa.decimal128(5, 2), *[1] * 4), 4),
    (*column("temp", pa.float64(), 1.0, 1e300), "row 2: temp is 1e+300"),
    (*column("temp", pa.float64(), 1.0, float("nan")), 4),
    (*column("temp", pa.float16(), *np.ones(4, np.float16)), 4),
    (*column("temp", pa.uint64(), *[2**64 - 1] * 4), 4),
    (*column("temp", pa.bool_(), *[True] * 4), 4),
    (*column("temp", pa.binary(), b"\xff"), "row 1: cannot read temp"),
    (*column("temp", pa.timestamp("us"), 0), "row 1: temp is "),
    (*column("temp", pa.list_(pa.int8()), [1]), "row 1: temp is "),
    (*column("note", pa.int8(), 1), "row 1: note is 1, not a text"),
    (*column("note", pa.binary(), *[b"sky"] * 4), 4),
    (*column("note", TEXT, *["sky"] * 4), 4),
    (*column("vec", pa.list_(pa.float32()), *[[1.0, 2.0]] * 4), 4),
    (*column("vec", pa.list_(pa.float32(), 2), *[[1.0, 2.0]] * 4), 4),
    (*column("vec", pa.list_(pa.float32()), [1.0, 2.0], [1.0]), "row 2: vec has 1 numbers"),
    (*column("vec", pa.list_(pa.float32()), [1.0, None]), "row 1: vec is "),
    (*column("vec", pa.list_(TEXT), ["1", "2"]), "row 1: vec is "),
    (*column("vec", pa.list_(pa.list_(pa.int8())), [[1], [2]]), "row 1: vec is "),
    (*column("vec", pa.list_(pa.float64()), [1.0, 1e300]), "row 1: vec is "),
    (*column("vec", pa.struct([("a", TEXT)]), {"a": "b"}), "row 1: vec is "),
    (*column("vec", pa.map_(TEXT, pa.int8()), [("a", 1)]), "row 1: vec is "),
]


@pytest.mark.parametrize("kind", ["arrow", pytest.param("parquet", marks=pytest.mark.slow)])
@pytest.mark.parametrize("role", ["train", pytest.param("dev", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("name", "values", "expected"), [case[1:] for case in COLUMNS], ids=[case[0] for case in COLUMNS]
)
def test_columns_of_arrow_types(
    name: str,
    values: pa.Array,
    expected: Expected,
    role: str,
    kind: str,
    run: Run,
    tmp_path: Path,
) -> None:
    table = pa.Table.from_pylist(ROWS)
    source: Any = table.set_column(table.column_names.index(name), name, values)
    if kind == "parquet":
        table, source = source, tmp_path / "t.parquet"
        pq.write_table(table, source)
    check_outcome(source, role, run, expected)


STREAM_TIMES: list[tuple[Any, str]] = [
    *((value, "in time order") for value in ("2026-11-21T18:30", *GOOD_TIMES, 0, -1.5, "1e18", date.max)),
    *((value, "t is ") for value in (*BAD_TIMES[:6], "", "1e39", "NaT", None)),
    *((value, "t is ") for value in (float("nan"), 10**400, pd.NaT)),
    ([1], "t is "),
    (OBJECT, "t is "),
    (DATETIME(2**62, "s"), "t is "),
    (DATETIME(-(2**62), "us"), "t is "),
    (DATETIME(2**50, "h"), "t is "),
]


@pytest.mark.parametrize(("value", "message"), STREAM_TIMES, ids=[ascii(value)[:40] for value, _ in STREAM_TIMES])
def test_times_of_a_stream(value: Any, message: str) -> None:
    rows = [{"text": "warm sand", "user": "ann", "t": moment} for moment in (0, value)]
    if message == "in time order":
        (stream,) = read_streams(rows, Config.of(), time_column="t")
        assert len(stream.rows) == 2
        return
    with pytest.raises(UserError, match="in-memory table row 2: t is ") as error:
        read_streams(rows, Config.of(), time_column="t")
    assert message in str(error.value)
