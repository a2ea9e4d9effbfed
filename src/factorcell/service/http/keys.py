"""Keys: each key determines which requests a program may send, and how often.

A file of keys contains an entry with the hash of each key, and comments above it. A key is shown only once.

    [[key]]
    name = "shop"
    hash = "5f0c..."
    scopes = ["complete", "learn"]
    rate = 20

A key has 32 random bytes. Therefore nobody can guess a key from its hash, although SHA-256 is fast to compute.
"""

import hashlib
import json
import re
import secrets
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import msgspec

from factorcell.errors import UserError, check_choice
from factorcell.io import files, input_files
from factorcell.options.limits import KEY_SCOPES

PREFIX = "fc_"  # beginning of every key, so that scanners recognize a leaked key
ENTRY = re.compile(r"^(?:#.*\n)*\[\[key\]\]", re.MULTILINE)  # the beginning of an entry in a file, with its comments
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
    names, parts = _read_parts(path) if Path(path).exists() else ([], [""])
    if name in names:
        raise UserError(f"{path}: a key named {name!r} exists already; choose another name")
    key = PREFIX + secrets.token_urlsafe(32)
    values = {"name": name, "hash": _digest(key), "scopes": list(dict.fromkeys(scopes)), "rate": rate}
    try:
        entry = msgspec.convert(values, KeyEntry)
    except msgspec.ValidationError as error:
        raise UserError(f"key {name!r:.80}: {error}") from None
    # Strings, numbers and lists of strings have the same form in JSON and TOML.
    row = {field: value for field, value in msgspec.to_builtins(entry).items() if value is not None}
    lines = [f"{field} = {json.dumps(value, ensure_ascii=False)}" for field, value in row.items()]
    _write(path, "\n".join(["".join(parts).rstrip(), "", "[[key]]", *lines, ""]).lstrip())
    return key


def remove_key(path: str | Path, name: str) -> None:
    """Remove the key with this name from a file; raise a `UserError` if there is none."""
    names, (head, *parts) = _read_parts(path)
    check_choice("key", name, names)
    _write(path, head + "".join(part for part, other in zip(parts, names, strict=True) if other != name))


def _read_parts(path: str | Path) -> tuple[list[str], list[str]]:
    """Return the names of the keys in a file, and its parts: the text before the keys, and the text of each key."""
    names, text = [entry.name for entry in read_keys(path)], input_files.read_text(path)
    places = [0, *(match.start() for match in ENTRY.finditer(text)), len(text)]
    if len(places) != len(names) + 2:
        raise UserError(f"{path}: expected each key below a line [[key]], got another form; change the file by hand")
    return names, [text[begin:end] for begin, end in pairwise(places)]


def _write(path: str | Path, text: str) -> None:
    files.write(path, text)
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
