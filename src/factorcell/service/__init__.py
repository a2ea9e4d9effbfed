"""A service that completes text for users, learns the texts that they accept, and deletes user data on request."""

from typing import TYPE_CHECKING

from factorcell.io.lazy import lazy_exports

if TYPE_CHECKING:
    from factorcell.service.engine import Service as Service
    from factorcell.service.learning import ServedModel as ServedModel
    from factorcell.service.messages import CompletionRequest as CompletionRequest
    from factorcell.service.privacy import Privacy as Privacy
    from factorcell.service.stores.store import open_store as open_store

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
