"""URLs of stores, and what a store refuses to open."""

import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
import redis

from factorcell.config import UserError
from factorcell.service.record import Record
from factorcell.service.stores.opening import open_store
from tests.service.stores.servers import Server


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("users.db", "store 'users.db': valid is sqlite:///FILE, postgresql://"),
        ("mysql://root:secret@host/x", "store 'mysql': valid is sqlite:///FILE"),
        ("sqlite://", "store sqlite: no file in it"),
        ("sqlite:///", "store sqlite: no file in it"),
        ("sqlite:////nowhere/at/all/users.db", "there is no folder /nowhere/at/all"),
        ("sqlite:////dev/null", "/dev/null: cannot be opened as a store of users (it is no file)"),
        ("sqlite:////", "/: cannot be opened as a store of users (it is no file)"),
        ("postgresql://root:secret\udcff@127.0.0.1:1/x", "store postgresql: its URL has characters that are none"),
        ("redis://:secret\0@127.0.0.1:1/0", "store redis: its URL has characters that are none"),
        ("postgresql://root:secret@127.0.0.1:1/x", "cannot be opened (connection failed: connection to server at"),
        ("postgresql://host:port:more/x?y", "store postgresql: "),
        ("redis://:secret@127.0.0.1:1/0", "store redis: cannot be opened"),
        ("redis://127.0.0.1:1/0?socket_timeout=soon", "store redis: "),
    ],
)
def test_urls_of_no_store_are_one_line_without_a_password(url: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        open_store(url)
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_of_something_else_is_refused_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE mine (x)")
    before = path.read_bytes()
    with pytest.raises(UserError, match="a database, but not one of users"):
        open_store(f"sqlite:///{path}")
    assert path.read_bytes()[100:] == before[100:], "all but the header, in which the kind of journal stands"
    (tmp_path / "text").write_text("no database at all, but long enough to be taken for one" * 100)
    with pytest.raises(UserError, match="cannot be opened as a store of users"):
        open_store(f"sqlite:///{tmp_path / 'text'}")


def test_what_a_later_version_made_is_refused(started: Server) -> None:
    started.open().close()
    _make_later(started.url, 99)
    try:
        with pytest.raises(UserError, match="its schema is 99, this factorcell knows up to 1; upgrade"):
            started.open()
    finally:
        _make_later(started.url, 1)
    started.open().close()


def _make_later(url: str, version: int) -> None:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            connection.execute(f"PRAGMA user_version = {version}")
    elif url.startswith("redis"):
        with redis.Redis.from_url(url) as client:
            client.set("factorcell:schema", version)
    else:
        with psycopg.connect(url) as client:
            client.execute("UPDATE factorcell_schema SET version = %s", (version,))


def test_a_relative_path_is_one_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store("sqlite:///users.db")
    store.write(Record.new("Ann", 0), None)
    store.close()
    assert (tmp_path / "users.db").exists()


def test_a_name_that_sqlite_takes_for_none_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store("sqlite:///:memory:")
    store.write(Record.new("Ann", 0), None)
    store.close()
    assert (tmp_path / ":memory:").stat().st_size > 0


@pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")
def test_only_the_owner_may_read_a_file_of_people(tmp_path: Path) -> None:
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
def test_a_redis_that_may_lose_what_it_has_answered_is_refused(started: Server) -> None:
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
