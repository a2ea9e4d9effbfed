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
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from factorcell.errors import UserError, check_choice
from factorcell.io import files, input_files
from factorcell.options.limits import KEY_SCOPES

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


def read_keys(path: str | Path) -> tuple[KeyEntry, ...]:
    """Return the entries of a file of keys; raise a `UserError` if the file is not a file of keys."""
    try:
        tables = msgspec.toml.decode(input_files.read_text(path), type=dict[str, tuple[KeyEntry, ...]])
    except msgspec.MsgspecError as error:
        raise UserError(f"{path}: not a file of keys ({error})") from None
    entries = tables.get("key", ())
    if len({entry.name for entry in entries}) < len(entries):
        raise UserError(f"{path}: two keys have the same name; rename one")
    return entries


def add_key(path: str | Path, name: str, scopes: Sequence[str], rate: float | None = None) -> str:
    """Create a key, add its hash to a file that only its owner can read, and return it; check the arguments."""
    entries = read_keys(path) if Path(path).exists() else ()
    if name in (entry.name for entry in entries):
        raise UserError(f"{path}: a key named {name!r} exists already; choose another name")
    key = PREFIX + secrets.token_urlsafe(32)
    values = {"name": name, "hash": _digest(key), "scopes": list(dict.fromkeys(scopes)), "rate": rate}
    try:
        entry = msgspec.convert(values, KeyEntry)
    except msgspec.ValidationError as error:
        raise UserError(f"key {name!r:.80}: {error}") from None
    _write(path, [*entries, entry])
    return key


def remove_key(path: str | Path, name: str) -> None:
    """Remove the key with this name from a file; raise a `UserError` if there is none."""
    entries = read_keys(path)
    check_choice("key", name, [entry.name for entry in entries])
    _write(path, [entry for entry in entries if entry.name != name])


def _write(path: str | Path, entries: Sequence[KeyEntry]) -> None:
    # Strings, numbers and lists of strings have the same form in JSON and TOML.
    rows = (msgspec.to_builtins(entry).items() for entry in entries)
    tables = ("".join(f"{field} = {json.dumps(value)}\n" for field, value in row if value is not None) for row in rows)
    files.write(path, "\n".join(f"[[key]]\n{table}" for table in tables))
    Path(path).chmod(0o600)


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


class KeyRing:
    """The entries of a file of keys, and the times of their next requests; a process grants a `share` of each rate."""

    def __init__(self, path: str | Path, share: float = 1.0) -> None:
        self.path, self.share = Path(path), share
        self._entries_by_hash: dict[str, KeyEntry] = {}
        self._due_times: dict[KeyEntry, float] = {}  # for keys with a rate: `time.monotonic()` without bursts
        self.refresh()
        if not self._entries_by_hash:
            raise UserError(f"{self.path}: expected at least one key; `factorcell users key` adds a key")

    def refresh(self) -> None:
        """Read the file again. If the file is damaged, raise a `UserError` and keep the previous keys.

        If the file has no keys any more, the service refuses every request that needs a key.
        """
        self._entries_by_hash = {entry.hash: entry for entry in read_keys(self.path)}

    def find(self, key: str) -> KeyEntry | None:
        """Return the entry of the file for a key, or None."""
        return self._entries_by_hash.get(_digest(key))

    def count_request(self, entry: KeyEntry) -> float:
        """Count a request and return 0, or the seconds to wait if the rate of the last seconds is exceeded."""
        if entry.rate is None:
            return 0.0
        interval, now = 1 / (entry.rate * self.share), time.monotonic()
        due_time = max(self._due_times.get(entry, 0.0), now - max(0.0, BURST_SECONDS - interval))
        if due_time > now:
            return due_time - now
        self._due_times[entry] = due_time + interval
        return 0.0
