"""The server: it serves a run and a store on a port, in one process or in several processes that share the port."""

import errno
import gc
import ipaddress
import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import uvicorn
from prometheus_client.multiprocess import mark_process_dead
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from factorcell.data.counts import POPULARITY
from factorcell.errors import UserError
from factorcell.evaluation.diagnostics import describe_quality, report_use
from factorcell.io import findings
from factorcell.ngram.mixture import FILE as MIXTURE_FILE
from factorcell.nn.devices import AUTO
from factorcell.runs.run import Run
from factorcell.service.engine import CACHE_SIZE, Service
from factorcell.service.http.application import METRICS_DIRECTORY, Settings, Site, application, new_lanes
from factorcell.service.http.keys import KeyRing
from factorcell.service.learning import ServedModel
from factorcell.service.privacy import BlockList, Privacy
from factorcell.service.record import LOG, StoreError, log_unexpected_error
from factorcell.service.stores.store import open_store

SWITCH_INTERVAL = 0.0005  # seconds after which Python switches threads; short, because a request uses several threads
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
CHECK_INTERVAL = 0.2  # seconds between two checks of workers and signals
MAX_HEAD_BYTES = 64 << 10  # maximum bytes of a request line and headers
WATCH_INTERVAL = 1.0  # seconds between two checks of the files that the server has read
EXPIRY_INTERVAL = 600.0  # seconds between two deletions of expired texts

Stamp = tuple[tuple[Path, int, int, int], ...]  # each existing file, with its modification time, inode and size


def file_stamp(*paths: Path) -> Stamp:
    """Return a value that changes if one of the files changes or is replaced."""
    file_stamps = []
    for path in paths:
        with suppress(OSError):
            status = path.stat()
            file_stamps.append((path, status.st_mtime_ns, status.st_ino, status.st_size))
    return tuple(file_stamps)


class Watcher:
    """A context manager with a thread that watches the run, the keys and the expiry of texts for a site.

    The watcher opens a new model and tries it out while the service still uses the old one; then the service uses the
    new one. If the new model is damaged or incomplete, the service keeps the old one, and the watcher opens the new one
    again when its files change.

    Args:
        site: The site that serves.
        files: The files that determine the model.
        stamp: The `file_stamp` of these files, computed before the served run was opened.
        reopen: Opens the run, tries it out, and returns its model.
    """

    def __init__(self, site: Site, files: Sequence[Path], stamp: Stamp, reopen: Callable[[], ServedModel]) -> None:
        self.site, self.files, self.reopen = site, files, reopen
        self.model_stamp, self.keys_stamp = stamp, None if site.keys is None else file_stamp(site.keys.path)
        self.last_expiry = time.monotonic() - EXPIRY_INTERVAL
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="factorcell-watcher", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()

    def check_once(self) -> None:
        """Load a changed model and changed keys, and delete expired texts."""
        self._reload_changed_model()
        self._reload_changed_keys()
        if self.site.service.privacy.retention is not None and time.monotonic() >= self.last_expiry + EXPIRY_INTERVAL:
            self.last_expiry = time.monotonic()
            try:
                if count := self.site.service.expire(WATCH_INTERVAL):
                    LOG.info("texts beyond --retention were deleted: of %s users", f"{count:,}")
                    self.last_expiry -= EXPIRY_INTERVAL  # more may remain: the next check continues
            except StoreError:
                LOG.warning("expired texts could not be deleted: the store does not answer")

    def _reload_changed_model(self) -> None:
        if (stamp := file_stamp(*self.files)) == self.model_stamp:
            return
        self.model_stamp = stamp
        try:
            model = self.reopen()
        except (UserError, OSError, ValueError, RuntimeError) as error:
            self.site.metrics.models.labels("refused").inc()
            LOG.warning("the new run is invalid and the previous run is still served: %s", error)
            return
        self.site.service.replace_model(model)
        self.site.metrics.models.labels("served").inc()
        LOG.warning("a new model is served from now on")

    def _reload_changed_keys(self) -> None:
        keys = self.site.keys
        if keys is None or (stamp := file_stamp(keys.path)) == self.keys_stamp:
            return
        self.keys_stamp = stamp
        try:
            keys.refresh()
        except (UserError, OSError) as error:
            LOG.warning("the new keys are invalid and the previous keys remain valid: %s", error)

    def _run(self) -> None:
        while True:
            try:
                self.check_once()
            except Exception as error:  # the watcher must still notice later changes
                log_unexpected_error(error)
            if self._closed.wait(WATCH_INTERVAL):
                return


@dataclass(frozen=True)
class ServerOptions:
    """The options of `factorcell serve`, which the help of this command describes."""

    run: Path
    store: str
    keys: Path | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    threads: int = 0
    typos: int = 0
    precision: str = AUTO
    mixture: bool = True
    block_list: Path | None = None
    privacy: Privacy = field(default_factory=Privacy)
    cache_size: int = CACHE_SIZE
    settings: Settings = field(default_factory=Settings)

    def open_model(self) -> ServedModel:
        """Open the run as it is now, and try it out by completing and learning one text."""
        is_allowed = None if self.block_list is None else BlockList.read(self.block_list)
        folder = self.run.absolute()  # problems replace this path by "the model"; the path "." occurs in many messages
        run = Run.open(folder, mixture=self.mixture, precision=self.precision)
        model = ServedModel(run, typos=self.typos, is_allowed=is_allowed)
        model.probe()
        if multiprocessing.parent_process() is None:  # a worker would repeat what its parent reports
            report_use(run)
        return model

    def open_site(self) -> Site:
        """Open the model, the store and the keys, and configure PyTorch and Python for many small requests."""
        torch.set_num_threads(1)
        sys.setswitchinterval(SWITCH_INTERVAL)
        keys = None if self.keys is None else KeyRing(self.keys, share=1 / self.workers)
        service = Service(self.open_model(), open_store(self.store), privacy=self.privacy, cache_size=self.cache_size)
        # A full garbage collection stops all requests while it visits the 200,000 objects of imported modules, unless
        # they are frozen. A model that is replaced later is still freed, because it is in no cycle of references.
        gc.collect()
        gc.freeze()
        return Site(service, self.settings, keys, lanes=new_lanes(self.threads))

    def open_application(self) -> tuple[ASGIApp, Site]:
        """Open and return the site, after its application, which soon reloads changed models, block lists and keys."""
        files = [self.run / name for name in ("completion.json", "weights.safetensors", POPULARITY, MIXTURE_FILE)]
        if self.block_list is not None:
            files.append(self.block_list)
        # The stamp is computed before the run is opened: the watcher must notice a change during the opening.
        stamp = file_stamp(*files)
        site = self.open_site()
        site.metrics.processes.set(1)
        return application(site, Watcher(site, files, stamp, self.open_model)), site


def is_loopback(host: str) -> bool:
    """Return whether a host name or address can be reached only from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bind_socket(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to a port; raise a `UserError` if the port is in use or the host is invalid."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = addresses[0]
    except (socket.gaierror, UnicodeError):
        raise UserError(f"host {host!r:.60}: not a name or address of this machine") from None
    # Without the protocol IPPROTO_TCP, asyncio would not disable Nagle's algorithm, and bodies would be delayed.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        message = f"{host} port {port}: {error.strerror}"
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"{message}; choose another --port, or 0 for any free port") from None
        raise OSError(error.errno, message) from None
    return listener


def serve(options: ServerOptions) -> None:
    """Serve until SIGINT or SIGTERM, and finish running requests before returning."""
    if options.keys is None:
        if not is_loopback(options.host):
            raise UserError(
                f"host {options.host}: other machines can reach this server, so it needs keys; "
                "add --keys FILE, or serve on localhost"
            )
        options = replace(options, settings=replace(options.settings, host_names=(*LOOPBACK_NAMES, options.host)))
    with bind_socket(options.host, options.port) as listener:
        host = f"[{options.host}]" if ":" in options.host else options.host
        _, port, *_ = listener.getsockname()  # differs from `options.port` if that is 0
        url = f"http://{host}:{port}"
        if options.workers == 1:
            app, site = options.open_application()
            findings.show()
            model = f"{options.run}{describe_quality(site.service.model.run)}"
            LOG.info("serving %s at %s; press Ctrl-C to stop", model, url)
            return uvicorn_server(app).run([listener])
        site = options.open_site()  # reports an invalid run or store once; otherwise, each worker would report it
        model = f"{options.run}{describe_quality(site.service.model.run)}"
        site.close()
        with TemporaryDirectory(prefix="factorcell-") as folder:
            os.environ[METRICS_DIRECTORY] = folder
            findings.show()
            LOG.info("serving %s at %s in %s processes; press Ctrl-C to stop", model, url, options.workers)
            supervise(options, listener)
    return None


def uvicorn_server(app: ASGIApp) -> uvicorn.Server:
    """Return a uvicorn server that runs an application and does not log requests."""

    async def run_app(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_and_close(message: Message) -> None:
            # Otherwise, uvicorn would serve a connection that opens while it stops until requests are cancelled.
            if server.should_exit and message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            await send(message)

        await app(scope, receive, send_and_close)

    config = uvicorn.Config(
        run_app,
        http="h11",  # bounds the heads, and ignores offers of other protocols
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        loop="asyncio",
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
    )
    server = uvicorn.Server(config)
    return server


def supervise(options: ServerOptions, listener: socket.socket) -> None:
    """Run the workers until SIGINT or SIGTERM, and replace workers that die."""
    context = multiprocessing.get_context("spawn")
    is_stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: is_stopping.set())

    def start_worker() -> SpawnProcess:
        worker = context.Process(target=run_worker, args=(options, listener))
        worker.start()
        return worker

    workers = [start_worker() for _ in range(options.workers)]
    try:
        while not is_stopping.is_set():
            connection.wait([worker.sentinel for worker in workers], CHECK_INTERVAL)
            for index, worker in enumerate(workers):
                if not worker.is_alive():
                    mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]
                    workers[index] = start_worker()
    finally:
        listener.close()  # otherwise, new connections would wait here while the workers finish
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join()


def run_worker(options: ServerOptions, listener: socket.socket) -> None:
    """Serve in this worker process; end it with a one-line error if the run or the store cannot be opened."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    try:
        app, _ = options.open_application()
    except (UserError, OSError) as error:
        LOG.error("%s", error)
        sys.exit(1)
    with suppress(KeyboardInterrupt):
        uvicorn_server(app).run([listener])
