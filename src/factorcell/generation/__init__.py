"""Generation of texts: drawn, found by search, or to fill a gap.

`factorcell.generate` is the function; `factorcell.generation.generate` is the module that it lives in.
"""

from typing import TYPE_CHECKING

from factorcell.lazy import lazy

if TYPE_CHECKING:
    from factorcell.generation.generate import GenerationOptions, fill, stream
    from factorcell.generation.infilling import InfillingOptions

__all__ = ["GenerationOptions", "InfillingOptions", "fill", "stream"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "generate": ("GenerationOptions", "fill", "stream"),
        "infilling": ("InfillingOptions",),
    },
)
