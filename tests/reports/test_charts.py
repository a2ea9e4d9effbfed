"""Charts match their rows, and texts neither overlap nor leave the figure."""

import math
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from factorcell.reports import charts
from tests.pages import texts_inside

LABELS = ["United States", "Mexico", "India", "Russia", "Italy", "Germany", "France", "Philippines", "Spain", "China"]


def curve_rows(finals: dict[str, float]) -> list[dict[str, Any]]:
    """Return ten evaluations per model that approach its final perplexity, with training rows between them."""
    rows: list[dict[str, Any]] = []
    for model, final in finals.items():
        for step in range(1, 11):
            row = {"model": model, "step": step, "tokens": 4000 * step, "seconds": 12.0 * step}
            rows.append({**row, "split": "train", "loss": 3.0})
            rows.append({**row, "split": "dev", "perplexity": final * (1 + math.exp(-step))})
    return rows


def gain_rows(count: int) -> list[dict[str, Any]]:
    """Return values whose gain decreases from 30 % to -10 %."""
    gains = np.linspace(0.3, -0.1, count)
    return [{"value": f"city {i}", "count": 1000 + i, "gain": float(gain)} for i, gain in enumerate(gains)]


def draw_gains(rows: list[dict[str, Any]]) -> Figure:
    """Return the chart of the gains of the values of a column."""
    return charts.gain_bars(charts.shown_gains(rows, "gain"), "gain")


FIGURES: dict[str, Callable[[], Figure]] = {
    "curves": lambda: charts.learning_curves(curve_rows({"unadapted": 10.9, "factorcell": 8.4})),
    "runs": lambda: charts.learning_curves(curve_rows({"hotels, best of all three": 70.0, "first": 69.9})),
    "far": lambda: charts.learning_curves(curve_rows({"a": 11.2, "b": 45.0, "c": 300.0})),
    "gains": lambda: draw_gains(gain_rows(60)),
    "both": lambda: draw_gains(
        [
            {"value": "Intimates", "count": 1, "gain": -0.127, "gain_low": -0.2, "gain_high": 0.1},
            {"value": "Jeans", "count": 29, "gain": 0.161},
        ]
    ),
    "losses": lambda: draw_gains([{**row, "value": f"$a$ {n}", "gain": -0.2} for n, row in enumerate(gain_rows(3))]),
    "long": lambda: charts.confusion_matrix(["a", "United States of X"], [[1, 2], [3, 4]]),
    "ratings": lambda: charts.confusion_matrix(["5", "4", "3", "2", "1"], np.eye(5) * 50 + 3),
    "confusion": lambda: charts.confusion_matrix(LABELS, np.eye(10) * 50 + 3),
}


@pytest.mark.parametrize("name", FIGURES)
def test_texts_do_not_overlap_or_leave_the_figure_and_are_in_the_svg(name: str) -> None:
    texts = texts_inside(FIGURES[name]())
    svg = charts.svg(FIGURES[name](), name)
    assert svg == charts.svg(FIGURES[name](), name)
    content = "".join(ElementTree.fromstring(svg).itertext())
    assert all(word in content for text in texts for word in text.split())


def test_characters_missing_from_the_font_give_no_warning() -> None:
    figure = Figure()
    figure.text(0.5, 0.5, "a\x1b\u202e\U0001f600 ክ \ud800")
    assert "ክ" in charts.svg(figure, "signs")
    assert charts.png(figure, 1.0)
    assert r"\ud800" in charts.svg(draw_gains([{"value": "\ud800", "count": 1, "gain": 0.1}]), "labels")


def test_png_has_the_requested_size() -> None:
    data = charts.png(Figure(figsize=(3, 2)), scale=2)
    assert (int.from_bytes(data[16:20]), int.from_bytes(data[20:24])) == (600, 400)


def test_learning_curves_draw_the_development_rows() -> None:
    figure = charts.learning_curves(curve_rows({"unadapted": 10.0, "factorcell": 8.0}))
    axes = figure.axes[0]
    lines = [line for line in axes.lines if len(np.asarray(line.get_xdata())) == 10]
    assert [np.asarray(line.get_xdata())[-1] for line in lines] == pytest.approx([2.0, 2.0])
    assert [np.asarray(line.get_ydata())[-1] for line in lines] == pytest.approx([10, 8], rel=1e-3)
    assert [line.get_color() for line in lines] == list(charts.EXTRA_COLOURS[:2])
    assert {"unadapted  10", "factorcell  8"} <= set(texts_inside(figure))
    assert axes.get_xlabel() == "minutes of training"


def test_learning_curves_of_a_single_or_no_evaluation() -> None:
    row = {"model": "a", "step": 1, "tokens": 1, "seconds": 0.0, "perplexity": 5.0}
    assert "a  5" in texts_inside(charts.learning_curves([row]))
    assert charts.svg(charts.learning_curves([]), "x")


def test_lowest_and_last_perplexities_are_visible() -> None:
    axes = charts.learning_curves(curve_rows({"places": 11.2, "clothes": 45.0, "letters": 300.0})).axes[0]
    low, high = axes.get_ylim()
    assert all(low < float(np.asarray(line.get_ydata())[-1]) < high for line in axes.lines)


def test_names_have_distinct_colours() -> None:
    names = ["factorcell", "one", "two", "unadapted", "three"]
    assert len(set(charts.colours(names).values())) == len(names) == len(charts.colours(names))


def test_gain_charts_show_the_values_with_the_most_texts_by_gain() -> None:
    figure = draw_gains(gain_rows(60)[::-1])
    names = [re.sub(r" .*", "", text[5:]) for text in texts_inside(figure) if text.startswith("city ")]
    assert names == [str(number) for number in range(30, 60)]
    bars = [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]
    assert bars[0].get_width() == pytest.approx(100 * gain_rows(60)[30]["gain"])
    assert bars[-1].get_width() == pytest.approx(-10)


def test_values_are_in_natural_order() -> None:
    names = ["5", "1", "4", "2", "3"]
    rows = [{"value": name, "count": 9, "gain": 0.01 * int(name) % 3} for name in names]
    labels = [label.get_text() for label in draw_gains(rows).axes[0].get_yticklabels()]
    assert [label.split()[0] for label in labels] == ["1", "2", "3", "4", "5"]
    counts = [[10 * int(true) + int(predicted) for predicted in names] for true in names]
    axes = charts.confusion_matrix(names, counts).axes[0]
    for ticks in (axes.get_xticklabels(), axes.get_yticklabels()):
        assert [label.get_text() for label in ticks] == ["1", "2", "3", "4", "5"]
    first = [text.get_text() for text in axes.texts if text.get_position()[1] == 0]
    assert first == [f"{100 * (11 + i) / 65:.0f}" for i in range(5)]


def test_bars_without_a_significant_gain_are_grey() -> None:
    intervals = [(0.2, 0.1, 0.3), (0.1, -0.1, 0.2), (0.05, None, None), (-0.2, -0.3, -0.1)]
    rows = [
        {**row, "gain": point, "gain_low": low, "gain_high": high}
        for row, (point, low, high) in zip(gain_rows(4), intervals, strict=True)
    ]
    axes = draw_gains(rows).axes[0]
    bars = [bar for bar in axes.patches if isinstance(bar, Rectangle)]
    assert [to_hex(bar.get_facecolor()) for bar in bars] == [charts.HIGHER, charts.MUTED, charts.MUTED, charts.LOWER]
    (lines,) = [item for item in axes.collections if isinstance(item, LineCollection)]
    drawn = [np.asarray(segment)[:, 0].tolist() for segment in lines.get_segments()]
    assert np.array(drawn) == pytest.approx(np.array([(10, 30), (-10, 20), (5, 5), (-30, -10)]))


def test_confusion_matrix_shows_shares_of_rows() -> None:
    figure = charts.confusion_matrix(["a", "b", "c"], [[3, 1, 0], [0, 8, 2], [0, 0, 0]])
    cells = {text.get_position(): text.get_text() for text in figure.axes[0].texts}
    assert cells == {(0, 0): "75", (1, 0): "25", (1, 1): "80", (2, 1): "20"}
    assert not charts.confusion_matrix([f"label {i}" for i in range(30)], np.ones((30, 30))).axes[0].texts


def test_word_bars_have_signed_values() -> None:
    nats = {"sea": 2.5, "\u0331": 1.0, " ": 0.5, "$x" * 20: -1.25}
    figure = charts.word_bars([{"token": token, "nats": value} for token, value in nats.items()])
    assert {"sea", "␣", "◌\u0331", "+2.50", "+0.50", "−1.25"} <= set(texts_inside(figure))
    bars: Any = figure.axes[0].patches
    assert [bar.get_width() for bar in bars] == list(nats.values())
    assert [to_hex(bar.get_facecolor()) for bar in bars] == [charts.HIGHER, charts.HIGHER, charts.HIGHER, charts.LOWER]
    assert texts_inside(charts.word_bars([])) == []
