"""A store in an SQLite file, for one machine with any number of processes.

Write-ahead logging lets readers work during a write. With `synchronous=FULL`, a write returns after its data are on
disk. With `secure_delete`, SQLite overwrites deleted rows with zeros.
"""

import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

from factorcell.errors import UserError
from factorcell.service.stores.store import SQLStore, check_schema, store_errors

APPLICATION_ID = 0x66637573  # application id in the header of the file: the letters "fcus" in ASCII
WRITE_TIMEOUT = 5.0  # seconds for which a connection waits while another process writes
SETTINGS = ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON", "trusted_schema=OFF", "cell_size_check=ON")

SCHEMA_VERSION = 1  # version of the tables, stored as `user_version` of the file
CREATE_COMMANDS = (
    "CREATE TABLE factorcell_users (user_id BLOB PRIMARY KEY NOT NULL, version INTEGER NOT NULL, "
    "oldest INTEGER NOT NULL, value BLOB NOT NULL) STRICT",
    "CREATE INDEX factorcell_users_oldest ON factorcell_users (oldest, user_id)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)


class SQLiteStore(SQLStore):
    """A `Store` in an SQLite file, with a connection for reading and one for writing."""

    def __init__(self, path: Path) -> None:
        """Open or create the file; raise a `UserError` if it is not a store, or has a newer schema."""
        self._read_lock, self._write_lock = threading.Lock(), threading.Lock()
        if not path.parent.is_dir():
            raise UserError(f"{path}: the folder {path.parent} does not exist")
        if path.exists() and not path.is_file():
            raise UserError(f"{path}: cannot be opened as a store of users (not a regular file)")
        try:
            if not path.exists():
                path.touch(0o600)  # readable only by the owner, like the files that SQLite creates next to it
            with closing(_connect(path)) as connection:
                _create_tables(connection, path)
            self._reader, self._writer = _connect(path), _connect(path)
        except (sqlite3.Error, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UserError(f"{path}: cannot be opened as a store of users ({reason})") from None

    def check(self) -> None:
        self._change_row(f"PRAGMA application_id = {APPLICATION_ID}")  # writes, and keeps the version of a newer server

    def close(self) -> None:
        with self._read_lock, self._write_lock:
            self._reader.close()
            self._writer.close()

    def _fetch_rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with store_errors("sqlite", sqlite3.Error), self._read_lock:
            return self._reader.execute(query, values).fetchall()

    def _change_row(self, command: str, *values: Any) -> bool:
        with store_errors("sqlite", sqlite3.Error), self._write_lock:
            return self._writer.execute(command, values).rowcount == 1


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path.absolute(), timeout=WRITE_TIMEOUT, isolation_level=None, check_same_thread=False)
    try:
        for setting in SETTINGS:
            connection.execute(f"PRAGMA {setting}").fetchall()
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _create_tables(connection: sqlite3.Connection, path: Path) -> None:
    """Create the tables of a new file; raise a `UserError` if the file is another database or has a newer schema."""
    connection.execute("BEGIN IMMEDIATE")  # an error closes the connection, which rolls the transaction back
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (object_count,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # tables, indexes and others
    if application_id != APPLICATION_ID and (application_id or object_count):
        raise UserError(f"{path}: expected a store of users, got another SQLite database")
    check_schema(version, SCHEMA_VERSION, path)
    if not version:
        for command in CREATE_COMMANDS:
            connection.execute(command)
    connection.execute("COMMIT")
