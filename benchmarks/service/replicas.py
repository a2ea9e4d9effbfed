"""Several servers with one store behind nginx, as docs/production/nginx.conf configures it; their throughput.

Each measured server has one core of its own. The store, nginx and the users share the cores with the servers.
"""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.service.client import wait_until_ready
from benchmarks.service.processes import run_server
from benchmarks.service.report import Row
from benchmarks.service.typists import COLUMNS as TYPIST_COLUMNS
from benchmarks.service.typists import Load, measure_doubling, warm
from factorcell.errors import UserError
from tests.ports import free_port
from tests.service.stores.servers import Server, family

PROGRAMS = "/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin"  # nginx is not on the path of every user
CONFIGURATION = Path(__file__).parents[2] / "docs" / "production" / "nginx.conf"
REPLICA = "server 127.0.0.1:8000 fail_timeout=1s;"  # the line of a replica in this configuration
START = 60.0  # maximum seconds until nginx has read a configuration
MAIN = """daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/main.log crit; {user}
events {{ worker_connections 8192; }}
http {{ client_body_temp_path {folder}/1; proxy_temp_path {folder}/2; fastcgi_temp_path {folder}/3;
uwsgi_temp_path {folder}/4; scgi_temp_path {folder}/5; keepalive_requests 100000000;
{site}
}}"""
COLUMNS = {"replicas": "replicas", "store": "store", **TYPIST_COLUMNS, "others": "cores, nginx and store"}


class Nginx:
    """An nginx without TLS that distributes requests to the ports in `upstream_ports`."""

    def __init__(self, folder: Path, upstream_ports: Sequence[int]) -> None:
        self.folder, self.port = folder, free_port()
        program = shutil.which("nginx", path=PROGRAMS)
        if program is None:
            raise UserError("nginx is not installed")
        folder.mkdir()
        self._write(upstream_ports)
        with (folder / "log").open("wb") as log:
            command = [program, "-e", f"{folder}/first.log", "-c", f"{folder}/nginx.conf"]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_until_ready(self.port, START)

    def use(self, upstream_ports: Sequence[int]) -> None:
        """Distribute requests to other ports; when this method returns, no request to the former ports is running."""
        old_workers = family(self.process.pid)[1:]
        self._write(upstream_ports)
        self.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + START
        while set(workers := family(self.process.pid)[1:]) & set(old_workers) or not workers:
            assert time.monotonic() < deadline, (self.folder / "main.log").read_text()
            time.sleep(0.01)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(START)

    def _write(self, upstream_ports: Sequence[int]) -> None:
        site = re.sub(r"\n *ssl_\w+ .*;", "", CONFIGURATION.read_text(encoding="utf-8"))
        servers = [REPLICA.replace("8000", str(port)) for port in upstream_ports]
        changes = {
            REPLICA: " ".join(servers),
            "listen 443 ssl": f"listen 127.0.0.1:{self.port}",
            "rate=30r/s": "rate=100000r/s",  # all users of a test have one address
            "burst=60": "burst=100000",
            "/var/log/nginx/factorcell.log": f"{self.folder}/error.log",
        }
        for before, after in changes.items():
            assert before in site, before
            site = site.replace(before, after)
        user = "user root;" if os.geteuid() == 0 else ""  # the worker must be able to write into the folder
        (self.folder / "nginx.conf").write_text(MAIN.format(folder=self.folder, user=user, site=site))


@contextmanager
def nginx(folder: Path, upstream_ports: Sequence[int]) -> Iterator[Nginx]:
    """Run an `Nginx` with its files in `folder`, which this function creates."""
    proxy = Nginx(folder, upstream_ports)
    try:
        yield proxy
    finally:
        proxy.close()


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Let the processes that this thread starts run on one core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def throughput(
    run: Path, store: Server, folder: Path, load: Load, texts: Sequence[str], most: int, options: Sequence[str]
) -> list[Row]:
    """Measure a doubled load with one replica, then with two; the port of nginx replaces that of `load`."""
    rows: list[Row] = []
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise UserError("two replicas on one core each need two cores")
    for count in (1, 2):
        with ExitStack() as stack:
            servers = []
            for core in cores[:count]:
                with on_core(core):
                    server = run_server(run, store.url, folder / f"replica-{core}.log", *options)
                    servers.append(stack.enter_context(server))
            proxy = stack.enter_context(nginx(folder / f"nginx-{count}", [port for _, port in servers]))
            warm(proxy.port, texts)
            others = [proxy.process.pid] + ([] if store.program is None else [store.program.process_id])
            processes = {"server": [process for process, _ in servers], "others": others}
            name = store.url.partition(":")[0]
            load = Load(proxy.port, load.people, load.seconds, load.keys, load.deadline_ms, load.given_up)
            measured = measure_doubling(load, texts, processes, most)
            rows += [{**row, "what": "replicas", "replicas": count, "store": name} for row in measured]
    return rows
