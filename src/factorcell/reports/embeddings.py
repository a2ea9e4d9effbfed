"""The page of `factorcell contexts`: what a model has learned about contexts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from factorcell.reports.charts import EXTRA_COLOURS, INK, MUTED, RULE, WIDTH, add_legend, styled, truncate, word_bars
from factorcell.reports.page import Chart, Page, Table, make_table

Row = Mapping[str, Any]

MAX_NAMED_VALUES = 15
WORDS_REMARK = (
    "words: each bar is the change of the adapted softmax bias of a token, in nats; the effect of the context on the "
    "recurrent layer is not included"
)
MAP_REMARK = "maps: the embeddings on their first two principal axes"
SCALE = LinearSegmentedColormap.from_list(
    "scale", ["#b8401a", "#e2944f", "#b3b08c", "#5b9bb5", "#2b5f9e"]
)  # low to high


def embeddings_page(name: str, results: Row) -> str:
    """Return the page with the results of `factorcell contexts` for the run `name`.

    `results` has variable (the name of the context variable), values (their number) and cautions (sentences). Its other
    items are empty if they were not requested: neighbours (rows), words (entries with context, against and rows) and
    maps (entries with column, points and share of the variance).
    """
    page = Page(f"What {name} has learned about contexts", "factorcell contexts")
    page.lead = f"{results['values']:,} values of {results['variable']}." if results["variable"] else ""
    page.add_findings(results["cautions"])
    words = []
    for entry in results["words"]:
        title = f"{entry['context']} against {entry['against']}"
        if entry["rows"]:
            words.append(Chart(word_bars(entry["rows"]), title))
        else:
            page.remarks.append(f"{title}: no word with evidence in the training texts")
    page.add("Words that a context raises and lowers", words)
    page.add("Maps", list(map(_map, results["maps"])))
    page.add("Neighbours", tables=[_neighbours(results["neighbours"])])
    page.remarks += [WORDS_REMARK] if words else []
    page.remarks += [MAP_REMARK] if results["maps"] else []
    return page.render()


def _neighbours(rows: Sequence[Row]) -> Table | None:
    title = "nearest neighbours (cosine of the embeddings)"
    neighbours: dict[str, list[str]] = {}  # by value
    for row in rows:
        neighbours.setdefault(row["value"], []).append(f"{row['near']} ({row['cosine']:.2f})")
    lines = [{"value": value, title: ", ".join(names)} for value, names in neighbours.items()]
    return make_table(lines, ("value", title))


def _map(entry: Row) -> Chart:
    figure = embedding_map(entry["points"], entry["column"])
    return Chart(figure, f"Map by {entry['column']}, {entry['share']:.0%} of the variance")


@styled()
def embedding_map(points: Sequence[Row], column: str) -> Figure:
    """Draw embeddings as points, coloured by groups or numbers (thesis 2018, figures 4.6 and 4.7)."""
    figure = Figure(figsize=(WIDTH, 0.9 * WIDTH))
    axes = figure.subplots()
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.06)
    axes.spines[:].set(visible=True, color=RULE)
    axes.set_xticks([])
    axes.set_yticks([])
    if "number" in points[0]:
        _draw_numbers(figure, axes, points, f"mean {column}")
    else:
        _draw_groups(figure, axes, points)
    _add_names(figure, axes, points)
    return figure


def _draw_groups(figure: Figure, axes: Axes, points: Sequence[Row]) -> None:
    counts = Counter(str(row["group"]) for row in points).most_common(len(EXTRA_COLOURS))
    colours = dict(zip([group for group, count in counts if count > 1], EXTRA_COLOURS, strict=False))
    members: dict[str, list[Row]] = {"": [], **{group: [] for group in colours}}
    for row in points:
        members[row["group"] if row["group"] in colours else ""].append(row)
    for group, rows in members.items():
        x, y = [row["x"] for row in rows], [row["y"] for row in rows]
        axes.scatter(x, y, 13, colours.get(group, MUTED), alpha=0.6, lw=0, label=truncate(group) or None)
    add_legend(figure)


def _draw_numbers(figure: Figure, axes: Axes, points: Sequence[Row], title: str) -> None:
    """Draw points with a colour bar from the 2nd to the 98th percentile, so that outliers do not stretch it."""
    numbers = [row["number"] for row in points]
    low, high = np.quantile(numbers, (0.02, 0.98)).tolist()
    norm = Normalize(low, high if high > low else low + 1)
    x, y = [row["x"] for row in points], [row["y"] for row in points]
    marks = axes.scatter(x, y, 13, numbers, cmap=SCALE, norm=norm, alpha=0.85, lw=0)
    bar = figure.colorbar(marks, location="top", shrink=0.4, anchor=(1, 0), ticks=sorted({low, high}), format="{x:.3g}")
    bar.outline.set_visible(False)
    axes.set_title(title)


def _add_names(figure: Figure, axes: Axes, points: Sequence[Row]) -> None:
    """Write the names of the most frequent values, except where they would overlap, in the final layout."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    occupied: list[Bbox] = []
    for row in sorted(points, key=lambda row: -row["count"])[:MAX_NAMED_VALUES]:
        offset: Any = {"xytext": (0, 4), "textcoords": "offset points", "ha": "center", "color": INK}
        name = axes.annotate(truncate(row["value"], 24), (row["x"], row["y"]), **offset)
        box = name.get_window_extent()
        if any(box.overlaps(other) for other in occupied):
            name.remove()
        occupied.append(box)
