"""What the service shows: tables, and with `--out` rows of JSON.

    python -m benchmarks.service typists RUN TABLE      32 people who type, then twice as many, until some are refused
    python -m benchmarks.service cost RUN TABLE         what HTTP adds to the same call in Python
    python -m benchmarks.service people RUN TABLE       64 writers of one person; 10,000 requests of 100 people
    python -m benchmarks.service replay RUN TABLE       the replay of a table through the service, rank by rank
    python -m benchmarks.service kills                  200 kills of the server with each store
    python -m benchmarks.service outages                the disk full, stores stopped and killed
    python -m benchmarks.service deletions              1,000 people and texts, and the raw bytes that are left

It starts servers of its own. RUN is a model of characters with a user column, TABLE has texts (and for `replay`
people and times), as experiments/commits.py makes them. Measure times on a quiet machine.
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
SIZES = {"sqlite": "8m", "postgresql": "192m", "redis": "24m"}  # of disks that are filled

Given = argparse.Namespace
Table = tuple[list[report.Row], Mapping[str, str]]


def typists(arguments: Given, folder: Path) -> Table:
    """People who type."""
    from benchmarks.service import typists as typing
    from benchmarks.service.processes import typed

    texts = typing.texts_of(arguments.table, 5000)
    with typed(arguments.run, f"sqlite:///{folder}/users.db", folder / "log", *arguments.serve) as (process, port):
        typing.warm(port, texts)
        load = typing.Load(
            port, arguments.people, arguments.seconds, arguments.keys, arguments.deadline_ms, arguments.given_up
        )
        return typing.doubled(load, texts, process, arguments.most), typing.COLUMNS


def cost(arguments: Given, folder: Path) -> Table:
    """What HTTP costs."""
    from benchmarks.service import cost as costs
    from benchmarks.service.processes import typed
    from benchmarks.service.typists import texts_of

    store = f"sqlite:///{folder}/users.db"
    with typed(arguments.run, store, folder / "log") as (_, port):
        return [
            costs.measure(arguments.run, store, port, texts_of(arguments.table, 5000), arguments.requests)
        ], costs.COLUMNS


def people(arguments: Given, folder: Path) -> Table:
    """Everybody as alone."""
    from benchmarks.service import people as everybody
    from benchmarks.service.processes import typed
    from benchmarks.service.typists import texts_of
    from factorcell.model.run import Run
    from factorcell.service.engine import Service
    from factorcell.service.learning import ServedModel
    from factorcell.service.stores.opening import open_store

    texts, store = everybody.plain(texts_of(arguments.table, 1_000_000)), f"sqlite:///{folder}/users.db"
    with typed(arguments.run, store, folder / "log", "--deadline-ms", "5000") as (_, port):
        service = Service(ServedModel(Run.open(arguments.run)), open_store(store))
        writers = everybody.one_person(port, service, texts[: arguments.writers])
        many = everybody.many_people(port, service, everybody.dealt(texts, arguments.people), arguments.requests)
        service.close()
    return [writers, many], everybody.COLUMNS


def replay(arguments: Given, folder: Path) -> Table:
    """The service and the library."""
    from benchmarks.service import replaying
    from benchmarks.service.processes import typed

    with typed(arguments.run, f"sqlite:///{folder}/users.db", folder / "log") as (_, port):
        return replaying.run(
            arguments.run, port, arguments.table, folder, arguments.rows_per_user, arguments.every
        ), replaying.COLUMNS


def kills(arguments: Given, folder: Path) -> Table:
    """The server killed."""
    from benchmarks.service import kills as killing
    from factorcell.service.learning import ServedModel
    from tests.service import runs
    from tests.service.stores.servers import SERVERS

    model, rows = ServedModel(runs.make_run(folder / "run")), []
    for name in arguments.stores:
        with SERVERS[name]() as server:
            rows.append(killing.run(name, server, model, folder, arguments.kills, _say))
    return rows, killing.COLUMNS


def outages(arguments: Given, folder: Path) -> Table:
    """The store out of order."""
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


def deletions(arguments: Given, folder: Path) -> Table:
    """Nothing left."""
    from benchmarks.service import deletions as deleting
    from tests.service import runs
    from tests.service.stores.servers import SERVERS

    runs.make_run(folder / "run")
    rows = []
    for name in arguments.stores:
        with SERVERS[name]() as server:
            rows.append(deleting.run(name, server, folder / "run", folder, arguments.count))
    return rows, deleting.COLUMNS


def parsed() -> Given:
    """What is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="what", required=True)

    def kind(measure: Callable[[Given, Path], Table], *, of_run: bool = False, of_stores: bool = False) -> Any:
        subparser = kinds.add_parser(measure.__name__, help=measure.__doc__)
        subparser.set_defaults(measure=measure)
        subparser.add_argument("--out", type=Path, help="JSON lines are added to this file")
        if of_run:
            subparser.add_argument("run", type=Path, help="run folder")
            subparser.add_argument("table", type=Path, help="table of texts")
        if of_stores:
            subparser.add_argument("--stores", nargs="+", choices=STORES, default=STORES)
        return subparser

    add = kind(typists, of_run=True)
    add.add_argument("--people", type=int, default=32)
    add.add_argument("--most", type=int, default=512, help="people at most, where the load is doubled (default: 512)")
    add.add_argument("--seconds", type=float, default=30.0, help="of each load")
    add.add_argument("--keys", type=float, default=5.0, help="a second, of each person")
    add.add_argument("--deadline-ms", type=int, default=100)
    add.add_argument("--given-up", action="store_true", help="a request is left when the next key comes")
    add.add_argument("--serve", nargs="*", default=[], help="more words for `factorcell serve`, after = each")
    kind(cost, of_run=True).add_argument("--requests", type=int, default=2000)
    add = kind(people, of_run=True)
    add.add_argument("--writers", type=int, default=64)
    add.add_argument("--people", type=int, default=100)
    add.add_argument("--requests", type=int, default=10_000)
    add = kind(replay, of_run=True)
    add.add_argument("--rows-per-user", type=int, default=1000)
    add.add_argument("--every", type=int, default=5)
    kind(kills, of_stores=True).add_argument("--kills", type=int, default=200)
    kind(outages, of_stores=True).add_argument("--seconds", type=float, default=8.0)
    kind(deletions, of_stores=True).add_argument("--count", type=int, default=1000)
    return parser.parse_args()


@contextmanager
def work_folder() -> Iterator[Path]:
    """A folder that the user of PostgreSQL may pass through."""
    with tempfile.TemporaryDirectory(prefix="factorcell-service-") as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


def main() -> int:
    """Measure, show, keep; 1 if anything was lost, doubled, left or somebody else's."""
    arguments = parsed()
    torch.set_num_threads(1)  # as the server: sums in other orders are other numbers
    with work_folder() as folder:
        rows, columns = arguments.measure(arguments, folder)
    report.show(rows, columns)
    report.keep(rows, arguments.out)
    faults = [fault for row in rows for fault in row.get("faults", ())]
    _say(*faults)
    return bool(faults)


def _say(*lines: str) -> None:
    for line in lines:
        print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
