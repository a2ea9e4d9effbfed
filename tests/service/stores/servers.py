"""The stores that the contract is held against, each with what a test needs to look behind it.

PostgreSQL and Redis are started on ports of the loopback, in folders of their own, and end with the tests.
"""

import os
import pwd
import shutil
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
import redis

from factorcell.config import UserError
from factorcell.service.stores.opening import open_store
from factorcell.service.stores.store import Store
from tests.processes import free_ports

START = 60.0  # seconds that a server may take to start
POSTGRES_SETTINGS = ("listen_addresses=127.0.0.1", "wal_recycle=off", "min_wal_size=32MB", "shared_buffers=16MB")
REDIS_SETTINGS = "--appendonly yes --appendfsync always --rdbcompression no --bind 127.0.0.1".split()


@dataclass(frozen=True)
class Server:
    """A place of one store: its URL, how to put other bytes where a person's are, and all bytes that are on disk."""

    url: str
    tamper: Callable[[str, bytes], None]
    raw: Callable[[], bytes]

    def open(self) -> Store:
        """The store."""
        return open_store(self.url)


def every_byte(folder: Path) -> bytes:
    """What the files of a folder hold."""
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


@contextmanager
def sqlite_file() -> Iterator[Server]:
    """A file in a folder."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "users.db"

        def tamper(user: str, content: bytes) -> None:
            with closing(sqlite3.connect(path)) as connection, connection:
                connection.execute("UPDATE users SET value = ? WHERE user = ?", (content, user))

        yield Server(f"sqlite:///{path}", tamper, lambda: every_byte(Path(folder)))


@contextmanager
def postgres_server() -> Iterator[Server]:
    """A cluster of PostgreSQL, run by the user postgres where we are root, for whom it refuses to run."""
    programs = Path(shutil.which("pg_ctl") or _missing("PostgreSQL (pg_ctl)")).resolve().parent
    as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder:
        data = Path(folder) / "data"
        if as_user:
            os.chown(folder, pwd.getpwnam("postgres").pw_uid, -1)
        make = [str(programs / "initdb"), "-D", str(data), "-U", "postgres", "--no-sync", "-A", "trust"]
        subprocess.run([*as_user, *make], check=True, stdout=subprocess.DEVNULL, cwd=folder)
        settings = [part for each in (*POSTGRES_SETTINGS, f"unix_socket_directories={folder}") for part in ("-c", each)]
        run = [str(programs / "postgres"), "-D", str(data), "-p", str(port), *settings]
        url = f"postgresql://postgres@127.0.0.1:{port}/postgres"

        def tamper(user: str, content: bytes) -> None:
            with psycopg.connect(url) as connection:
                connection.execute(
                    "UPDATE factorcell_users SET value = %s WHERE user_id = %s", (content, user.encode())
                )

        with _running([*as_user, *run], folder, lambda: psycopg.connect(url).close()):
            yield Server(url, tamper, lambda: every_byte(data))


@contextmanager
def redis_server() -> Iterator[Server]:
    """A Redis that keeps what it has answered."""
    program = shutil.which("redis-server") or shutil.which("valkey-server") or _missing("Redis (redis-server)")
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        url = f"redis://127.0.0.1:{port}/0"

        def tamper(user: str, content: bytes) -> None:
            with redis.Redis.from_url(url) as client:
                client.hset(f"factorcell:user:{user}", "value", content)

        def ask() -> None:
            with redis.Redis.from_url(url) as client:
                client.ping()

        command = [program, "--port", str(port), "--dir", folder, "--save", "", *REDIS_SETTINGS]
        with _running(command, folder, ask):
            yield Server(url, tamper, lambda: every_byte(Path(folder)))


SERVERS = {"sqlite": sqlite_file, "postgresql": postgres_server, "redis": redis_server}


def emptied(server: Server) -> Server:
    """The same with nobody in it."""
    store = server.open()
    while found := store.users():
        for user in found:
            store.delete(user)
    store.close()
    return server


def _missing(what: str) -> str:
    pytest.skip(f"{what} is not installed")


@contextmanager
def _running(command: list[str], folder: str, ask: Callable[[], object]) -> Iterator[None]:
    """A server, as soon as it answers, until the end."""
    with (Path(folder) / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        try:
            _wait(process, ask)
            yield
        finally:
            process.terminate()
            process.wait(START)


def _wait(process: "subprocess.Popen[bytes]", ask: Callable[[], object]) -> None:
    stop = time.monotonic() + START
    while True:
        try:
            ask()
            return
        except (psycopg.Error, redis.RedisError, UserError):
            assert process.poll() is None, "the server did not start"
            assert time.monotonic() < stop, "the server does not answer"
            time.sleep(0.05)
