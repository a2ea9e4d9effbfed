"""Measure the service: print tables and, with `--out`, append JSON lines.

    python -m benchmarks.service typists RUN TABLE      32 users who type, doubled until requests are refused
    python -m benchmarks.service replicas RUN TABLE     the same for one and two servers behind nginx, one core each
    python -m benchmarks.service people RUN TABLE       64 writers of one user; 10,000 requests of 100 users
    python -m benchmarks.service replay RUN TABLE       the replay of a table through the service, rank by rank
    python -m benchmarks.service limits RUN TABLE       the mean reciprocal rank of searches that are cut
    python -m benchmarks.service kills                  200 kills of the server with each store
    python -m benchmarks.service outages                full disk, stores stopped and killed
    python -m benchmarks.service deletions              1,000 users and texts, searched for in the remaining bytes

The command starts its own servers. RUN is a character model with a user column, TABLE has texts (and for `replay`
users and times), as experiments/commits.py writes them. Measure times on a machine without other load.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.service import report

STORES = ("sqlite", "postgresql", "redis")
SIZES = {"sqlite": "8m", "postgresql": "192m", "redis": "24m"}  # sizes of the disks that are filled

Arguments = argparse.Namespace
Table = tuple[list[report.Row], Mapping[str, str]]


def typists(arguments: Arguments, folder: Path) -> Table:
    """Measure latency with users who type."""
    from benchmarks.service import typists as typing
    from benchmarks.service.processes import run_server

    texts = typing.texts_of(arguments.table, 5000)
    with run_server(arguments.run, f"sqlite:///{folder}/users.db", folder / "log", *arguments.serve) as (process, port):
        typing.warm(port, texts)
        load = typing.Load(
            port, arguments.people, arguments.seconds, arguments.keys, arguments.deadline_ms, arguments.given_up
        )
        return typing.measure_doubling(load, texts, {"server": [process]}, arguments.most), typing.COLUMNS


def replicas(arguments: Arguments, folder: Path) -> Table:
    """Measure one and two replicas with users who type."""
    from benchmarks.service import replicas as serving
    from benchmarks.service.typists import Load, texts_of
    from tests.service.stores.servers import SERVERS

    texts, rows = texts_of(arguments.table, 5000), []
    load = Load(0, arguments.people, arguments.seconds, arguments.keys, arguments.deadline_ms, arguments.given_up)
    for name in arguments.stores:
        with SERVERS[name]() as server:
            work = folder / name
            work.mkdir()
            rows += serving.throughput(arguments.run, server, work, load, texts, arguments.most, arguments.serve)
            _say(f"{name}: done")
    return rows, serving.COLUMNS


def people(arguments: Arguments, folder: Path) -> Table:
    """Check that concurrent users do not affect each other."""
    from benchmarks.service import people as everybody
    from benchmarks.service.processes import run_server
    from benchmarks.service.typists import texts_of
    from factorcell.runs.run import Run
    from factorcell.service.engine import Service
    from factorcell.service.learning import ServedModel
    from factorcell.service.stores.store import open_store

    texts, store = everybody.storable_texts(texts_of(arguments.table, 1_000_000)), f"sqlite:///{folder}/users.db"
    with run_server(arguments.run, store, folder / "log", "--deadline-ms", "5000") as (_, port):
        service = Service(ServedModel(Run.open(arguments.run)), open_store(store))
        writers = everybody.one_person(port, service, texts[: arguments.writers])
        many = everybody.many_people(port, service, everybody.distribute(texts, arguments.people), arguments.requests)
        service.close()
    return [writers, many], everybody.COLUMNS


def replay(arguments: Arguments, folder: Path) -> Table:
    """Compare the service with the library."""
    from benchmarks.service import replaying
    from benchmarks.service.processes import run_server

    with run_server(arguments.run, f"sqlite:///{folder}/users.db", folder / "log") as (_, port):
        return replaying.run(
            arguments.run, port, arguments.table, arguments.rows_per_user, arguments.every
        ), replaying.COLUMNS


def limits(arguments: Arguments, _folder: Path) -> Table:
    """Measure the suggestions of searches that are cut."""
    from benchmarks.service import limits as cutting

    rows = cutting.measure(arguments.run, arguments.table, arguments.rows_per_user, arguments.every)
    return list(rows), cutting.COLUMNS


def kills(arguments: Arguments, folder: Path) -> Table:
    """Kill the server repeatedly."""
    from benchmarks.service import kills as killing
    from factorcell.service.learning import ServedModel
    from tests.service import runs
    from tests.service.stores.servers import SERVERS

    model, rows = ServedModel(runs.make_run(folder / "run")), []
    for name in arguments.stores:
        with SERVERS[name]() as server:
            rows.append(killing.run(name, server, model, folder, arguments.kills, _say))
    return rows, killing.COLUMNS


def outages(arguments: Arguments, folder: Path) -> Table:
    """Let the store fail."""
    from benchmarks.service import outages as failing
    from factorcell.service.learning import ServedModel
    from tests.service import runs
    from tests.service.stores.servers import SERVERS

    model, rows = ServedModel(runs.make_run(folder / "run")), []
    for name in arguments.stores:
        with failing.small_disk(folder / name, SIZES[name]) as disk, SERVERS[name](disk) as server:
            rows.append(failing.run(name, server, model, folder, failing.disk_full, arguments.seconds))
        for outage in () if name == "sqlite" else (failing.stopped, failing.killed):
            with SERVERS[name]() as server:
                rows.append(failing.run(name, server, model, folder, outage, arguments.seconds))
        _say(f"{name}: done")
    return rows, failing.COLUMNS


def deletions(arguments: Arguments, folder: Path) -> Table:
    """Check that deleted data leaves no bytes."""
    from benchmarks.service import deletions as deleting
    from tests.service import runs
    from tests.service.stores.servers import SERVERS

    runs.make_run(folder / "run")
    rows = []
    for name in arguments.stores:
        with SERVERS[name]() as server:
            rows.append(deleting.run(name, server, folder / "run", folder, arguments.count))
    return rows, deleting.COLUMNS


def parse_arguments() -> Arguments:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="what", required=True)

    def kind(measure: Callable[[Arguments, Path], Table], *, of_run: bool = False, of_stores: bool = False) -> Any:
        subparser = kinds.add_parser(measure.__name__, help=measure.__doc__)
        subparser.set_defaults(measure=measure)
        subparser.add_argument("--out", type=Path, help="file that JSON lines are appended to")
        if of_run:
            subparser.add_argument("run", type=Path, help="run folder")
            subparser.add_argument("table", type=Path, help="table of texts")
        if of_stores:
            subparser.add_argument("--stores", nargs="+", choices=STORES, default=STORES)
        return subparser

    for measure, needs_stores in ((typists, False), (replicas, True)):
        add = kind(measure, of_run=True, of_stores=needs_stores)
        add.add_argument("--people", type=int, default=32)
        add.add_argument(
            "--most", type=int, default=512, help="maximum number of users when the load is doubled (default: 512)"
        )
        add.add_argument("--seconds", type=float, default=30.0, help="duration of each load")
        add.add_argument("--keys", type=float, default=5.0, help="keys per second and user")
        add.add_argument("--deadline-ms", type=int, default=100)
        add.add_argument("--given-up", action="store_true", help="cancel a request when the next key is pressed")
        add.add_argument(
            "--serve", nargs="*", default=[], help="more options of `factorcell serve`, each as --option=value"
        )
    add = kind(people, of_run=True)
    add.add_argument("--writers", type=int, default=64)
    add.add_argument("--people", type=int, default=100)
    add.add_argument("--requests", type=int, default=10_000)
    add = kind(replay, of_run=True)
    add.add_argument("--rows-per-user", type=int, default=1000)
    add.add_argument("--every", type=int, default=5)
    add = kind(limits, of_run=True)
    add.add_argument("--rows-per-user", type=int, default=40)
    add.add_argument("--every", type=int, default=10)
    kind(kills, of_stores=True).add_argument("--kills", type=int, default=200)
    kind(outages, of_stores=True).add_argument("--seconds", type=float, default=8.0)
    kind(deletions, of_stores=True).add_argument("--count", type=int, default=1000)
    return parser.parse_args()


@contextmanager
def work_folder() -> Iterator[Path]:
    """Create a temporary folder that the user of PostgreSQL can traverse."""
    with tempfile.TemporaryDirectory(prefix="factorcell-service-") as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


def main() -> int:
    """Measure, print and write the rows; return 1 if anything was lost, doubled, left over or shown to another user."""
    arguments = parse_arguments()
    torch.set_num_threads(1)  # like the server, because the order of summation changes results
    with work_folder() as folder:
        rows, columns = arguments.measure(arguments, folder)
    report.show(rows, columns)
    report.append(rows, arguments.out)
    faults = [fault for row in rows for fault in row.get("faults", ())]
    _say(*faults)
    return bool(faults)


def _say(*lines: str) -> None:
    for line in lines:
        print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
