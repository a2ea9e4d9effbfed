"""A store in Redis or Valkey: for several machines.

A user is a hash; one sorted set lists all users, another one sorts them by their oldest text. Each write is a script,
which runs atomically. With an append-only file that is synced at every write, it is on disk before it returns.
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
PURGE = 600.0  # seconds that rewriting the append-only file may take
SCHEMA, VERSION = b"factorcell:schema", 1
ALL, OLDEST, PERSON = b"factorcell:users", b"factorcell:oldest", b"factorcell:user:"
DURABLE = {"appendonly": "yes", "appendfsync": "always"}  # settings of a server that keeps what it acknowledged

# KEYS: the person, all, by oldest text. ARGV: the version expected or nothing, the id, the version, oldest text, value.
WRITE = """
if (redis.call('HGET', KEYS[1], 'version') or '') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'user', ARGV[2], 'version', ARGV[3], 'value', ARGV[5])
redis.call('ZADD', KEYS[2], 0, ARGV[2])
redis.call('ZADD', KEYS[3], ARGV[4], ARGV[2])
return 1
"""
DELETE = """
local found = redis.call('HGET', KEYS[1], 'version')
if not found or ARGV[1] ~= '' and found ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
redis.call('ZREM', KEYS[2], ARGV[2])
redis.call('ZREM', KEYS[3], ARGV[2])
return 1
"""


class RedisStore:
    """A `Store` in a Redis database."""

    def __init__(self, url: str) -> None:
        """Raise a `UserError` if nothing answers at `url`, its schema is of a later version, or it may lose writes.

        A server that does not tell its settings is trusted.
        """
        never = Retry(NoBackoff(), 0)  # a script that is sent twice might find its own write
        try:
            pool: Any = redis.ConnectionPool.from_url(
                url, socket_timeout=WAIT, socket_connect_timeout=WAIT, retry=never, protocol=2
            )
        except ValueError as error:
            raise UserError(f"store redis: {error}") from None
        self._client: Any = redis.Redis(connection_pool=pool)  # typed Any: its annotations include awaitables
        self._closed = False
        self._write, self._delete = self._client.register_script(WRITE), self._client.register_script(DELETE)
        try:
            with self._asking():
                self._client.setnx(SCHEMA, VERSION)
                schema = int(self._client.get(SCHEMA) or 0)
            check_schema(schema, VERSION, "store redis")
        except StoreError as error:
            self.close()
            raise UserError(f"store redis: cannot be opened ({error})") from None
        except UserError:
            self.close()
            raise
        self._check_durable()

    def read(self, user: str) -> Record | None:
        with self._asking():
            value = self._client.hget(_key(user), "value")
        return None if value is None else Record.from_bytes(value, user)

    def version(self, user: str) -> int | None:
        with self._asking():
            found, version = self._client.hmget(_key(user), "user", "version")
        return None if version is None else checked_version(user, found, version)

    def write(self, record: Record, expected: int | None) -> bool:
        values = (record.user.encode(), record.version, record.oldest, record.to_bytes())
        with self._asking():
            return bool(self._write([_key(record.user), ALL, OLDEST], ["" if expected is None else expected, *values]))

    def delete(self, user: str, expected: int | None = None) -> bool:
        values = ["" if expected is None else expected, user.encode()]
        with self._asking():
            return bool(self._delete([_key(user), ALL, OLDEST], values))

    def users(self, after: str = "", limit: int = PAGE) -> list[str]:
        first = b"(" + after.encode() if after else b"-"
        with self._asking():
            found = self._client.zrange(ALL, first, b"+", bylex=True, offset=0, num=limit)
        return [decoded_id(user) for user in found]

    def users_older_than(self, before: int, limit: int = PAGE) -> list[str]:
        with self._asking():
            found = self._client.zrange(OLDEST, b"-inf", b"(%d" % before, byscore=True, offset=0, num=limit)
        return [decoded_id(user) for user in found]

    def check(self) -> None:
        with self._asking():
            self._client.set(SCHEMA, VERSION)

    def purge(self) -> list[str]:
        with self._asking():
            stop = monotonic() + PURGE
            self._wait(stop)  # a rewrite that is running may have begun before the deletion
            self._client.bgrewriteaof()
            self._wait(stop)
            info = self._client.info("persistence")
        left = [] if info["aof_last_bgrewrite_status"] == "ok" else ["append-only file: its rewriting failed"]
        if info.get("rdb_saves"):
            left.append("snapshots (dump.rdb) hold what was deleted until the next one; SAVE makes it")
        return left

    def close(self) -> None:
        self._closed = True
        self._client.close()
        self._client.connection_pool.disconnect()

    def _rewriting(self) -> bool:
        info = self._client.info("persistence")
        return bool(info["aof_rewrite_in_progress"] or info["aof_rewrite_scheduled"])

    def _wait(self, stop: float) -> None:
        while self._rewriting():
            if monotonic() > stop:
                raise StoreError("the append-only file is still being written anew")
            sleep(0.01)

    def _check_durable(self) -> None:
        """Raise a `UserError` if the server's settings let it lose writes or evict users."""
        found: dict[str, str] = {}
        try:
            for name in (*DURABLE, "maxmemory", "maxmemory-policy"):
                found |= self._client.config_get(name)
        except redis.RedisError:  # many who rent out servers do not tell
            return
        wrong = [f"{name} {right}" for name, right in DURABLE.items() if found.get(name, right) != right]
        if found.get("maxmemory", "0") != "0" and found.get("maxmemory-policy") != "noeviction":
            wrong.append("maxmemory-policy noeviction")
        if wrong:
            self.close()
            raise UserError(f"store redis: it may lose what it has answered; set {' and '.join(wrong)}")

    @contextmanager
    def _asking(self) -> Iterator[None]:
        if self._closed:
            raise StoreError("the store is closed")
        try:
            yield
        except redis.RedisError as error:
            raise StoreError(f"the store failed: {one_line(error)}") from error


def _key(user: str) -> bytes:
    return PERSON + user.encode()
