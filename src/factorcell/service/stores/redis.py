"""A store in Redis or Valkey, for services on several machines.

The record of a user is stored in a hash. One sorted set lists all users, and another one sorts users by the time of
their oldest text. Each write is a script, which runs atomically. If the server syncs its append-only file at every
write, the script returns after the data are on disk.
"""

from collections.abc import Callable
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from factorcell.errors import UserError
from factorcell.service.record import Record, StoreError
from factorcell.service.stores.store import PAGE_SIZE, check_schema, one_line, store_errors

TIMEOUT = 2.0  # maximum number of seconds to wait for an answer
SCHEMA_KEY, SCHEMA_VERSION = b"factorcell:schema", 1
# Names of the two sorted sets, and the beginning of the name of each hash.
ALL_USERS, USERS_BY_OLDEST, USER_PREFIX = b"factorcell:users", b"factorcell:oldest", b"factorcell:user:"
DURABLE_SETTINGS = {"appendonly": "yes", "appendfsync": "always"}  # server settings for durable writes

# Arguments of the scripts:
# KEYS of both: the hash of the user, the set of all users, the set of users by the time of their oldest text.
# ARGV of WRITE_SCRIPT: the expected version ('': no record), the id, the new version, the oldest time, the value.
# ARGV of DELETE_SCRIPT: the expected version ('': any version), the id.
WRITE_SCRIPT = """
if (redis.call('HGET', KEYS[1], 'version') or '') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'version', ARGV[3], 'value', ARGV[5])
redis.call('ZADD', KEYS[2], 0, ARGV[2])
redis.call('ZADD', KEYS[3], ARGV[4], ARGV[2])
return 1
"""
DELETE_SCRIPT = """
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
        """Connect to the server; raise a `UserError` if it does not answer or may lose writes, or the schema is newer.

        If the server does not reveal its settings, this class assumes that acknowledged writes are durable.
        """
        no_retry = Retry(NoBackoff(), retries=0)  # a repeated script would find its own write and report a conflict
        try:
            # The type is Any, because the package redis annotates every result as a possible awaitable.
            self._client: Any = redis.Redis.from_url(
                url, socket_timeout=TIMEOUT, socket_connect_timeout=TIMEOUT, retry=no_retry, protocol=2
            )
        except ValueError as error:
            raise UserError(f"store redis: {error}") from None
        self._is_closed = False
        self._write_script = self._client.register_script(WRITE_SCRIPT)
        self._delete_script = self._client.register_script(DELETE_SCRIPT)
        try:
            self._client.setnx(SCHEMA_KEY, SCHEMA_VERSION)
            check_schema(int(self._client.get(SCHEMA_KEY) or 0), SCHEMA_VERSION, "store redis")
            self._check_durable()
        except redis.RedisError as error:
            self.close()
            raise UserError(f"store redis: cannot be opened ({one_line(error)})") from None
        except UserError:
            self.close()
            raise

    def read(self, user: str) -> Record | None:
        value = self._call(self._client.hget, _user_key(user), "value")
        return None if value is None else Record.from_bytes(value, user)

    def version(self, user: str) -> int | None:
        version = self._call(self._client.hget, _user_key(user), "version")
        return None if version is None else int(version)

    def write(self, record: Record, expected_version: int | None) -> bool:
        expected = "" if expected_version is None else expected_version
        arguments = [expected, record.user.encode(), record.version, record.oldest_time, record.to_bytes()]
        return bool(self._call(self._write_script, [_user_key(record.user), ALL_USERS, USERS_BY_OLDEST], arguments))

    def delete(self, user: str, expected_version: int | None = None) -> bool:
        arguments = ["" if expected_version is None else expected_version, user.encode()]
        return bool(self._call(self._delete_script, [_user_key(user), ALL_USERS, USERS_BY_OLDEST], arguments))

    # In a range of a sorted set, "(" excludes the bound that follows it; "-" is below and "+" above all members.
    def users(self, after: str = "", limit: int = PAGE_SIZE) -> list[str]:
        lower_bound = b"(" + after.encode() if after else b"-"
        ids = self._call(self._client.zrange, ALL_USERS, lower_bound, b"+", bylex=True, offset=0, num=limit)
        return [user.decode() for user in ids]

    def users_older_than(self, before: int, limit: int = PAGE_SIZE) -> list[str]:
        upper_bound, options = b"(%d" % before, {"byscore": True, "offset": 0, "num": limit}
        ids = self._call(self._client.zrange, USERS_BY_OLDEST, b"-inf", upper_bound, **options)
        return [user.decode() for user in ids]

    def check(self) -> None:
        self._call(self._client.incrby, SCHEMA_KEY, 0)  # writes, but keeps the version of a newer server

    def close(self) -> None:
        self._is_closed = True
        self._client.close()
        self._client.connection_pool.disconnect()

    def _check_durable(self) -> None:
        """Raise a `UserError` if the settings of the server may lose writes or evict users."""
        settings: dict[str, str] = {}
        try:
            for name in (*DURABLE_SETTINGS, "maxmemory", "maxmemory-policy"):
                settings |= self._client.config_get(name)
        except redis.RedisError:  # many hosted servers do not allow CONFIG GET
            return
        required = [f"{name} {value}" for name, value in DURABLE_SETTINGS.items() if settings.get(name, value) != value]
        if settings.get("maxmemory", "0") != "0" and settings.get("maxmemory-policy") != "noeviction":
            required.append("maxmemory-policy noeviction")
        if required:
            raise UserError(f"store redis: the server may lose acknowledged writes; set {' and '.join(required)}")

    def _call(self, command: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Return the result of a command; raise a `StoreError` if it fails or the store is closed."""
        if self._is_closed:
            raise StoreError("store redis: the store is closed")
        with store_errors("redis", redis.RedisError):
            return command(*arguments, **options)


def _user_key(user: str) -> bytes:
    return USER_PREFIX + user.encode()
