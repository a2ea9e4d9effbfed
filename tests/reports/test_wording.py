"""What pages and terminal say alike: values in their order, advice with the options that follow it."""

import pytest

from factorcell.reports import wording
from factorcell.reports.wording import natural_order


@pytest.mark.parametrize(
    "ordered",
    [
        ["1", "2", "10", "<unknown>"],
        ["-1.5", "0", "2e3", ""],
        ["-10 to -5", "-5 to -2", "3 to 4"],
        ["18-34", "35 to 64", "65+"],
        ["2020-12", "2021-01", "2021-03"],
        ["January", "may", "December"],
        ["Jan", "Feb", "Dec"],
        ["Monday", "Friday", "Sunday"],
        ["mon", "fri", "sun", "<unknown>"],
    ],
)
def test_values_that_have_an_order_are_given_it(ordered: list[str]) -> None:
    """However they come; rare and missing ones last."""
    for names in (ordered[::-1], sorted(ordered), ordered):
        found = natural_order(names)
        assert found is not None
        assert [names[place] for place in found] == ordered


@pytest.mark.parametrize(
    "names",
    [[], ["5"], ["<unknown>", ""], ["Oslo", "Bergen"], ["1", "one"], ["May", "Monday"], ["nan", "1"], ["1 a", "2"]],
)
def test_other_values_have_none(names: list[str]) -> None:
    """They stay as they come, the most frequent or the largest first."""
    assert natural_order(names) is None


def test_advice_names_what_to_type() -> None:
    """A name that a shell would take apart is quoted."""
    told = [
        wording.advice_text({"advice": advice, "column": "my city"}) for advice in ("use", "softmax bias", "leave out")
    ]
    assert told == ["use (--context 'my city')", "softmax bias (--context 'my city' --model softmaxbias)", "leave out"]
