"""Charts of a replay: rows of its summary go in, a matplotlib `Figure` comes out.

Bars and bands are the intervals that the rows have. `systems` are all that were compared, so that each has one colour.
"""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from factorcell.reports.plots import INK, MUTED, RULE, WIDTH, Row, colours, legend, titled

SHORT = 14  # letters of a system's name that fit beside a chart


def mrr_by_system(rows: Sequence[Row], systems: Sequence[str]) -> Figure:
    """MRR of every system as dots with intervals, beside each other for all prefixes, seen and unseen ones.

    Rows: system, value (a panel each), mrr, mrr_low, mrr_high.
    """
    panels = list(dict.fromkeys(str(row["value"]) for row in rows))
    palette = colours(systems)
    figure = Figure(figsize=(WIDTH, 0.62 + 0.4 * len(systems)), facecolor="none")
    height = figure.get_figheight()
    right = max(float(row["mrr_high"]) for row in rows) or 1.0
    for index, panel in enumerate(panels):
        width = 0.75 / len(panels)
        axes = figure.add_axes((0.24 + index * width, 0.3 / height, width - 0.02, 1 - 0.6 / height))
        for row in rows:
            if row["value"] == panel:
                y, colour = systems.index(row["system"]), palette[row["system"]]
                axes.plot((row["mrr_low"], row["mrr_high"]), (y, y), color=colour, lw=2, alpha=0.5, zorder=2)
                axes.plot(row["mrr"], y, "o", color=colour, ms=6, zorder=3)
                axes.text(row["mrr"], y - 0.2, f"{row['mrr']:.3f}", ha="center", va="bottom", fontsize=7.5, color=INK)
        _dress(axes, "x")
        axes.set_xlim(-0.09 * right, 1.12 * right)
        axes.set_ylim(len(systems) - 0.6, -0.75)
        names = [titled(name)[:SHORT] for name in systems]
        axes.set_yticks(range(len(systems)), names if index == 0 else [""] * len(systems), color=INK)
        axes.xaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 5, 10]))
        axes.set_title("all prefixes" if panel == "all" else panel, loc="left", fontsize=9, color=MUTED, pad=5)
    return figure


def improvement_by_queries_seen(rows: Sequence[Row], systems: Sequence[str], base: str) -> Figure:
    """How much higher the MRR is than that of `base`, over the queries seen of a user (thesis, figure 5.2).

    Rows: system, queries_seen, improvement (0.05 for 5 %), improvement_low, improvement_high.
    """
    palette = {name: colour for name, colour in colours(systems).items() if name != base}
    figure = Figure(figsize=(WIDTH, 3.2), facecolor="none")
    axes = figure.add_axes((0.115, 0.14, 0.86, 0.68))
    for name, colour in palette.items():
        _line(axes, [row for row in rows if row["system"] == name], "queries_seen", "improvement", colour)
    _dress(axes, "y")
    axes.axhline(0, color=MUTED, lw=0.8)
    values = [float(row["improvement"]) for row in rows]
    low, high = min(0.0, *values), max(0.0, *values)
    room = 0.35 * (high - low) or 0.05
    axes.set_ylim(low - room, high + room)  # bands may go over the edge: few users are behind the last points
    axes.set_xlim(0, max(float(row["queries_seen"]) for row in rows) or 1.0)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=None, symbol=" %"))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=True))
    axes.set_xlabel("queries seen of a user")
    axes.set_title(f"MRR above that of {titled(base)}", loc="left", fontsize=9, color=MUTED, pad=6)
    _legend(figure, palette)
    return figure


def mrr_by_length(rows: Sequence[Row], systems: Sequence[str]) -> Figure:
    """MRR over the length of what is typed and of the whole query (thesis, figure 5.3), a panel each.

    Rows: system, by (prefix_length or query_length), value (a range), mrr, mrr_low, mrr_high.
    """
    palette = colours(systems)
    figure = Figure(figsize=(WIDTH, 2.9), facecolor="none")
    highest = max(float(row["mrr"]) for row in rows) or 1.0
    top = 1.05 * min(1.6 * highest, max(float(row["mrr_high"]) for row in rows))  # of few queries bands are wide
    for index, by in enumerate(("prefix_length", "query_length")):
        axes = figure.add_axes((0.085 + 0.48 * index, 0.25, 0.42, 0.53))
        here = [row for row in rows if row["by"] == by]
        values = list(dict.fromkeys(str(row["value"]) for row in here))
        for name, colour in palette.items():
            line = [{**row, "place": values.index(row["value"])} for row in here if row["system"] == name]
            _line(axes, line, "place", "mrr", colour, marker="o")
        _dress(axes, "y")
        axes.set_ylim(0, max(top, 1.05 * highest))
        axes.set_xlim(-0.4, len(values) - 0.6)
        axes.set_xticks(range(len(values)), values, rotation=45, ha="right", rotation_mode="anchor", fontsize=7)
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
        title = ("MRR by " if index == 0 else "by ") + by.replace("_", " ")
        axes.set_title(title, loc="left", fontsize=9, color=MUTED, pad=5)
        axes.set_xlabel("characters")
    _legend(figure, palette)
    return figure


def _line(axes: Axes, rows: Sequence[Row], x: str, y: str, colour: str, **look: Any) -> None:
    """A line of the rows with its band."""
    places = [float(row[x]) for row in rows]
    axes.fill_between(
        places, [row[f"{y}_low"] for row in rows], [row[f"{y}_high"] for row in rows], color=colour, alpha=0.13, lw=0
    )
    axes.plot(places, [row[y] for row in rows], color=colour, lw=1.7, ms=3, zorder=3, **look)


def _dress(axes: Axes, across: str) -> None:
    """The look of the other charts; rules across the axis `across`."""
    axes.set_facecolor("none")
    axes.spines[:].set_visible(False)
    axes.spines["bottom"].set(visible=True, color=RULE)
    axes.tick_params(length=0, labelsize=8, labelcolor=MUTED, pad=4)
    axes.xaxis.label.set(color=MUTED, fontsize=9)
    axes.grid(axis="x" if across == "x" else "y", color=RULE, lw=0.7)
    axes.set_axisbelow(True)


def _legend(figure: Figure, palette: dict[str, str]) -> None:
    """The systems, above the chart."""
    lines = [Line2D([], [], color=colour, lw=2.2, label=titled(name)[:SHORT]) for name, colour in palette.items()]
    legend(figure, lines, min(4, len(lines)), top=1.0, gap=0.4, length=1.1)
