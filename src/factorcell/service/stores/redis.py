"""A store in Redis or Valkey, for services on several machines.

The record of a user is stored in a hash. One sorted set lists all users, and another one sorts users by the time of
their oldest text. Each write is a script, which runs atomically. If the server syncs its append-only file at every
write, a write is on disk before it returns.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from factorcell.config import UserError
from factorcell.service.record import Record, StoreError, decoded_id
from factorcell.service.stores.store import PAGE, check_schema, checked_version, one_line

WAIT = 2.0  # seconds to wait for an answer
PURGE_TIMEOUT = 600.0  # seconds for rewriting the append-only file
SCHEMA, VERSION = b"factorcell:schema", 1
# Names of the two sorted sets, and the beginning of the name of each hash.
ALL, OLDEST, USER = b"factorcell:users", b"factorcell:oldest", b"factorcell:user:"
DURABLE = {"appendonly": "yes", "appendfsync": "always"}  # server settings that make acknowledged writes durable

# KEYS of both scripts: the hash, the set of all users, the set of users by oldest text. ARGV of WRITE: expected version
# ('': no record), id, new version, oldest time, value. ARGV of DELETE: expected version ('': any version), id.
WRITE = """
if (redis.call('HGET', KEYS[1], 'version') or '') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'user', ARGV[2], 'version', ARGV[3], 'value', ARGV[5])
redis.call('ZADD', KEYS[2], 0, ARGV[2])
redis.call('ZADD', KEYS[3], ARGV[4], ARGV[2])
return 1
"""
DELETE = """
local version = redis.call('HGET', KEYS[1], 'version')
if not version or ARGV[1] ~= '' and version ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
redis.call('ZREM', KEYS[2], ARGV[2])
redis.call('ZREM', KEYS[3], ARGV[2])
return 1
"""


class RedisStore:
    """A `Store` in a Redis database."""

    def __init__(self, url: str) -> None:
        """Connect to the server.

        If the server does not reveal its settings, it is assumed to keep acknowledged writes.

        Raises:
            UserError: No server answers, the schema is newer, or the settings of the server may lose writes.
        """
        no_retry = Retry(NoBackoff(), 0)  # a repeated script would find its own write and report a conflict
        try:
            pool: Any = redis.ConnectionPool.from_url(
                url, socket_timeout=WAIT, socket_connect_timeout=WAIT, retry=no_retry, protocol=2
            )
        except ValueError as error:
            raise UserError(f"store redis: {error}") from None
        self._client: Any = redis.Redis(
            connection_pool=pool
        )  # Any, because redis annotates results as possible awaitables
        self._closed = False
        self._write, self._delete = self._client.register_script(WRITE), self._client.register_script(DELETE)
        try:
            with self._as_store_errors():
                self._client.setnx(SCHEMA, VERSION)
                schema = int(self._client.get(SCHEMA) or 0)
            check_schema(schema, VERSION, "store redis")
        except StoreError as error:
            self.close()
            raise UserError(f"store redis: cannot be opened ({one_line(error.__cause__ or error)})") from None
        except UserError:
            self.close()
            raise
        self._check_durable()

    def read(self, user: str) -> Record | None:
        with self._as_store_errors():
            value = self._client.hget(_key(user), "value")
        return None if value is None else Record.from_bytes(value, user)

    def version(self, user: str) -> int | None:
        with self._as_store_errors():
            stored_id, version = self._client.hmget(_key(user), "user", "version")
        return None if version is None else checked_version(user, stored_id, version)

    def write(self, record: Record, expected: int | None) -> bool:
        values = (record.user.encode(), record.version, record.oldest, record.to_bytes())
        with self._as_store_errors():
            return bool(self._write([_key(record.user), ALL, OLDEST], ["" if expected is None else expected, *values]))

    def delete(self, user: str, expected: int | None = None) -> bool:
        values = ["" if expected is None else expected, user.encode()]
        with self._as_store_errors():
            return bool(self._delete([_key(user), ALL, OLDEST], values))

    # In ranges of a sorted set, ( excludes the bound that follows, and - and + are the lowest and the highest member.
    def users(self, after: str = "", limit: int = PAGE) -> list[str]:
        first = b"(" + after.encode() if after else b"-"
        with self._as_store_errors():
            ids = self._client.zrange(ALL, first, b"+", bylex=True, offset=0, num=limit)
        return [decoded_id(user) for user in ids]

    def users_older_than(self, before: int, limit: int = PAGE) -> list[str]:
        with self._as_store_errors():
            ids = self._client.zrange(OLDEST, b"-inf", b"(%d" % before, byscore=True, offset=0, num=limit)
        return [decoded_id(user) for user in ids]

    def check(self) -> None:
        with self._as_store_errors():
            self._client.set(SCHEMA, VERSION)

    def purge(self) -> list[str]:
        with self._as_store_errors():
            deadline = monotonic() + PURGE_TIMEOUT
            self._wait(deadline)  # a running rewrite may have begun before the deletion
            self._client.bgrewriteaof()
            self._wait(deadline)
            info = self._client.info("persistence")
        remaining = []
        if info["aof_last_bgrewrite_status"] != "ok":
            remaining.append("append-only file: rewriting it failed; see the log of the server")
        if info.get("rdb_saves"):
            remaining.append("snapshot (dump.rdb): it contains deleted data until the next snapshot; run SAVE")
        return remaining

    def close(self) -> None:
        self._closed = True
        self._client.close()
        self._client.connection_pool.disconnect()

    def _rewriting(self) -> bool:
        info = self._client.info("persistence")
        return bool(info["aof_rewrite_in_progress"] or info["aof_rewrite_scheduled"])

    def _wait(self, deadline: float) -> None:
        while self._rewriting():
            if monotonic() > deadline:
                raise StoreError("store redis: the append-only file is still being rewritten")
            sleep(0.01)

    def _check_durable(self) -> None:
        """Raise a `UserError` if the settings of the server may lose writes or evict users."""
        settings: dict[str, str] = {}
        try:
            for name in (*DURABLE, "maxmemory", "maxmemory-policy"):
                settings |= self._client.config_get(name)
        except redis.RedisError:  # many hosted servers do not allow CONFIG GET
            return
        required = [f"{name} {value}" for name, value in DURABLE.items() if settings.get(name, value) != value]
        if settings.get("maxmemory", "0") != "0" and settings.get("maxmemory-policy") != "noeviction":
            required.append("maxmemory-policy noeviction")
        if required:
            self.close()
            raise UserError(f"store redis: the server may lose acknowledged writes; set {' and '.join(required)}")

    @contextmanager
    def _as_store_errors(self) -> Iterator[None]:
        if self._closed:
            raise StoreError("store redis: the store is closed")
        try:
            yield
        except redis.RedisError as error:
            raise StoreError(f"store redis: {one_line(error)}") from error


def _key(user: str) -> bytes:
    return USER + user.encode()
