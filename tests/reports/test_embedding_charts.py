"""Maps and bars draw what their rows say; names of groups do not touch, however near their groups are."""

import itertools
import math
from typing import Any, cast

import numpy as np
import pytest
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse

from factorcell.evaluation import embeddings
from factorcell.reports import embeddings as embedding_charts
from factorcell.reports.charts import ACCENT, LOSS, MUTED, OTHERS
from tests.evaluation.test_embeddings import clouds, groups_of
from tests.reports.test_charts import words
from tests.reports.test_replay import texts_inside

Row = dict[str, Any]


def rows_of(sizes: tuple[int, ...], apart: float = 5.0) -> list[Row]:
    """Points of groups on their map."""
    return embeddings.points(clouds(sizes, apart, width=len(sizes) + 1), groups_of(sizes))


def drawn(figure: Figure) -> list[Ellipse]:
    """The outlines of ellipses."""
    return [patch for patch in figure.axes[0].patches if isinstance(patch, Ellipse) and not patch.get_fill()]


def dots(figure: Figure) -> PathCollection:
    """The points of a map."""
    (found,) = figure.axes[0].collections
    assert isinstance(found, PathCollection)
    return found


def test_ellipses_lie_where_their_rows_say() -> None:
    rows = rows_of((12, 9, 7))
    found = embeddings.ellipses(rows)
    figure = embedding_charts.map_of_groups(rows, found)
    assert sorted(texts_inside(figure)) == ["g0", "g1", "g2"]
    for row, shape in zip(found, drawn(figure), strict=True):
        assert tuple(np.asarray(shape.get_center())) == (row["x"], row["y"])
        assert (shape.get_width(), shape.get_height()) == (2 * row["wide"], 2 * row["high"])
        assert shape.get_angle() == row["angle"]
    assert [to_hex(shape.get_edgecolor()) for shape in drawn(figure)] == list(OTHERS[:3])
    assert not figure.axes[0].collections
    x, y = figure.axes[0].get_xlim(), figure.axes[0].get_ylim()
    width, height = figure.axes[0].get_window_extent().size
    assert (x[1] - x[0]) / width == pytest.approx((y[1] - y[0]) / height), "a circle must be drawn as one"


@pytest.mark.parametrize("turned", [False, True])
def test_a_long_ellipse_is_inside_its_map(turned: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Its ends too, whether it lies or stands; a circle is drawn as one, and nothing is said about it."""
    places = [(0.0, 0.0), (9.0, 0.1), (4.0, 0.2), (5.0, -0.1)]
    rows = [{"x": y if turned else x, "y": x if turned else y, "group": "a"} for x, y in places]
    figure = embedding_charts.map_of_groups(rows, embeddings.ellipses(rows))
    (shape,) = drawn(figure)
    edge = figure.axes[0].transData.inverted().transform_path(shape.get_transform().transform_path(shape.get_path()))
    low, high = np.array([figure.axes[0].get_xlim(), figure.axes[0].get_ylim()]).T
    vertices = np.asarray(edge.vertices)
    assert (vertices.min(0) > low).all()
    assert (vertices.max(0) < high).all()
    width, height = figure.axes[0].get_window_extent().size
    assert (high - low)[0] / width == pytest.approx((high - low)[1] / height)
    words(figure)  # draws it
    assert not caplog.records


def test_points_have_the_colour_of_their_group_and_others_are_grey() -> None:
    rows = rows_of((9, 6, 2))
    figure = embedding_charts.map_of_groups(rows, embeddings.ellipses(rows, 1), dots=True)
    found = dots(figure)
    colours = [to_hex(colour) for colour in cast(Any, found.get_facecolor())]
    expected = {(row["x"], row["y"]): OTHERS[0] if row["group"] == "g0" else MUTED for row in rows}
    places = [tuple(place) for place in np.asarray(found.get_offsets()).tolist()]
    assert dict(zip(places, colours, strict=True)) == expected
    low, high = np.array([figure.axes[0].get_xlim(), figure.axes[0].get_ylim()]).T
    assert ((places > low) & (places < high)).all()


def test_a_map_without_any_ellipse_shows_its_points() -> None:
    rows = rows_of((2, 2, 2))
    assert len(np.asarray(dots(embedding_charts.map_of_groups(rows, [])).get_offsets())) == 6


@pytest.mark.parametrize("apart", [0.0, 0.2, 1.0])
def test_names_do_not_touch_however_near_groups_are(apart: float) -> None:
    """Ten groups in one place: ten names beside each other, all inside; those beyond eight have another line."""
    names = [f"group of length {'x' * (place % 5)}{place}" for place in range(10)]
    rows = [
        {"x": apart * (place % 3) + dx, "y": apart * (place // 3) + dy, "group": name}
        for place, name in enumerate(names)
        for dx, dy in ((0, 0), (1, 0.2), (0.3, 1))
    ]
    figure = embedding_charts.map_of_groups(rows, embeddings.ellipses(rows, 10))
    assert sorted(texts_inside(figure)) == sorted(names)
    assert [shape.get_linestyle() for shape in drawn(figure)] == ["-"] * 8 + ["--"] * 2


def test_dollars_and_long_names_are_text() -> None:
    group = "$a$ and $b$ of a name that is far too long"
    rows = [{"x": x, "y": y, "group": group} for x, y in ((0, 0), (1, 0), (0, 1))]
    figure = embedding_charts.map_of_groups(rows, embeddings.ellipses(rows))
    assert words(figure) == [group[:24].replace("$", r"\$")]


def test_numbers_are_colours_between_the_ends_of_the_bar() -> None:
    places = np.random.default_rng(0).normal(size=(101, 2))
    rows = [{"x": x, "y": y, "number": float(n)} for n, (x, y) in enumerate(places.tolist())]
    rows[-1]["number"] = 1e6  # one value alone must not take the whole scale
    figure = embedding_charts.map_of_numbers(rows, "mean height")
    assert set(texts_inside(figure)) == {"mean height", "2", "98"}
    colours = [to_hex(colour) for colour in cast(Any, dots(figure).get_facecolor())]
    assert colours[0] == colours[2] == to_hex(embedding_charts.SCALE(0.0))
    assert colours[98] == colours[100] == to_hex(embedding_charts.SCALE(1.0))
    assert colours[50] == to_hex(embedding_charts.SCALE(0.5))
    bar = [to_hex(cast(Any, patch).get_facecolor()) for patch in figure.axes[1].patches]
    assert (bar[0], bar[-1]) == (colours[0], colours[100])


def test_numbers_that_are_all_the_same() -> None:
    rows = [{"x": float(n), "y": float(n % 2), "number": 3.0} for n in range(5)]
    assert set(words(embedding_charts.map_of_numbers(rows, "stars"))) == {"stars", "3"}


def test_bars_of_words() -> None:
    rows = [
        {"token": token, "nats": nats}
        for token, nats in (("sea", 2.5), ("\u0331", 1.0), (" ", 0.5), ("$x" * 20, -1.25))
    ]
    figure = embedding_charts.boosted_words(rows, "city=Nice against what is expected")
    shown = texts_inside(figure)
    assert {"sea", "␣", "◌\u0331", "+2.50", "+0.50", "−1.25", "city=Nice against what is expected"} <= set(shown)
    bars: Any = figure.axes[0].patches
    assert [bar.get_width() for bar in bars] == [2.5, 1.0, 0.5, -1.25]
    assert [to_hex(bar.get_facecolor()) for bar in bars] == [ACCENT, ACCENT, ACCENT, LOSS]
    assert words(embedding_charts.boosted_words([], "nothing")) == ["nothing"]
    low, high = figure.axes[0].get_xlim()
    assert all(low < value < high for value in itertools.chain((2.5, -1.25)))
    assert math.isfinite(low)
