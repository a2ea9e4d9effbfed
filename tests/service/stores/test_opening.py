"""URLs of stores, and stores that are refused."""

import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
import redis

from factorcell.errors import UserError
from factorcell.service.record import Record
from factorcell.service.stores.store import open_store
from tests.service.stores.servers import Server


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("users.db", "store 'users.db': unknown URL; expected sqlite:///FILE, postgresql://"),
        ("mysql://root:secret@host/x", "store 'mysql': unknown URL; expected sqlite:///FILE"),
        ("sqlite://", "store sqlite: the URL does not name a file"),
        ("sqlite:///", "store sqlite: the URL does not name a file"),
        ("sqlite:////nowhere/at/all/users.db", "the folder /nowhere/at/all does not exist"),
        ("sqlite:////dev/null", "/dev/null: cannot be opened as a store of users (not a regular file)"),
        ("sqlite:////", "/: cannot be opened as a store of users (not a regular file)"),
        (
            "postgresql://root:secret\udcff@127.0.0.1:1/x",
            "store postgresql: the URL contains a null character or a lone surrogate",
        ),
        ("redis://:secret\0@127.0.0.1:1/0", "store redis: the URL contains a null character or a lone surrogate"),
        ("postgresql://root:secret@127.0.0.1:1/x", "cannot be opened (connection failed: connection to server at"),
        ("postgresql://host:port:more/x?y", "store postgresql: "),
        ("redis://:secret@127.0.0.1:1/0", "store redis: cannot be opened"),
        ("redis://127.0.0.1:1/0?socket_timeout=soon", "store redis: "),
    ],
)
def test_invalid_urls_are_reported_in_one_line_without_the_password(url: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        open_store(url)
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_files_are_refused_and_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE mine (x)")
    before = path.read_bytes()
    with pytest.raises(UserError, match="expected a store of users, got another SQLite database"):
        open_store(f"sqlite:///{path}")
    assert path.read_bytes()[100:] == before[100:], "all but the header, which contains the journal mode"
    (tmp_path / "text").write_text("not a database, but long enough to be mistaken for one" * 100)
    with pytest.raises(UserError, match="cannot be opened as a store of users"):
        open_store(f"sqlite:///{tmp_path / 'text'}")


def test_newer_schema_is_refused(started: Server) -> None:
    with closing(started.open()) as older:
        _set_schema(started.url, 99)  # by a newer server
        older.check()
    try:
        with pytest.raises(UserError, match="expected schema version 1 or older, got 99; upgrade"):
            started.open()
    finally:
        _set_schema(started.url, 1)
    started.open().close()


def _set_schema(url: str, version: int) -> None:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            connection.execute(f"PRAGMA user_version = {version}")
    elif url.startswith("redis"):
        with redis.Redis.from_url(url) as client:
            client.set("factorcell:schema", version)
    else:
        with psycopg.connect(url) as client:
            client.execute("UPDATE factorcell_schema SET version = %s", (version,))


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions are required")
def test_store_file_is_readable_only_by_its_owner(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = open_store(f"sqlite:///{tmp_path / 'users.db'}")
        store.write(Record.new("Ann", 0), None)
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
        store.close()
    finally:
        os.umask(before)
    assert modes == {"users.db": 0o600, "users.db-wal": 0o600, "users.db-shm": 0o600}


@pytest.mark.parametrize("started", ["redis"], indirect=True)
def test_redis_that_may_lose_acknowledged_writes_is_refused(started: Server) -> None:
    with redis.Redis.from_url(started.url) as client:
        client.config_set("appendfsync", "everysec")
        client.config_set("maxmemory", "1gb")
        client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            with pytest.raises(UserError, match="set appendfsync always and maxmemory-policy noeviction"):
                started.open()
        finally:
            client.config_set("appendfsync", "always")
            client.config_set("maxmemory", "0")
            client.config_set("maxmemory-policy", "noeviction")
