"""The summary of a replay as a table for the terminal and as one page."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from factorcell.bootstrap import Interval
from factorcell.reports import charts, elements
from factorcell.reports.charts import INK, MUTED, RULE, WIDTH, Row, colours, legend, titled

NAMES = {
    "mrr": "MRR",
    "success_1": "success at 1",
    "success_10": "success at 10",
    "partial_mrr": "partial MRR",
    "saved": "characters saved",
    "perplexity": "perplexity",
}
FORMS = {
    "mrr": ".3f",
    "success_1": ".1%",
    "success_10": ".1%",
    "partial_mrr": ".3f",
    "saved": ".2f",
    "perplexity": ".2f",
}
SPLITS = {
    "prefix": "By whether a training text begins with the prefix",
    "prefix_length": "By characters of the prefix",
    "query_length": "By characters of the query",
    "queries_seen": "By queries seen of the user before",
}
HOW = (
    "MRR is the mean of one over the rank of the query among ten suggestions, 0 where it is not among them. Success at "
    "1 and at 10 is how often it comes first, and how often it is there. Partial MRR goes by the first suggestion "
    "that is the query or its first words. Characters saved are those that need not be typed if that suggestion is "
    "taken at this prefix. Perplexity is that of the characters of whole queries, before they are learned. Intervals "
    "hold the middle 95 % of {draws:,} draws of users with replacement; those of differences are paired. Figures in "
    "bold are better than those of all other systems by more than that."
)


def table(summary: Row) -> tuple[list[dict[str, str]], list[str]]:
    """A row of text for every system, and the names of its columns: all figures, and the MRR's gain over the base."""
    rows = []
    for row in _rows(summary, "all", "queries"):
        cells = {NAMES[figure]: _plain(row, figure) for figure in NAMES}
        cells[f"MRR above {summary['base']}"] = _above(row) or "-"
        times = next(one for one in summary["milliseconds"] if one["system"] == row["system"])
        cells["ms"] = f"{times['suggest']:.1f} + {times['learn']:.1f}"
        rows.append({"system": row["system"], **cells})
    return rows, list(rows[0])


def page(name: str, summary: Row) -> str:
    """The page of the replay called `name`."""
    sections = [
        ("How well they complete", _figures(summary)),
        ("What it depends on", _depends(summary)),
    ]
    splits = [by for by in SPLITS if _rows(summary, by, "queries")]
    sections.append(("All figures", "".join(_split(summary, by) for by in splits)))
    sections.append(("How it was measured", f"<p>{elements.escaped(HOW.format(**summary))}</p>"))
    lead = (
        f"{summary['queries']:,} queries of {summary['users']:,} users, in order of time: each was completed from a "
        "prefix drawn at random, judged, then learned."
    )
    return elements.document(f"Completing {name}", sections, kicker="factorcell replay", lead=lead)


def _depends(summary: Row) -> str:
    """The charts of queries seen, where enough users have any behind them, and of prefix and query length."""
    rows = [*_rows(summary, "prefix_length", "queries"), *_rows(summary, "query_length", "queries")]
    figure = mrr_by_length(rows, summary["systems"])
    note = "By characters typed, and by characters of the whole query. Shades are intervals."
    lengths = elements.chart(figure, "lengths", "MRR by length of prefix and query", note)
    if not summary["curve"]:
        return lengths
    figure = improvement_by_queries_seen(summary["curve"], summary["systems"], summary["base"])
    note = (
        f"The more is seen of a person: how much higher the MRR is, each point of {summary['window']} places of the "
        "streams together. Shades are intervals; they may leave the chart where few users are left."
    )
    seen = elements.chart(figure, "improvement", "Improvement over the base system by queries seen", note)
    return f'<div class="grid">{seen}{lengths}</div>'


def _figures(summary: Row) -> str:
    """The chart and the tables of all queries, over queries and over users, and the times."""
    panels = [*_rows(summary, "all", "queries"), *_rows(summary, "prefix", "queries")]
    content = elements.chart(mrr_by_system(panels, summary["systems"]), "mrr", "MRR of the systems with intervals")
    content += f"<h3>Averaged over queries</h3>{_table(summary, 'queries')}"
    content += f"<h3>Averaged over users, who count alike</h3>{_table(summary, 'users')}"
    header = ("milliseconds", "suggest: median", "95 of 100 within", "learn: median", "95 of 100 within")
    forms = ("suggest", "suggest_95", "learn", "learn_95")
    times = [
        (charts.titled(row["system"]), *(elements.formatted(row[key], ".2f") for key in forms))
        for row in summary["milliseconds"]
    ]
    return content + elements.table(header, times)


def _table(summary: Row, over: str) -> str:
    """All figures of all queries; intervals of those that matter most (summary.json has all)."""
    rows = _rows(summary, "all", over)
    figures = [figure for figure in NAMES if any(row[figure] is not None for row in rows)]
    above = f"MRR above {charts.titled(summary['base'])}"
    cells = [
        (
            charts.titled(row["system"]),
            *(_figure(row, figure) for figure in figures),
            _above(row),
        )
        for row in rows
    ]
    best = elements.ahead(rows, figures, start=1)
    return elements.table(("system", *(NAMES[figure] for figure in figures), above), cells, best)


def _split(summary: Row, by: str) -> str:
    """MRR of the systems for every value of what was split, folded away."""
    rows = _rows(summary, by, "queries")
    values = list(dict.fromkeys(row["value"] for row in rows))
    lines = []
    for value in values:
        here = {row["system"]: row for row in rows if row["value"] == value}
        counts = next(iter(here.values()))
        shares = (_cell(here[name], "mrr", ".3f") for name in summary["systems"])
        lines.append((value, (counts["queries"], f"{counts['queries']:,}"), *shares))
    header = (by.replace("_", " "), "queries", *map(charts.titled, summary["systems"]))
    return f"<details><summary>{elements.escaped(SPLITS[by])}</summary>{elements.table(header, lines)}</details>"


def _plain(row: Row, figure: str) -> str:
    cell = _figure(row, figure)
    return "-" if cell is None else cell[1]


def _rows(summary: Row, by: str, over: str) -> list[Row]:
    return [row for row in summary["rows"] if row["by"] == by and row["over"] == over]


def _figure(row: Row, figure: str) -> tuple[float, str] | None:
    if figure in ("mrr", "perplexity"):
        return _cell(row, figure, FORMS[figure])
    return elements.formatted(row[figure], FORMS[figure])


def _cell(row: Row, figure: str, form: str) -> tuple[float, str] | None:
    return None if row.get(figure) is None else (row[figure], _with_interval(row, figure, form))


def _above(row: Row) -> str | None:
    """By how much the MRR of a system is above that of the base, with its interval."""
    found = Interval.of(row, "mrr_difference")
    return found and found.told(".3f")


def _with_interval(row: Row, figure: str, form: str = ".3f") -> str:
    """A figure and its interval: 0.309 [0.301, 0.316]; a dash where there is none."""
    if row.get(figure) is None:
        return "-"
    point, low, high = (format(row[f"{figure}{end}"], form) for end in ("", "_low", "_high"))
    return f"{point} [{low}, {high}]"


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
        axes = figure.add_axes((0.085 + 0.47 * index, 0.25, 0.435, 0.53))
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
        axes.tick_params(labelleft=index == 0)  # both have one scale
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
