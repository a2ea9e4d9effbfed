"""Maps match their rows, and names of values do not overlap."""

from typing import Any

import numpy as np
import pytest
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from factorcell.evaluation.explaining import embeddings
from factorcell.reports.charts import EXTRA_COLOURS, MUTED, svg
from factorcell.reports.explaining import MAX_NAMED_VALUES, embedding_map, embeddings_page
from tests.evaluation.test_embeddings import clouds, groups_of
from tests.pages import Page, texts_inside
from tests.reports.examples import HOSTILE, contexts_results

Row = dict[str, Any]


def rows_of(sizes: tuple[int, ...], distance: float = 5.0) -> list[Row]:
    """Return the map points of groups of these sizes."""
    return embeddings.map_points(clouds(sizes, distance, width=len(sizes) + 1), groups_of(sizes))


def dots(figure: Figure) -> list[PathCollection]:
    return [collection for collection in figure.axes[0].collections if isinstance(collection, PathCollection)]


def test_points_have_the_colour_of_their_group_and_single_values_are_grey() -> None:
    rows = rows_of((9, 6, 1))
    figure = embedding_map(rows, "theme")
    colours = {"g0": EXTRA_COLOURS[0], "g1": EXTRA_COLOURS[1], "g2": MUTED}
    drawn = {
        tuple(place): to_hex(np.asarray(collection.get_facecolor())[0])
        for collection in dots(figure)
        for place in np.asarray(collection.get_offsets()).tolist()
    }
    assert drawn == {(row["x"], row["y"]): colours[row["group"]] for row in rows}
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["g0", "g1"]


@pytest.mark.parametrize("distance", [0.0, 0.2, 5.0])
def test_names_of_the_most_frequent_values_are_inside_and_do_not_overlap(distance: float) -> None:
    rows = rows_of((12, 9, 7), distance)
    shown = {text for text in texts_inside(embedding_map(rows, "theme")) if text.startswith("v")}
    frequent = sorted(rows, key=lambda row: -row["count"])[:MAX_NAMED_VALUES]
    assert frequent[0]["value"] in shown <= {row["value"] for row in frequent}


def test_dollars_and_long_names_are_text() -> None:
    group = "$a$ and $b$ of a name that is far too long \x07"
    rows = [{"value": "v", "count": 1, "x": x, "y": y, "group": group} for x, y in ((0, 0), (1, 0), (0, 1))]
    assert f"{group[:27]}…" in texts_inside(embedding_map(rows, "theme"))
    rows = [{**row, "group": "\x07 ክ\ud800"} for row in rows]
    assert "ክ" in svg(embedding_map(rows, "theme"), "x")


def test_the_page_has_pictures_then_tables() -> None:
    results = contexts_results()
    content = embeddings_page(HOSTILE, results)
    page = Page(content)
    assert page.charts == [
        "rating=5 against the expected context",
        *(f"Map by {column}, 75% of the variance" for column in ("region", "height")),
    ]
    assert content.rindex("<svg") < content.index("<table")
    assert page.rows[1] == ["Town 1", ", ".join(f"Town {n} ({1 - n / 99:.2f})" for n in range(2, 12))]
    assert HOSTILE in page.texts["h1"][0]
    empty = [{**results["words"][0], "rows": []}]
    assert [text for text in Page(embeddings_page("a", {**results, "words": empty})).texts["li"] if "no word" in text]
    assert "<script" not in content


def test_colours_cover_the_numbers_between_percentiles() -> None:
    places = np.random.default_rng(0).normal(size=(101, 2))
    rows = [
        {"value": f"v{n}", "count": 1, "x": x, "y": y, "number": float(n)} for n, (x, y) in enumerate(places.tolist())
    ]
    rows[-1]["number"] = 1e6  # an outlier must not determine the scale
    figure = embedding_map(rows, "height")
    assert {text for text in texts_inside(figure) if not text.startswith("v")} == {"mean height", "2", "98"}
    (drawn,) = dots(figure)
    drawn.update_scalarmappable()
    colours = [to_hex(colour) for colour in np.asarray(drawn.get_facecolor())]
    assert colours[0] == colours[2] != colours[50]
    assert colours[98] == colours[100] != colours[50]
    same = [{**row, "number": 3.0} for row in rows]
    assert "3" in texts_inside(embedding_map(same, "stars"))
