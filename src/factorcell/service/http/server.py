"""The server: it serves a run and a store on a port, in one process or in several processes that share the port."""

import errno
import ipaddress
import logging
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import uvicorn
from prometheus_client.multiprocess import mark_process_dead
from starlette.applications import Starlette
from starlette.types import ASGIApp

from factorcell.config import UserError
from factorcell.model.run import Run
from factorcell.service.block_list import BlockList
from factorcell.service.engine import CACHE_SIZE, Service
from factorcell.service.http import metrics
from factorcell.service.http.application import application
from factorcell.service.http.keys import KeyRing
from factorcell.service.http.site import Settings, Site
from factorcell.service.http.watching import Watcher, folder_stamp
from factorcell.service.learning import ServedModel
from factorcell.service.privacy import Privacy
from factorcell.service.stores.opening import open_store

LOG = logging.getLogger("factorcell.service")
SWITCH_INTERVAL = 0.0005  # seconds after which Python switches threads; short, because a request uses several threads
LOOPBACK = ("localhost", "127.0.0.1", "::1")
POLL = 0.2  # seconds between two checks of workers and signals


@dataclass(frozen=True)
class ServerOptions:
    """The options of `factorcell serve`, which the help of this command describes."""

    run: Path
    store: str
    keys: Path | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    typos: int = 0
    precision: str = "float32"
    block_list: Path | None = None
    privacy: Privacy = field(default_factory=Privacy)
    cache_size: int = CACHE_SIZE
    settings: Settings = field(default_factory=Settings)

    def model(self) -> ServedModel:
        """Open the run as it is now, and try it out by completing and learning one text."""
        is_allowed = None if self.block_list is None else BlockList.read(self.block_list)
        folder = self.run.absolute()  # problem details replace this path; the path "." would match in many messages
        model = ServedModel(Run.open(folder, precision=self.precision), typos=self.typos, is_allowed=is_allowed)
        model.probe()
        return model

    def site(self) -> Site:
        """Open the model, the store and the keys, and configure PyTorch and Python for many small requests."""
        torch.set_num_threads(1)
        sys.setswitchinterval(SWITCH_INTERVAL)
        keys = None if self.keys is None else KeyRing(self.keys, 1 / self.workers)
        service = Service(self.model(), open_store(self.store), privacy=self.privacy, cache_size=self.cache_size)
        return Site(service, self.settings, keys)

    def application(self) -> Starlette:
        """Return the application. It reloads changed models and keys within seconds, and at once on SIGHUP."""
        stamp = folder_stamp(
            self.run
        )  # computed before the run is opened, so that the watcher notices a change during the opening
        site = self.site()
        watcher = Watcher(site, self.run, self.model, stamp)
        site.metrics.processes.set(1)
        if hasattr(signal, "SIGHUP"):
            signal.signal(signal.SIGHUP, lambda *_: watcher.reload())
        return application(site, watcher)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server on a host name or address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bind_socket(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to a port.

    Raises:
        UserError: The port is in use, or the host is not an address of this machine.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, UnicodeError):
        raise UserError(f"host {host!r:.60}: not a name or address of this machine") from None
    # Without the protocol IPPROTO_TCP, asyncio would not disable Nagle's algorithm, and bodies would be delayed.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        reason = f"{host} port {port}: {error.strerror}"
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"{reason}; choose another --port, or 0 for any free port") from None
        raise OSError(error.errno, reason) from None
    return listener


def serve(options: ServerOptions, notify: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM, and finish running requests before returning."""
    if options.keys is None:
        if not is_loopback(options.host):
            hint = "other machines can reach this server, so it needs keys; add --keys FILE, or serve on localhost"
            raise UserError(f"host {options.host}: {hint}")
        options = replace(options, settings=replace(options.settings, host_names=(*LOOPBACK, options.host)))
    with bind_socket(options.host, options.port) as listener:
        host = f"[{options.host}]" if ":" in options.host else options.host
        address = f"http://{host}:{listener.getsockname()[1]}"
        if options.workers == 1:
            app = options.application()
            notify(f"serving {options.run} at {address}; press Ctrl-C to stop")
            return uvicorn_server(app).run([listener])
        options.site().close()  # an invalid run or store is reported once here, not by each worker
        with TemporaryDirectory(prefix="factorcell-") as folder:
            os.environ[metrics.DIRECTORY_VARIABLE] = folder
            notify(f"serving {options.run} at {address} in {options.workers} processes; press Ctrl-C to stop")
            supervise(options, listener)
    return None


def uvicorn_server(app: ASGIApp) -> uvicorn.Server:
    """Return a uvicorn server that runs an application and does not log requests."""
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=4096,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=30,
        h11_max_incomplete_event_size=64 << 10,  # bytes of the request line and headers
    )
    return uvicorn.Server(config)


def supervise(options: ServerOptions, listener: socket.socket) -> None:
    """Run the workers until SIGINT or SIGTERM, replace those that die, and forward SIGHUP to them."""
    context = multiprocessing.get_context("spawn")
    stops, reloads = list[int](), list[int]()  # received signals
    received: dict[int, list[int]] = {signal.SIGINT: stops, signal.SIGTERM: stops}
    if hasattr(signal, "SIGHUP"):
        received[signal.SIGHUP] = reloads

    def record_signal(number: int, _: object) -> None:
        received[number].append(number)

    previous_handlers = {number: signal.signal(number, record_signal) for number in received}

    def start() -> SpawnProcess:
        process = context.Process(target=work, args=(options, listener))
        process.start()
        return process

    workers = [start() for _ in range(options.workers)]
    try:
        while not stops:
            connection.wait([worker.sentinel for worker in workers], POLL)
            reload = bool(reloads)
            reloads.clear()
            for index, worker in enumerate(workers):
                if not worker.is_alive():
                    mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]
                    workers[index] = start()
                elif reload and worker.pid is not None:
                    os.kill(worker.pid, signal.SIGHUP)  # a worker that is still starting dies and is replaced
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join()
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


def work(options: ServerOptions, listener: socket.socket) -> None:
    """Serve in a worker process, which ends with a one-line error if the run or the store cannot be opened."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    try:
        app = options.application()
    except (UserError, OSError) as error:
        LOG.error("%s", error)
        sys.exit(1)
    with suppress(KeyboardInterrupt):
        uvicorn_server(app).run([listener])
