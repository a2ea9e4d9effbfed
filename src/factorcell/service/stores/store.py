"""The protocol of a store, and the SQL that SQLite and PostgreSQL share.

All methods block and are called from threads. Each method may raise a `StoreError`. After a failed write, the caller
must read the record to learn whether the write happened. Stores do not retry.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Protocol

from factorcell.errors import UserError
from factorcell.service.record import DamagedRecordError, Record, decoded_id

PAGE_SIZE = 1000  # default of the maximum number of users in one listing


class Store(Protocol):
    """A store with one record per user id. Any number of threads and processes may use it."""

    def read(self, user: str) -> Record | None:
        """Return the record of a user, or None.

        Raises:
            DamagedRecordError: The stored bytes differ from those written.
        """
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
        """Delete the record of a user, even a damaged one.

        Args:
            user: The id.
            expected_version: The only version to delete, or None to delete any version.

        Returns:
            Whether a record was deleted.
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

    def purge(self) -> list[str]:
        """Remove deleted and replaced records from the raw files of the store.

        The method may take seconds and block other calls.

        Returns:
            One line for each place that may still contain deleted data, with the way to remove the data.
        """
        ...

    def close(self) -> None:
        """Close all connections; every later call fails."""
        ...


class SQLStore(ABC):
    """A `Store` in the SQL table `factorcell_users`; subclasses run its queries, in which ? marks a parameter."""

    def read(self, user: str) -> Record | None:
        rows = self._fetch_rows("SELECT value FROM factorcell_users WHERE user_id = ?", user.encode())
        if not rows:
            return None
        ((content,),) = rows
        return Record.from_bytes(content, user)

    def version(self, user: str) -> int | None:
        rows = self._fetch_rows("SELECT user_id, version FROM factorcell_users WHERE user_id = ?", user.encode())
        if not rows:
            return None
        ((stored_id, version),) = rows
        return checked_version(user, stored_id, version)

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
        return [decoded_id(user) for (user,) in self._fetch_rows(query, after.encode(), limit)]

    def users_older_than(self, before: int, limit: int = PAGE_SIZE) -> list[str]:
        query = "SELECT user_id FROM factorcell_users WHERE oldest < ? ORDER BY oldest, user_id LIMIT ?"
        return [decoded_id(user) for (user,) in self._fetch_rows(query, before, limit)]

    @abstractmethod
    def _fetch_rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def _change_row(self, command: str, *values: Any) -> bool:
        """Run and commit a command; return whether it changed one row."""


def all_users(store: Store) -> Iterator[str]:
    """Yield the ids of all users in the order of their UTF-8 bytes."""
    last_user = ""
    while users := store.users(last_user):
        yield from users
        last_user = users[-1]


def checked_version(user: str, stored_id: bytes, version: bytes | int) -> int:
    """Return the version of a row; raise a `DamagedRecordError` if the row belongs to another user."""
    if stored_id != user.encode():
        raise DamagedRecordError("user record: the store returned the record of another user")
    return int(version)


def check_schema(version: int, newest: int, where: object) -> None:
    """Raise a `UserError` if the version of a schema is newer than `newest`, the newest that this package supports."""
    if version > newest:
        raise UserError(f"{where}: expected schema version {newest} or older, got {version}; upgrade factorcell")


def one_line(error: BaseException) -> str:
    """Return the message of an error as one short line."""
    return " ".join(str(error).split())[:200]
