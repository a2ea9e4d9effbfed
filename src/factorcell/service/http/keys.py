"""Keys: what programs may ask, and how often. A file holds their hashes; a key itself is shown once, when it is made.

    [[key]]
    name = "shop"
    hash = "5f0c..."
    scopes = ["complete", "learn"]
    rate = 20

A key is 32 random bytes, so that one round of SHA-256 is enough.
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

BEGIN = "fc_"  # the prefix of all keys, by which they are recognised where they should not be
BURST = 2.0  # seconds' worth of requests that may come at once


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The name of a key, its SHA-256 in hexadecimal digits, what it allows, and the requests per second."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    hash: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    scopes: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    rate: Annotated[float, msgspec.Meta(gt=0, le=1e6)] | None = None

    def __post_init__(self) -> None:
        if not self.name.isprintable():
            raise ValueError("the name of a key is 1 to 64 printable characters")
        for scope in self.scopes:
            choose("scope", scope, KEY_SCOPES)


class _File(msgspec.Struct, frozen=True):
    key: tuple[Key, ...] = ()


def read_keys(path: str | Path) -> tuple[Key, ...]:
    """Return the keys of a file. `UserError` for anything but a file of keys."""
    try:
        keys = msgspec.toml.decode(input_files.read_text(path), type=_File).key
    except msgspec.MsgspecError as error:
        raise UserError(f"{path}: not a file of keys ({error})") from None
    if len({one.name for one in keys}) < len(keys):
        raise UserError(f"{path}: two keys have one name")
    return keys


def add_key(path: str | Path, name: str, scopes: Sequence[str], rate: float | None = None) -> str:
    """Make a key, add its hash to the file, and return it. Only the owner can read the file."""
    known = read_keys(path) if Path(path).exists() else ()
    if any(one.name == name for one in known):
        raise UserError(f"{path}: has a key named {name!r} already; choose another name")
    key = BEGIN + secrets.token_urlsafe(32)
    values = {"name": name, "hash": _digest(key), "scopes": list(dict.fromkeys(scopes)), "rate": rate}
    try:
        keys = (*known, msgspec.convert(values, Key))
    except msgspec.ValidationError as error:
        raise UserError(f"key {name!r:.80}: {error}") from None
    rows = [{name: value for name, value in msgspec.to_builtins(one).items() if value is not None} for one in keys]
    # Texts, numbers and lists of texts are the same in JSON and TOML.
    lines = ("\n".join(["[[key]]", *(f"{name} = {json.dumps(row[name])}" for name in row)]) for row in rows)
    files.write(path, "\n\n".join(lines) + "\n")
    Path(path).chmod(0o600)
    return key


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


class Allowance:
    """A token bucket: `rate` requests per second, some at once."""

    def __init__(self, rate: float) -> None:
        self.rate, self.most = rate, max(1.0, rate * BURST)
        self._left, self._time = self.most, time.monotonic()
        self._lock = threading.Lock()

    def take(self) -> float:
        """Return 0, or the seconds until the next request is allowed."""
        with self._lock:
            now = time.monotonic()
            self._left, self._time = min(self.most, self._left + (now - self._time) * self.rate), now
            if self._left >= 1:
                self._left -= 1
                return 0.0
            return (1 - self._left) / self.rate


class KeyRing:
    """The keys of a file. `share`: of each rate, what this process grants."""

    def __init__(self, path: str | Path, share: float = 1.0) -> None:
        self.path, self.share = Path(path), share
        self._keys: dict[str, Key] = {}
        self._allowances: dict[Key, Allowance] = {}
        self.refresh()
        if not self._keys:
            raise UserError(f"{self.path}: has no key; `factorcell users key` adds one")

    def refresh(self) -> None:
        """Read the file again. If it is damaged, raise a `UserError` and change nothing.

        A file without keys refuses everybody.
        """
        keys = read_keys(self.path)
        self._allowances = {
            key: self._allowances.get(key) or Allowance(key.rate * self.share) for key in keys if key.rate is not None
        }
        self._keys = {key.hash: key for key in keys}

    def find(self, key: str) -> Key | None:
        """Return the entry of a key."""
        return self._keys.get(_digest(key))

    def wait(self, key: Key) -> float:
        """Count a request; return 0, or the seconds until the next one is allowed."""
        allowance = self._allowances.get(key)
        return allowance.take() if allowance else 0.0
