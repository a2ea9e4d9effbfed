"""The results of `factorcell replay` as tables for the terminal."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from factorcell.bootstrap import Interval, format_ends
from factorcell.evaluation.comparison import BEST_MARK

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
GROUPS = ("prefix", "prefix_length", "queries_seen")  # groups of queries whose MRR is shown


def replay_table(summary: Row) -> tuple[list[dict[str, str]], list[str]]:
    """Return a row of text per system and the names of the columns."""
    rows = []
    for row in _rows(summary, "all"):
        latencies = next(entry for entry in summary["milliseconds"] if entry["system"] == row["system"])
        difference, change = (Interval.from_row(row, name) for name in ("mrr_difference", "perplexity_change"))
        cells = {"system": row["system"]}
        cells |= {style.title: _format_metric(row, name) for name, style in METRICS.items()}
        cells[f"MRR difference to {summary['base']}"] = difference.to_text(".3f") if difference else "-"
        cells[f"perplexity difference to {summary['base']}"] = change.to_text(".2f", 100, "%") if change else "-"
        rows.append({**cells, "ms": f"{latencies['suggest']:.1f} + {latencies['learn']:.1f}"})
    return rows, list(rows[0])


def group_table(summary: Row, by: str) -> tuple[list[dict[str, str]], list[str]]:
    """Return the MRR of every system for each group of `by`, one of `GROUPS`, and the names of the columns."""
    cells_by_group: dict[str, dict[str, str]] = {}
    for row in _rows(summary, by):
        group = {by.replace("_", " "): row["value"], "queries": f"{row['queries']:,}"}
        cells_by_group.setdefault(row["value"], group)[f"MRR of {row['system']}"] = _format_metric(row, "mrr")
    rows = list(cells_by_group.values())
    return rows, list(rows[0]) if rows else []


def _rows(summary: Row, by: str) -> list[Row]:
    """Return the rows for the groups `by`, such as "prefix_length"."""
    return [row for row in summary["rows"] if row["by"] == by]


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
