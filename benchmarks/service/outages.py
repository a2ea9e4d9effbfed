"""A store that fails while people type and accept: a full disk, a server of it that is stopped, killed, and back.

Meanwhile completions are answered, if without what was learned; accepts that are not on disk are not acknowledged; the
server says that it is not ready. Afterwards all goes on by itself, and what was acknowledged is there.
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
from benchmarks.service.processes import forked
from benchmarks.service.report import Row, quantile
from factorcell.service.engine import Service
from factorcell.service.http.server import ServerOptions
from factorcell.service.http.site import Settings
from factorcell.service.learning import ServedModel
from tests.ports import free_port
from tests.service.oracle import random_texts
from tests.service.stores.servers import Server

PEOPLE = 6
DEADLINE = 0.1  # seconds of a completion
GAP = 0.05  # seconds between two completions of a person
READY = 60.0  # seconds after which all must be well again
BLOCK = 1 << 16  # bytes by which a disk is filled
COLUMNS = {
    "store": "store",
    "outage": "what fails",
    "completed": "completions then",
    "degraded": "of these degraded",
    "late": "late",
    "complete_p99": "p99, ms",
    "not_completed": "refused",
    "acknowledged": "accepts then",
    "not_acknowledged": "refused",
    "ready": "ready then",
    "recovered": "well again, s",
    "lost_or_doubled": "lost or doubled",
}


Outage = Callable[[Server], AbstractContextManager[None]]


@dataclass
class Watched:
    """What was answered while something failed."""

    completions: list[tuple[float, str]] = field(default_factory=list)  # seconds, and what of them
    accepts: Counter[str] = field(default_factory=Counter)
    ready: Counter[int] = field(default_factory=Counter)
    counting: bool = False


def run(name: str, server: Server, model: ServedModel, folder: Path, outage: Outage, seconds: float = 8.0) -> Row:
    """Have the store of a server fail for so long; `outage` says how."""
    port = free_port()
    options = ServerOptions(model.run.folder, server.url, port=port, settings=Settings(deadline=DEADLINE))
    watched, book, over = Watched(), Book(), threading.Event()
    with ExitStack() as stack:
        stack.enter_context(forked(options, folder / f"{name}.log"))
        works = [(_accept, number) for number in range(PEOPLE)] + [(_complete, number) for number in range(PEOPLE)]
        threads = [threading.Thread(target=work, args=(port, number, book, watched, over)) for work, number in works]
        threads.append(threading.Thread(target=_ask_ready, args=(port, watched, over)))
        connection = stack.enter_context(closing(Connection(port)))
        with working(threads, over):
            time.sleep(2.0)
            with outage(server):
                time.sleep(1.0)  # until then there may be room left, or an answer on its way
                watched.counting = True
                time.sleep(seconds)
                watched.counting = False
            back = time.monotonic()
            until_answered(connection, "GET", "/readyz", seconds=READY)
            until_answered(connection, "POST", "/v1/accept", {"user": "later", "text": "a"}, seconds=READY)
            recovered = time.monotonic() - back
            time.sleep(1.0)
        service = stack.enter_context(closing(Service(model, server.open())))
        finish(port, service, book)
    taken, kinds = [seconds for seconds, _ in watched.completions], Counter(kind for _, kind in watched.completions)
    return {
        "what": "outage",
        "store": name,
        "outage": outage.__name__.replace("_", " "),
        "completed": kinds["whole"] + kinds["degraded"],
        "degraded": kinds["degraded"],
        "not_completed": len(taken) - kinds["whole"] - kinds["degraded"],
        "late": sum(duration > DEADLINE for duration in taken),
        "complete_p99": 1000 * quantile(taken, 0.99),
        "acknowledged": watched.accepts["200"],
        "not_acknowledged": watched.accepts.total() - watched.accepts["200"],
        "accepts": dict(watched.accepts),
        "ready": f"{100 * watched.ready[200] / max(1, watched.ready.total()):.0f}%",
        "readiness": dict(watched.ready),
        "recovered": round(recovered, 2),
        "accepted": book.count,
        "lost_or_doubled": len(book.faults),
        "faults": book.faults[:20],
    }


@contextmanager
def disk_full(server: Server) -> Iterator[None]:
    """There is no room for anything; a server of the store that gave up is started again once there is."""
    filler = server.folder / "filler"
    with filler.open("wb", buffering=0) as file:
        _fill(file.fileno())
        yield
    filler.unlink()
    if server.program is not None:
        server.program.start()


@contextmanager
def stopped(server: Server) -> Iterator[None]:
    """Its server gives no answer (SIGSTOP), and then goes on."""
    assert server.program is not None
    server.program.signal(signal.SIGSTOP)
    yield
    server.program.signal(signal.SIGCONT)


@contextmanager
def killed(server: Server) -> Iterator[None]:
    """Its server is gone, and is started again."""
    assert server.program is not None
    server.program.kill()
    yield
    server.program.start()


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system in memory of that size, as `64m`, for which one has to be root."""
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


def _accept(port: int, number: int, book: Book, watched: Watched, over: threading.Event) -> None:
    """One person's texts, each sent until it is acknowledged."""
    connection, user, texts = Connection(port), f"user-{number}", random_texts(number, 1000)
    for place in range(1_000_000):
        text = texts[place % len(texts)]
        body = {"user": user, "text": text, "idempotency_key": str(place)}
        answer = None
        while answer is None or answer.status != 200:
            answer = _asked(connection, "POST", "/v1/accept", body)
            if watched.counting:
                watched.accepts[_kind(answer)] += 1
            if answer is None or answer.status != 200:
                time.sleep(GAP)
        book.acknowledge(user, text, answer.json)
        if over.is_set():
            break
    connection.close()


def _complete(port: int, number: int, book: Book, watched: Watched, over: threading.Event) -> None:
    """One person's completions, beside whose own accepts."""
    connection, query = Connection(port), {"query": "a", "user": f"user-{number}"}
    while not over.is_set():
        began, counting = time.perf_counter(), watched.counting
        answer = _asked(connection, "POST", "/v1/complete", query)
        taken, kind = time.perf_counter() - began, _kind(answer)
        if answer is not None and answer.status == 200:
            kind = "degraded" if answer.json["degraded"] == "store" else "whole"
        if counting:
            watched.completions.append((taken, kind))
        time.sleep(GAP)
    connection.close()


def _ask_ready(port: int, watched: Watched, over: threading.Event) -> None:
    connection = Connection(port)
    while not over.is_set():
        counting, answer = watched.counting, _asked(connection, "GET", "/readyz")
        if counting and watched.counting:
            watched.ready[answer.status if answer else 0] += 1
        time.sleep(GAP)
    connection.close()


def _asked(connection: Connection, method: str, path: str, body: object = None) -> Answer | None:
    with suppress(ConnectionError):
        return connection.ask(method, path, body)
    return None


def _kind(answer: Answer | None) -> str:
    """The status, and of what is refused the kind of problem."""
    if answer is None:
        return "no answer"
    return str(answer.status) if answer.status == 200 else f"{answer.status} {answer.json['type'].rpartition('#')[2]}"
