"""The page of a search and its charts match the rows."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from factorcell.reports import search
from tests.pages import Page, requests, texts_inside
from tests.reports.examples import HOSTILE, LOGS, trial_rows


def by_option(rows: list[dict[str, Any]], name: str) -> Figure:
    shown = [row for row in rows if row["state"] != "failed"]
    return search.perplexity_by_option(shown, name, is_log=name in LOGS)


@pytest.mark.parametrize("count", [2, 3, 12, 120])
@pytest.mark.parametrize("name", ["hidden_size", "learning_rate", "decay"])
def test_texts_do_not_overlap_or_leave_the_figure(count: int, name: str) -> None:
    assert len(texts_inside(by_option(trial_rows(count), name))) > 2


def marks(axes: Axes) -> list[tuple[float, float]]:
    """Return the positions of the marks of trials."""
    return [tuple(place) for marks in axes.collections for place in np.asarray(marks.get_offsets()).tolist()]


@pytest.mark.parametrize("name", ["hidden_size", "embedding_size", "learning_rate", "decay", "rank"])
def test_charts_of_options_have_a_mark_for_each_trial(name: str) -> None:
    rows = trial_rows(30)
    axes = by_option(rows, name).axes[0]
    best = min(row["perplexity"] for row in rows if row["perplexity"])
    low, high = axes.get_ylim()
    assert low < best < high < 1.2 * search.MAX_RATIO * best
    drawn = [row for row in rows if name in row["params"] and (row["perplexity"] or np.inf) <= search.MAX_RATIO * best]
    values = [row["params"][name] for row in drawn]
    if name == "decay":
        values = [("cosine", "none").index(value) for value in values]
    assert sorted(marks(axes)) == sorted(zip(values, (row["perplexity"] for row in drawn), strict=True))
    colours = [colour for each in axes.collections for colour in np.asarray(each.get_facecolor()).tolist()]
    assert sum(colour[3] == 0 for colour in colours) == sum(row["state"] == "pruned" for row in drawn)
    assert axes.get_xscale() == ("log" if name in LOGS else "linear")
    low, high = axes.get_xlim()
    assert all(low <= value <= high for value in values)
    rings = [line for line in axes.lines if line.get_markersize() == 9]
    assert len(rings) == any(row["perplexity"] == best for row in drawn)


@pytest.mark.parametrize("seed", range(3))
def test_rank_correlation_matches_spearman(seed: int) -> None:
    rows = [row for row in trial_rows(25, seed) if row["state"] == "complete"]
    for row in rows:
        row["params"]["hidden_size"] //= 20
    frame = pd.DataFrame(
        {"x": [row["params"]["hidden_size"] for row in rows], "y": [row["perplexity"] for row in rows]}
    )
    assert frame["x"].duplicated().any()
    assert search.rank_correlation(rows, "hidden_size") == pytest.approx(frame.rank()["x"].corr(frame.rank()["y"]))
    assert search.rank_correlation(rows[:4], "hidden_size") is None
    assert search.rank_correlation(rows, "decay") is None
    assert search.rank_correlation([{**row, "params": {"x": 3}} for row in rows], "x") is None
    ranked = [row for row in rows if "rank" in row["params"]]
    assert search.rank_correlation(rows, "rank") == search.rank_correlation(ranked, "rank")


def test_the_page_is_valid_and_orders_the_options() -> None:
    rows = trial_rows(40)
    rows[5]["params"]["decay"] = HOSTILE
    best = next(row for row in rows if row["state"] == "complete")
    best["ahead"] = ["perplexity"]
    content = search.search_page(HOSTILE, rows, HOSTILE, LOGS)
    page = Page(content)
    assert requests(page, content) == []
    assert page.figures == {
        f"model of the best trial, number {best['number']}": "SoftmaxBias",
        "lowest perplexity": f"{best['perplexity']:.2f}",
        f"accuracy of {HOSTILE}": f"{best['accuracy']:.1%}",
        "parameters": "1,000",
    }
    cells = zip(page.attributes_of("td"), page.texts["td"], strict=True)
    assert [text for cell, text in cells if "best" in str(cell.get("class"))] == [f"{best['perplexity']:.2f}*"]
    assert page.charts[0] == "Hidden size", "the option with the strongest correlation is the first"
    assert sorted(page.charts) == ["Decay", "Embedding size", "Hidden size", "Learning rate", "Rank"]
    assert len(page.rows) == 2 + len(rows)


def test_pages_of_few_trials_are_valid() -> None:
    for rows in ([], trial_rows(1), [{**row, "params": {}} for row in trial_rows(9)]):
        page = Page(search.search_page("s", rows, "t", ()))
        assert page.charts == []
        assert bool(page.figures) == (len(rows) > 1)
    plain = Page(search.search_page("s", trial_rows(9, accuracy=False), None, ()))
    assert "accuracy" not in {title for row in plain.rows for title in row}


def test_the_terminal_table_has_flat_rows() -> None:
    rows, columns = search.search_table(trial_rows(4))
    assert columns[:4] == ["number", "state", "model", "perplexity"]
    assert {"hidden_size", "learning_rate", "rank", "decay"} <= set(columns)
    assert rows[1]["learning_rate"] == f"{trial_rows(4)[1]['params']['learning_rate']:.3g}"
