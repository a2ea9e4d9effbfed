"""The verb of progressive evaluation."""

import argparse
from typing import Any

from factorcell import files
from factorcell.commands import terminal
from factorcell.commands.completion import choose_column
from factorcell.completion.replay import summary as replay_summary
from factorcell.completion.replay import systems
from factorcell.completion.replay.streams import PrefixDraw, find_seen_prefixes, read_streams, replay
from factorcell.config import UserError
from factorcell.data.tables import table_name
from factorcell.reports import replay as replay_report


def run_replay(given: argparse.Namespace) -> None:
    """`factorcell replay`."""
    names = (
        systems.available_systems(given.run) if given.compare is None else list(dict.fromkeys(given.compare.split(",")))
    )
    base = names[0] if given.base is None else given.base
    if base not in names:
        raise UserError(f"--base {base}: it must be one of --compare ({', '.join(names)})")
    own = systems.user_and_time_columns(given.run, names)
    user = choose_column(given.heldout, "--user", given.user, own[0])
    moment = choose_column(given.heldout, "--time", given.time, own[1])
    config, columns = systems.reading_config(given.run, names, user)
    streams = read_streams(
        given.heldout,
        config,
        user_column=user,
        time_column=moment,
        context_columns=columns,
        max_rows_per_user=given.rows_per_user,
        draw=PrefixDraw(given.every, given.seed),
    )
    known = None if given.train is None else find_seen_prefixes(streams, given.train, config)
    made = systems.open_systems(
        given.run,
        names,
        user_column=user,
        unknown=given.unknown,
        seconds=given.seconds,
        device=given.device,
        precision=given.precision,
    )
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "rows.jsonl"
    for _ in replay(made, streams, path, text_column=config.data.text, seen_prefixes=known, progress=True):
        pass
    rows = [row for row in files.read_rows(path) if row["system"] in made]
    summary = replay_summary.summarise(rows, base, window=given.window, seed=given.seed)
    files.write_json(given.out / "summary.json", summary)
    files.write(given.out / "report.html", replay_report.replay_page(table_name(given.heldout), summary))
    _show(summary, given)


def _show(summary: dict[str, Any], given: argparse.Namespace) -> None:
    if given.json:
        return terminal.show_json(summary["rows"])
    terminal.show(f"{summary['queries']:,} queries of {summary['users']:,} users")
    terminal.show_table(*replay_report.replay_table(summary))
    return terminal.notify(f"rows, summary and page are in {given.out}")
