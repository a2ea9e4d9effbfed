"""The stores that the contract is held against, each with what a test needs to look behind it."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from factorcell.service.stores.opening import open_store
from factorcell.service.stores.store import Store


@dataclass(frozen=True)
class Server:
    """A place of one store: its URL, how to put other bytes where a person's are, and all bytes that are on disk."""

    url: str
    tamper: Callable[[str, bytes], None]
    raw: Callable[[], bytes]

    def open(self) -> Store:
        """The store."""
        return open_store(self.url)


def every_byte(folder: Path) -> bytes:
    """What the files of a folder hold."""
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def sqlite(folder: Path) -> Server:
    """A file in a folder."""
    path = folder / "users.db"

    def tamper(user: str, content: bytes) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE users SET value = ? WHERE user = ?", (content, user))

    return Server(f"sqlite:///{path}", tamper, lambda: every_byte(folder))
