"""The page of a search and its charts: what is drawn is what the rows say, and nothing runs over anything."""

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from factorcell.reports import charts, scatter, search
from tests.reports.test_charts import texts, words
from tests.reports.test_report import HOSTILE, Page, requests

MODELS = ("unadapted", "softmaxbias", "concatcell", "factorcell")
LOGS = ("learning_rate", "embedding_size")


def trial_rows(count: int, seed: int = 0, accuracy: bool = True) -> list[dict[str, Any]]:
    """Trials of all four classes; the first has failed, every sixth is pruned, the last is far off."""
    random = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = [
        {"number": 0, "state": "failed", "model": "factorcell", "params": {"rank": 3}, "perplexity": None, "error": "x"}
    ]
    for number in range(1, count):
        model = MODELS[number % 4]
        params: dict[str, Any] = {
            "hidden_size": int(random.integers(110, 250)),
            "embedding_size": int(random.integers(35, 200)),
            "learning_rate": float(10 ** random.uniform(-4, -2)),
            "decay": ("cosine", "none")[number % 2],
        }
        if model == "factorcell":
            params["rank"] = int(random.integers(2, 20))
        perplexity = 1e6 if number == count - 1 else 300 - params["hidden_size"] + 5 * random.random()
        row: dict[str, Any] = {"number": number, "state": "pruned" if number % 6 == 0 else "complete", "model": model}
        row |= {"params": params, "perplexity": perplexity, "minutes": 0.5, "parameters": 1000}
        if accuracy and row["state"] == "complete" and model != "unadapted":
            row["accuracy"] = float(random.uniform(0.5, 0.9))
        rows.append(row)
    return rows


def by_option(rows: list[dict[str, Any]]) -> Figure:
    """The small charts of all options."""
    shown = [row for row in rows if row["state"] != "failed"]
    return scatter.perplexity_by_option(shown, dict.fromkeys(search.options(shown), "+0.25"), LOGS)


@pytest.mark.parametrize("count", [2, 3, 12, 120])
@pytest.mark.parametrize("draw", [scatter.accuracy_against_perplexity, by_option])
def test_texts_keep_apart_and_inside(draw: Any, count: int) -> None:
    """However many trials: no label over another, none out of the picture."""
    rows = trial_rows(count)[:-1] if count > 3 else trial_rows(count)
    if not any(row.get("accuracy") for row in rows):
        rows[-1] |= {"accuracy": 0.5, "state": "complete"}
    figure = draw(rows)
    shown = texts(figure)
    boxes = [text.get_window_extent() for text in shown]
    width, height = figure.get_size_inches() * figure.dpi
    assert len(boxes) > 4
    for i, box in enumerate(boxes):
        inside = box.x0 > -2 and box.y0 > -2 and box.x1 < width + 2 and box.y1 < height + 2
        assert inside, shown[i].get_text()
        for j in range(i):
            apart = not box.padded(-1).overlaps(boxes[j].padded(-1))
            assert apart, (shown[i].get_text(), shown[j].get_text())


def points(axes: Axes) -> list[tuple[float, float]]:
    """Where the marks of a chart stand, but for the ring of the best."""
    lines = [line for line in axes.lines if line.get_markersize() != 9]
    return [(float(np.asarray(line.get_xdata())[0]), float(np.asarray(line.get_ydata())[0])) for line in lines]


def test_accuracy_stands_over_perplexity_with_the_best_up_and_right() -> None:
    """A mark for every complete trial with an accuracy, at its numbers; the higher the rank the larger."""
    rows = trial_rows(40)
    axes = scatter.accuracy_against_perplexity(rows).axes[0]
    shown = [row for row in rows if "accuracy" in row]
    assert points(axes) == [(row["perplexity"], 100 * row["accuracy"]) for row in shown]
    left, right = axes.get_xlim()
    assert left > right
    for row, line in zip(shown, axes.lines, strict=True):
        assert line.get_color() == charts.COLOURS[row["model"]]
        assert line.get_marker() == scatter.SHAPES[row["model"]]
    ranked = sorted(
        (row["params"]["rank"], line.get_markersize())
        for row, line in zip(shown, axes.lines, strict=True)
        if "rank" in row["params"]
    )
    sizes = [size for _, size in ranked]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]
    legend = words(scatter.accuracy_against_perplexity(rows))
    assert {"FactorCell", "ConcatCell", "SoftmaxBias", f"rank {ranked[0][0]}", f"rank {ranked[-1][0]}"} <= set(legend)
    assert "Unadapted" not in legend


def test_every_option_has_its_chart() -> None:
    """Each trial that drew an option stands in its chart, hollow if pruned, at the edge if far off; the best ringed."""
    rows = trial_rows(30)
    figure = by_option(rows)
    shown = [row for row in rows if row["state"] != "failed"]
    best = min(row["perplexity"] for row in shown)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "hidden size", "embedding size", "learning rate", "decay", "rank"
    ]  # fmt: skip
    for axes, name in zip(figure.axes, search.options(shown), strict=True):
        there = [row for row in shown if name in row["params"]]
        marks = [line for line in axes.lines if line.get_markersize() != 9]
        heights = [y for _, y in points(axes)]
        assert heights == [min(row["perplexity"], scatter.REACH * best) for row in there]
        beyond = [row["perplexity"] > scatter.REACH * best for row in there]
        assert [line.get_marker() == "x" for line in marks] == beyond
        hollow = [line.get_markerfacecolor() == "none" for line in marks]
        assert hollow == [row["state"] == "pruned" for row in there]
        places = [x for x, _ in points(axes)]
        if name == "decay":
            assert [round(x) for x in places] == [("cosine", "none").index(row["params"][name]) for row in there]
        else:
            assert places == [row["params"][name] for row in there]
        assert (axes.get_xscale() == "log") == (name in LOGS)
        low, high = axes.get_xlim()
        assert all(low <= x <= high for x in places)
        rings = [line for line in axes.lines if line.get_markersize() == 9]
        assert len(rings) == any(row["perplexity"] == best for row in there)
        assert axes.get_title(loc="right") == "+0.25"


def test_whole_numbers_have_whole_ticks() -> None:
    """No rank of 11.5, however narrow the axis."""
    rows = [row for row in trial_rows(12) if row["state"] == "complete"]
    for row in rows:
        row["params"] = {"rank": 11 + row["number"] % 2}
    axes = scatter.perplexity_by_option(rows, {"rank": ""}).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["11", "12"]


@pytest.mark.parametrize("seed", range(5))
def test_rank_correlation_is_spearmans(seed: int) -> None:
    """Against pandas, with ties; nothing is told of few trials, of names and of what does not vary."""
    rows = [row for row in trial_rows(25, seed) if row["state"] == "complete"]
    for row in rows:
        row["params"]["hidden_size"] //= 20
    columns = {"x": [row["params"]["hidden_size"] for row in rows], "y": [row["perplexity"] for row in rows]}
    frame = pd.DataFrame(columns)
    oracle = frame.rank()["x"].corr(frame.rank()["y"])
    assert frame["x"].duplicated().any()
    assert search.rank_correlation(rows, "hidden_size") == pytest.approx(oracle)
    assert search.rank_correlation(rows[:4], "hidden_size") is None
    assert search.rank_correlation(rows, "decay") is None
    assert search.rank_correlation([{**row, "params": {"x": 3}} for row in rows], "x") is None
    ranked = [row for row in rows if "rank" in row["params"]]
    assert search.rank_correlation(rows, "rank") == search.rank_correlation(ranked, "rank")


def test_the_page_is_whole_and_orders_the_options() -> None:
    """Numbers of the best, all trials folded away, the option that decides first; nothing is fetched, nothing runs."""
    rows = trial_rows(40)
    rows[5]["params"]["decay"] = HOSTILE
    content = search.page(HOSTILE, rows, HOSTILE, LOGS)
    page = Page(content)
    assert requests(page, content) == []
    assert HOSTILE in page.text
    first = next(row for row in rows if row["state"] == "complete")
    assert f"{first['perplexity']:.2f}" in page.text
    assert "40 trials: 1 failed, 33 complete, 6 pruned." in page.text
    titles = re.findall(r">(hidden size|embedding size|learning rate)</text>", content)
    assert titles[0] == "hidden size"
    assert len(titles) == 3
    ids = re.findall(r'\bid="([^"]+)"', content)
    assert len(ids) == len(set(ids))


def test_pages_of_little() -> None:
    """No trial at all, only failed ones, none with an accuracy, nothing that varied: still a page."""
    assert "0 trials" in search.page("s", [], None, ())
    failed = search.page("s", trial_rows(1), None, ())
    assert "No trial is complete yet" in failed
    plain = search.page("s", trial_rows(9, accuracy=False), None, ())
    assert 'id="options-' in plain
    assert 'id="accuracy-' not in plain
    fixed = [{**row, "params": {}} for row in trial_rows(9)]
    assert 'id="options-' not in search.page("s", fixed, "t", ())


def test_the_table_for_the_terminal_is_flat() -> None:
    """What was drawn stands beside the figures, three digits each."""
    rows, columns = search.table(trial_rows(4))
    assert columns[:4] == ["number", "state", "model", "perplexity"]
    assert {"hidden_size", "learning_rate", "rank", "decay"} <= set(columns)
    assert rows[1]["learning_rate"] == f"{trial_rows(4)[1]['params']['learning_rate']:.3g}"
