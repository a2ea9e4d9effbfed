"""The verb of progressive evaluation."""

import argparse
from typing import Any

from factorcell import files
from factorcell.commands import terminal
from factorcell.commands.completion import column_of
from factorcell.completion.replay import summary as replay_summary
from factorcell.completion.replay import systems
from factorcell.completion.replay.streams import PrefixDraw, known_prefixes, read, replay
from factorcell.config import UserError
from factorcell.data.tables import name_of
from factorcell.reports import replay as replay_report


def run_replay(given: argparse.Namespace) -> None:
    """`factorcell replay`."""
    names = systems.fitting(given.run) if given.compare is None else list(dict.fromkeys(given.compare.split(",")))
    base = names[0] if given.base is None else given.base
    if base not in names:
        raise UserError(f"--base {base}: it must be one of --compare ({', '.join(names)})")
    own = systems.who_and_when(given.run, names)
    user = column_of(given.heldout, "--user", given.user, own[0])
    moment = column_of(given.heldout, "--time", given.time, own[1])
    config, columns = systems.reading(given.run, names, user)
    streams = read(
        given.heldout,
        config,
        user=user,
        moment=moment,
        others=columns,
        most_rows=given.rows_per_user,
        draw=PrefixDraw(given.every, given.seed),
    )
    known = None if given.train is None else known_prefixes(streams, given.train, config)
    made = systems.systems(
        given.run,
        names,
        user=user,
        unknown=given.unknown,
        seconds=given.seconds,
        device=given.device,
        precision=given.precision,
    )
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "rows.jsonl"
    for _ in replay(made, streams, path, text=config.data.text, known=known, progress=True):
        pass
    rows = [row for row in files.read_rows(path) if row["system"] in made]
    summary = replay_summary.summarise(rows, base, window=given.window, seed=given.seed)
    files.write_json(given.out / "summary.json", summary)
    files.write(given.out / "report.html", replay_report.page(name_of(given.heldout), summary))
    _show(summary, given)


def _show(summary: dict[str, Any], given: argparse.Namespace) -> None:
    if given.json:
        return terminal.lines(summary["rows"])
    terminal.show(f"{summary['queries']:,} queries of {summary['users']:,} users")
    terminal.table(*replay_report.table(summary))
    return terminal.say(f"rows, summary and page are in {given.out}")
