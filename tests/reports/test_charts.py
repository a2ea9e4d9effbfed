"""Charts from rows: what is drawn is what the rows say, no text runs over another or out of the picture."""

import itertools
import math
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from factorcell.reports import charts

LABELS = [
    "United States",
    "Mexico",
    "India",
    "Russia",
    "Italy",
    "Germany",
    "France",
    "Philippines",
    "Spain",
    "China",
]


def curve_rows(finals: dict[str, float]) -> list[dict[str, Any]]:
    """Ten evaluations a model, falling to its final perplexity, with training rows between them."""
    rows: list[dict[str, Any]] = []
    for model, final in finals.items():
        for step in range(1, 11):
            here = {"model": model, "step": step, "tokens": 4000 * step, "seconds": 12.0 * step}
            rows.append({**here, "split": "train", "loss": 3.0})
            rows.append({**here, "split": "dev", "perplexity": final * (1 + math.exp(-step))})
    return rows


def model_rows() -> list[dict[str, Any]]:
    """The four models of the paper, the first without accuracy."""
    numbers = [
        ("unadapted", 10.9, None),
        ("softmaxbias", 10.85, 0.51),
        ("concatcell", 8.9, 0.69),
        ("factorcell", 8.4, 0.7),
    ]
    return [{"name": name, "perplexity": perplexity, "accuracy": accuracy} for name, perplexity, accuracy in numbers]


def gain_rows(count: int) -> list[dict[str, Any]]:
    """Values whose gain falls from 30 % to -10 %."""
    gains = np.linspace(0.3, -0.1, count)
    return [
        {"value": f"city {i}", "count": 1000 + i, "perplexity": 70.0, "gain": float(g)} for i, g in enumerate(gains)
    ]


def texts(figure: Figure) -> list[Text]:
    """All visible, non-empty texts, laid out."""
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    return [text for text in figure.findobj(Text) if isinstance(text, Text) and text.get_visible() and text.get_text()]


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in texts(figure)]


FIGURES: dict[str, Callable[[], Figure]] = {
    "curves": lambda: charts.learning_curves(curve_rows({"unadapted": 10.9, "softmaxbias": 10.85, "factorcell": 8.4})),
    "runs": lambda: charts.learning_curves(
        curve_rows({"hotels, best of all three": 70.0, "hotels, first": 69.9}), "tokens"
    ),
    "models": lambda: charts.model_comparison(model_rows()),
    "gains": lambda: charts.gains_by_value(gain_rows(60)),
    "both": lambda: charts.gains_by_value(
        [{"value": "Intimates", "count": 1, "gain": -0.127}, {"value": "Jeans", "count": 29, "gain": 0.161}]
    ),
    "losses": lambda: charts.gains_by_value([{**row, "gain": -0.2} for row in gain_rows(3)]),
    "long": lambda: charts.confusion_matrix(["a", "United States of X"], [[1, 2], [3, 4]]),
    "ratings": lambda: charts.confusion_matrix(["5", "4", "3", "2", "1"], np.eye(5) * 50 + 3),
    "confusion": lambda: charts.confusion_matrix(LABELS, np.eye(10) * 50 + 3),
}


@pytest.mark.parametrize("name", FIGURES)
def test_texts_keep_apart_and_inside(name: str) -> None:
    figure = FIGURES[name]()
    shown = texts(figure)
    boxes = [text.get_window_extent() for text in shown]
    width, height = figure.get_size_inches() * figure.dpi
    for i, box in enumerate(boxes):
        inside = box.x0 > -2 and box.y0 > -2 and box.x1 < width + 2 and box.y1 < height + 2
        assert inside, (shown[i].get_text(), box)
        for j in range(i if shown[i].get_rotation() == 0 else 0):
            if shown[j].get_rotation() != 0:  # its frame is far larger than its letters
                continue
            apart = not box.padded(-1).overlaps(boxes[j].padded(-1))
            assert apart, (shown[i].get_text(), shown[j].get_text())


@pytest.mark.parametrize("name", FIGURES)
def test_svg_is_the_same_each_time_and_keeps_its_text(name: str) -> None:
    figure = FIGURES[name]()
    first, second = charts.svg(figure, name), charts.svg(FIGURES[name](), name)
    assert first == second
    found = "".join(ElementTree.fromstring(first).itertext())
    labels = [text.get_text() for axes in figure.axes for text in (*axes.texts, axes.title)]
    assert labels
    assert all(word in found for label in labels for word in label.split())


def test_signs_that_the_font_lacks_are_no_warning() -> None:
    """Warnings are errors here."""
    figure = Figure()
    figure.text(0.5, 0.5, "a\x1b\u202e\U0001f600 ክ")
    assert "ክ" in charts.svg(figure, "signs")
    assert charts.png(figure)


def test_png_has_the_size_asked_for() -> None:
    data = charts.png(Figure(figsize=(3, 2)), scale=2)
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert (int.from_bytes(data[16:20]), int.from_bytes(data[20:24])) == (600, 400)


def test_learning_curves_draw_the_development_rows() -> None:
    axes = charts.learning_curves(curve_rows({"unadapted": 10.0, "factorcell": 8.0})).axes[0]
    lines = [line for line in axes.lines if len(np.asarray(line.get_xdata())) == 10]
    assert len(lines) == 2
    assert np.asarray(lines[0].get_xdata())[-1] == pytest.approx(2.0)  # 120 seconds
    assert np.asarray(lines[1].get_ydata())[-1] == pytest.approx(8.0, rel=1e-3)
    labels = [text.get_text() for text in axes.texts]
    assert labels == ["Unadapted  10", "FactorCell  8"]


def test_learning_curves_over_tokens() -> None:
    axes = charts.learning_curves(curve_rows({"factorcell": 8.0}), "tokens").axes[0]
    assert np.asarray(axes.lines[0].get_xdata())[-1] == pytest.approx(0.04)
    assert axes.get_xlabel() == "million tokens read"


def test_learning_curves_of_a_single_or_no_evaluation() -> None:
    row = {"model": "a", "step": 1, "tokens": 1, "seconds": 0.0, "perplexity": 5.0}
    assert "a  5" in words(charts.learning_curves([row]))
    assert charts.learning_curves([]).axes


def test_curves_that_end_alike_keep_the_order_of_their_labels() -> None:
    finals = {"a": 10.0, "b": 10.001, "c": 9.999, "d": 10.0005}
    axes = charts.learning_curves(curve_rows(finals)).axes[0]
    heights = {text.get_text()[0]: text.get_position()[1] for text in axes.texts}
    assert sorted(heights, key=lambda name: heights[name]) == sorted(finals, key=lambda name: finals[name])
    places = sorted(heights.values())
    assert min(b - a for a, b in itertools.pairwise(places)) > 0.07


def test_colours_are_the_papers_or_distinct() -> None:
    names = ["factorcell", "one", "two", "unadapted", "three"]
    palette = charts.colours(names)
    assert palette["factorcell"] == charts.COLOURS["factorcell"]
    assert len(set(palette.values())) == len(names)


def test_model_comparison_without_accuracy_has_one_panel() -> None:
    rows = [{**row, "accuracy": None} for row in model_rows()]
    assert len(charts.model_comparison(rows).axes) == 1
    assert len(charts.model_comparison(model_rows()).axes) == 2
    assert {"10.90", "8.40", "51.0%", "FactorCell"} <= set(words(charts.model_comparison(model_rows())))


def test_gains_show_the_best_and_the_worst() -> None:
    figure = charts.gains_by_value(gain_rows(60)[::-1])
    named = [re.sub(r" .*", "", word[5:]) for word in words(figure) if word.startswith("city ")]
    assert named == [str(i) for i in [*range(20), *range(40, 60)]]
    bars = [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]
    assert len(bars) == 41  # the gap is a bar of no length
    assert bars[0].get_width() == pytest.approx(30)
    assert bars[-1].get_width() == pytest.approx(-10)
    assert "⋮" in words(figure)
    assert "⋮" not in words(charts.gains_by_value(gain_rows(40)))


def test_values_stand_in_their_order() -> None:
    """Ratings from 1 to 5 down and across, and not by their gain; where there are too many, the best come first."""
    names = ["5", "1", "4", "2", "3"]
    rows = [{"value": name, "count": 9, "gain": 0.01 * int(name) % 3} for name in names]
    labels = [label.get_text() for label in charts.gains_by_value(rows).axes[0].get_yticklabels()]
    assert [label.split()[0] for label in labels] == ["1", "2", "3", "4", "5"]
    counts = [[10 * int(true) + int(taken) for taken in names] for true in names]
    axes = charts.confusion_matrix(names, counts).axes[0]
    for labels in ([label.get_text() for label in ticks] for ticks in (axes.get_xticklabels(), axes.get_yticklabels())):
        assert labels == ["1", "2", "3", "4", "5"]
    first = {text.get_position()[0]: float(text.get_text()) for text in axes.texts if text.get_position()[1] == 0.52}
    assert first == {i + 0.5: round(100 * (11 + i) / 65) for i in range(5)}
    many = [{"value": str(i), "count": 9, "gain": -0.01 * i} for i in range(99, 0, -1)]
    assert charts.gains_by_value(many).axes[0].get_yticklabels()[0].get_text().split()[0] == "1"


def test_no_curve_is_outside_its_axes() -> None:
    """Models of other texts may be worse by far: their curves are there, down to their ends and with their labels."""
    axes = charts.learning_curves(curve_rows({"places": 11.2, "clothes": 45.0, "letters": 300.0})).axes[0]
    low, high = axes.get_ylim()
    ends = [float(np.asarray(line.get_ydata())[-1]) for line in axes.lines]
    assert all(low < end < high for end in ends)
    assert all(0 <= text.get_position()[1] <= 1 for text in axes.texts)


def test_gains_that_may_be_none_are_grey() -> None:
    """An interval above zero, one below it, one that holds it, and none."""
    ends = [(0.1, 0.3), (-0.3, -0.1), (-0.1, 0.2), (None, None)]
    rows = [{**row, "gain_low": low, "gain_high": high} for row, (low, high) in zip(gain_rows(4), ends, strict=True)]
    bars = [bar for bar in charts.gains_by_value(rows).axes[0].patches if isinstance(bar, Rectangle)]
    shades = [to_hex(bar.get_facecolor()) for bar in bars]
    assert shades == [charts.ACCENT, charts.LOSS, charts.MUTED, charts.MUTED]


def test_confusion_matrix_gives_shares_of_rows() -> None:
    figure = charts.confusion_matrix(["a", "b", "c"], [[3, 1, 0], [0, 8, 2], [0, 0, 0]])
    cells = {text.get_position(): text.get_text() for text in figure.axes[0].texts}
    assert cells == {(0.5, 0.52): "75", (1.5, 0.52): "25", (1.5, 1.52): "80", (2.5, 1.52): "20"}


def test_confusion_matrix_of_many_labels_has_no_numbers() -> None:
    figure = charts.confusion_matrix([f"label {i}" for i in range(30)], np.ones((30, 30)))
    assert not figure.axes[0].texts
