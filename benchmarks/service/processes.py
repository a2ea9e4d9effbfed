"""Servers in separate processes: started by the command line, or forked from a process with all imports."""

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

# Modules that are imported once, before servers are forked.
IMPORTED = [
    "benchmarks.service.kills",
    "factorcell.service.stores.sqlite",
    "factorcell.service.stores.postgres",
    "factorcell.service.stores.redis",
]
ENDING = 40.0  # maximum seconds of an orderly shutdown


@contextmanager
def run_server(run: Path, store: str, log: Path, *options: str) -> Iterator[tuple[int, int]]:
    """Run `factorcell serve` with its output in `log`; yield its process id and port when it is ready."""
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


class RestartableServer:
    """A server that is started repeatedly at one port, each time in a new process.

    It equals `factorcell serve`, except that its modules were imported before the process started.
    """

    def __init__(self, options: ServerOptions, log: Path) -> None:
        self.options, self.log = options, log
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(IMPORTED)
        self._process: ForkServerProcess | None = None

    def start(self) -> None:
        """Start the server and wait until it is ready."""
        self._process = self._context.Process(target=_serve, args=(self.options, self.log), daemon=True)
        self._process.start()
        wait_until_ready(self.options.port)

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.join()

    def close(self) -> None:
        """Terminate the server if it runs."""
        if self._process is not None:
            self._process.terminate()
            self._process.join(ENDING)


@contextmanager
def restartable_server(options: ServerOptions, log: Path) -> Iterator[RestartableServer]:
    """Run a server that can be killed, at its own port."""
    server = RestartableServer(options, log)
    try:
        server.start()
        yield server
    finally:
        server.close()


def processor_seconds(process: int) -> float:
    """Return the processor time of a process and its descendants."""
    seconds = 0.0
    for member in family(process):
        fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
        seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds


def _serve(options: ServerOptions, log: Path) -> None:
    """Serve in the new process, with output into a file."""
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    serve(options)
