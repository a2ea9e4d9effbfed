"""The page of `factorcell contexts`: what a model has learned about contexts."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from matplotlib.transforms import Bbox

from factorcell.io.escapes import escape_hidden_lines
from factorcell.reports.charts import (
    EXTRA_COLOURS,
    INK,
    MUTED,
    RULE,
    WIDTH,
    styled,
    truncate,
    word_bars,
)
from factorcell.reports.page import Chart, Page, Table, make_table
from factorcell.reports.wording import agreement_sentence

Row = Mapping[str, Any]

MAX_NAMED_VALUES = 15
WORDS_REMARK = (
    "words: each bar is the change of the adapted softmax bias of a token, in nats; the effect of the context on the "
    "recurrent layer is not included"
)
MAP_REMARK = (
    "maps: the embeddings on their first two principal axes; an ellipse covers 1.5 standard deviations around the "
    "centre of its group"
)
SCALE = LinearSegmentedColormap.from_list(
    "scale", ["#b8401a", "#e2944f", "#b3b08c", "#5b9bb5", "#2b5f9e"]
)  # low to high


def embeddings_page(name: str, results: Row) -> str:
    """Return the page with the results of `factorcell contexts` for the run `name`.

    `results` has variable (the name of the context variable), values (their number) and cautions (sentences). Its other
    items are empty if they were not requested: neighbours (rows), words (entries with context, against and rows) and
    maps (entries with column, points, ellipses, agreement and shares of the variance). If the variable was chosen
    automatically, other_variables has the names of the others.
    """
    page = Page(f"What {name} has learned about contexts", "factorcell contexts", figures=_key_figures(results))
    page.lead = f"{results['values']:,} values of {results['variable']}." if results["variable"] else ""
    page.add_findings(results.get("cautions", ()))
    titled_words = [(entry, f"{entry['context']} against {entry['against']}") for entry in results["words"]]
    words = [Chart(word_bars(entry["rows"]), title) for entry, title in titled_words if entry["rows"]]
    page.add("Words that a context raises and lowers", words)
    page.add("Maps", list(map(_map, results["maps"])))
    page.add("Neighbours", tables=[_neighbours(results["neighbours"])] if results["neighbours"] else [])
    page.remarks += [WORDS_REMARK] if words else []
    page.remarks += [
        f"{title}: no word with evidence in the training texts" for entry, title in titled_words if not entry["rows"]
    ]
    page.remarks += [MAP_REMARK] if results["maps"] else []
    if others := results.get("other_variables"):
        page.remarks.append(f"{results['variable']} has the most values; --variable chooses {' or '.join(others)}")
    return page.render()


def _key_figures(results: Row) -> list[tuple[str, str]]:
    """Return the first result of each requested kind."""
    figures = []
    for entry in results["maps"]:
        agreement = entry["agreement"]
        if _has_shared_groups(entry):
            figures.append((f"{agreement['same']:.1%}", f"have the {entry['column']} of their nearest neighbour"))
        elif "correlation" in agreement:
            figures.append((f"{agreement['correlation']:.2f}", f"correlation of the {entry['column']} of neighbours"))
    for row in results["neighbours"][:1]:
        measure = "cosine" if "cosine" in row else "distance"
        figures.append((f"{row[measure]:.2f}", f"{measure} of {row['value']} and {row['near']}"))
    return figures


def _has_shared_groups(entry: Row) -> bool:
    """Return whether the column of a map has several groups, and any of them has several values."""
    agreement = entry["agreement"]
    return 1 < int(agreement.get("groups", 0)) < int(agreement["values"])


def _neighbours(rows: Sequence[Row]) -> Table | None:
    """Return a table of the nearest neighbours of each value, the nearest first."""
    measure = "cosine" if "cosine" in rows[0] else "distance"
    title = f"nearest neighbours ({measure} of the embeddings)"
    neighbours: dict[str, list[str]] = {}  # by value
    for row in rows:
        neighbours.setdefault(row["value"], []).append(f"{row['near']} ({row[measure]:.2f})")
    lines = [{"value": value, title: ", ".join(names)} for value, names in neighbours.items()]
    return make_table(lines, ("value", title))


def _map(entry: Row) -> Chart:
    """Return the map by one column, with a sentence on the agreement of neighbours."""
    column, ellipses = str(entry["column"]), entry["ellipses"]
    if ellipses is None:  # the column has numbers instead of groups
        figure = map_of_numbers(entry["points"], f"mean {column}")
    elif _has_shared_groups(entry):
        figure = map_of_groups(entry["points"], ellipses)
    else:  # the names of values say more than one colour, or as many colours as points
        frequent = sorted(entry["points"], key=lambda row: -row["count"])[:MAX_NAMED_VALUES]
        figure = map_of_groups(entry["points"], [{**row, "group": row["value"]} for row in frequent])
    share = sum(entry["shares"])
    return Chart(figure, f"Map by {column}, {share:.0%} of the variance", agreement_sentence(entry["agreement"]))


@styled()
def map_of_groups(points: Sequence[Row], labels: Sequence[Row]) -> Figure:
    """Draw an ellipse and a name for every group of embeddings (TACL 2018, figure 6), and all points.

    Each point has x, y and group. Each label has group, x and y of its centre, and for an ellipse wide and high (its
    half axes) and the angle in degrees. Points of groups without an ellipse are grey.
    """
    figure, axes = _empty_map()
    ellipses = [row for row in labels if "wide" in row]
    colours = dict.fromkeys((row["group"] for row in labels), INK)
    colours |= zip((row["group"] for row in ellipses), itertools.cycle(EXTRA_COLOURS), strict=False)
    points = sorted(points, key=lambda row: row["group"] in colours)  # grey points are drawn below the others
    point_colours = [colours.get(row["group"], MUTED) for row in points]
    axes.scatter([row["x"] for row in points], [row["y"] for row in points], 9, point_colours, alpha=0.45, lw=0)
    for index, row in enumerate(ellipses):
        colour = colours[row["group"]]
        shape: Any = {"xy": (row["x"], row["y"]), "width": 2 * row["wide"], "height": 2 * row["high"]}
        shape["angle"] = row["angle"]
        line_style = "-" if index < len(EXTRA_COLOURS) else "--"  # distinguishes ellipses of the same colour
        axes.add_patch(Ellipse(**shape, facecolor=colour, alpha=0.1, lw=0))
        axes.add_patch(Ellipse(**shape, fill=False, edgecolor=colour, lw=1.4, ls=line_style))
    _fix_layout(figure, axes)
    _add_names(axes, labels, colours)
    return figure


@styled()
def map_of_numbers(points: Sequence[Row], title: str) -> Figure:
    """Draw all embeddings as points coloured by a number (thesis 2018, figure 4.7), with a colour bar named `title`.

    Each point has x, y and number. The scale of colours covers the 2nd to the 98th percentile of the numbers, so that
    outliers do not stretch it.
    """
    figure, axes = _empty_map()
    low, high = np.quantile([row["number"] for row in points], (0.02, 0.98)).tolist()
    marks = axes.scatter(
        [row["x"] for row in points],
        [row["y"] for row in points],
        13,
        [row["number"] for row in points],
        cmap=SCALE,
        norm=Normalize(low, high if high > low else low + 1),
        alpha=0.85,
        lw=0,
    )
    bar = figure.colorbar(marks, location="top", shrink=0.4, anchor=(1, 0), ticks=sorted({low, high}), format="{x:.3g}")
    bar.outline.set_visible(False)
    axes.set_title(title)
    if len(points) <= MAX_NAMED_VALUES:
        for row in points:
            offset: Any = {"xytext": (0, 4), "textcoords": "offset points", "ha": "center", "annotation_clip": False}
            axes.annotate(escape_hidden_lines(truncate(row["value"])), (row["x"], row["y"]), **offset)
    return figure


def _empty_map() -> tuple[Figure, Axes]:
    """Return a figure with framed axes of equal scale, without ticks."""
    figure = Figure(figsize=(WIDTH, 0.9 * WIDTH))
    axes = figure.subplots()
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.06)
    axes.spines[:].set(visible=True, color=RULE)
    axes.set_xticks([])
    axes.set_yticks([])
    return figure, axes


def _fix_layout(figure: Figure, axes: Axes) -> None:
    """Let the axes fill the figure and keep their limits, because names are placed in the final layout."""
    figure.set_layout_engine("none")
    axes.set_position((0.02, 0.02, 0.96, 0.96))
    axes.autoscale_view()
    axes.apply_aspect()
    axes.autoscale(False)


def _add_names(axes: Axes, labels: Sequence[Row], colours: Mapping[str, str]) -> None:
    """Write the name of each group near its centre, with a line between them if they are far apart."""
    frame = axes.get_window_extent()
    occupied: list[Bbox] = []
    for row in labels:
        colour = colours[row["group"]]
        text = escape_hidden_lines(str(row["group"])[:24])
        name = axes.text(row["x"], row["y"], text, fontweight="bold", color=colour, zorder=6, ha="center", va="center")
        box = name.get_window_extent().padded(1)  # in pixels
        candidates = [box.translated(*move) for move in _moves(frame, box)]  # the nearest first
        free = [candidate for candidate in candidates if not any(candidate.overlaps(other) for other in occupied)]
        chosen = free[0] if free else candidates[0]
        occupied.append(chosen)
        middle = (chosen.p0 + chosen.p1) / 2
        x, y = axes.transData.inverted().transform(middle)
        name.set_position((x, y))
        distance_in_pixels = math.dist(middle, axes.transData.transform((row["x"], row["y"])))
        if distance_in_pixels > 12:
            axes.plot([row["x"], x], [row["y"], y], lw=0.8, alpha=0.6, color=colour)


def _moves(frame: Bbox, box: Bbox) -> Iterator[tuple[float, float]]:
    """Yield moves (x, y) in pixels that keep a box inside the frame, the shortest first; all moves have the same x."""
    x = min(max(0.0, frame.x0 - box.x0), frame.x1 - box.x1) if box.width < frame.width else 0.0
    vertical_moves = [0.0, *np.arange(frame.y0, frame.y1 - box.height, 2) - box.y0]
    for y in sorted(vertical_moves, key=abs):
        yield x, float(y)
