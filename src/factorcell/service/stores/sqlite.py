"""People in a file of SQLite: for one machine, and as many processes there as one likes.

Write-ahead logging lets readers and the one writer work side by side; `synchronous=FULL` has every writing on disk
before it is answered; `secure_delete` writes zeros over what is deleted.
"""

import queue
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from factorcell.config import UserError
from factorcell.service.record import DamagedRecordError, Record, StoreError
from factorcell.service.stores.store import PAGE, check_schema

APPLICATION = 0x66637573  # "fcus" in the header of the file, so that no other database is taken for one of ours
WAIT = 5.0  # seconds that one waits for another process to finish writing
SETTINGS = ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON", "trusted_schema=OFF", "cell_size_check=ON")

SCHEMA = 1  # the version of these tables, `user_version` of the file
TABLES = (
    "CREATE TABLE users (user TEXT PRIMARY KEY NOT NULL, version INTEGER NOT NULL, oldest INTEGER NOT NULL, "
    "value BLOB NOT NULL) STRICT",
    "CREATE INDEX users_oldest ON users (oldest)",
)


class SQLiteStore:
    """The `Store` in the file `path`, which is made where there is none."""

    def __init__(self, path: Path) -> None:
        """`UserError` for a file that is no store, that a later version made, or that cannot be opened."""
        self.path = path
        self._idle: queue.LifoQueue[sqlite3.Connection] = queue.LifoQueue()
        self._writing = threading.Lock()  # writers of this process queue here, not by SQLite's polling
        self._closed = False
        if not path.parent.is_dir():
            raise UserError(f"{path}: there is no folder {path.parent}")
        if path.exists() and not path.is_file():
            raise UserError(f"{path}: cannot be opened as a store of users (it is no file)")
        try:
            if not path.exists():
                path.touch(0o600)  # it, and what SQLite puts beside it, is for the owner alone
            with self._connection() as connection:
                _create_tables(connection, path)
        except (StoreError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else error.__cause__
            raise UserError(f"{path}: cannot be opened as a store of users ({reason})") from None

    def read(self, user: str) -> Record | None:
        """See `Store`."""
        with self._connection() as connection:
            row = connection.execute("SELECT value FROM users WHERE user = ?", (user,)).fetchone()
        return None if row is None else Record.from_bytes(row[0], user)

    def version(self, user: str) -> int | None:
        """See `Store`."""
        with self._connection() as connection:
            row = connection.execute("SELECT user, version FROM users WHERE user = ?", (user,)).fetchone()
        if row is not None and row[0] != user:
            raise DamagedRecordError("the store answered with another person than the one asked for")
        return None if row is None else int(row[1])

    def write(self, record: Record, expected: int | None) -> bool:
        """See `Store`."""
        values = (record.version, record.oldest, record.to_bytes(), record.user)
        if expected is None:
            command = "INSERT INTO users (version, oldest, value, user) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
            return self._changed(command, values)
        command = "UPDATE users SET version = ?, oldest = ?, value = ? WHERE user = ? AND version = ?"
        return self._changed(command, (*values, expected))

    def delete(self, user: str, expected: int | None = None) -> bool:
        """See `Store`."""
        command = "DELETE FROM users WHERE user = ? AND (? IS NULL OR version = ?)"
        return self._changed(command, (user, expected, expected))

    def users(self, after: str = "", limit: int = PAGE) -> list[str]:
        """See `Store`."""
        command = "SELECT user FROM users WHERE user > ? ORDER BY user LIMIT ?"
        with self._connection() as connection:
            return [user for (user,) in connection.execute(command, (after, limit))]

    def aged(self, before: int, limit: int = PAGE) -> list[str]:
        """See `Store`."""
        command = "SELECT user FROM users WHERE oldest < ? ORDER BY oldest, user LIMIT ?"
        with self._connection() as connection:
            return [user for (user,) in connection.execute(command, (before, limit))]

    def check(self) -> None:
        """See `Store`: it writes what is there already."""
        with self._writing, self._connection() as connection:
            connection.execute(f"PRAGMA user_version = {SCHEMA}")

    def purge(self) -> list[str]:
        """See `Store`: what is deleted was overwritten with zeros at once, and is in the write-ahead log until now."""
        with self._writing, self._connection() as connection:
            busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return [f"{self.path.name}-wal: somebody is reading; purge again"] if busy else []

    def close(self) -> None:
        """See `Store`."""
        self._closed = True
        while True:
            try:
                self._idle.get_nowait().close()
            except queue.Empty:
                return

    def _changed(self, command: str, values: tuple[object, ...]) -> bool:
        """Whether a command, which commits by itself, has changed a row."""
        with self._writing, self._connection() as connection:
            return connection.execute(command, values).rowcount == 1

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """A connection that nobody else uses meanwhile; one that failed is closed."""
        if self._closed:
            raise StoreError("the store is closed")
        connection = None
        try:
            connection = self._take()
            yield connection
        except sqlite3.Error as error:
            if connection is not None:
                connection.close()
                connection = None
            raise StoreError(f"the store failed: {error}") from error
        finally:
            if connection is not None:
                if self._closed:
                    connection.close()
                else:
                    self._idle.put(connection)

    def _take(self) -> sqlite3.Connection:
        """An idle connection, or a new one."""
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            pass
        connection = sqlite3.connect(self.path.absolute(), timeout=WAIT, isolation_level=None, check_same_thread=False)
        try:
            for setting in SETTINGS:
                connection.execute(f"PRAGMA {setting}").fetchall()
        except sqlite3.Error:
            connection.close()
            raise
        return connection


def _create_tables(connection: sqlite3.Connection, path: Path) -> None:
    """Create the tables of a new file. `UserError` for a file of something else, or of a later version."""
    connection.execute("BEGIN IMMEDIATE")
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (done,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    try:
        if application != APPLICATION and (application or tables):
            raise UserError(f"{path}: a database, but not one of users")
        check_schema(done, SCHEMA, path)
        if not done:
            for command in TABLES:
                connection.execute(command)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {SCHEMA}")
        connection.execute("COMMIT")
    except UserError:
        connection.execute("ROLLBACK")
        raise
