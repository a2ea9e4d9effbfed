"""Servers in processes of their own: as they are typed, or forked off one that has imported everything already."""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from benchmarks.service.client import wait_until_ready
from factorcell.service.http.server import ServerOptions, serve
from tests.ports import free_port
from tests.service.stores.servers import family

IMPORTED = [
    "benchmarks.service.kills",
    "factorcell.service.stores.sqlite",
    "factorcell.service.stores.postgres",
    "factorcell.service.stores.redis",
]
ENDING = 40.0  # seconds that a server may take to end in order


@contextmanager
def typed(run: Path, store: str, log: Path, *options: str) -> Iterator[tuple[int, int]]:
    """`factorcell serve` as it is typed: its process and its port, once it is ready. What it says goes into `log`."""
    port = free_port()
    words = ["serve", str(run), "--store", store, "--port", str(port), *options]
    with log.open("ab") as file:
        process = subprocess.Popen([sys.executable, "-m", "factorcell", *words], stdout=file, stderr=file)
        try:
            wait_until_ready(port)
            yield process.pid, port
        finally:
            process.terminate()
            process.wait(ENDING)


class Forked:
    """A server that is started again and again at one port, each time in a new process.

    It is the server of `factorcell serve`, but for its modules, which were imported before the process was.
    """

    def __init__(self, options: ServerOptions, log: Path) -> None:
        self.options, self.log = options, log
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(IMPORTED)
        self._process: ForkServerProcess | None = None

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        self._process = self._context.Process(target=_serve, args=(self.options, self.log), daemon=True)
        self._process.start()
        wait_until_ready(self.options.port)

    def kill(self) -> None:
        """`kill -9`."""
        if self._process is not None:
            self._process.kill()
            self._process.join()

    def close(self) -> None:
        """End it in order, if it is there."""
        if self._process is not None:
            self._process.terminate()
            self._process.join(ENDING)


@contextmanager
def forked(options: ServerOptions, log: Path) -> Iterator[Forked]:
    """A server that can be killed, ready, at a port of its own."""
    server = Forked(options, log)
    try:
        server.start()
        yield server
    finally:
        server.close()


def processor_seconds(process: int) -> float:
    """What a process and those that came of it have used of the processor until now."""
    seconds = 0.0
    for member in family(process):
        fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
        seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds


def _serve(options: ServerOptions, log: Path) -> None:
    """In the new process: serve, and say into a file what there is to say."""
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    serve(options, print)
