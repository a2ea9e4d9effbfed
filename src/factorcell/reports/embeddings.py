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

from factorcell.escapes import escape_hidden_lines
from factorcell.reports import elements
from factorcell.reports.charts import ACCENT, CONTRAST, EXTRA_COLOURS, MUTED, RULE, WIDTH, signed_bars, styled, truncate
from factorcell.reports.wording import agreement_sentence, visible_token

Row = Mapping[str, Any]

WORDS_NOTE = (
    "Change of the adapted softmax bias of a token, in nats; it does not depend on the hidden state. The effect of the "
    "context on the recurrent layer is not included."
)
MAP_CAPTION = (
    "Embeddings on their first two principal axes, which explain {x:.0%} and {y:.0%} of the variance, coloured by a "
    "column of a table."
)
PREDICTIONS_NOTE = (
    "Gradient-boosted trees predict each column from the embedding, in five-fold cross-validation. Columns of groups "
    "have an accuracy with its standard error, next to the share of the majority class. Columns of numbers have the "
    "explained share of the variance (R²) and the correlation of prediction and number."
)
PREDICTION_FORMATS = {
    "column": "",
    "values": ",",
    "groups": ",",
    "accuracy": "",
    "majority class": ".1%",
    "r2": ".3f",
    "correlation": ".3f",
}
SCALE = LinearSegmentedColormap.from_list("scale", ["#2b5f9e", "#5b9bb5", "#b3b08c", "#e2944f", "#b8401a"])


def embeddings_page(name: str, results: Row) -> str:
    """Return the page with the results of `factorcell contexts` for the run `name`.

    `results` has these items, which are empty if they were not requested: variable (its name), values (their number),
    neighbours (rows), words (entries with context, against and rows), maps (entries with column, points, ellipses,
    agreement, shares of the variance, and dots: whether points are drawn), predictions (rows) and cautions (sentences).
    """
    sections = []
    if results["neighbours"]:
        sections.append(("Neighbours", _neighbours(results["neighbours"])))
    if results["words"]:
        sections.append(("Words that a context raises and lowers", _words(results["words"])))
    for index, entry in enumerate(results["maps"]):
        sections.append((f"Map by {entry['column']}", _map(entry, f"map-{index}")))
    if results["predictions"]:
        content = elements.note(PREDICTIONS_NOTE)
        content += elements.table(list(map(_prediction, results["predictions"])), PREDICTION_FORMATS)
        sections.append(("Other columns predicted from the embedding", content))
    values = f"{results['values']:,} values of {results['variable']}, each with an embedding learned from its texts."
    return elements.document(
        f"What {name} has learned about contexts",
        sections,
        kicker="factorcell contexts",
        lead=values if results["variable"] else "",
        cautions=results.get("cautions", ()),
    )


def _neighbours(rows: Sequence[Row]) -> str:
    """Return a table of the nearest neighbours of each value."""
    measure = "cosine" if "cosine" in rows[0] else "distance"
    near: dict[str, list[str]] = {}
    for row in rows:
        near.setdefault(row["value"], []).append(f"{row['near']} ({row[measure]:.2f})")
    lines = [{"value": value, "nearest neighbours": ", ".join(names)} for value, names in near.items()]
    text = f"Nearest neighbours first; in parentheses the {measure} of the embeddings."
    return elements.note(text) + elements.table(lines, ("value", "nearest neighbours"))


def _words(entries: Sequence[Row]) -> str:
    charts = []
    for index, entry in enumerate(entries):
        title = f"{entry['context']} against {entry['against']}"
        figure = boosted_words(entry["rows"], title)
        charts.append(elements.chart(figure, f"words-{index}", f"Words that are raised and lowered: {title}"))
    return elements.note(WORDS_NOTE) + elements.grid(*charts)


def _map(entry: Row, name: str) -> str:
    """Return the map by one column, a sentence on the agreement of neighbours, and a collapsible table of groups."""
    column, ellipses = str(entry["column"]), entry["ellipses"]
    caption = MAP_CAPTION.format(x=entry["shares"][0], y=entry["shares"][1])
    if ellipses is None:
        figure = map_of_numbers(entry["points"], f"mean {column}")
    else:
        figure = map_of_groups(entry["points"], ellipses, dots=entry["dots"])
        caption += " Each ellipse covers 1.5 standard deviations around the centre of its group."
    content = elements.chart(figure, name, f"Map of the embeddings by {column}", caption)
    content += f"\n<p>{elements.escape(agreement_sentence(entry['agreement']))}</p>"
    if ellipses:
        columns = {"group": "", "count": ",", "x": ".2f", "y": ".2f"}
        content += elements.collapsible("The largest groups", elements.table(ellipses, columns))
    return content


def _prediction(row: Row) -> Row:
    if "accuracy" not in row:
        return row
    error = row["deviation"] / math.sqrt(row["folds"])
    return {**row, "accuracy": f"{row['accuracy']:.1%} ± {error:.1%}", "majority class": row["majority"]}


def boosted_words(rows: Sequence[Row], title: str) -> Figure:
    """Draw by how many nats a context raises or lowers the softmax bias of each token (TACL 2018, table 5).

    Each row has a token and its nats.
    """
    nats = [float(row["nats"]) for row in rows]
    names = [truncate(visible_token(str(row["token"])), 14) for row in rows]
    return signed_bars(names, nats, [ACCENT if value >= 0 else CONTRAST for value in nats], "+.2f", title)


@styled()
def map_of_groups(points: Sequence[Row], ellipses: Sequence[Row], *, dots: bool = False) -> Figure:
    """Draw an ellipse and a name for every group of embeddings (TACL 2018, figure 6), with `dots` also all points.

    Each point has x, y and group. Each ellipse has group, x and y of its centre, wide and high (the half axes), and the
    angle in degrees. Points of groups without an ellipse are grey.
    """
    figure, axes = _empty_map()
    colours = dict(zip((row["group"] for row in ellipses), itertools.cycle(EXTRA_COLOURS), strict=False))
    if dots or not ellipses:
        points = sorted(points, key=lambda row: row["group"] in colours)  # grey points are drawn below the others
        axes.scatter(
            [row["x"] for row in points],
            [row["y"] for row in points],
            [11 if row["group"] in colours else 4 for row in points],
            [colours.get(row["group"], MUTED) for row in points],
            alpha=0.45,
            lw=0,
        )
    for index, row in enumerate(ellipses):
        shape, colour = ((row["x"], row["y"]), 2 * row["wide"], 2 * row["high"]), colours[row["group"]]
        style = "-" if index < len(EXTRA_COLOURS) else "--"  # distinguishes ellipses of the same colour
        axes.add_patch(Ellipse(*shape, angle=row["angle"], facecolor=colour, alpha=0.1, lw=0))
        axes.add_patch(Ellipse(*shape, angle=row["angle"], fill=False, edgecolor=colour, lw=1.4, ls=style))
    figure.set_layout_engine("none")  # names are placed in the final layout
    axes.set_position((0.02, 0.02, 0.96, 0.96))
    axes.autoscale_view()
    axes.apply_aspect()
    axes.autoscale(False)
    _add_names(axes, ellipses, colours)
    return figure


@styled()
def map_of_numbers(points: Sequence[Row], title: str) -> Figure:
    """Draw all embeddings as points coloured by a number (thesis 2018, figure 4.7), with a colour bar named `title`.

    Each point has x, y and number. The colours cover the 2nd to the 98th percentile, so that outliers do not determine
    them.
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
    return figure


def _empty_map() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, 0.9 * WIDTH))
    axes = figure.subplots()
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.06)
    axes.spines[:].set(visible=True, color=RULE)
    axes.set_xticks([])
    axes.set_yticks([])
    return figure, axes


def _add_names(axes: Axes, ellipses: Sequence[Row], colours: Mapping[str, str]) -> None:
    """Write the name of each group as near to its centre as possible, with a line to the centre if it is moved."""
    frame = axes.get_window_extent()
    occupied: list[Bbox] = []
    for row in ellipses:
        style: Any = {"color": colours[row["group"]], "zorder": 6}
        name = axes.text(row["x"], row["y"], escape_hidden_lines(str(row["group"])[:24]), fontweight="bold", **style)
        name.set(ha="center", va="center")
        box = name.get_window_extent().padded(1)  # in pixels
        boxes = [box.translated(*move) for move in _offsets(frame, box)]
        free = [moved for moved in boxes if not any(moved.overlaps(other) for other in occupied)]
        occupied.append((free or boxes)[0])
        middle = (occupied[-1].p0 + occupied[-1].p1) / 2
        x, y = axes.transData.inverted().transform(middle)
        name.set_position((x, y))
        if math.dist(middle, axes.transData.transform((row["x"], row["y"]))) > 12:
            axes.plot([row["x"], x], [row["y"], y], lw=0.8, alpha=0.6, color=style["color"])


def _offsets(frame: Bbox, box: Bbox) -> Iterator[tuple[float, float]]:
    """Yield moves (x, y) in pixels that keep a box inside the frame, the shortest first; all moves have the same x."""
    x = min(max(0.0, frame.x0 - box.x0), frame.x1 - box.x1) if box.width < frame.width else 0.0
    yield from ((x, float(y)) for y in sorted([0.0, *np.arange(frame.y0, frame.y1 - box.height, 2) - box.y0], key=abs))
