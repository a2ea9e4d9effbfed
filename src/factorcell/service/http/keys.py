"""Keys: each key determines which requests a program may send, and how often.

A file of keys contains an entry with the hash of each key. The command that creates a key shows the key only once.

    [[key]]
    name = "shop"
    hash = "5f0c..."
    scopes = ["complete", "learn"]
    rate = 20

A key has 32 random bytes. Therefore nobody can guess a key from its hash, although SHA-256 is fast to compute.
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

from factorcell.errors import UserError, check_choice
from factorcell.io import files, input_files
from factorcell.options.choices import KEY_SCOPES

PREFIX = "fc_"  # beginning of every key, so that scanners recognize a leaked key
BURST_SECONDS = 2.0  # a burst may have as many requests as the rate allows in this time


class KeyEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The entry of a key: name, SHA-256 in hexadecimal, scopes, and requests per second (None: no limit)."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    hash: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    scopes: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    rate: Annotated[float, msgspec.Meta(gt=0, le=1e6)] | None = None

    def __post_init__(self) -> None:
        if not self.name.isprintable():
            raise ValueError("name: expected 1 to 64 printable characters")
        for scope in self.scopes:
            check_choice("scope", scope, KEY_SCOPES)


class _KeyFile(msgspec.Struct, frozen=True):
    key: tuple[KeyEntry, ...] = ()  # the tables [[key]]


def read_keys(path: str | Path) -> tuple[KeyEntry, ...]:
    """Return the entries of a file of keys; raise a `UserError` if the file is not a file of keys."""
    try:
        entries = msgspec.toml.decode(input_files.read_text(path), type=_KeyFile).key
    except msgspec.MsgspecError as error:
        raise UserError(f"{path}: not a file of keys ({error})") from None
    if len({entry.name for entry in entries}) < len(entries):
        raise UserError(f"{path}: two keys have the same name; rename one")
    return entries


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
    existing_entries = read_keys(path) if Path(path).exists() else ()
    if any(entry.name == name for entry in existing_entries):
        raise UserError(f"{path}: a key named {name!r} exists already; choose another name")
    key = PREFIX + secrets.token_urlsafe(32)
    values = {"name": name, "hash": _digest(key), "scopes": list(dict.fromkeys(scopes)), "rate": rate}
    try:
        entries = (*existing_entries, msgspec.convert(values, KeyEntry))
    except msgspec.ValidationError as error:
        raise UserError(f"key {name!r:.80}: {error}") from None
    files.write(path, "\n\n".join(map(_to_toml, entries)) + "\n")
    Path(path).chmod(0o600)
    return key


def _to_toml(entry: KeyEntry) -> str:
    """Return an entry as a TOML table."""
    fields = msgspec.to_builtins(entry).items()
    # Strings, numbers and lists of strings have the same form in JSON and TOML.
    lines = [f"{field} = {json.dumps(value)}" for field, value in fields if value is not None]
    return "\n".join(["[[key]]", *lines])


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


class TokenBucket:
    """A token bucket that allows `rate` requests per second and short bursts."""

    def __init__(self, rate: float) -> None:
        self.rate, self.capacity = rate, max(1.0, rate * BURST_SECONDS)
        self._token_count, self._updated_at = self.capacity, time.monotonic()
        self._lock = threading.Lock()

    def take_token(self) -> float:
        """Take a token for a request and return 0, or return the seconds until a token is available."""
        with self._lock:
            now = time.monotonic()
            self._token_count = min(self.capacity, self._token_count + (now - self._updated_at) * self.rate)
            self._updated_at = now
            if self._token_count >= 1:
                self._token_count -= 1
                return 0.0
            return (1 - self._token_count) / self.rate


class KeyRing:
    """The entries of a file of keys, with a token bucket for each entry that has a rate.

    Args:
        path: The file of keys.
        share: The share of each rate that this process grants.
    """

    def __init__(self, path: str | Path, share: float = 1.0) -> None:
        self.path, self.share = Path(path), share
        self._entries_by_hash: dict[str, KeyEntry] = {}
        self._buckets_by_entry: dict[KeyEntry, TokenBucket] = {}
        self.refresh()
        if not self._entries_by_hash:
            raise UserError(f"{self.path}: expected at least one key; `factorcell users key` adds a key")

    def refresh(self) -> None:
        """Read the file again. If the file is damaged, raise a `UserError` and keep the previous keys.

        If the file has no keys any more, the service refuses every request that needs a key.
        """
        entries = read_keys(self.path)
        self._buckets_by_entry = {
            entry: self._buckets_by_entry.get(entry) or TokenBucket(entry.rate * self.share)
            for entry in entries
            if entry.rate is not None
        }
        self._entries_by_hash = {entry.hash: entry for entry in entries}

    def find(self, key: str) -> KeyEntry | None:
        """Return the entry of the file for a key, or None."""
        return self._entries_by_hash.get(_digest(key))

    def count_request(self, entry: KeyEntry) -> float:
        """Count a request against the rate of its key and return 0; above the rate, return the seconds to wait."""
        bucket = self._buckets_by_entry.get(entry)
        return bucket.take_token() if bucket else 0.0
