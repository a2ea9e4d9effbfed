"""A service that completes for users, learns each from the texts in a store, and forgets on request."""

from typing import TYPE_CHECKING

from factorcell.lazy import lazy

if TYPE_CHECKING:
    from factorcell.service.engine import CompletionRequest, Service
    from factorcell.service.learning import ServedModel
    from factorcell.service.privacy import Privacy
    from factorcell.service.stores.opening import open_store

__all__ = ["CompletionRequest", "Privacy", "ServedModel", "Service", "open_store"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "engine": ("CompletionRequest", "Service"),
        "learning": ("ServedModel",),
        "privacy": ("Privacy",),
        "stores.opening": ("open_store",),
    },
)
