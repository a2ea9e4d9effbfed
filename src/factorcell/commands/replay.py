"""The command `replay`, which evaluates completion systems on a log of texts."""

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from factorcell import digests, files
from factorcell.commands import terminal
from factorcell.commands.completion import choose_column, choose_time_column
from factorcell.completion.replay import summary as replay_summary
from factorcell.completion.replay import systems
from factorcell.completion.replay.streams import PrefixDraw, find_seen_prefixes, read_streams, replay
from factorcell.config import UserError
from factorcell.data.tables import table_name
from factorcell.evaluation.diagnostics import report_run
from factorcell.model.run import Run
from factorcell.reports import replay as replay_report

FORMAT = 1  # of runs.json


def run_replay(arguments: argparse.Namespace) -> None:
    """Run `factorcell replay`."""
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
    runs = systems.find_runs(opened_systems)
    for run in runs:
        report_run(run)
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows_path = arguments.out / "rows.jsonl"
    _check_unchanged(runs, _describe_systems(items, arguments), arguments.out)
    row_generator = replay(
        opened_systems, streams, rows_path, text_column=config.data.text, seen_prefixes=seen_prefixes
    )
    for _ in row_generator:  # the generator writes the rows to the file
        pass
    # The file may also have rows of other systems, which an earlier command replayed.
    rows = [row for row in files.read_rows(rows_path) if row["system"] in opened_systems]
    summary = replay_summary.summarise(rows, base_name, window=arguments.window, seed=arguments.seed)
    files.write_json(arguments.out / "summary.json", summary)
    files.write(arguments.out / "report.html", replay_report.replay_page(table_name(arguments.heldout), summary))
    _show(summary, arguments)


def _describe_systems(items: Sequence[str], arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the run folder of each system, and the options that its rows depend on."""
    folders = systems.select_folders(arguments.run, items)
    train = None if arguments.train is None else str(arguments.train.resolve())
    model_options = {
        "seconds": arguments.seconds,
        "unknown": arguments.unknown,
        "precision": arguments.precision,
        "no_ngram_mixture": arguments.no_ngram_mixture,
    }
    descriptions = {}
    for name, _ in map(systems.split_item, items):
        run = str(folders[name].resolve()) if name in folders else None
        options = {} if name in systems.SYSTEMS_WITHOUT_MODEL else model_options
        descriptions[name] = {"run": run, "train": train, **options}
    return descriptions


def _check_unchanged(runs: Sequence[Run], descriptions: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
    """Raise a `UserError` if a system or the files of a run differ from an earlier replay into the same folder.

    The `descriptions` are the run folder and the options of each system.
    """
    record, rows_path = folder / "runs.json", folder / "rows.jsonl"
    earlier = files.read_versioned(record, FORMAT) if record.exists() else {"digests": {}, "systems": {}}
    manifests = {str(run.folder.resolve()): run.folder / digests.FILE for run in runs}
    current = {name: digests.sha256_of(path.read_bytes()) for name, path in manifests.items() if path.exists()}
    for name, digest in current.items():
        if earlier["digests"].get(name, digest) != digest:
            change = "has changed since the rows were written, for example by tune-online"
            raise UserError(f"{rows_path}: {name} {change}; choose another folder")
    for name, description in descriptions.items():
        earlier_description = earlier["systems"].get(name, description)
        for entry, value in description.items():
            expected = earlier_description[entry]
            if expected != value:
                fault = f"system {name}: expected {entry} {expected!r} as in the earlier replay, got {value!r}"
                raise UserError(f"{rows_path}: {fault}; choose another folder")
    content = {"digests": earlier["digests"] | current, "systems": {**earlier["systems"], **descriptions}}
    files.write_versioned(record, content, FORMAT)


def _show(summary: dict[str, Any], arguments: argparse.Namespace) -> None:
    if arguments.json:
        return terminal.show_json(summary["rows"])
    terminal.show(f"{summary['queries']:,} queries of {summary['users']:,} users")
    terminal.show_table(*replay_report.replay_table(summary))
    return terminal.notify(f"rows.jsonl, summary.json and report.html are in {arguments.out}")
