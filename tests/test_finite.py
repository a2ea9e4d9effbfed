"""What no finite number is: null in every row that is written, None in every row that is read, a dash for people."""

import json
import math
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorcell import files
from factorcell.commands import streams
from factorcell.finite import format_number, format_option, is_number, to_json

ODD = [math.nan, math.inf, -math.inf]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


def refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def strict(text: str | bytes) -> Any:
    """A reader that knows JSON as it is."""
    return json.loads(text, parse_constant=refuse)


def replaced(content: Any) -> Any:
    """The oracle: what Python's own JSON has, every constant that JSON lacks being None."""
    return json.loads(json.dumps(content), parse_constant=lambda _: None)


@given(VALUES)
def test_every_reader_reads_what_is_written(content: Any) -> None:
    assert strict(to_json(content)) == replaced(content)


def test_what_is_finite_is_written_as_ever() -> None:
    row = {"a": 1.5, "b": ["é", None, True], "c": -0.0}
    assert to_json(row) == json.dumps(row, ensure_ascii=False)
    assert to_json(row, indent=1) == json.dumps(row, indent=1, ensure_ascii=False)


@pytest.mark.parametrize("odd", ODD)
def test_files_of_rows_have_null_for_it(tmp_path: Path, odd: float) -> None:
    row, path = {"accuracy": odd, "values": [{"f1": odd}, 1.0]}, tmp_path / "rows.jsonl"
    files.write_rows(path, [row])
    files.append_row(path, row)
    files.write_json(tmp_path / "one.json", row)
    expected = {"accuracy": None, "values": [{"f1": None}, 1.0]}
    assert [strict(line) for line in path.read_bytes().splitlines()] == [expected, expected]
    assert strict((tmp_path / "one.json").read_bytes()) == expected
    assert strict(streams.to_json_line(row)) == expected
    assert files.read_rows(path) == [expected, expected]


def test_people_read_a_dash() -> None:
    assert [format_number(value, ".2f") for value in (1.234, None, *ODD)] == ["1.23", "-", "-", "-", "-"]
    assert [format_option(value) for value in (1.2345, 1e-5, 1234, "none", True)] == [
        "1.23",
        "1e-05",
        "1234",
        "none",
        "True",
    ]
    assert [is_number(value) for value in (0.0, None, *ODD)] == [True, False, False, False, False]
