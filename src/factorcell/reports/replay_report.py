"""The summary of a replay as a table for the terminal and as one page."""

import html
from collections.abc import Mapping
from typing import Any

from factorcell.reports import plots, replay_charts, report

Row = Mapping[str, Any]

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
    "hold the middle 95 % of {draws:,} draws of users with replacement; those of differences are paired."
)


def table(summary: Row) -> tuple[list[dict[str, str]], list[str]]:
    """A row of text for every system, and the names of its columns: all figures, and the MRR's gain over the base."""
    rows = []
    for row in _rows(summary, "all", "queries"):
        cells = {NAMES[figure]: _plain(row, figure) for figure in NAMES}
        cells[f"MRR above {summary['base']}"] = _with_interval(row, "mrr_difference", "+.3f")
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
    sections.append(("How it was measured", f"<p>{html.escape(HOW.format(**summary))}</p>"))
    lead = (
        f"{summary['queries']:,} queries of {summary['users']:,} users, in order of time: each was completed from a "
        "prefix drawn at random, judged, then learned."
    )
    return report.page(f"Completing {name}", sections, kicker="factorcell replay", lead=lead)


def _depends(summary: Row) -> str:
    """The charts of queries seen, where enough users have any behind them, and of prefix and query length."""
    rows = [*_rows(summary, "prefix_length", "queries"), *_rows(summary, "query_length", "queries")]
    figure = replay_charts.mrr_by_length(rows, summary["systems"])
    note = "By characters typed, and by characters of the whole query. Shades are intervals."
    lengths = report.chart(figure, "lengths", "MRR by length of prefix and query", note)
    if not summary["curve"]:
        return lengths
    figure = replay_charts.improvement_by_queries_seen(summary["curve"], summary["systems"], summary["base"])
    note = (
        f"The more is seen of a person: how much higher the MRR is, each point of {summary['window']} places of the "
        "streams together. Shades are intervals; they may leave the chart where few users are left."
    )
    seen = report.chart(figure, "improvement", "Improvement over the base system by queries seen", note)
    return f'<div class="grid">{seen}{lengths}</div>'


def _figures(summary: Row) -> str:
    """The chart and the tables of all queries, over queries and over users, and the times."""
    panels = [*_rows(summary, "all", "queries"), *_rows(summary, "prefix", "queries")]
    content = report.chart(
        replay_charts.mrr_by_system(panels, summary["systems"]), "mrr", "MRR of the systems with intervals"
    )
    content += f"<h3>Averaged over queries</h3>{_table(summary, 'queries')}"
    content += f"<h3>Averaged over users, who count alike</h3>{_table(summary, 'users')}"
    header = ("milliseconds", "suggest: median", "95 of 100 within", "learn: median", "95 of 100 within")
    forms = ("suggest", "suggest_95", "learn", "learn_95")
    times = [
        (plots.titled(row["system"]), *(report.shown(row[key], ".2f") for key in forms))
        for row in summary["milliseconds"]
    ]
    return content + report.table(header, times)


def _table(summary: Row, over: str) -> str:
    """All figures of all queries; intervals of those that matter most (summary.json has all)."""
    rows = _rows(summary, "all", over)
    figures = [figure for figure in NAMES if any(row[figure] is not None for row in rows)]
    above = f"MRR above {plots.titled(summary['base'])}"
    cells = [
        (
            plots.titled(row["system"]),
            *(_figure(row, figure) for figure in figures),
            _cell(row, "mrr_difference", "+.3f"),
        )
        for row in rows
    ]
    best = {1 + figures.index(figure): figure != "perplexity" for figure in figures}
    return report.table(("system", *(NAMES[figure] for figure in figures), above), cells, best)


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
    header = (by.replace("_", " "), "queries", *map(plots.titled, summary["systems"]))
    return f"<details><summary>{html.escape(SPLITS[by])}</summary>{report.table(header, lines)}</details>"


def _plain(row: Row, figure: str) -> str:
    cell = _figure(row, figure)
    return "-" if cell is None else cell[1]


def _rows(summary: Row, by: str, over: str) -> list[Row]:
    return [row for row in summary["rows"] if row["by"] == by and row["over"] == over]


def _figure(row: Row, figure: str) -> tuple[float, str] | None:
    if figure in ("mrr", "perplexity"):
        return _cell(row, figure, FORMS[figure])
    return report.shown(row[figure], FORMS[figure])


def _cell(row: Row, figure: str, form: str) -> tuple[float, str] | None:
    return None if row.get(figure) is None else (row[figure], _with_interval(row, figure, form))


def _with_interval(row: Row, figure: str, form: str = ".3f") -> str:
    """A figure and its interval: 0.309 [0.301, 0.316]; a dash where there is none."""
    if row.get(figure) is None:
        return "-"
    point, low, high = (format(row[f"{figure}{end}"], form) for end in ("", "_low", "_high"))
    return f"{point} [{low}, {high}]"
