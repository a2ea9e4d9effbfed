"""The results of `factorcell replay` as a table for the terminal and as a page."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from factorcell.bootstrap import Interval, format_ends
from factorcell.evaluation.comparison import BEST_MARK
from factorcell.reports import elements
from factorcell.reports.charts import (
    INK,
    MUTED,
    WIDTH,
    add_legend,
    colours,
    display_name,
    round_ticks,
    styled,
    truncate,
)

Row = Mapping[str, Any]


class MetricStyle(NamedTuple):
    """How a metric is shown: its title, its number format, and whether its interval follows."""

    title: str
    number_format: str
    has_interval: bool = False


METRICS = {  # summary.json has the intervals of all metrics
    "mrr": MetricStyle("MRR", ".3f", has_interval=True),
    "success_1": MetricStyle("success at 1", ".1%"),
    "success_10": MetricStyle("success at 10", ".1%"),
    "partial_mrr": MetricStyle("partial MRR", ".3f"),
    "saved": MetricStyle("characters saved", ".2f"),
    "perplexity": MetricStyle("perplexity", ".2f", has_interval=True),
}
SPLIT_TITLES = {
    "prefix": "By whether the prefix was seen in the training texts",
    "prefix_length": "By length of the prefix in characters",
    "query_length": "By length of the query in characters",
    "queries_seen": "By number of earlier queries of the user",
}
METHOD = (
    "MRR is the mean reciprocal rank of the query among ten suggestions (0 if it is not among them). Success at 1 is "
    "the share of queries that are the first suggestion; success at 10 is the share that are among the ten. Partial "
    "MRR is the MRR of the first suggestion that is the query or its first words; characters saved is the number of "
    "characters that need not be typed if that suggestion is accepted. The perplexity is per character of whole "
    "queries, before the system learns them; it is that of the n-gram mixture if the run predicts with one. A blend "
    "has no perplexity, because it only ranks texts. Brackets contain 95 % bootstrap intervals ({draws:,} resamples "
    "of users); with fewer than ten users there are none. Differences are paired. "
    f"{BEST_MARK}: significantly better than all other systems."
)


def replay_table(summary: Row, over: str = "queries") -> tuple[list[dict[str, str]], list[str]]:
    """Return a row of text per system and the names of the columns; metrics are averages `over` queries or users."""
    rows = []
    for row in _rows(summary, "all", over):
        latencies = next(entry for entry in summary["milliseconds"] if entry["system"] == row["system"])
        difference, change = (Interval.from_row(row, name) for name in ("mrr_difference", "perplexity_change"))
        cells = {"system": row["system"]}
        cells |= {style.title: _format_metric(row, name) for name, style in METRICS.items()}
        cells[f"MRR difference to {summary['base']}"] = difference.to_text(".3f") if difference else "-"
        cells[f"perplexity difference to {summary['base']}"] = change.to_text(".2f", 100, "%") if change else "-"
        rows.append({**cells, "ms": f"{latencies['suggest']:.1f} + {latencies['learn']:.1f}"})
    return rows, list(rows[0])


def _rows(summary: Row, by: str, over: str = "queries") -> list[Row]:
    """Return the rows for the groups `by` (such as "prefix_length"), averaged `over` queries or users."""
    return [row for row in summary["rows"] if row["by"] == by and row["over"] == over]


def _format_metric(row: Row, name: str) -> str:
    """Format a metric: 0.309* [0.301, 0.316] has the mark of the best value, and the interval of the metric."""
    if row.get(name) is None:
        return "-"
    number_format = METRICS[name].number_format
    text = format(row[name], number_format) + (BEST_MARK if name in row.get("ahead", ()) else "")
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    if not METRICS[name].has_interval or low is None or high is None:
        return text
    return f"{text} {format_ends(low, high, number_format)}"


def replay_page(name: str, summary: Row) -> str:
    """Return the page with the results of the replay of the table `name`."""
    sections = [
        ("Results", _tables(summary)),
        ("Results by prefix length, query length and history", _breakdown(summary)),
        ("All results", "".join(_split_table(summary, by) for by in SPLIT_TITLES if _rows(summary, by))),
        ("Method", f"<p>{elements.escape(METHOD.format(**summary))}</p>"),
    ]
    lead = (
        f"{summary['queries']:,} queries of {summary['users']:,} users in order of time: each query was completed from "
        "a random prefix, evaluated, and then learned."
    )
    title, figures = f"Completion of {name}", _key_figures(summary)
    return elements.document(title, sections, kicker="factorcell replay", lead=lead, figures=figures)


def _key_figures(summary: Row) -> list[tuple[str, str]]:
    """Return the main results of the system with the highest MRR."""
    rows = _rows(summary, "all")
    best = max(rows, key=lambda row: float(row["mrr"]))
    system = display_name(best["system"])
    figures = [(_format_metric(best, "mrr"), f"MRR of {system}, the highest of {len(rows)} systems")]
    if difference := Interval.from_row(best, "mrr_difference"):
        figures.append((difference.to_text(".3f"), f"MRR difference to {display_name(summary['base'])}"))
    figures.append((_format_metric(best, "success_10"), "of queries are among ten suggestions"))
    return [*figures, (_format_metric(best, "saved"), "characters saved per query")]


def _tables(summary: Row) -> str:
    """Return the chart and the tables for all queries, averaged over queries and over users, and the latencies."""
    mrr_rows = [*_rows(summary, "all"), *_rows(summary, "prefix")]
    figure = mrr_by_system(mrr_rows, summary["systems"])
    content = elements.chart(figure, "mrr", "MRR of the systems with 95 % intervals")
    for title, over in (("Averaged over queries", "queries"), ("Averaged over users", "users")):
        rows, (system, *columns, _milliseconds) = replay_table(summary, over)
        rows = [{**row, system: display_name(row[system])} for row in rows]
        differences = [name for name in columns if "difference" in name]
        metrics = [name for name in columns if name not in differences]
        content += f"<h3>{title}</h3>{elements.table(rows, [system, *metrics])}"
        content += elements.table(rows, [system, *differences])  # a single table would be wider than the page
    latencies = [{**row, "system": display_name(row["system"])} for row in summary["milliseconds"]]
    number_formats = dict.fromkeys(("suggest", "suggest_95", "learn", "learn_95"), ".2f")
    content += "<h3>Latency in milliseconds: median and 95th percentile</h3>"
    return content + elements.table(latencies, {"system": "", **number_formats})


def _breakdown(summary: Row) -> str:
    """Return charts of the MRR by length, and by the number of earlier queries if the summary has this curve."""
    rows = [*_rows(summary, "prefix_length"), *_rows(summary, "query_length")]
    caption = "By length of the prefix and of the whole query. Shaded areas are 95 % intervals."
    charts = [
        elements.chart(mrr_by_length(rows, summary["systems"]), "lengths", "MRR by length of prefix and query", caption)
    ]
    if summary["curve"]:
        figure = improvement_by_queries_seen(summary["curve"], summary["systems"], summary["base"])
        caption = (
            f"Relative difference in MRR by the number of earlier queries of the user, in windows of "
            f"{summary['window']}. Shaded areas are 95 % intervals."
        )
        alt = "Improvement over the base system by number of earlier queries"
        charts.insert(0, elements.chart(figure, "improvement", alt, caption))
    return elements.grid(*charts)


def _split_table(summary: Row, by: str) -> str:
    """Return a collapsible table of the MRR of every system for each group of `by`, a key of `SPLIT_TITLES`."""
    group_column = by.replace("_", " ")
    cells_by_group: dict[str, dict[str, Any]] = {}
    for row in _rows(summary, by):
        group = row["value"]
        cells = cells_by_group.setdefault(group, {group_column: group, "queries": f"{row['queries']:,}"})
        cells[display_name(row["system"])] = _format_metric(row, "mrr")
    columns = (group_column, "queries", *map(display_name, summary["systems"]))
    return elements.collapsible(SPLIT_TITLES[by], elements.table(list(cells_by_group.values()), columns))


@styled()
def mrr_by_system(rows: Sequence[Row], systems: Sequence[str]) -> Figure:
    """Draw the MRR of every system with its interval, in one panel for each kind of prefix.

    Each row has system, value (the kind of prefix), mrr, mrr_low and mrr_high, which may be None.
    """
    prefix_kinds = list(dict.fromkeys(str(row["value"]) for row in rows))
    figure = Figure(figsize=(WIDTH, 0.62 + 0.4 * len(systems)))
    [panels] = figure.subplots(1, len(prefix_kinds), squeeze=False, sharex=True, sharey=True)
    for axes, prefix_kind in zip(panels, prefix_kinds, strict=True):
        for system, colour in colours(systems).items():
            for row in rows:
                if (row["value"], row["system"]) == (prefix_kind, system):
                    y, mrr = systems.index(system), row["mrr"]
                    if row["mrr_low"] is not None:
                        axes.plot((row["mrr_low"], row["mrr_high"]), (y, y), color=colour, lw=2, alpha=0.5)
                    axes.plot(mrr, y, "o", color=colour)
                    axes.text(mrr, y - 0.2, f"{mrr:.3f}", ha="center", va="bottom", fontsize=7.5)
        axes.grid(axis="x")
        axes.set_title("all prefixes" if prefix_kind == "all" else prefix_kind)
    first_panel, *_ = panels  # shares its axes with the others
    first_panel.set_yticks(range(len(systems)), [truncate(display_name(system), 14) for system in systems], color=INK)
    first_panel.set_ylim(len(systems) - 0.6, -0.75)
    highest = max(float(row["mrr"] if row["mrr_high"] is None else row["mrr_high"]) for row in rows)
    first_panel.set_xlim(0, 1.12 * highest or 1.0)
    round_ticks(first_panel.xaxis, 3)
    return figure


@styled()
def improvement_by_queries_seen(rows: Sequence[Row], systems: Sequence[str], base: str) -> Figure:
    """Draw the improvement in MRR over `base` by the number of earlier queries of a user (thesis, figure 5.2).

    Each row has system, queries_seen, improvement (0.05 for 5 %), improvement_low and improvement_high.
    """
    figure = Figure(figsize=(WIDTH, 3.2))
    axes = figure.subplots()
    for system, colour in colours(systems).items():
        if system != base:
            curve = [row for row in rows if row["system"] == system]
            _draw_curve(axes, system, curve, [row["queries_seen"] for row in curve], "improvement", colour)
    axes.axhline(0, color=MUTED, lw=0.8)
    improvements = [0.0, *(float(row["improvement"]) for row in rows)]
    margin = 0.35 * (max(improvements) - min(improvements)) or 0.05
    # These limits clip the wide intervals of the last points.
    axes.set_ylim(min(improvements) - margin, max(improvements) + margin)
    round_ticks(axes.xaxis)
    axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    axes.set_xlabel("earlier queries of the user")
    axes.set_title(f"improvement in MRR over {display_name(base)}")
    add_legend(figure)
    return figure


@styled()
def mrr_by_length(rows: Sequence[Row], systems: Sequence[str]) -> Figure:
    """Draw the MRR by the length of the prefix and of the whole query (thesis, figure 5.3), in two panels.

    Each row has system, by (prefix_length or query_length), value (a range of lengths), mrr, mrr_low and mrr_high; the
    last two may be None.
    """
    figure = Figure(figsize=(WIDTH, 2.9))
    panels = figure.subplots(1, 2, sharey=True)
    for axes, by in zip(panels, ("prefix_length", "query_length"), strict=True):
        ranges = list(dict.fromkeys(str(row["value"]) for row in rows if row["by"] == by))
        for system, colour in colours(systems).items():
            curve = [row for row in rows if (row["by"], row["system"]) == (by, system)]
            _draw_curve(axes, system, curve, [ranges.index(row["value"]) for row in curve], "mrr", colour, marker="o")
        axes.set_xticks(range(len(ranges)), ranges, rotation=45, ha="right", rotation_mode="anchor", fontsize=7)
        axes.set_title(f"MRR by {by.replace('_', ' ')}")
        axes.set_xlabel("characters")
    highest = max(float(row["mrr"]) for row in rows) or 1.0
    first_panel, _ = panels  # shares its y axis with the second
    first_panel.set_ylim(0, 1.3 * highest)
    round_ticks(first_panel.yaxis)
    add_legend(figure)
    return figure


def _draw_curve(
    axes: Axes, system: str, rows: Sequence[Row], x: Sequence[float], metric: str, colour: str, **options: Any
) -> None:
    """Draw a metric of a system as a line with its intervals; `options` are passed to matplotlib."""
    # An array of floats has NaN for the ends of a missing interval, where no area is drawn.
    low, high = (np.array([row[f"{metric}_{end}"] for row in rows], dtype=np.float64) for end in ("low", "high"))
    axes.fill_between(x, low, high, color=colour, alpha=0.13, lw=0)
    axes.plot(x, [row[metric] for row in rows], color=colour, ms=3, label=truncate(display_name(system), 14), **options)
    axes.grid(axis="y")
