"""Charts, table and page of a replay match the summary, and texts stay inside the figures."""

import re
from typing import Any

import numpy as np
import pytest

from factorcell.bootstrap import MIN_UNITS
from factorcell.completion.replay.summary import summarise
from factorcell.reports import replay
from factorcell.reports.charts import MODEL_COLOURS, display_name
from tests.completion.replay.test_summary import find_row, random_rows, row
from tests.pages import Page, texts_inside

Row = dict[str, Any]


@pytest.fixture(scope="module")
def summary() -> Row:
    """Summary of three systems with all splits; one system has a name of the paper."""
    rows = [
        {**row, "system": {"one": "factorcell", "two": "<two>"}.get(row["system"], "mpc")} for row in random_rows(30)
    ]
    return summarise(rows, "<two>", draws=50)


def rows_by(summary: Row, *by: str) -> list[Row]:
    """Return the rows of some splits that are averaged over queries."""
    return [row for row in summary["rows"] if row["by"] in by and row["over"] == "queries"]


def test_mrr_of_systems(summary: Row) -> None:
    rows = rows_by(summary, "all", "prefix")
    figure = replay.mrr_by_system(rows, summary["systems"])
    texts = texts_inside(figure)
    assert len(figure.axes) == 3
    for axes, value in zip(figure.axes, ("all", "seen", "unseen"), strict=True):
        group = [row for row in rows if row["value"] == value]
        dots = [line for line in axes.lines if line.get_marker() == "o"]
        bars = [line for line in axes.lines if line.get_marker() == "None"]
        assert [line.get_xdata()[0] for line in dots] == [row["mrr"] for row in group]  # type: ignore[index]
        assert [tuple(line.get_xdata()) for line in bars] == [(row["mrr_low"], row["mrr_high"]) for row in group]  # type: ignore[arg-type]
        assert all(f"{row['mrr']:.3f}" in texts for row in group)
        low, high = axes.get_xlim()
        assert all(low < row["mrr_low"] <= row["mrr_high"] < high for row in group)
    assert {"FactorCell", "<two>", "mpc", "all prefixes", "seen", "unseen"} <= set(texts)


def test_one_system_one_colour(summary: Row) -> None:
    """A system has one colour in all three charts, and a model of the paper has its fixed colour."""
    systems = summary["systems"]
    first = replay.mrr_by_system(rows_by(summary, "all"), systems)
    second = replay.improvement_by_queries_seen(summary["curve"], systems, "<two>")
    third = replay.mrr_by_length(rows_by(summary, "prefix_length", "query_length"), systems)
    dots = [line.get_color() for line in first.axes[0].lines if line.get_marker() == "o"]
    assert dots[0] == MODEL_COLOURS["factorcell"]
    assert [line.get_color() for line in third.axes[0].lines] == dots
    assert [line.get_color() for line in second.axes[0].lines][:2] == [dots[0], dots[2]]


def test_improvement_by_queries_seen(summary: Row) -> None:
    figure = replay.improvement_by_queries_seen(summary["curve"], summary["systems"], "<two>")
    texts = texts_inside(figure)
    (axes,) = figure.axes
    lines = axes.lines[:2]
    for line, system in zip(lines, ("factorcell", "mpc"), strict=True):
        curve = [row for row in summary["curve"] if row["system"] == system]
        assert list(line.get_xdata()) == [row["queries_seen"] for row in curve]  # type: ignore[arg-type]
        assert list(line.get_ydata()) == [row["improvement"] for row in curve]  # type: ignore[arg-type]
        assert axes.get_ylim()[0] < min(row["improvement"] for row in curve)
        assert axes.get_ylim()[1] > max(row["improvement"] for row in curve)
    assert "improvement in MRR over <two>" in texts
    assert any(text.endswith(" %") for text in texts)


def test_mrr_by_length(summary: Row) -> None:
    figure = replay.mrr_by_length(rows_by(summary, "prefix_length", "query_length"), summary["systems"])
    texts_inside(figure)
    left, right = figure.axes
    assert left.get_ylim() == right.get_ylim()
    assert not any(label.get_visible() and label.get_text() for label in right.get_yticklabels()), (
        "they would overlap the left panel"
    )
    for axes, by in zip(figure.axes, ("prefix_length", "query_length"), strict=True):
        labels = [label.get_text() for label in axes.get_xticklabels()]
        assert labels == list(dict.fromkeys(row["value"] for row in rows_by(summary, by)))
        for line, system in zip(axes.lines, summary["systems"], strict=True):
            expected = [row["mrr"] for row in rows_by(summary, by) if row["system"] == system]
            assert np.array_equal(np.asarray(line.get_ydata()), expected)
            assert axes.get_ylim()[1] > max(expected)


def test_a_missing_group_leaves_no_gap_in_a_line() -> None:
    summary = summarise([row("one", "ann", 0, None), row("one", "ben", 4, None, prefix_length=60)], "one", draws=3)
    page = replay.replay_page("rows", summary)
    assert page.count("<svg") == 2  # no curve, since there is one system and few users
    assert "nan" not in re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL).lower()


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


def test_significantly_best_metrics_are_marked() -> None:
    rows = []
    for user in range(30):
        for position in range(3):
            figures = {"nats": 20.0 + user, "targets": 10}
            rows += [row("first", f"u{user}", position, 1, **figures), row("third", f"u{user}", position, 3, **figures)]
    page = replay.replay_page("test", summarise(rows, "third", draws=50))
    marked = re.findall(r'class="num best"[^>]*>(.*?)</td>', page)
    assert marked.count("1.000* <small>[1.000, 1.000]</small>") >= 2  # over queries and over users
    assert not [mark for mark in marked if mark.startswith(("0.333", "2", "3"))]
    assert "+0.667 <small>[+0.667, +0.667]</small>" in page
    assert page.count("not significant") == 2, "only the perplexities are equal, over queries and over users"


def test_a_page_of_few_users_has_no_intervals() -> None:
    rows = [
        row(system, f"u{user}", 0, rank, nats=20.0, targets=10)
        for user in range(MIN_UNITS - 1)
        for system, rank in (("first", 1), ("third", 3))
    ]
    summary = summarise(rows, "third", draws=50)
    first, third = replay.replay_table(summary)[0]
    assert (first["MRR"], first["MRR difference to third"]) == ("1.000", "+0.667")
    assert (third["MRR"], third["perplexity"], first["perplexity difference to third"]) == ("0.333", "7.39", "+0.00%")
    page = re.sub(r"<svg.*?</svg>", "", replay.replay_page("test", summary), flags=re.DOTALL)
    assert "1.000" in page
    assert not any(text in page for text in ("1.000*", "<small>", "None", "nan", "not significant"))


def test_the_page_is_valid_and_has_every_metric(summary: Row) -> None:
    content = replay.replay_page("<test>.parquet", summary)
    page = Page(content)
    assert "Completion of <test>.parquet" in page.text
    assert f"{summary['queries']:,} queries of 30 users" in page.text
    assert content.count("<svg") == 3
    for figure, form in (("mrr", ".3f"), ("perplexity", ".2f")):
        expected = find_row(summary, "factorcell", "users")
        interval = f"[{expected[f'{figure}_low']:{form}}, {expected[f'{figure}_high']:{form}}]"
        assert re.search(rf"{expected[figure]:{form}}\*? {re.escape(interval)}", page.text)
    for split in rows_by(summary, "query_length", "queries_seen", "prefix_length", "prefix"):
        low, high = split["mrr_low"], split["mrr_high"]
        interval = "" if low is None else rf"\*? \[{low:.3f}, {high:.3f}\]"
        assert re.search(rf"{split['mrr']:.3f}{interval}", page.text)
    assert display_name("factorcell") in page.text
