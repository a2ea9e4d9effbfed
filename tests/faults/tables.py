"""A small table in every encoding, and checks of the outcome of reading it in each role."""

import bz2
import csv
import gzip
import io
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from pyarrow import parquet as pq

from factorcell import Run, UserError
from factorcell.config import Config
from factorcell.data import Corpus, prepare

Row = dict[str, Any]
Write = Callable[[list[Row], Path], Any]
Expected = str | int  # the error message, or the number of texts

ROWS: list[Row] = [
    {
        "text": text,
        "city": city,
        "temp": temp,
        "note": note,
        "vec": vector,
        "turn": turn,
        "when": when,
        "who": who,
    }
    for text, city, temp, note, vector, turn, when, who in (
        ("the sea is cold", "Oslo", "1.5", "grey sky", "[1, 2]", "0", "2026-01-05T08:00", "ann"),
        ("the sun is warm", "Nice", "25", "blue sky", "[0.5, 1]", "1", "2026-07-11T20:30:00", "bob"),
        ("cold sand and snow", "Oslo", "-3", "white sky", "[3, -1]", "2.5", "2026-02-05 08:00", "ann"),
        ("warm sand", "Nice", "31", "blue sea", "[0, 0]", "5", "2025-07-11T20:30:00+02:00", "bob"),
    )
]
CONFIG = Config.of(
    context=("city:category", "temp:number", "note:text", "vec:vector", "turn:cyclic=6", "when:hour", "when:weekday"),
    user="who",
    min_count=1,
    min_context_count=1,
    min_user_count=1,
)
ROLES = ("train", "dev", "score")
ROLE = ["train", pytest.param("dev", marks=pytest.mark.slow), pytest.param("score", marks=pytest.mark.slow)]


def read_in_role(source: Any, role: str, run: Run) -> Corpus:
    """Read a source as training, development or scored texts."""
    if role == "train":
        return prepare(source, CONFIG)
    return run.prepare(source, unknown="group" if role == "dev" else "expected")


def check_outcome(source: Any, role: str, run: Run, expected: Expected) -> Corpus | None:
    """Check that reading a source fails with the `expected` message or gives the `expected` number of texts."""
    if isinstance(expected, str):
        with pytest.raises(UserError) as error:
            read_in_role(source, role, run)
        message = str(error.value)
        assert expected in message
        assert "\n" not in message
        assert len(message) < 1000
        assert not isinstance(source, Path) or str(source) in message
        return None
    corpus = read_in_role(source, role, run)
    assert len(corpus) == expected
    if role != "train":
        assert np.isfinite(run.nats(corpus)).all()
    return corpus


def scores(run: Run, rows: list[Row] = ROWS) -> NDArray[np.float32]:
    """Return the nats of rows."""
    return run.nats(run.prepare(rows, unknown="expected"))


# Encodings of rows.


def delimited(rows: list[Row], delimiter: str = ",", newline: str = "\n", encoding: str = "utf-8") -> bytes:
    """Return rows as a CSV file."""
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, list(rows[0]), delimiter=delimiter, lineterminator=newline)
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue().encode(encoding)


def json_lines(rows: list[Row], newline: str = "\n") -> bytes:
    """Return rows as JSON lines."""
    return "".join(json.dumps(row) + newline for row in rows).encode()


def parquet(rows: list[Row], **options: Any) -> bytes:
    """Return rows as a Parquet file."""
    stream = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), stream, **options)
    return stream.getvalue()


def zstd(content: bytes) -> bytes:
    """Compress content with Zstandard."""
    stream = pa.BufferOutputStream()
    with pa.CompressedOutputStream(stream, "zstd") as out:
        out.write(content)
    return stream.getvalue().to_pybytes()  # type: ignore[no-any-return]


COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstd,
}


def file(name: str, encode: Callable[[list[Row]], bytes]) -> Write:
    """Return a function that writes rows to a file of this name."""

    def write(rows: list[Row], folder: Path) -> Path:
        path = folder / name
        path.write_bytes(encode(rows))
        return path

    return write


PLAIN, PARQUET, LINES = delimited(ROWS), parquet(ROWS), json_lines(ROWS)


def rows_with_change(row: int, **cells: Any) -> list[Row]:
    """Return `ROWS` with other values in one row."""
    return [{**other, **cells} if number == row else other for number, other in enumerate(ROWS, 1)]


def rows_without_column(name: str) -> list[Row]:
    """Return `ROWS` without a column."""
    return [{key: value for key, value in row.items() if key != name} for row in ROWS]


WIDE = [{**row, **{f"c{number}": "" for number in range(10_000)}} for row in ROWS]
