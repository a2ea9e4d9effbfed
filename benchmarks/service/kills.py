"""Kill the server under load, and its store (`kill -9`): no acknowledged text may be lost or counted twice."""

import random
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

from benchmarks.service.client import Connection, until_answered, wait_until_ready
from benchmarks.service.people import Book, accept, finish, working
from benchmarks.service.processes import restartable_server
from benchmarks.service.report import Row
from factorcell.service.engine import Service
from factorcell.service.http.application import Settings
from factorcell.service.http.server import ServerOptions
from factorcell.service.learning import ServedModel
from tests.ports import free_port
from tests.service.oracle import random_texts
from tests.service.stores.servers import Server

PEOPLE, WRITERS = 8, 2  # users, and writers of each
LIVES = 0.05, 0.5  # limits of the seconds from a ready server to its kill
STORE_EVERY = 4  # the store is also killed in one of so many rounds
COLUMNS = {
    "store": "store",
    "kills": "kills of the server",
    "store_kills": "of the store",
    "accepts": "accepts acknowledged",
    "repeated": "recognised repetitions",
    "lost_or_doubled": "lost or doubled",
    "minutes": "minutes",
}


def run(
    name: str, server: Server, model: ServedModel, folder: Path, kills: int, say: Callable[[str], None] = print
) -> Row:
    """Kill the server that serves `model` with a store `kills` times; its log is in `folder`."""
    port = free_port()
    options = ServerOptions(model.run.folder, server.url, port=port, settings=Settings(deadline=5.0))
    book, draw, over, began, store_kills = Book(), random.Random(0), threading.Event(), time.monotonic(), 0
    with ExitStack() as stack:
        program = stack.enter_context(restartable_server(options, folder / f"{name}.log"))
        writers = [
            threading.Thread(target=write_texts, args=(port, book, f"user-{number % PEOPLE}", number, over))
            for number in range(PEOPLE * WRITERS)
        ]
        connection = stack.enter_context(closing(Connection(port)))
        with working(writers, over):
            for number in range(kills):
                time.sleep(draw.uniform(*LIVES))
                with_store = server.program is not None and number % STORE_EVERY == STORE_EVERY - 1
                if with_store and server.program is not None:
                    store_kills += 1
                    if number % 2:  # only the store, while the server continues
                        server.program.kill()
                        server.program.start()
                        wait_until_ready(port)
                program.kill()
                if with_store and server.program is not None and not number % 2:
                    server.program.kill()
                    server.program.start()
                program.start()
                book.check(connection, whole=False)
                if number % 20 == 19:
                    say(f"{name}: {number + 1} kills, {book.count:,} accepts, {len(book.faults)} faults")
        service = stack.enter_context(closing(Service(model, server.open())))
        finish(port, service, book)
    return {
        "what": "kills",
        "store": name,
        "kills": kills,
        "store_kills": store_kills,
        "accepts": book.count,
        "repeated": book.repeated,
        "lost_or_doubled": len(book.faults),
        "faults": book.faults[:20],
        "minutes": round((time.monotonic() - began) / 60, 1),
    }


def write_texts(port: int, book: Book, user: str, number: int, over: threading.Event) -> None:
    """Accept texts, and complete in between, until `over` is set; the last accept is also answered."""
    connection, texts, place = Connection(port), random_texts(number, 1000), 0
    while not over.is_set():
        text = texts[place % len(texts)]
        accept(connection, book, user, text, f"{number} {place}")
        if place % 4 == 0:
            until_answered(connection, "POST", "/v1/complete", {"query": text[0], "user": user})
        place += 1
    connection.close()
