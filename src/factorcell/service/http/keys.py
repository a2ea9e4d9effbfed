"""Keys: each key determines which requests a program may send, and how often.

A file has the hash of each key. The key itself is shown once, when it is created.

    [[key]]
    name = "shop"
    hash = "5f0c..."
    scopes = ["complete", "learn"]
    rate = 20

A key has 32 random bytes. Therefore nobody can guess it from its hash, although SHA-256 is fast.
"""

import hashlib
import json
import secrets
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from factorcell import files, input_files
from factorcell.choices import KEY_SCOPES
from factorcell.config import UserError, choose

PREFIX = "fc_"  # beginning of every key, so that scanners recognize a leaked key
BURST = 2.0  # a burst may have as many requests as the rate allows in these seconds


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key: its name, its SHA-256 in hexadecimal, its scopes, and the requests per second (None: no limit)."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    hash: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    scopes: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    rate: Annotated[float, msgspec.Meta(gt=0, le=1e6)] | None = None

    def __post_init__(self) -> None:
        if not self.name.isprintable():
            raise ValueError("name: expected 1 to 64 printable characters")
        for scope in self.scopes:
            choose("scope", scope, KEY_SCOPES)


class _File(msgspec.Struct, frozen=True):
    key: tuple[Key, ...] = ()


def read_keys(path: str | Path) -> tuple[Key, ...]:
    """Return the keys in a file; raise a `UserError` if the file is not a file of keys."""
    try:
        keys = msgspec.toml.decode(input_files.read_text(path), type=_File).key
    except msgspec.MsgspecError as error:
        raise UserError(f"{path}: not a file of keys ({error})") from None
    if len({key.name for key in keys}) < len(keys):
        raise UserError(f"{path}: two keys have the same name; rename one")
    return keys


def add_key(path: str | Path, name: str, scopes: Sequence[str], rate: float | None = None) -> str:
    """Create a key, add its hash to a file that only its owner can read, and return the key.

    Args:
        path: The file of keys, which is created if it does not exist.
        name: A name that no other key of the file has.
        scopes: Names of the kinds of requests that the key allows, from `KEY_SCOPES`.
        rate: Requests per second, or None for no limit.

    Raises:
        UserError: Another key has this name, or an argument is invalid.
    """
    existing = read_keys(path) if Path(path).exists() else ()
    if any(other.name == name for other in existing):
        raise UserError(f"{path}: a key named {name!r} exists already; choose another name")
    key = PREFIX + secrets.token_urlsafe(32)
    values = {"name": name, "hash": _digest(key), "scopes": list(dict.fromkeys(scopes)), "rate": rate}
    try:
        keys = (*existing, msgspec.convert(values, Key))
    except msgspec.ValidationError as error:
        raise UserError(f"key {name!r:.80}: {error}") from None
    files.write(path, "\n\n".join(map(_toml, keys)) + "\n")
    Path(path).chmod(0o600)
    return key


def _toml(key: Key) -> str:
    """Return the table of a key in TOML."""
    fields = msgspec.to_builtins(key).items()
    # Strings, numbers and lists of strings have the same form in JSON and TOML.
    lines = [f"{field} = {json.dumps(value)}" for field, value in fields if value is not None]
    return "\n".join(["[[key]]", *lines])


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


class TokenBucket:
    """A token bucket that allows `rate` requests per second and short bursts."""

    def __init__(self, rate: float) -> None:
        self.rate, self.capacity = rate, max(1.0, rate * BURST)
        self._tokens, self._time = self.capacity, time.monotonic()
        self._lock = threading.Lock()

    def take_token(self) -> float:
        """Take a token for a request and return 0, or return the seconds until there is a token."""
        with self._lock:
            now = time.monotonic()
            self._tokens = min(self.capacity, self._tokens + (now - self._time) * self.rate)
            self._time = now
            if self._tokens >= 1:
                self._tokens -= 1
                return 0.0
            return (1 - self._tokens) / self.rate


class KeyRing:
    """The keys of a file.

    Args:
        path: The file of keys.
        share: The share of each rate that this process grants.
    """

    def __init__(self, path: str | Path, share: float = 1.0) -> None:
        self.path, self.share = Path(path), share
        self._keys: dict[str, Key] = {}
        self._buckets: dict[Key, TokenBucket] = {}
        self.refresh()
        if not self._keys:
            raise UserError(f"{self.path}: expected at least one key; `factorcell users key` adds a key")

    def refresh(self) -> None:
        """Read the file again. If the file is damaged, raise a `UserError` and keep the previous keys.

        If the file has no keys any more, every request is refused.
        """
        keys = read_keys(self.path)
        self._buckets = {
            key: self._buckets.get(key) or TokenBucket(key.rate * self.share) for key in keys if key.rate is not None
        }
        self._keys = {key.hash: key for key in keys}

    def find(self, key: str) -> Key | None:
        """Return the entry of the file for a key, or None."""
        return self._keys.get(_digest(key))

    def take_token(self, key: Key) -> float:
        """Take a token for a request with a key and return 0, or return the seconds until there is a token."""
        bucket = self._buckets.get(key)
        return bucket.take_token() if bucket else 0.0
