"""Rows of results become Arrow tables, data frames and data sets."""

import sys

import pandas as pd
import pytest

from factorcell.data.tables.result_rows import ResultRows
from factorcell.errors import UserError

ROWS = ResultRows(
    [
        {"row": 0, "predicted": "Oslo", "probabilities": {"Oslo": 0.75, "Nice": 0.25}},
        {"row": 2, "predicted": "Nice", "probabilities": {"Oslo": 0.5, "Nice": 0.5}, "true": "Nice"},
    ]
)
TABLE = {
    "row": [0, 2],
    "predicted": ["Oslo", "Nice"],
    "probabilities.Oslo": [0.75, 0.5],
    "probabilities.Nice": [0.25, 0.5],
    "true": [None, "Nice"],
}


def test_rows_become_the_tables_of_other_libraries() -> None:
    pytest.importorskip("datasets", reason="datasets is not installed")
    assert ROWS.to_arrow().to_pydict() == TABLE
    data_set = ROWS.to_dataset()
    assert data_set.column_names == list(TABLE)
    assert data_set[:] == TABLE
    pd.testing.assert_frame_equal(ROWS.to_pandas(), pd.DataFrame(TABLE))


def test_rows_stay_a_list_of_dicts() -> None:
    assert ROWS[1]["true"] == "Nice"
    assert [dict(row) for row in ROWS] == list(ROWS)
    assert ResultRows().to_arrow().num_rows == 0


def test_a_column_with_values_of_two_types_is_an_error() -> None:
    with pytest.raises(UserError, match="column stars: expected values of one type"):
        ResultRows([{"stars": 5}, {"stars": "five"}]).to_arrow()


@pytest.mark.parametrize(("library", "method"), [("pandas", "to_pandas"), ("datasets", "to_dataset")])
def test_a_missing_library_is_an_error_with_its_installation(
    monkeypatch: pytest.MonkeyPatch, library: str, method: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UserError, match=f"{library} is not installed: pip install {library}"):
        getattr(ROWS, method)()
