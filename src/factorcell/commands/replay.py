"""The command `replay`, which evaluates completion systems on a log of texts."""

import argparse
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from factorcell.bootstrap import Interval, format_ends
from factorcell.commands.cli import terminal
from factorcell.commands.completion import choose_column, choose_time_column
from factorcell.completion.replay import summary as replay_summary
from factorcell.completion.replay import systems
from factorcell.completion.replay.streams import PrefixDraw, estimate_seconds, find_seen_prefixes, read_streams, replay
from factorcell.errors import UserError
from factorcell.evaluation.diagnostics import report_run
from factorcell.io import files
from factorcell.runs.run import Run
from factorcell.runs.saved_results import BEST_MARK

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


def run_replay(arguments: argparse.Namespace) -> None:
    """Run `factorcell replay`."""
    if not files.is_new(arguments.out):
        raise files.folder_exists_error(arguments.out)
    if arguments.compare is None:
        items = systems.available_systems(arguments.run)
    else:
        items = list(dict.fromkeys(arguments.compare.split(",")))
    names = [systems.split_item(item)[0] for item in items]
    base_name = names[0] if arguments.base is None else arguments.base
    if base_name not in names:
        raise UserError(f"--base {base_name}: expected one of the systems of --compare ({', '.join(names)})")
    run_user_column, run_time_column = systems.user_and_time_columns(arguments.run, items)
    user_column = choose_column(arguments.heldout, "--user", arguments.user, run_user_column)
    time_column = choose_time_column(arguments.heldout, arguments.time, run_time_column)
    config, context_columns = systems.find_config_and_columns(arguments.run, items, user_column)
    streams = read_streams(
        arguments.heldout,
        config,
        user_column=user_column,
        time_column=time_column,
        context_columns=context_columns,
        max_rows_per_user=arguments.rows_per_user,
        draw=PrefixDraw(arguments.every, arguments.seed),
    )
    seen_prefixes = None if arguments.train is None else find_seen_prefixes(streams, arguments.train, config)
    opened_systems = systems.open_systems(
        arguments.run,
        items,
        user_column=user_column,
        unknown=arguments.unknown,
        seconds=arguments.seconds,
        open_run=partial(
            Run.open, mixture=not arguments.no_ngram_mixture, device=arguments.device, precision=arguments.precision
        ),
    )
    for run in systems.find_runs(opened_systems):
        report_run(run)
    text_column = config.data.text
    estimates = estimate_seconds(opened_systems, streams, text_column=text_column)
    minutes = ", ".join(f"{name} {seconds / 60:.1f}" for name, seconds in estimates.items())
    terminal.notify(f"estimated minutes: {minutes}; together {sum(estimates.values()) / 60:.1f}")
    files.create_new_folder(arguments.out)
    rows_path = arguments.out / "rows.jsonl"
    rows = list(replay(opened_systems, streams, rows_path, text_column=text_column, seen_prefixes=seen_prefixes))
    summary = replay_summary.summarise(rows, base_name, seed=arguments.seed)
    files.write_json(arguments.out / "summary.json", summary)
    _show(summary, arguments)


def _show(summary: dict[str, Any], arguments: argparse.Namespace) -> None:
    if arguments.json:
        return terminal.show_json(summary["rows"])
    terminal.show(f"{summary['queries']:,} queries of {summary['users']:,} users")
    terminal.show_table(*replay_table(summary))
    for rows, columns in (group_table(summary, by) for by in GROUPS):
        if rows:
            terminal.show("")
            terminal.show_table(rows, columns)
    return terminal.notify(f"rows.jsonl and summary.json are in {arguments.out}")


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
