"""Text counts: how the users of a text are counted."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorcell.data.columns.values import category_name, is_missing
from factorcell.data.counts import TextCounts
from factorcell.errors import UserError

SECRET = "my pin is four two"
MISSING = [None, math.nan, float("nan"), np.float32("nan"), pd.NA, pd.NaT, ""]
USERS = st.sampled_from([*MISSING, 5, 5.0, "5", "5.0", np.int64(5), "cafe\u0301", "caf\u00e9", True, "true", 1, "ann"])


@pytest.mark.parametrize(
    "users",
    [
        pd.Series([math.nan] * 3),
        pd.Series([None] * 3, dtype="Int64"),
        np.full(3, np.nan, np.float32),
        [float("nan"), float("nan"), float("nan")],
        [5, "5", 5.0],
        ["cafe\u0301", "caf\u00e9", "cafe\u0301"],
        *([value] * 3 for value in MISSING),
    ],
    ids=repr,
)
def test_missing_users_and_values_with_the_same_name_count_as_one_user(users: Any) -> None:
    assert TextCounts.of([SECRET] * 3, 1, users, min_users=2).counts == {}


@given(st.lists(st.tuples(st.sampled_from("ab"), USERS), max_size=20), st.integers(1, 4))
def test_users_are_counted_by_their_category_names(rows: list[tuple[str, Any]], min_users: int) -> None:
    popular = TextCounts.of([text for text, _ in rows], 1, [user for _, user in rows], min_users)
    for text in "ab":
        writers = {category_name(user) for other, user in rows if other == text and not is_missing(user)}
        assert (text in popular.counts) == (len(writers) >= min_users)


def test_invalid_texts_and_users_are_errors() -> None:
    with pytest.raises(UserError, match="text 2: expected a string, got None"):
        TextCounts.of(["a", None], 1)  # type: ignore[list-item]
    with pytest.raises(UserError, match="users: expected one value for each of 2 texts, got 1"):
        TextCounts.of(["a", "b"], 1, ["ann"])
    with pytest.raises(UserError, match=r"expected a single value, got \['ann'\]"):
        TextCounts.of(["a"], 1, [["ann"]])  # type: ignore[list-item]
