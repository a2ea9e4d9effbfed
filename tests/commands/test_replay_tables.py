"""The tables of a replay match the summary."""

from typing import Any

import pytest

from factorcell.bootstrap import MIN_UNITS
from factorcell.commands import replay
from factorcell.completion.replay.summary import summarise
from tests.completion.replay.test_summary import find_row, random_rows, row

Row = dict[str, Any]


@pytest.fixture(scope="module")
def summary() -> Row:
    """Summary of three systems with all splits; one system has a name of the paper."""
    rows = [
        {**row, "system": {"one": "factorcell", "two": "<two>"}.get(row["system"], "mpc")} for row in random_rows(30)
    ]
    return summarise(rows, "<two>", draws=50)


def test_the_table_has_all_metrics(summary: Row) -> None:
    rows, columns = replay.replay_table(summary)
    assert columns[:3] == ["system", "MRR", "success at 1"]
    first, base, mpc = rows
    expected = find_row(summary, "factorcell")
    assert first["MRR"] == f"{expected['mrr']:.3f} [{expected['mrr_low']:.3f}, {expected['mrr_high']:.3f}]"
    assert first["success at 10"] == f"{expected['success_10']:.1%}"
    low, high = (expected[f"mrr_difference_{end}"] for end in ("low", "high"))
    difference = f"{expected['mrr_difference']:+.3f} [{low:+.3f}, {high:+.3f}]"
    assert first["MRR difference to <two>"] == difference + (" not significant" if low <= 0 <= high else "")
    change, low, high = (100 * expected[f"perplexity_change{end}"] for end in ("", "_low", "_high"))
    difference = f"{change:+.2f}% [{low:+.2f}, {high:+.2f}]" + (" not significant" if low <= 0 <= high else "")
    assert first["perplexity difference to <two>"] == difference
    assert base["MRR difference to <two>"] == mpc["perplexity"] == mpc["perplexity difference to <two>"] == "-"
    assert mpc["ms"] == "10.0 + 0.0"


def test_few_users_have_no_intervals() -> None:
    rows = [
        row(system, f"u{user}", 0, rank, nats=20.0, targets=10)
        for user in range(MIN_UNITS - 1)
        for system, rank in (("first", 1), ("third", 3))
    ]
    summary = summarise(rows, "third", draws=50)
    first, third = replay.replay_table(summary)[0]
    assert (first["MRR"], first["MRR difference to third"]) == ("1.000", "+0.667")
    assert (third["MRR"], third["perplexity"], first["perplexity difference to third"]) == ("0.333", "7.39", "+0.00%")


def test_significantly_best_metrics_are_marked() -> None:
    rows = [row(system, f"u{user}", 0, rank) for user in range(30) for system, rank in (("first", 1), ("third", 3))]
    first, third = replay.replay_table(summarise(rows, "third", draws=50))[0]
    assert first["MRR"] == "1.000* [1.000, 1.000]"
    assert third["MRR"] == "0.333 [0.333, 0.333]"


def test_groups_have_the_mrr_of_every_system(summary: Row) -> None:
    for by in replay.GROUPS:
        rows, columns = replay.group_table(summary, by)
        assert columns == [by.replace("_", " "), "queries", "MRR of factorcell", "MRR of <two>", "MRR of mpc"]
        for cells in rows:
            expected = find_row(summary, "mpc", by, cells[columns[0]])
            assert cells["MRR of mpc"].startswith(f"{expected['mrr']:.3f}")
            assert cells["queries"] == f"{expected['queries']:,}"
    assert replay.group_table(summarise([row("one", "ann", 0, None)], "one", draws=3), "prefix") == ([], [])
