"""A stream of what people wrote, in order: predicted, judged, learned."""

from typing import TYPE_CHECKING

from factorcell.lazy import lazy

if TYPE_CHECKING:
    from factorcell.completion.replay.streams import Stream, System, replay

__all__ = ["Stream", "System", "replay"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "streams": ("Stream", "System", "replay"),
    },
)
