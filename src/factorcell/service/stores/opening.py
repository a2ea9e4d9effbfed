"""Opens a store by its URL."""

from pathlib import Path

from factorcell.errors import UserError
from factorcell.io.extras import missing_package_error
from factorcell.options.choices import STORE_URLS
from factorcell.service.stores.store import Store


def open_store(url: str, *, create: bool = True) -> Store:
    """Open the store at a URL, and create its file or tables if they do not exist.

    `sqlite:///users.db` names a file in the current folder; `sqlite:////var/lib/users.db` names an absolute path.

    Args:
        url: `sqlite:///FILE`, `postgresql://...` or `redis://...`.
        create: Whether to create an SQLite file that does not exist. With False, `open_store` raises a
            `UserError` if the file does not exist, for example because its name is mistyped.

    Returns:
        The open store.

    Raises:
        UserError: The URL is invalid, a required package is not installed, or the store cannot be opened.
    """
    scheme, separator, location = url.partition("://")
    if not separator or scheme not in ("sqlite", "postgresql", "postgres", "redis", "rediss"):
        raise UserError(f"store {scheme if separator else url!r}: unknown URL; expected {STORE_URLS}")
    if any(character == "\0" or "\ud800" <= character <= "\udfff" for character in url):
        raise UserError(f"store {scheme}: the URL contains a null character or a lone surrogate; remove it")
    try:
        if scheme == "sqlite":
            from factorcell.service.stores.sqlite import SQLiteStore

            if not location.startswith("/") or len(location) == 1:
                raise UserError("store sqlite: the URL does not name a file; expected sqlite:///FILE")
            path = Path(location[1:])
            if not create and not path.exists():
                raise UserError(f"{path}: the store does not exist; check --store")
            return SQLiteStore(path)
        if scheme.startswith("postgres"):
            from factorcell.service.stores.postgres import PostgresStore

            return PostgresStore(url)
        from factorcell.service.stores.redis import RedisStore

        return RedisStore(url)
    except ImportError as error:
        raise missing_package_error(f"the store {scheme}", error.name, "serve") from None
