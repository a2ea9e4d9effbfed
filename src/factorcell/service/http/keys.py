"""Keys: who may ask what, and how often. A file holds their hashes alone; a key itself is shown once, when it is made.

    [[key]]
    name = "shop"
    hash = "5f0c..."
    scopes = ["complete", "learn"]
    rate = 20

A key is 32 random bytes, so that one round of SHA-256 is enough.
"""

import hashlib
import hmac
import json
import secrets
import threading
import time
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from factorcell import files, inputs
from factorcell.choices import SCOPES
from factorcell.config import UserError, choose

BEGIN = "fc_"  # which all keys begin with, so that they are known where they should not be
FASTEST = 1e6  # requests a second
BURST = 2.0  # seconds' worth of requests that may come at once
DIGITS = set("0123456789abcdef")


@dataclass(frozen=True)
class Key:
    """The `name` that a key has in the file, its SHA-256 (hexadecimal), what it allows, and requests a second."""

    name: str
    hash: str
    scopes: tuple[str, ...]
    rate: float | None = None

    def __post_init__(self) -> None:
        if not self.name or not self.name.isprintable() or len(self.name) > 64:
            raise UserError("the name of a key is 1 to 64 printable characters")
        for scope in self.scopes:
            choose("scope", scope, SCOPES)
        if not self.scopes:
            raise UserError(f"key {self.name}: no scope; choose from {', '.join(SCOPES)}")
        if len(self.hash) != 64 or not set(self.hash) <= DIGITS:
            raise UserError(f"key {self.name}: its hash is no SHA-256")
        if self.rate is not None and not 0 < self.rate <= FASTEST:
            raise UserError(f"key {self.name}: its rate is {self.rate:g}; valid are numbers above 0, requests a second")


def read(path: str | Path) -> tuple[Key, ...]:
    """The keys in a file. `UserError` for what is no file of keys."""
    try:
        rows = tomllib.loads(inputs.text(path)).get("key", [])
        keys = tuple(_of(row) for row in rows)
    except (tomllib.TOMLDecodeError, TypeError, AttributeError, KeyError) as error:
        raise UserError(f"{path}: not a file of keys ({error})") from None
    except UserError as error:
        raise error.saying(f"{path}: {error.message.removeprefix(f'{path}: ')}") from None
    names = [one.name for one in keys]
    if len(set(names)) < len(names):
        raise UserError(f"{path}: two keys have one name")
    return keys


def add(path: str | Path, name: str, scopes: Sequence[str], rate: float | None = None) -> str:
    """A new key, whose hash is added to the file; it is known nowhere else."""
    known = read(path) if Path(path).exists() else ()
    if any(one.name == name for one in known):
        raise UserError(f"{path}: has a key named {name!r} already; choose another name")
    key = BEGIN + secrets.token_urlsafe(32)
    _write(path, [*known, Key(name, digest(key), tuple(dict.fromkeys(scopes)), rate)])
    return key


def digest(key: str) -> str:
    """What the file has of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


class Allowance:
    """How often a key may ask: `rate` times a second, some at once."""

    def __init__(self, rate: float) -> None:
        self.rate, self.most = rate, max(1.0, rate * BURST)
        self._left, self._time = self.most, time.monotonic()
        self._lock = threading.Lock()

    def take(self) -> float:
        """0, or the seconds until it may ask again."""
        with self._lock:
            now = time.monotonic()
            self._left, self._time = min(self.most, self._left + (now - self._time) * self.rate), now
            if self._left >= 1:
                self._left -= 1
                return 0.0
            return (1 - self._left) / self.rate


class KeyRing:
    """The keys of a file, read again when it changes. `share`: of each rate that this process grants."""

    def __init__(self, path: str | Path, share: float = 1.0) -> None:
        self.path, self.share = Path(path), share
        self.keys: tuple[Key, ...] = ()
        self._allowances: dict[Key, Allowance] = {}
        self.refresh()
        if not self.keys:
            raise UserError(f"{self.path}: has no key; `factorcell users key` adds one")

    def refresh(self) -> None:
        """Take the keys that the file has now. `UserError`, with the keys as they were, if it is no file of keys.

        A file without keys refuses everybody: whoever deleted the last one means it.
        """
        keys = read(self.path)
        self._allowances = {
            key: self._allowances.get(key) or Allowance(key.rate * self.share) for key in keys if key.rate is not None
        }
        self.keys = keys

    def find(self, given: str) -> Key | None:
        """Whose key it is, which takes as long for a wrong one."""
        found, hashed = None, digest(given)
        for key in self.keys:
            if hmac.compare_digest(key.hash, hashed):
                found = key
        return found

    def wait(self, key: Key) -> float:
        """0 if a key may ask now, which is counted; otherwise the seconds until it may."""
        allowance = self._allowances.get(key)
        return allowance.take() if allowance else 0.0


def _of(row: dict[str, Any]) -> Key:
    if unknown := set(row) - {"name", "hash", "scopes", "rate"}:
        raise KeyError(f"{min(unknown)} is unknown")
    name, hashed, scopes, rate = row["name"], row["hash"], row["scopes"], row.get("rate")
    texts = [name, hashed, *scopes]
    if not all(isinstance(one, str) for one in texts) or not isinstance(scopes, list):
        raise TypeError("name and hash are texts, scopes a list of texts")
    if isinstance(rate, bool) or not isinstance(rate, int | float | None):
        raise TypeError("rate is a number")
    return Key(name, hashed, tuple(scopes), rate)


def _write(path: str | Path, keys: Iterable[Key]) -> None:
    """Keep the keys; only the owner can read the file. What JSON writes of texts and numbers is TOML."""
    rows = []
    for key in keys:
        fields: dict[str, Any] = {"name": key.name, "hash": key.hash, "scopes": list(key.scopes)}
        fields |= {} if key.rate is None else {"rate": key.rate}
        rows.append("\n".join(["[[key]]", *(f"{name} = {json.dumps(value)}" for name, value in fields.items())]))
    files.write(path, "\n\n".join(rows) + "\n")
    Path(path).chmod(0o600)
