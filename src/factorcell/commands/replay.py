"""The verb of progressive evaluation."""

import argparse
from pathlib import Path
from typing import Any

from factorcell import files
from factorcell.commands import options, terminal
from factorcell.completion.replay import summary as replay_summary
from factorcell.completion.replay import systems
from factorcell.completion.replay.streams import known_prefixes, read, replay
from factorcell.config import UserError
from factorcell.data.tables import name_of
from factorcell.reports import replay as replay_report


def add(verbs: Any) -> None:
    """Add the verb to those of the command line."""
    text = "complete what users wrote, in order of time: predict, judge, then learn; systems side by side"
    verb = options.verb(verbs, "replay", run, text)
    verb.add_argument("run", type=Path, metavar="RUN", help="a run folder, or a folder of runs as compare makes it")
    verb.add_argument("heldout", type=Path, metavar="HELDOUT", help="table of texts with columns for user and time")
    verb.add_argument(
        "--compare", required=True, metavar="NAME[,NAME...]", help="mpc, history, plain, online, blend, or runs in RUN"
    )
    verb.add_argument(
        "--out", required=True, type=Path, help="folder of rows and page; one that exists is gone on with"
    )
    verb.add_argument("--base", metavar="NAME", help="the system that others are compared to (default: the first)")
    verb.add_argument("--train", type=Path, help="table of training texts, to tell seen prefixes from unseen ones")
    verb.add_argument("--user", default="user", help="column that names the user (default: user)")
    verb.add_argument("--time", default="time", help="column of times or numbers that orders texts (default: time)")
    verb.add_argument("--rows-per-user", type=int, metavar="N", help="the first N texts of each user (default: all)")
    verb.add_argument("--every", type=int, default=1, metavar="N", help="judge about one of N texts; all are learned")
    verb.add_argument(
        "--window", type=int, default=replay_summary.WINDOW, help="places that a point of the curve joins"
    )
    verb.add_argument("--seed", type=int, default=0, help="of the prefixes and the intervals")
    verb.add_argument("--seconds", type=float, help="time after which the best completions so far will do")
    options.computing(verb)
    verb.set_defaults(again="; the same command goes on with the streams that are not done")


def run(given: argparse.Namespace) -> None:
    """`factorcell replay`."""
    names = list(dict.fromkeys(given.compare.split(",")))
    base = names[0] if given.base is None else given.base
    if base not in names:
        raise UserError(f"--base {base}: it must be one of --compare ({', '.join(names)})")
    if given.window < 1:
        raise UserError(f"the window is {given.window}; it must be at least 1")
    data, columns = systems.reading(given.run, names, given.user)
    streams = read(
        given.heldout,
        data,
        user=given.user,
        moment=given.time,
        others=columns,
        most_rows=given.rows_per_user,
        every=given.every,
        seed=given.seed,
    )
    known = None if given.train is None else known_prefixes(streams, given.train, data)
    made = systems.systems(
        given.run,
        names,
        user=given.user,
        unknown=given.unknown,
        seconds=given.seconds,
        device=given.device,
        precision=given.precision,
    )
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "rows.jsonl"
    for _ in replay(made, streams, path, text=data.text, known=known, progress=True):
        pass
    rows = [row for row in files.read_rows(path) if row["system"] in made]
    summary = replay_summary.summarise(rows, base, window=given.window, seed=given.seed)
    files.write_json(given.out / "summary.json", summary)
    files.write(given.out / "report.html", replay_report.page(name_of(given.heldout), summary).encode())
    _show(summary, given)


def _show(summary: dict[str, Any], given: argparse.Namespace) -> None:
    if given.json:
        return terminal.lines(summary["rows"])
    terminal.show(f"{summary['queries']:,} queries of {summary['users']:,} users")
    terminal.table(*replay_report.table(summary))
    return terminal.say(f"rows, summary and page are in {given.out}")
