"""Let a store fail while users type and accept: a full disk, or a store server that is stopped or killed.

During the outage completions are still answered, possibly without learned texts; accepts that are not on disk are not
acknowledged; the server reports that it is not ready. Afterwards everything must recover without intervention, and all
acknowledged texts must exist.
"""

import errno
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.service.client import Answer, Connection, until_answered
from benchmarks.service.people import Book, finish, working
from benchmarks.service.processes import restartable_server
from benchmarks.service.report import Row, quantile
from factorcell.service.engine import Service
from factorcell.service.http.application import Settings
from factorcell.service.http.server import ServerOptions
from factorcell.service.learning import ServedModel
from tests.ports import free_port
from tests.service.oracle import random_texts
from tests.service.stores.servers import Server

PEOPLE = 6
DEADLINE = 0.1  # of a completion, in seconds
GAP = 0.05  # seconds between two completions of a user
READY = 60.0  # maximum seconds until recovery
BLOCK = 1 << 16  # bytes per write when a disk is filled
COLUMNS = {
    "store": "store",
    "outage": "failure",
    "completed": "completions during the outage",
    "degraded": "degraded",
    "late": "late",
    "complete_p99": "p99, ms",
    "not_completed": "refused",
    "acknowledged": "accepts during the outage",
    "not_acknowledged": "refused",
    "ready": "ready during the outage",
    "recovered": "recovery, s",
    "lost_or_doubled": "lost or doubled",
}


Outage = Callable[[Server], AbstractContextManager[None]]


@dataclass
class Observations:
    """The responses during the outage."""

    completions: list[tuple[float, str]] = field(default_factory=list)  # seconds, and kind of response
    accepts: Counter[str] = field(default_factory=Counter)
    ready: Counter[int] = field(default_factory=Counter)
    counting: bool = False


def run(name: str, server: Server, model: ServedModel, folder: Path, outage: Outage, seconds: float = 8.0) -> Row:
    """Let the store of a server fail for `seconds`; `outage` is the kind of failure."""
    port = free_port()
    options = ServerOptions(model.run.folder, server.url, port=port, settings=Settings(deadline=DEADLINE))
    observations, book, over = Observations(), Book(), threading.Event()
    with ExitStack() as stack:
        stack.enter_context(restartable_server(options, folder / f"{name}.log"))
        works = [(_accept, number) for number in range(PEOPLE)] + [(_complete, number) for number in range(PEOPLE)]
        threads = [
            threading.Thread(target=work, args=(port, number, book, observations, over)) for work, number in works
        ]
        threads.append(threading.Thread(target=_ask_ready, args=(port, observations, over)))
        connection = stack.enter_context(closing(Connection(port)))
        with working(threads, over):
            time.sleep(2.0)
            with outage(server):
                time.sleep(1.0)  # let writes that still fit and pending responses finish
                observations.counting = True
                time.sleep(seconds)
                observations.counting = False
            back = time.monotonic()
            until_answered(connection, "GET", "/readyz", seconds=READY)
            until_answered(connection, "POST", "/v1/accept", {"user": "later", "text": "a"}, seconds=READY)
            recovered = time.monotonic() - back
            time.sleep(1.0)
        service = stack.enter_context(closing(Service(model, server.open())))
        finish(port, service, book)
    taken, kinds = (
        [seconds for seconds, _ in observations.completions],
        Counter(kind for _, kind in observations.completions),
    )
    return {
        "what": "outage",
        "store": name,
        "outage": outage.__name__.replace("_", " "),
        "completed": kinds["whole"] + kinds["degraded"],
        "degraded": kinds["degraded"],
        "not_completed": len(taken) - kinds["whole"] - kinds["degraded"],
        "late": sum(duration > DEADLINE for duration in taken),
        "complete_p99": 1000 * quantile(taken, 0.99),
        "acknowledged": observations.accepts["200"],
        "not_acknowledged": observations.accepts.total() - observations.accepts["200"],
        "accepts": dict(observations.accepts),
        "ready": f"{100 * observations.ready[200] / max(1, observations.ready.total()):.0f}%",
        "readiness": dict(observations.ready),
        "recovered": round(recovered, 2),
        "accepted": book.count,
        "lost_or_doubled": len(book.faults),
        "faults": book.faults[:20],
    }


@contextmanager
def disk_full(server: Server) -> Iterator[None]:
    """Fill the disk; afterwards restart the store server if it gave up."""
    filler = server.folder / "filler"
    with filler.open("wb", buffering=0) as file:
        _fill(file.fileno())
        yield
    filler.unlink()
    if server.program is not None:
        server.program.start()


@contextmanager
def stopped(server: Server) -> Iterator[None]:
    """Stop the store server with SIGSTOP, and then continue it."""
    assert server.program is not None
    server.program.signal(signal.SIGSTOP)
    yield
    server.program.signal(signal.SIGCONT)


@contextmanager
def killed(server: Server) -> Iterator[None]:
    """Kill the store server, and then restart it."""
    assert server.program is not None
    server.program.kill()
    yield
    server.program.start()


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mount a file system in memory of that size, such as `64m`; requires root."""
    folder.mkdir()
    folder.chmod(0o755)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def _fill(file: int) -> None:
    """Write until nothing more fits, in ever smaller pieces."""
    size = BLOCK
    while size:
        try:
            os.write(file, b"\0" * size)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            size //= 2


def _accept(port: int, number: int, book: Book, observations: Observations, over: threading.Event) -> None:
    """Send the texts of one user, each until it is acknowledged."""
    connection, user, texts = Connection(port), f"user-{number}", random_texts(number, 1000)
    for place in range(1_000_000):
        text = texts[place % len(texts)]
        body = {"user": user, "text": text, "idempotency_key": str(place)}
        answer = None
        while answer is None or answer.status != 200:
            answer = _try_request(connection, "POST", "/v1/accept", body)
            if observations.counting:
                observations.accepts[_kind(answer)] += 1
            if answer is None or answer.status != 200:
                time.sleep(GAP)
        book.acknowledge(user, text, answer.json)
        if over.is_set():
            break
    connection.close()


def _complete(port: int, number: int, book: Book, observations: Observations, over: threading.Event) -> None:
    """Send completions of one user, concurrently with the accepts of that user."""
    connection, query = Connection(port), {"query": "a", "user": f"user-{number}"}
    while not over.is_set():
        began, counting = time.perf_counter(), observations.counting
        answer = _try_request(connection, "POST", "/v1/complete", query)
        taken, kind = time.perf_counter() - began, _kind(answer)
        if answer is not None and answer.status == 200:
            kind = "degraded" if answer.json["degraded"] == "store" else "whole"
        if counting and observations.counting:  # otherwise the store may have returned before the answer
            observations.completions.append((taken, kind))
        time.sleep(GAP)
    connection.close()


def _ask_ready(port: int, observations: Observations, over: threading.Event) -> None:
    connection = Connection(port)
    while not over.is_set():
        counting, answer = observations.counting, _try_request(connection, "GET", "/readyz")
        if counting and observations.counting:
            observations.ready[answer.status if answer else 0] += 1
        time.sleep(GAP)
    connection.close()


def _try_request(connection: Connection, method: str, path: str, body: object = None) -> Answer | None:
    with suppress(ConnectionError):
        return connection.ask(method, path, body)
    return None


def _kind(answer: Answer | None) -> str:
    """Return the status, with the kind of problem for refused requests."""
    if answer is None:
        return "no answer"
    return str(answer.status) if answer.status == 200 else f"{answer.status} {answer.json['type'].rpartition('#')[2]}"
