"""The protocol of a store, opening a store by its URL, changing a record, the SQL of two stores, a circuit breaker.

All methods block and are called from threads. Each method may raise a `StoreError`. After a failed write, the caller
must read the record to learn whether the write happened. Stores do not retry.
"""

import os
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any, ParamSpec, Protocol, TypeVar

from msgspec.structs import replace

from factorcell.errors import UserError
from factorcell.io.extras import missing_package_error
from factorcell.options.limits import STORE_URLS
from factorcell.service.record import DamagedRecordError, Record, StoreError, log_unexpected_error

PAGE_SIZE = 1000  # default of the maximum number of users in one listing
PROBE_INTERVAL = 1.0  # seconds between two probes of a failed store
CHECK_INTERVAL = 1.0  # seconds between two checks of a working store
WRITE_TIMEOUT = 10.0  # seconds for which `update` is repeated while other writers are faster
MAX_PAUSE = 0.01  # maximum number of seconds before `update` is repeated
PROBE_USER = "-"  # the user id in the reading probe, whose result is ignored

P = ParamSpec("P")
T = TypeVar("T")


class Store(Protocol):
    """A store with one record per user id. Any number of threads and processes may use it."""

    def read(self, user: str) -> Record | None:
        """Return the record of a user, or None; raise a `DamagedRecordError` if the stored bytes were altered."""
        ...

    def version(self, user: str) -> int | None:
        """Return the version of the record of a user, or None. This is the cheapest query."""
        ...

    def write(self, record: Record, expected_version: int | None) -> bool:
        """Write a record if the stored version is the expected one.

        Args:
            record: The new record.
            expected_version: The version that the stored record must have, or None if there must be no record.

        Returns:
            True if the record is on disk; False if the stored version is another one, and nothing was written.
        """
        ...

    def delete(self, user: str, expected_version: int | None = None) -> bool:
        """Delete the record of a user, even a damaged one, and return whether a record was deleted.

        Args:
            user: The id.
            expected_version: The only version to delete, or None to delete any version.
        """
        ...

    def users(self, after: str = "", limit: int = PAGE_SIZE) -> list[str]:
        """Return at most `limit` ids that follow `after` in the order of their UTF-8 bytes."""
        ...

    def users_older_than(self, before: int, limit: int = PAGE_SIZE) -> list[str]:
        """Return at most `limit` users whose `Record.oldest_time` is below `before` (Unix seconds), oldest first."""
        ...

    def check(self) -> None:
        """Raise a `StoreError` unless the store can be read and written now."""
        ...

    def close(self) -> None:
        """Close all connections; every later call fails."""
        ...


def open_store(url: str, *, create: bool = True) -> Store:
    """Open the store at a URL, and create its file or tables if they do not exist.

    `sqlite:///users.db` names a file in the current folder; `sqlite:////var/lib/users.db` names an absolute path.

    Args:
        url: `sqlite:///FILE`, `postgresql://...` or `redis://...`.
        create: Whether to create an SQLite file that does not exist. With False, `open_store` raises a
            `UserError` if the file does not exist, for example because its name is mistyped.

    Returns:
        The open store.

    Raises:
        UserError: The URL is invalid, a required package is not installed, or the store cannot be opened.
    """
    scheme, separator, location = url.partition("://")
    if not separator or scheme not in ("sqlite", "postgresql", "postgres", "redis", "rediss"):
        raise UserError(f"store {scheme if separator else url!r}: unknown URL; expected {STORE_URLS}")
    if any(character == "\0" or "\ud800" <= character <= "\udfff" for character in url):
        raise UserError(f"store {scheme}: the URL contains a null character or a lone surrogate; remove it")
    try:
        if scheme == "sqlite":
            from factorcell.service.stores.sqlite import SQLiteStore

            if not location.startswith("/") or len(location) == 1:
                raise UserError("store sqlite: the URL does not name a file; expected sqlite:///FILE")
            path = Path(location[1:])
            if not create and not path.exists():
                raise UserError(f"{path}: the store does not exist; check --store")
            return SQLiteStore(path)
        if scheme.startswith("postgres"):
            from factorcell.service.stores.postgres import PostgresStore

            return PostgresStore(url)
        from factorcell.service.stores.redis import RedisStore

        return RedisStore(url)
    except ImportError as error:
        raise missing_package_error(f"the store {scheme}", error.name, "serve") from None


def all_users(store: Store) -> Iterator[str]:
    """Yield the ids of all users in the order of their UTF-8 bytes."""
    last_user = ""
    while users := store.users(last_user):
        yield from users
        last_user = users[-1]


def update(
    store: Store, user: str, change: Callable[[Record], Record], now: Callable[[], int]
) -> tuple[Record, Record]:
    """Change the stored record of a user, or a new record, by compare-and-swap; return it before and after the change.

    If `change` returns its argument, nothing is written. Raise a `StoreError` if other writers are faster for too long.
    """
    deadline = monotonic() + WRITE_TIMEOUT
    while True:
        stored = store.read(user)
        before = stored or Record.new(user, now())
        after = change(before)
        if after is before:
            return before, before
        after = replace(after, version=before.version + 1, updated_at=now())
        if store.write(after, expected_version=stored.version if stored else None):
            return before, after
        if monotonic() > deadline:
            raise StoreError(f"user record: other writers changed it for {WRITE_TIMEOUT:g} seconds; try again later")
        sleep(random.uniform(0, MAX_PAUSE))  # another writer was first


class SQLStore(ABC):
    """A `Store` in the SQL table `factorcell_users`; subclasses run its queries, in which ? marks a parameter."""

    def read(self, user: str) -> Record | None:
        rows = self._fetch_rows("SELECT value FROM factorcell_users WHERE user_id = ?", user.encode())
        return Record.from_bytes(rows[0][0], user) if rows else None

    def version(self, user: str) -> int | None:
        rows = self._fetch_rows("SELECT version FROM factorcell_users WHERE user_id = ?", user.encode())
        return rows[0][0] if rows else None

    def write(self, record: Record, expected_version: int | None) -> bool:
        values = (record.version, record.oldest_time, record.to_bytes(), record.user.encode())
        if expected_version is None:
            insert = "INSERT INTO factorcell_users (version, oldest, value, user_id) VALUES (?, ?, ?, ?)"
            return self._change_row(f"{insert} ON CONFLICT DO NOTHING", *values)
        update = "UPDATE factorcell_users SET version = ?, oldest = ?, value = ? WHERE user_id = ? AND version = ?"
        return self._change_row(update, *values, expected_version)

    def delete(self, user: str, expected_version: int | None = None) -> bool:
        delete = "DELETE FROM factorcell_users WHERE user_id = ?"
        if expected_version is None:
            return self._change_row(delete, user.encode())
        return self._change_row(f"{delete} AND version = ?", user.encode(), expected_version)

    def users(self, after: str = "", limit: int = PAGE_SIZE) -> list[str]:
        query = "SELECT user_id FROM factorcell_users WHERE user_id > ? ORDER BY user_id LIMIT ?"
        return [user.decode() for (user,) in self._fetch_rows(query, after.encode(), limit)]

    def users_older_than(self, before: int, limit: int = PAGE_SIZE) -> list[str]:
        query = "SELECT user_id FROM factorcell_users WHERE oldest < ? ORDER BY oldest, user_id LIMIT ?"
        return [user.decode() for (user,) in self._fetch_rows(query, before, limit)]

    @abstractmethod
    def _fetch_rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def _change_row(self, command: str, *values: Any) -> bool:
        """Run and commit a command; return whether it changed one row."""


def check_schema(version: int, newest: int, where: object) -> None:
    """Raise a `UserError` if the version of a schema is newer than `newest`, the newest that this package supports."""
    if version > newest:
        raise UserError(f"{where}: expected schema version {newest} or older, got {version}; upgrade factorcell")


def one_line(error: BaseException) -> str:
    """Return the message of an error as one short line."""
    return " ".join(str(error).split())[:200]


@contextmanager
def store_errors(name: str, *errors: type[Exception]) -> Iterator[None]:
    """Raise each of the `errors` of a library as a `StoreError` of the store `name`."""
    try:
        yield
    except errors as error:
        raise StoreError(f"store {name}: {one_line(error)}") from error


class CircuitBreakerStore:
    """A `Store` that calls another store: after a failure, calls fail at once until a probing thread gets an answer.

    Reads and writes have separate breakers, because a store on a full disk can still be read.
    A store works only in the process that opened it. A forked process has copies of the connections, which two
    processes must not share, and it lacks the threads of the store.
    """

    def __init__(self, store: Store) -> None:
        self._store, self._process_id, self._checked_at = store, os.getpid(), -CHECK_INTERVAL
        self._reads, self._writes = _Breaker(lambda: store.version(PROBE_USER)), _Breaker(store.check)
        self.read, self.version = self._reads.guard(store.read), self._reads.guard(store.version)
        self.users, self.users_older_than = self._reads.guard(store.users), self._reads.guard(store.users_older_than)
        self.write, self.delete = self._writes.guard(store.write), self._writes.guard(store.delete)
        self._check = self._writes.guard(store.check)

    def check(self) -> None:
        """Raise a `StoreError` unless the store works; a working store is queried at most once per second."""
        if self._writes.is_down or monotonic() >= self._checked_at + CHECK_INTERVAL:
            self._check()
            self._checked_at = monotonic()

    def close(self) -> None:
        if os.getpid() == self._process_id:  # the connections of a forked process belong to its parent
            self._reads.closed.set()
            self._writes.closed.set()
            self._store.close()


class _Breaker:
    """A breaker for reads or for writes: `is_down` is true after a failure until `probe` raises no `StoreError`."""

    def __init__(self, probe: Callable[[], object]) -> None:
        self._probe, self._process_id, self.is_down = probe, os.getpid(), False
        self.closed, self._lock = threading.Event(), threading.Lock()

    def guard(self, operation: Callable[P, T]) -> Callable[P, T]:
        """Return the operation of a store, which fails at once while the store is down."""

        def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
            if os.getpid() != self._process_id:
                raise UserError(
                    "store: it was opened in another process, from which this process was forked; "
                    "open the store and create the service in each process"
                )
            if self.is_down:
                raise StoreError("store: the last call failed and the store does not answer yet; try again later")
            try:
                return operation(*args, **kwargs)
            except DamagedRecordError:
                raise  # the error concerns one record; the store works
            except StoreError:
                with self._lock:
                    if not self.is_down:
                        self.is_down = True
                        name = "factorcell-store-probe"
                        threading.Thread(target=self._probe_until_up, name=name, daemon=True).start()
                raise

        return guarded

    def _probe_until_up(self) -> None:
        while not self.closed.is_set():
            try:
                self._probe()
                self.is_down = False
                return
            except StoreError:
                pass
            except Exception as error:  # if the thread ended here, the store would stay down forever
                log_unexpected_error(error)
            self.closed.wait(PROBE_INTERVAL)
