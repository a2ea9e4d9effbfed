"""The command `replay`, which evaluates completion systems on a log of texts."""

import argparse
from functools import partial
from typing import Any

from factorcell.commands.cli import terminal
from factorcell.commands.completion import choose_column, choose_time_column
from factorcell.completion.replay import summary as replay_summary
from factorcell.completion.replay import systems
from factorcell.completion.replay.streams import PrefixDraw, estimate_seconds, find_seen_prefixes, read_streams, replay
from factorcell.errors import UserError
from factorcell.evaluation.diagnostics import report_run
from factorcell.io import files
from factorcell.reports import replay as replay_report
from factorcell.runs.run import Run


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
    terminal.show_table(*replay_report.replay_table(summary))
    for rows, columns in (replay_report.group_table(summary, by) for by in replay_report.GROUPS):
        if rows:
            terminal.show("")
            terminal.show_table(rows, columns)
    return terminal.notify(f"rows.jsonl and summary.json are in {arguments.out}")
