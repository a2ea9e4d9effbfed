"""The page of a search and its charts match the rows."""

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from factorcell.reports import search
from tests.pages import Page, requests, texts_inside

MODELS = ("unadapted", "softmaxbias", "concatcell", "factorcell")
LOGS = ("learning_rate", "embedding_size")
HOSTILE = '<script>alert("x")</script> & co'


def trial_rows(count: int, seed: int = 0, accuracy: bool = True) -> list[dict[str, Any]]:
    """Return trials of all four models: the first failed, every sixth was pruned, and the last is an outlier."""
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
    shown = [row for row in rows if row["state"] != "failed"]
    return search.perplexity_by_option(shown, dict.fromkeys(search.option_names(shown), "+0.25"), LOGS)


@pytest.mark.parametrize("count", [2, 3, 12, 120])
@pytest.mark.parametrize("draw", [search.accuracy_against_perplexity, by_option])
def test_texts_do_not_overlap_or_leave_the_figure(draw: Any, count: int) -> None:
    rows = trial_rows(count)[:-1] if count > 3 else trial_rows(count)
    if not any(row.get("accuracy") for row in rows):
        rows[-1] |= {"accuracy": 0.5, "state": "complete"}
    assert len(texts_inside(draw(rows))) > 4


def marks(axes: Axes) -> list[tuple[float, float]]:
    """Return the positions of the marks of trials."""
    return [tuple(place) for marks in axes.collections for place in np.asarray(marks.get_offsets()).tolist()]


def test_the_best_accuracy_and_perplexity_are_at_the_top_right() -> None:
    rows = trial_rows(40)
    figure = search.accuracy_against_perplexity(rows)
    axes = figure.axes[0]
    shown = [row for row in rows if "accuracy" in row]
    assert sorted(marks(axes)) == sorted((row["perplexity"], 100 * row["accuracy"]) for row in shown)
    left, right = axes.get_xlim()
    assert left > right
    ranks = [row["params"]["rank"] for row in shown if "rank" in row["params"]]
    sizes: Any = axes.collections[-1]
    assert np.argsort(ranks).tolist() == np.argsort(sizes.get_sizes()).tolist()
    texts = texts_inside(figure)
    assert {"FactorCell", "ConcatCell", "SoftmaxBias"} <= set(texts)
    assert "Unadapted" not in texts


def test_every_option_has_a_chart() -> None:
    rows = trial_rows(30)
    figure = by_option(rows)
    shown = [row for row in rows if row["state"] != "failed"]
    best = min(row["perplexity"] for row in shown)
    titles = ["hidden size", "embedding size", "learning rate", "decay", "rank"]
    assert [axes.get_title(loc="left") for axes in figure.axes[:5]] == titles
    for axes, name in zip(figure.axes, search.option_names(shown), strict=False):
        drawn = [row for row in shown if name in row["params"]]
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
        assert axes.get_title(loc="right") == "+0.25"
        low, high = axes.get_ylim()
        assert low < best < high < 1.2 * search.MAX_RATIO * best


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
    first = next(row for row in rows if row["state"] == "complete")
    first["ahead"] = ["perplexity"]
    content = search.search_page(HOSTILE, rows, HOSTILE, LOGS)
    page = Page(content)
    assert requests(page, content) == []
    assert HOSTILE in page.text
    assert f'<td class="num best" data-title="perplexity">{first["perplexity"]:.2f}*</td>' in content
    assert "40 trials: 1 failed, 33 complete, 6 pruned." in page.text
    titles = re.findall(r">(hidden size|embedding size|learning rate)</text>", content)
    assert titles[0] == "hidden size"
    assert len(titles) == 3


def test_pages_of_few_trials_are_valid() -> None:
    assert "0 trials" in search.search_page("s", [], None, ())
    assert "No trial is complete" in search.search_page("s", trial_rows(1), None, ())
    plain = search.search_page("s", trial_rows(9, accuracy=False), None, ())
    assert 'id="options-' in plain
    assert 'id="accuracy-' not in plain
    fixed = [{**row, "params": {}} for row in trial_rows(9)]
    assert 'id="options-' not in search.search_page("s", fixed, "t", ())


def test_the_terminal_table_has_flat_rows() -> None:
    rows, columns = search.search_table(trial_rows(4))
    assert columns[:4] == ["number", "state", "model", "perplexity"]
    assert {"hidden_size", "learning_rate", "rank", "decay"} <= set(columns)
    assert rows[1]["learning_rate"] == f"{trial_rows(4)[1]['params']['learning_rate']:.3g}"
