"""A store in PostgreSQL, for services on several machines.

Each write is one statement, which commits by itself and returns after the data are on disk (`synchronous_commit`).
Ids are bytes, so that their order and equality do not depend on a locale. Values are not compressed. The server
collects no statistics of ids and values, because statistics would outlive deleted records.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from factorcell.errors import UserError
from factorcell.service.stores.store import SQLStore, check_schema, one_line, store_errors

MAX_CONNECTIONS = 16  # maximum number of connections of one process
TIMEOUT = 2.0  # maximum number of seconds to wait for a connection, and for an answer
CHECK_INTERVAL = 0.1  # seconds between checks of the deadline
SESSION_OPTIONS = "-c synchronous_commit=on -c statement_timeout=5s -c default_transaction_isolation=read\\ committed"
LOCK_KEY = 0x66637573  # key of the advisory lock for creating tables: the letters "fcus" in ASCII

T = TypeVar("T")

SCHEMA_VERSION = 1  # version of the tables
CREATE_COMMANDS = (
    "CREATE TABLE factorcell_users (user_id bytea PRIMARY KEY, version bigint NOT NULL, oldest bigint NOT NULL, "
    "value bytea NOT NULL)",
    "ALTER TABLE factorcell_users ALTER value SET STORAGE EXTERNAL, ALTER value SET STATISTICS 0, "
    "ALTER user_id SET STATISTICS 0",
    "CREATE INDEX factorcell_users_oldest ON factorcell_users (oldest, user_id)",
)


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that closes itself if the server does not answer within `TIMEOUT`."""

    def wait(self, gen: PQGen[T], interval: float = CHECK_INTERVAL, timeout: float | None = None) -> T:
        return super().wait(self._with_deadline(gen), interval, timeout)

    def _with_deadline(self, gen: PQGen[T]) -> PQGen[T]:
        """Run `gen`, which waits for the server; at the deadline, close the connection and raise an error."""
        deadline = monotonic() + TIMEOUT
        try:
            waits_for = next(gen)
            while monotonic() < deadline:
                waits_for = gen.send((yield waits_for))
        except StopIteration as end:
            answer: T = end.value
            return answer
        self.close()
        raise psycopg.OperationalError("the server does not answer")


class PostgresStore(SQLStore):
    """A `Store` in two tables of a PostgreSQL database."""

    def __init__(self, url: str) -> None:
        """Connect to the server; raise a `UserError` if no server answers or the tables have a newer schema."""
        options: dict[str, Any] = {
            "autocommit": True,
            "connect_timeout": math.ceil(TIMEOUT),
            "options": SESSION_OPTIONS,
        }
        try:
            # The pool would retry until its timeout and hide the reason of a failure.
            with BoundedConnection.connect(url, **options) as connection, connection.transaction():
                _create_tables(connection)
            self._pool: ConnectionPool[BoundedConnection] = ConnectionPool(
                url,
                connection_class=BoundedConnection,
                kwargs=options,
                min_size=1,
                max_size=MAX_CONNECTIONS,
                timeout=TIMEOUT,
                reconnect_timeout=TIMEOUT,
                open=True,
            )
        except psycopg.Error as error:
            raise UserError(f"store postgresql: cannot be opened ({one_line(error)})") from None

    def check(self) -> None:
        self._change_row("UPDATE factorcell_schema SET version = version")

    def close(self) -> None:
        self._pool.close()

    def _fetch_rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._connection() as connection:
            return connection.execute(query.replace("?", "%b"), values, prepare=True, binary=True).fetchall()

    def _change_row(self, command: str, *values: Any) -> bool:
        with self._connection() as connection:
            return connection.execute(command.replace("?", "%b"), values).rowcount == 1

    @contextmanager
    def _connection(self) -> Iterator[BoundedConnection]:
        """Yield a connection from the pool. If the connection breaks, check the idle connections of the pool."""
        with store_errors("postgresql", psycopg.Error, PoolTimeout, PoolClosed), self._pool.connection() as connection:
            try:
                yield connection
            finally:
                if connection.broken and not self._pool.closed:
                    self._pool.check()


def _create_tables(connection: psycopg.Connection[Any]) -> None:
    """Create missing tables under a lock across processes; raise a `UserError` if their schema is newer."""
    connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK_KEY,))
    connection.execute("CREATE TABLE IF NOT EXISTS factorcell_schema (version integer NOT NULL)")
    (version,) = connection.execute("SELECT version FROM factorcell_schema").fetchone() or (0,)  # 0: no tables yet
    check_schema(version, SCHEMA_VERSION, "store postgresql")
    if not version:
        for command in CREATE_COMMANDS:
            connection.execute(command)
        connection.execute("INSERT INTO factorcell_schema VALUES (%s)", (SCHEMA_VERSION,))
