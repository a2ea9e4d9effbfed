"""The server: a run, a store and a port, in one process or in several that share the port."""

import errno
import ipaddress
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import uvicorn
from starlette.applications import Starlette
from uvicorn.supervisors.multiprocess import Multiprocess

from factorcell.config import UserError
from factorcell.model.run import Run
from factorcell.service.block_list import BlockList
from factorcell.service.engine import CACHED, Service
from factorcell.service.http import metrics
from factorcell.service.http.application import application
from factorcell.service.http.keys import KeyRing
from factorcell.service.http.protocol import BACKLOG, Protocol
from factorcell.service.http.site import Settings, Site
from factorcell.service.http.watching import Watcher, mark
from factorcell.service.learning import ServedModel
from factorcell.service.privacy import Privacy
from factorcell.service.stores.opening import open_store

LOG = logging.getLogger("factorcell.service")
DRAINING = 30  # seconds that requests in hand may take when the server stops
HUNG = 120  # seconds without a sign after which a worker is replaced; one that starts gives none until it has PyTorch
SWITCHING = 0.0005  # seconds after which a thread of Python that waits gets its turn: a request needs several
IDLE = 75  # seconds that a connection may wait for its next request
LOOPBACK = ("localhost", "127.0.0.1", "::1")
LARGEST_HEAD = 64 << 10  # bytes that are read of headers at all; what is less is refused in words


@dataclass(frozen=True)
class ServerOptions:
    """What is served (`run`, `slips` forgiven, its `precision`, phrases to `block`), to whom, and where."""

    run: Path
    store: str
    keys: Path | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    slips: int = 0
    precision: str = "float32"
    block: Path | None = None
    privacy: Privacy = field(default_factory=Privacy)
    cached: int = CACHED
    settings: Settings = field(default_factory=Settings)

    def model(self) -> ServedModel:
        """The run as it lies there now, proven."""
        allowed = None if self.block is None else BlockList.read(self.block)
        folder = self.run.absolute()  # which errors leave out, wherever it stands: "." stands in many
        model = ServedModel(Run.open(folder, precision=self.precision), slips=self.slips, allowed=allowed)
        model.probe()
        return model

    def site(self) -> Site:
        """The site. From here on PyTorch uses one thread, as requests are many, and threads soon take turns."""
        torch.set_num_threads(1)
        sys.setswitchinterval(SWITCHING)
        keys = None if self.keys is None else KeyRing(self.keys, 1 / self.workers)
        service = Service(self.model(), open_store(self.store), privacy=self.privacy, cached=self.cached)
        return Site(service, self.settings, keys)

    def application(self) -> Starlette:
        """The application of a site that notices new models and keys, of which SIGHUP tells too."""
        seen = mark(self.run)  # before it is opened: what changes meanwhile is opened again
        site = self.site()
        watcher = Watcher(site, self.run, self.model, seen)
        site.metrics.processes.set(1)
        if hasattr(signal, "SIGHUP"):
            signal.signal(signal.SIGHUP, lambda *_: watcher.reload())
        return application(site, watcher)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bound(host: str, port: int) -> socket.socket:
    """A port of ours, on which nothing is answered yet. `UserError` if it is taken, or for what is no host."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, UnicodeError):
        raise UserError(f"host {host!r:.60}: no name or address of this machine") from None
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio delays what names no protocol
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError as error:
        made.close()
        reason = f"{host} port {port}: {error.strerror}"
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"{reason}; --port chooses another, and 0 any that is free") from None
        raise OSError(error.errno, reason) from None
    made.set_inheritable(True)
    return made


def serve(options: ServerOptions, say: Callable[[str], None]) -> None:
    """Serve until the process is told to stop (SIGINT, SIGTERM); what has begun is finished first."""
    if options.keys is None:
        if not is_loopback(options.host):
            raise UserError(f"host {options.host}: without keys only this machine may be served; give --keys FILE")
        options = replace(options, settings=replace(options.settings, names=(*LOOPBACK, options.host)))
    with bound(options.host, options.port) as port:
        where = f"http://{_shown(options.host)}:{port.getsockname()[1]}"
        if options.workers == 1:
            app = options.application()
            say(f"serving {options.run} at {where}; Ctrl-C stops")
            return uvicorn.Server(configured(app)).run([port])
        options.site().close()  # what is wrong is said here, once
        with TemporaryDirectory(prefix="factorcell-") as folder:
            os.environ[metrics.VARIABLE] = folder
            say(f"serving {options.run} at {where} in {options.workers} processes; Ctrl-C stops")
            Workers(configured(partial(worker, options), workers=options.workers, factory=True), [port]).run()
    return None


def worker(options: ServerOptions) -> Starlette:
    """The application in a process of its own, which ends with a line if it cannot be made."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    try:
        return options.application()
    except (UserError, OSError) as error:
        LOG.error("%s", error)
        sys.exit(uvicorn.config.STARTUP_FAILURE)


def configured(app: Any, workers: int = 1, factory: bool = False) -> uvicorn.Config:
    """How uvicorn serves it; nothing that is asked is logged."""
    return uvicorn.Config(
        app,
        factory=factory,
        http=Protocol,
        backlog=BACKLOG,
        workers=workers,
        log_config=None,
        log_level="error",
        access_log=False,
        ws="none",
        lifespan="on",
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=IDLE,
        timeout_graceful_shutdown=DRAINING,
        timeout_worker_healthcheck=HUNG,
        h11_max_incomplete_event_size=LARGEST_HEAD,
    )


class Workers(Multiprocess):
    """Processes that share a port; SIGHUP reaches each of them."""

    def handle_hup(self) -> None:
        """Have each look for a new model; one that is not ready yet opens what is there anyway."""
        for process in self.processes:
            if process.pid is not None and process.is_ready():
                os.kill(process.pid, signal.SIGHUP)

    def keep_subprocess_alive(self) -> None:
        """Replace a process that died, and count it no more."""
        before = {process.pid for process in self.processes}
        super().keep_subprocess_alive()
        for gone in before - {process.pid for process in self.processes}:
            metrics.died(gone)


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
