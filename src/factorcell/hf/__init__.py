"""Context adapters for models of `transformers`: each text of a batch has its own context."""

from typing import TYPE_CHECKING

from factorcell.io.lazy import lazy_exports

if TYPE_CHECKING:
    from factorcell.hf.context_model import ContextModel as ContextModel
    from factorcell.hf.context_model import get_context_model as get_context_model
    from factorcell.hf.contexts import ContextCollator as ContextCollator
    from factorcell.hf.contexts import ContextConfig as ContextConfig
    from factorcell.hf.contexts import read_names as read_names

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
