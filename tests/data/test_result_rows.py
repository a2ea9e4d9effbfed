"""Rows of results become data frames."""

import sys

import pandas as pd
import pytest

from factorcell.data.columns.rows import ResultRows
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


def test_rows_become_a_data_frame() -> None:
    pd.testing.assert_frame_equal(ROWS.to_pandas(), pd.DataFrame(TABLE), check_like=True)
    assert len(ResultRows().to_pandas()) == 0


def test_a_missing_library_is_an_error_with_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match="pandas is not installed: pip install pandas"):
        ROWS.to_pandas()
