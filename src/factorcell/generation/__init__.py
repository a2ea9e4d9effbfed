"""Generation of texts: drawn or found by search.

`factorcell.generate` is the function; `factorcell.generation.generate` is the module that it lives in.
"""

from typing import TYPE_CHECKING

from factorcell.lazy import lazy

if TYPE_CHECKING:
    from factorcell.generation.generate import GenerationOptions as GenerationOptions
    from factorcell.generation.generate import stream as stream


__getattr__, __dir__, __all__ = lazy(__name__, {"generate": ("GenerationOptions", "stream")})
