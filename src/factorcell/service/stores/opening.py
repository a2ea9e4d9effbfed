"""A store from its URL."""

from factorcell.config import UserError
from factorcell.service.stores.store import Store

VALID = "sqlite:///FILE, postgresql://USER@HOST/DATABASE or redis://HOST:PORT/NUMBER"


def open_store(url: str) -> Store:
    """The store at `url`, made where there is none. `UserError` for what is no URL of a store, or cannot be opened.

    `sqlite:///users.db` is a file here, `sqlite:////var/lib/users.db` one from the root.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise UserError(f"store {url!r}: valid is {VALID}")
    if scheme == "sqlite":
        return _sqlite(rest)
    raise UserError(f"store {scheme}: valid is {VALID}")


def _sqlite(rest: str) -> Store:
    from pathlib import Path

    from factorcell.service.stores.sqlite import SQLiteStore

    if not rest.startswith("/") or len(rest) == 1:
        raise UserError(f"store sqlite: no file in it; valid is {VALID}")
    return SQLiteStore(Path(rest[1:]))
