"""Numbers that are not finite: null in JSON files, None in rows that are read, a dash in text."""

import json
import math
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorcell.io import files
from factorcell.io.output import format_number, is_number, to_json

NONFINITE = [math.nan, math.inf, -math.inf]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


def refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def parse_strictly(text: str | bytes) -> Any:
    """Parse JSON without the constants that only Python accepts."""
    return json.loads(text, parse_constant=refuse_constant)


def with_none(content: Any) -> Any:
    """Replace nonfinite numbers by None through Python's own JSON parser: the oracle."""
    return json.loads(json.dumps(content), parse_constant=lambda _: None)


@given(VALUES)
def test_json_is_valid_for_strict_readers(content: Any) -> None:
    assert parse_strictly(to_json(content)) == with_none(content)


def test_finite_content_is_written_as_by_python() -> None:
    row = {"a": 1.5, "b": ["é", None, True], "c": -0.0}
    assert to_json(row) == json.dumps(row, ensure_ascii=False)
    assert to_json(row, indent=1) == json.dumps(row, indent=1, ensure_ascii=False)


@pytest.mark.parametrize("value", NONFINITE)
def test_files_contain_null_for_nonfinite_numbers(tmp_path: Path, value: float) -> None:
    row, path = {"accuracy": value, "values": [{"f1": value}, 1.0]}, tmp_path / "rows.jsonl"
    files.write_rows(path, [row])
    files.append_row(path, row)
    files.write_json(tmp_path / "one.json", row)
    expected = {"accuracy": None, "values": [{"f1": None}, 1.0]}
    assert [parse_strictly(line) for line in path.read_bytes().splitlines()] == [expected, expected]
    assert parse_strictly((tmp_path / "one.json").read_bytes()) == expected
    assert files.read_rows(path) == [expected, expected]


def test_text_has_a_dash_for_nonfinite_numbers() -> None:
    assert [format_number(value, ".2f") for value in (1.234, None, *NONFINITE)] == ["1.23", "-", "-", "-", "-"]
    assert [is_number(value) for value in (0.0, None, *NONFINITE)] == [True, False, False, False, False]
