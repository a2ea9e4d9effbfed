"""What a model has learned about contexts as one page."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from matplotlib.text import Text

from factorcell.reports import elements
from factorcell.reports.charts import ACCENT, INK, LOSS, MUTED, OTHERS, RULE, WIDTH, Row
from factorcell.reports.wording import agreed, sign

WORDS = (
    "By how many nats the adapted softmax bias raises or lowers a token, where the hidden state says nothing. What the "
    "recurrent layer does with the context is not in it."
)
MAP = (
    "Embeddings on their first two principal axes, which hold {x:.0%} and {y:.0%} of their variance, coloured by what "
    "a table says of their values."
)


def page(name: str, found: Row) -> str:
    """The page of what was `found` in the run called `name`.

    `found`: variable, values (their number); and rows of neighbours, words (each with context, against, rows), maps
    (each with column, points, ellipses, agreement, shares, dots) and predictions, as far as they were asked for; and
    `cautions`, lines that come first.
    """
    sections = []
    if found["neighbours"]:
        sections.append(("Neighbours", _neighbours(found["neighbours"])))
    if found["words"]:
        sections.append(("Words that a context raises and lowers", _words(found["words"])))
    sections += [
        (f"The map by {entry['column']}", _map_section(entry, place)) for place, entry in enumerate(found["maps"])
    ]
    if found["predictions"]:
        sections.append(("What the embedding tells of other columns", _predictions(found["predictions"])))
    values = f"{found['values']:,} values of {found['variable']}, each an embedding learned from its texts alone."
    return elements.document(
        f"What {name} has learned about contexts",
        sections,
        kicker="factorcell contexts",
        lead=values if found["variable"] else "",
        cautions=found.get("cautions", ()),
    )


def _neighbours(rows: Sequence[Row]) -> str:
    """The nearest values of each value, in a row of their own."""
    measure = "cosine" if "cosine" in rows[0] else "distance"
    cells = []
    for value in dict.fromkeys(row["value"] for row in rows):
        near = [f"{row['near']} ({row[measure]:.2f})" for row in rows if row["value"] == value]
        cells.append((value, ", ".join(near)))
    note = f'<p class="muted">Nearest first; in brackets the {measure} of the embeddings.</p>'
    return note + elements.table(("value", "nearest values"), cells)


def _words(entries: Sequence[Row]) -> str:
    charts = []
    for place, entry in enumerate(entries):
        title = f"{entry['context']} against {entry['against']}"
        figure = boosted_words(entry["rows"], title)
        charts.append(elements.chart(figure, f"words-{place}", f"Words that are raised and lowered: {title}"))
    return f'<p class="muted">{WORDS}</p>\n<div class="grid">' + "\n".join(charts) + "</div>"


def _map_section(entry: Row, place: int) -> str:
    """The map by one column, and how far neighbours agree in it."""
    column = str(entry["column"])
    if entry["ellipses"] is None:
        figure = map_of_numbers(entry["points"], f"mean {column}")
    else:
        figure = map_of_groups(entry["points"], entry["ellipses"], dots=entry["dots"])
    note = MAP.format(x=entry["shares"][0], y=entry["shares"][1])
    if entry["ellipses"] is not None:
        note += " An ellipse reaches 1.5 deviations from the centre of its group."
    alt = f"Map of the embeddings by {column}"
    picture = elements.chart(figure, f"map-{place}", alt, elements.escaped(note))
    return f"{picture}\n<p>{elements.escaped(agreed(entry['agreement']))}</p>\n{_groups(entry)}"


def _groups(entry: Row) -> str:
    """The groups with an ellipse, folded away."""
    if not entry["ellipses"]:
        return ""
    rows = [
        (
            row["group"],
            (row["count"], f"{row['count']:,}"),
            *(elements.formatted(row[key], ".2f") for key in ("x", "y")),
        )
        for row in entry["ellipses"]
    ]
    table = elements.table((entry["column"], "values", "centre, across", "centre, up"), rows)
    return f"<details><summary>The largest groups</summary>{table}</details>"


def _predictions(rows: Sequence[Row]) -> str:
    note = (
        '<p class="muted">Gradient-boosted trees on the embedding, five-fold cross-validated: accuracy beside that of '
        "always saying the largest group, or the share of variance explained (R²).</p>"
    )
    cells = [_prediction(row) for row in rows]
    kept = [place for place in range(len(HEADER)) if any(line[place] is not None for line in cells)]
    return note + elements.table([HEADER[place] for place in kept], [[line[place] for place in kept] for line in cells])


HEADER = ("column", "values", "groups", "accuracy", "largest group", "R²", "correlation")


def _prediction(row: Row) -> tuple[Any, ...]:
    """The cells of `HEADER`; an accuracy with its standard error over the folds."""
    accuracy = None
    if "accuracy" in row:
        error = row["deviation"] / math.sqrt(row["folds"])
        accuracy = (row["accuracy"], f"{row['accuracy']:.1%} ± {error:.1%}")
    counts = (elements.formatted(row.get(key), ",.0f") for key in ("values", "groups"))
    majority, r2, correlation = (elements.formatted(row.get(key), form) for key, form in FORMS)
    return (row["column"], *counts, accuracy, majority, r2, correlation)


FORMS = (("majority", ".1%"), ("r2", ".3f"), ("correlation", ".3f"))


SCALE = LinearSegmentedColormap.from_list("scale", ["#2b5f9e", "#5b9bb5", "#b3b08c", "#e2944f", "#b8401a"])
STEPS = 40  # colours of a bar
MARGIN = 0.06  # of the range of the points, around them
GAP = 2.0  # pixels between two names
ROUNDS = 300


def map_of_groups(points: Sequence[Row], ellipses: Sequence[Row], *, dots: bool = False) -> Figure:
    """An ellipse and its name for every group (TACL 2018, figure 6); with `dots` also all points, others in grey.

    Points: x, y, group. Ellipses: group, x, y, wide, high (half axes), angle (degrees).
    """
    dots = dots or not ellipses
    figure, axes = _map(points, ellipses, dots)
    colours = {row["group"]: OTHERS[index % len(OTHERS)] for index, row in enumerate(ellipses)}
    if dots:
        order = sorted(points, key=lambda row: row["group"] in colours)  # those without an ellipse below the others
        axes.scatter(
            [row["x"] for row in order],
            [row["y"] for row in order],
            c=[colours.get(row["group"], MUTED) for row in order],
            s=[11 if row["group"] in colours else 4 for row in order],
            alpha=0.45,
            lw=0,
            zorder=2,
        )
    for index, row in enumerate(ellipses):
        shape = (row["x"], row["y"]), 2 * row["wide"], 2 * row["high"]
        colour = colours[row["group"]]
        axes.add_patch(Ellipse(*shape, angle=row["angle"], facecolor=colour, alpha=0.1, lw=0, zorder=1))
        style = "-" if index < len(OTHERS) else "--"  # where colours come again
        axes.add_patch(Ellipse(*shape, angle=row["angle"], fill=False, edgecolor=colour, lw=1.4, ls=style, zorder=3))
    _name(axes, ellipses, colours)
    return figure


def map_of_numbers(points: Sequence[Row], title: str) -> Figure:
    """All points coloured by their number (thesis 2018, figure 4.7), with a bar of colours called `title`.

    Points: x, y, number. The ends of the bar are the 2nd and 98th of 100 numbers, so that a few do not take it all.
    """
    figure, axes = _map(points, (), True, above=0.34)
    numbers = np.array([row["number"] for row in points], dtype=np.float64)
    low, high = np.quantile(numbers, (0.02, 0.98)).tolist()
    shares = np.clip((numbers - low) / ((high - low) or 1.0), 0, 1)
    axes.scatter([row["x"] for row in points], [row["y"] for row in points], c=SCALE(shares), s=13, alpha=0.85, lw=0)
    height = figure.get_figheight()
    bar = figure.add_axes((0.56, 1 - 0.2 / height, 0.3, 0.09 / height))
    bar.bar(
        range(STEPS),
        1,
        width=1.5,
        align="edge",
        color=[to_hex(SCALE(step / (STEPS - 1))) for step in range(STEPS)],
        lw=0,
    )
    bar.set_xlim(0, STEPS)
    bar.set_ylim(0, 1)
    bar.set_axis_off()
    middle = 1 - 0.155 / height
    first, last = (f"{end:.3g}".replace("-", "−") for end in (low, high))
    for x, text, side in ((0.545, first, "right"), (0.875, last, "left"), (0.025, title, "left")):
        figure.text(x, middle, text, fontsize=8.5, color=INK if text == title else MUTED, ha=side, va="center")
    return figure


def boosted_words(rows: Sequence[Row], title: str) -> Figure:
    """Tokens as bars to both sides, by how many nats a context raises or lowers them (TACL 2018, table 5).

    Rows: token, nats.
    """
    height = 0.42 + 0.185 * max(1, len(rows))
    figure = Figure(figsize=(WIDTH, height), facecolor="none")
    axes = figure.add_axes((0.26, 0.02 / height, 0.72, 1 - 0.36 / height))
    _bare(axes)
    nats = [float(row["nats"]) for row in rows]
    axes.barh(range(len(rows)), nats, height=0.68, color=[ACCENT if value >= 0 else LOSS for value in nats], zorder=2)
    reach = max(map(abs, nats), default=1.0) or 1.0
    for y, value in enumerate(nats):
        shift, side = (0.015 * reach, "left") if value >= 0 else (-0.015 * reach, "right")
        label = f"{value:+.2f}".replace("-", "−")
        axes.text(value + shift, y, label, fontsize=7.5, color=INK, va="center", ha=side)
    axes.set_yticks(range(len(rows)), [_label(str(row["token"])) for row in rows], fontsize=8.5, color=INK)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    low, high = min(nats, default=0.0), max(nats, default=0.0)
    axes.set_xlim(min(0.0, low - 0.3 * reach), max(0.0, high + 0.3 * reach))
    axes.axvline(0, color=MUTED, lw=0.8)
    axes.set_xticks([])
    figure.text(0.035, 1 - 0.16 / height, title, fontsize=9, color=MUTED, va="center")
    return figure


def _label(token: str, most: int = 14) -> str:
    """A token beside its bar; what is long is cut."""
    token = sign(token)
    return (token if len(token) <= most else token[: most - 1] + "…").replace("$", r"\$")


def _map(points: Sequence[Row], ellipses: Sequence[Row], dots: bool, above: float = 0.06) -> tuple[Figure, Axes]:
    """Empty axes of equal scale, wide enough for what is drawn, and so many inches free above them."""
    reach = [(row["x"] + side * _half(row)[0], row["y"] + side * _half(row)[1]) for row in ellipses for side in (-1, 1)]
    if dots or not reach:
        reach += [(row["x"], row["y"]) for row in points]
    low, high = np.min(reach, axis=0), np.max(reach, axis=0)
    middle, wide = (low + high) / 2, (1 + 2 * MARGIN) * np.maximum(high - low, 1e-9)
    inside = 0.95 * WIDTH
    tall = inside * float(np.clip(wide[1] / wide[0], 0.55, 1.2))
    half = max(wide[0] / inside, wide[1] / tall) / 2 * np.array([inside, tall])  # an inch is as much up as across
    height = tall + above + 0.06
    figure = Figure(figsize=(WIDTH, height), facecolor="none")
    axes = figure.add_axes((0.025, 0.06 / height, inside / WIDTH, tall / height))
    _bare(axes)
    axes.set_xlim(middle[0] - half[0], middle[0] + half[0])
    axes.set_ylim(middle[1] - half[1], middle[1] + half[1])
    axes.spines[:].set(visible=True, color=RULE)
    axes.set_xticks([])
    axes.set_yticks([])
    return figure, axes


def _half(row: Row) -> tuple[float, float]:
    """How far an ellipse reaches to the right of its centre, and above it."""
    turn = np.radians(row["angle"])
    return (
        float(np.hypot(row["wide"] * np.cos(turn), row["high"] * np.sin(turn))),
        float(np.hypot(row["wide"] * np.sin(turn), row["high"] * np.cos(turn))),
    )


def _name(axes: Axes, ellipses: Sequence[Row], colours: dict[str, str]) -> None:
    """The name of every group at its centre, moved where two would touch; a thin line then leads back."""
    names = [
        axes.text(row["x"], row["y"], str(row["group"])[:24].replace("$", r"\$"), fontsize=8.5, zorder=6)
        for row in ellipses
    ]
    for row, name in zip(ellipses, names, strict=True):
        name.set(ha="center", va="center", fontweight="bold", color=colours[row["group"]])
    moved = _apart(axes, names)
    for row, name, (x, y) in zip(ellipses, names, moved, strict=True):
        centre = axes.transData.transform((row["x"], row["y"]))
        name.set_position(tuple(axes.transData.inverted().transform((x, y))))
        if np.hypot(x - centre[0], y - centre[1]) > 12:
            end = axes.transData.inverted().transform((x, y))
            axes.plot((row["x"], end[0]), (row["y"], end[1]), color=colours[row["group"]], lw=0.8, alpha=0.6, zorder=4)
            axes.plot(row["x"], row["y"], "o", ms=2.5, color=colours[row["group"]], zorder=5)


def _apart(axes: Axes, names: Sequence[Text]) -> list[tuple[float, float]]:
    """Where the middles of the `names` come to stand (pixels) when none touches another and all are inside."""
    frame = axes.get_window_extent()
    boxes = [name.get_window_extent() for name in names]
    sizes = np.array([(box.width + GAP, box.height + GAP) for box in boxes]).reshape(-1, 2)
    middles = np.array([((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2) for box in boxes]).reshape(-1, 2)
    for _ in range(ROUNDS):
        still = True
        for one in range(len(names)):
            for other in range(one):
                between = middles[one] - middles[other]
                over = (sizes[one] + sizes[other]) / 2 - np.abs(between)
                if over.min() > 0.01:
                    push = (over[1] + 0.5) / 2 * (1 if between[1] >= 0 else -1)
                    middles[one, 1] += push
                    middles[other, 1] -= push
                    still = False
        low, high = (frame.x0, frame.y0) + sizes / 2, (frame.x1, frame.y1) - sizes / 2
        middles = np.clip(middles, low, np.maximum(low, high))
        if still:
            break
    return [(float(x), float(y)) for x, y in middles]


def _bare(axes: Axes) -> None:
    axes.set_facecolor("none")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=8.5, labelcolor=MUTED, pad=4)
