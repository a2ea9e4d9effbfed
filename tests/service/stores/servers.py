"""The stores under test, each with access to its raw files.

PostgreSQL and Redis are started on ports of the loopback interface with their own folders, and stopped after the tests.
"""

import os
import pwd
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
import redis

from factorcell.service.stores.store import Store, open_store
from tests.ports import free_port

START = 60.0  # seconds for a server to start
POSTGRES_SETTINGS = ("listen_addresses=127.0.0.1", "wal_recycle=off", "min_wal_size=32MB", "shared_buffers=16MB")
REDIS_SETTINGS = "--appendonly yes --appendfsync always --rdbcompression no --bind 127.0.0.1".split()


class Program:
    """A server process that can be killed, suspended and restarted."""

    def __init__(self, command: list[str], folder: Path, ping: Callable[[], object]) -> None:
        self.command, self.folder, self.ping = command, folder, ping
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        deadline = time.monotonic() + START
        while not self._answers():
            assert time.monotonic() < deadline, "the server does not answer"
            if not self.is_running():  # after a kill, a new process may fail until the old ones have ended
                with (self.folder / "log").open("ab") as log:
                    self._process = subprocess.Popen(
                        self.command, stdout=log, stderr=log, cwd=self.folder, start_new_session=True
                    )
            time.sleep(0.02)

    @property
    def process_id(self) -> int:
        assert self._process is not None
        return self._process.pid

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def signal(self, number: int) -> None:
        if self._process is not None and self.is_running():
            for process in family(self._process.pid):
                with suppress(ProcessLookupError):
                    os.kill(process, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(START)

    def close(self) -> None:
        if self._process is not None:
            self.signal(signal.SIGCONT)
            self._process.terminate()
            self._process.wait(START)

    def _answers(self) -> bool:
        try:
            self.ping()
            return self.is_running()
        except (psycopg.Error, redis.RedisError):
            return False


@dataclass(frozen=True)
class Server:
    """A store under test.

    Attributes:
        url: The URL of the store.
        folder: The folder with all of its files.
        tamper: Replaces the stored bytes of a user.
        clean: Removes deleted data from the files, by the commands of docs/service.md.
        program: The server process, or None for SQLite.
    """

    url: str
    folder: Path
    tamper: Callable[[str, bytes], None]
    clean: Callable[[], None]
    program: Program | None = None

    def open(self) -> Store:
        return open_store(self.url)

    def raw(self) -> bytes:
        return b"".join(path.read_bytes() for path in sorted(self.folder.rglob("*")) if path.is_file())


@contextmanager
def sqlite_file(parent: Path | None = None) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        path = Path(folder) / "users.db"

        def tamper(user: str, content: bytes) -> None:
            with closing(sqlite3.connect(path)) as connection, connection:
                connection.execute("UPDATE factorcell_users SET value = ? WHERE user_id = ?", (content, user.encode()))

        def clean() -> None:
            with closing(sqlite3.connect(path)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

        yield Server(f"sqlite:///{path}", Path(folder), tamper, clean)


@contextmanager
def postgres_server(parent: Path | None = None) -> Iterator[Server]:
    programs = Path(shutil.which("pg_ctl") or _missing("PostgreSQL (pg_ctl)")).resolve().parent
    as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
    port = free_port()
    with tempfile.TemporaryDirectory(dir=parent or "/tmp", ignore_cleanup_errors=True) as folder:
        data = Path(folder) / "data"
        if as_user:
            os.chown(folder, pwd.getpwnam("postgres").pw_uid, -1)
        initialize = [str(programs / "initdb"), "-D", str(data), "-U", "postgres", "--no-sync", "-A", "trust"]
        subprocess.run([*as_user, *initialize], check=True, stdout=subprocess.DEVNULL, cwd=folder)
        settings = [part for item in (*POSTGRES_SETTINGS, f"unix_socket_directories={folder}") for part in ("-c", item)]
        run = [str(programs / "postgres"), "-D", str(data), "-p", str(port), *settings]
        url = f"postgresql://postgres@127.0.0.1:{port}/postgres"

        def tamper(user: str, content: bytes) -> None:
            with psycopg.connect(url) as connection:
                connection.execute(
                    "UPDATE factorcell_users SET value = %s WHERE user_id = %s", (content, user.encode())
                )

        def clean() -> None:
            with psycopg.connect(url, autocommit=True) as connection:
                for command in ("VACUUM FULL", "SELECT pg_switch_wal()", "CHECKPOINT"):
                    connection.execute(command)

        def ping() -> None:
            psycopg.connect(url, connect_timeout=5).close()

        with _started(Program([*as_user, *run], Path(folder), ping)) as program:
            yield Server(url, Path(folder), tamper, clean, program)


@contextmanager
def redis_server(parent: Path | None = None) -> Iterator[Server]:
    name = shutil.which("redis-server") or shutil.which("valkey-server") or _missing("Redis (redis-server)")
    port = free_port()
    with tempfile.TemporaryDirectory(dir=parent, ignore_cleanup_errors=True) as folder:
        url = f"redis://127.0.0.1:{port}/0"

        def tamper(user: str, content: bytes) -> None:
            with redis.Redis.from_url(url) as client:
                client.hset(f"factorcell:user:{user}", "value", content)

        def clean() -> None:
            with redis.Redis.from_url(url) as client:
                client.bgrewriteaof()
                while client.info("persistence")["aof_rewrite_in_progress"]:
                    time.sleep(0.01)

        def ping() -> None:
            with redis.Redis.from_url(url, socket_timeout=5) as client:
                client.ping()

        command = [name, "--port", str(port), "--dir", folder, "--save", "", *REDIS_SETTINGS]
        with _started(Program(command, Path(folder), ping)) as program:
            yield Server(url, Path(folder), tamper, clean, program)


SERVERS = {"sqlite": sqlite_file, "postgresql": postgres_server, "redis": redis_server}


def clear(server: Server) -> Server:
    store = server.open()
    while users := store.users():
        for user in users:
            store.delete(user)
    store.close()
    return server


def _missing(what: str) -> str:
    pytest.skip(f"{what} is not installed")


@contextmanager
def _started(program: Program) -> Iterator[Program]:
    try:
        program.start()
        yield program
    finally:
        program.close()


def family(parent: int) -> list[int]:
    """Return the ids of a process and of all its descendants."""
    children = Path(f"/proc/{parent}/task/{parent}/children")
    descendants = children.read_text().split() if children.exists() else []
    return [parent, *(process for child in descendants for process in family(int(child)))]
