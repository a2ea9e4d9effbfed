"""Generation of texts for contexts, by sampling or by beam search.

The function `factorcell.generate` is in the module `factorcell.generation.generate`.
"""

from typing import TYPE_CHECKING

from factorcell.io.lazy import lazy_exports

if TYPE_CHECKING:
    from factorcell.generation.generate import GenerationOptions as GenerationOptions
    from factorcell.generation.generate import stream as stream

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
