"""The natural order of numbers, ranges, months and weekdays."""

import pytest

from factorcell.data.columns.values import natural_order


@pytest.mark.parametrize(
    "ordered",
    [
        ["1", "2", "10", "<unknown>"],
        ["-1.5", "0", "2e3", ""],
        ["-10 to -5", "-5 to -2", "3 to 4"],
        ["18-34", "35 to 64", "65+"],
        ["2020-12", "2021-01", "2021-03"],
        ["January", "may", "December"],
        ["Jan", "Feb", "Dec", "(missing)"],
        ["Monday", "Friday", "Sunday"],
        ["mon", "fri", "sun", "<unknown>"],
    ],
)
def test_values_with_a_natural_order_are_sorted(ordered: list[str]) -> None:
    """The order does not depend on the input order; rare and missing values are last."""
    for names in (ordered[::-1], sorted(ordered), ordered):
        order = natural_order(names)
        assert order is not None
        assert [names[index] for index in order] == ordered


@pytest.mark.parametrize(
    "names",
    [[], ["5"], ["<unknown>", ""], ["Oslo", "Bergen"], ["1", "one"], ["May", "Monday"], ["nan", "1"], ["1 a", "2"]],
)
def test_other_values_have_no_natural_order(names: list[str]) -> None:
    """Such values keep their input order, with the most frequent or the largest first."""
    assert natural_order(names) is None
