"""Groups of rows by the values of a column."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from factorcell.evaluation.groups import MISSING_GROUP, RANGES, column_groups, value_groups

YEARS = [1900 + n for n in range(100)]


def bounds(group: str) -> tuple[float, float]:
    low, high = group.split(" to ")
    return float(low) - 0.5, float(high) + 0.5


def test_categories_keep_their_names() -> None:
    assert column_groups([{"a": 5.0}, {"a": "x"}, {"a": None}], "a") == ["5", "x", MISSING_GROUP]


def test_a_number_with_many_values_becomes_ranges_that_cover_it() -> None:
    groups = column_groups([{"year": year} for year in YEARS], "year")
    assert len(set(groups)) == RANGES
    assert all(low <= year <= high for year, group in zip(YEARS, groups, strict=True) for low, high in [bounds(group)])


@pytest.mark.parametrize("gap", [None, float("nan"), "", pd.NA, np.float32("nan")], ids=repr)
def test_gaps_do_not_turn_ranges_into_single_values(gap: Any) -> None:
    with_gap = value_groups([*YEARS, gap])
    assert with_gap[:-1] == value_groups(YEARS)
    assert with_gap[-1] == MISSING_GROUP
