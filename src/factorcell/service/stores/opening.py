"""A store from its URL."""

from collections.abc import Callable
from pathlib import Path

from factorcell.choices import STORES
from factorcell.config import UserError
from factorcell.service.stores.store import Store


def open_store(url: str, *, make: bool = True) -> Store:
    """The store at `url`, made where there is none. `UserError` for what is no URL of a store, or cannot be opened.

    `sqlite:///users.db` is a file here, `sqlite:////var/lib/users.db` one from the root. Without `make` a file that is
    not there is an error, so that a name mistyped is not an empty store.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in OPENERS:
        raise UserError(f"store {scheme if separator else url!r}: valid is {STORES}")
    if any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in url):
        raise UserError(f"store {scheme}: its URL has characters that are none; valid is {STORES}")
    if scheme == "sqlite" and not make and not _file(rest).exists():
        raise UserError(f"{_file(rest)}: there is no such store of users")
    try:
        return OPENERS[scheme](url, rest)
    except ImportError as error:
        raise UserError(f"a store of users needs {error.name}: pip install 'factorcell[serve]'") from None


def _sqlite(url: str, rest: str) -> Store:
    from factorcell.service.stores.sqlite import SQLiteStore

    return SQLiteStore(_file(rest))


def _file(rest: str) -> Path:
    if not rest.startswith("/") or len(rest) == 1:
        raise UserError(f"store sqlite: no file in it; valid is {STORES}")
    return Path(rest[1:])


def _postgres(url: str, rest: str) -> Store:
    from factorcell.service.stores.postgres import PostgresStore

    return PostgresStore(url)


def _redis(url: str, rest: str) -> Store:
    from factorcell.service.stores.redis import RedisStore

    return RedisStore(url)


OPENERS: dict[str, Callable[[str, str], Store]] = {
    "sqlite": _sqlite,
    "postgresql": _postgres,
    "postgres": _postgres,
    "redis": _redis,
    "rediss": _redis,
}
