"""Open a store by its URL."""

from pathlib import Path

from factorcell.choices import STORE_URLS
from factorcell.config import UserError
from factorcell.service.stores.store import Store


def open_store(url: str, *, create: bool = True) -> Store:
    """Open the store at `url`; create its file or tables if there are none.

    `sqlite:///users.db` is a file in the current folder, `sqlite:////var/lib/users.db` one at an absolute path.

    Args:
        url: The URL of a store: `sqlite:///FILE`, `postgresql://...` or `redis://...`.
        create: Whether to create an SQLite file that does not exist. Without it a mistyped name is an error.

    Raises:
        UserError: `url` is not the URL of a store, or the store cannot be opened.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in ("sqlite", "postgresql", "postgres", "redis", "rediss"):
        raise UserError(f"store {scheme if separator else url!r}: valid is {STORE_URLS}")
    if any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in url):
        raise UserError(f"store {scheme}: its URL has characters that are none; valid is {STORE_URLS}")
    try:
        if scheme == "sqlite":
            from factorcell.service.stores.sqlite import SQLiteStore

            if not rest.startswith("/") or len(rest) == 1:
                raise UserError(f"store sqlite: no file in it; valid is {STORE_URLS}")
            path = Path(rest[1:])
            if not create and not path.exists():
                raise UserError(f"{path}: there is no such store of users")
            return SQLiteStore(path)
        if scheme.startswith("postgres"):
            from factorcell.service.stores.postgres import PostgresStore

            return PostgresStore(url)
        from factorcell.service.stores.redis import RedisStore

        return RedisStore(url)
    except ImportError as error:
        raise UserError(f"a store of users needs {error.name}: pip install 'factorcell[serve]'") from None
