"""Where people are kept: SQLite, PostgreSQL or Redis, behind one protocol."""

from typing import TYPE_CHECKING

from factorcell.lazy import lazy

if TYPE_CHECKING:
    from factorcell.service.stores.opening import open_store
    from factorcell.service.stores.store import Store

__all__ = ["Store", "open_store"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "opening": ("open_store",),
        "store": ("Store",),
    },
)
