"""Maps and bar charts match their rows, and names of groups do not overlap."""

import re
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse

from factorcell.evaluation.explaining import embeddings
from factorcell.reports.charts import EXTRA_COLOURS, MUTED, svg
from factorcell.reports.embeddings import (
    MAX_NAMED_VALUES,
    embeddings_page,
    map_of_groups,
    map_of_numbers,
)
from tests.evaluation.test_embeddings import clouds, groups_of
from tests.pages import Page, texts_inside
from tests.reports.examples import HOSTILE, contexts_results

Row = dict[str, Any]


def rows_of(sizes: tuple[int, ...], distance: float = 5.0) -> list[Row]:
    """Return the map points of groups of these sizes."""
    return embeddings.map_points(clouds(sizes, distance, width=len(sizes) + 1), groups_of(sizes))


def outlines(figure: Figure) -> list[Ellipse]:
    return [patch for patch in figure.axes[0].patches if isinstance(patch, Ellipse) and not patch.get_fill()]


def dots(figure: Figure) -> PathCollection:
    (collection,) = figure.axes[0].collections
    assert isinstance(collection, PathCollection)
    return collection


def test_ellipses_match_their_rows() -> None:
    rows = rows_of((12, 9, 7))
    ellipses = embeddings.fit_ellipses(rows)
    figure = map_of_groups(rows, ellipses)
    assert sorted(texts_inside(figure)) == ["g0", "g1", "g2"]
    for row, shape in zip(ellipses, outlines(figure), strict=True):
        assert tuple(np.asarray(shape.get_center())) == (row["x"], row["y"])
        assert (shape.get_width(), shape.get_height()) == (2 * row["wide"], 2 * row["high"])
        assert shape.get_angle() == row["angle"]
    assert [to_hex(shape.get_edgecolor()) for shape in outlines(figure)] == list(EXTRA_COLOURS[:3])
    assert len(np.asarray(dots(figure).get_offsets())) == 28


@pytest.mark.parametrize("is_vertical", [False, True])
def test_a_long_ellipse_is_inside_its_map_and_a_circle_is_drawn_as_one(is_vertical: bool) -> None:
    places = [(0.0, 0.0), (9.0, 0.1), (4.0, 0.2), (5.0, -0.1)]
    rows = [{"x": y if is_vertical else x, "y": x if is_vertical else y, "group": "a"} for x, y in places]
    figure = map_of_groups(rows, embeddings.fit_ellipses(rows))
    assert texts_inside(figure) == ["a"]
    axes = figure.axes[0]
    (shape,) = outlines(figure)
    edge = axes.transData.inverted().transform_path(shape.get_transform().transform_path(shape.get_path()))
    low, high = np.array([axes.get_xlim(), axes.get_ylim()]).T
    vertices = np.asarray(edge.vertices)
    assert (vertices.min(0) > low).all()
    assert (vertices.max(0) < high).all()
    width, height = axes.get_window_extent().size
    assert (high - low)[0] / width == pytest.approx((high - low)[1] / height)


def test_points_have_the_colour_of_their_group_and_others_are_grey() -> None:
    rows = rows_of((9, 6, 2))
    drawn: Any = dots(map_of_groups(rows, embeddings.fit_ellipses(rows, 1)))
    colours = [to_hex(colour) for colour in drawn.get_facecolor()]
    places = [tuple(place) for place in np.asarray(drawn.get_offsets()).tolist()]
    expected = {(row["x"], row["y"]): EXTRA_COLOURS[0] if row["group"] == "g0" else MUTED for row in rows}
    assert dict(zip(places, colours, strict=True)) == expected


def test_a_map_without_any_ellipse_shows_its_points() -> None:
    assert len(np.asarray(dots(map_of_groups(rows_of((2, 2, 2)), [])).get_offsets())) == 6


@pytest.mark.parametrize("distance", [0.0, 0.2, 1.0])
def test_names_of_near_groups_do_not_overlap(distance: float) -> None:
    names = [f"group of length {'x' * (index % 5)}{index}" for index in range(10)]
    rows = [
        {"x": distance * (index % 3) + dx, "y": distance * (index // 3) + dy, "group": name}
        for index, name in enumerate(names)
        for dx, dy in ((0, 0), (1, 0.2), (0.3, 1))
    ]
    figure = map_of_groups(rows, embeddings.fit_ellipses(rows, 10))
    assert sorted(texts_inside(figure)) == sorted(names)
    assert [shape.get_linestyle() for shape in outlines(figure)] == ["-"] * 8 + ["--"] * 2


def test_dollars_and_long_names_are_text() -> None:
    group = "$a$ and $b$ of a name that is far too long \x07"
    rows = [{"x": x, "y": y, "group": group} for x, y in ((0, 0), (1, 0), (0, 1))]
    figure = map_of_groups(rows, embeddings.fit_ellipses(rows))
    assert texts_inside(figure) == [group[:24]]
    rows = [{**row, "group": "\x07 ክ\ud800"} for row in rows]
    assert "ክ" in svg(map_of_groups(rows, embeddings.fit_ellipses(rows)), "x")


def test_the_page_has_pictures_then_tables() -> None:
    results = contexts_results()
    content = embeddings_page(HOSTILE, results)
    page = Page(content)
    assert page.figures == {
        "have the region of their nearest neighbour": "81.0%",
        "correlation of the height of neighbours": "0.40",
        "cosine of Town 1 and Town 2": f"{1 - 2 / 99:.2f}",
    }
    assert page.charts == [
        "rating=5 against the expected context",
        *(f"Map by {column}, 75% of the variance" for column in ("region", "country", "height")),
    ]
    assert content.rindex("<svg") < content.index("<table")
    assert page.rows[1] == ["Town 1", ", ".join(f"Town {n} ({1 - n / 99:.2f})" for n in range(2, 12))]
    assert [remark for remark in page.texts["li"] if "--variable chooses rating or season" in remark]
    assert HOSTILE in page.texts["h1"][0]
    empty = [{**results["words"][0], "rows": []}]
    assert [text for text in Page(embeddings_page("a", {**results, "words": empty})).texts["li"] if "no word" in text]
    assert "<script" not in content


def test_points_of_a_map_without_groups_have_the_names_of_frequent_values() -> None:
    results = contexts_results()
    content = embeddings_page("hotels", results)
    country = content[content.index("Map by country") : content.index("Map by height")]
    names = set(re.findall(r"Town \d+", country))
    assert names == {f"Town {n}" for n in range(MAX_NAMED_VALUES)}  # those with the most texts
    assert "100.0%" not in country
    distinct = {**results["maps"][1], "agreement": {**results["maps"][1]["agreement"], "groups": 60}}
    assert "Every value has another country" in embeddings_page("hotels", {**results, "maps": [distinct]})


def test_colours_cover_the_numbers_between_percentiles() -> None:
    places = np.random.default_rng(0).normal(size=(101, 2))
    rows = [{"x": x, "y": y, "number": float(n)} for n, (x, y) in enumerate(places.tolist())]
    rows[-1]["number"] = 1e6  # an outlier must not determine the scale
    figure = map_of_numbers(rows, "mean height")
    assert set(texts_inside(figure)) == {"mean height", "2", "98"}
    drawn: Any = dots(figure)
    drawn.update_scalarmappable()
    colours = [to_hex(colour) for colour in drawn.get_facecolor()]
    assert colours[0] == colours[2] != colours[50]
    assert colours[98] == colours[100] != colours[50]
    same = [{**row, "number": 3.0} for row in rows]
    assert "3" in texts_inside(map_of_numbers(same, "stars"))
