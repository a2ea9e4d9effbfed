"""Many messages as one answer: server-sent events, sent as a thread makes them."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress

import msgspec

from factorcell.service.http.lanes import GoneError, Lane, Turn

MEDIA_TYPE = "text/event-stream"

Make = Callable[[Turn], Iterator[msgspec.Struct]]


async def begin(lane: Lane, make: Make, seconds: float, gone: Callable[[], Awaitable[None]]) -> AsyncIterator[bytes]:
    """The events of the messages that `make` gives, once the first is there; errors before it are raised here.

    Who leaves stops the thread at its next message.
    """
    loop, messages = asyncio.get_running_loop(), asyncio.Queue[bytes | None]()
    stopped = threading.Event()

    def work(turn: Turn) -> None:
        for message in make(turn):
            if stopped.is_set():
                return
            loop.call_soon_threadsafe(messages.put_nowait, event(message))

    doing = asyncio.ensure_future(lane.run(work, seconds, gone))
    doing.add_done_callback(lambda _: messages.put_nowait(None))
    doing.add_done_callback(lambda task: task.cancelled() or task.exception())  # or asyncio logs what nobody awaits
    first = await messages.get()
    if first is None:
        await doing

    async def rest() -> AsyncIterator[bytes]:
        try:
            item = first
            while item is not None:
                yield item
                item = await messages.get()
            with suppress(GoneError):
                await doing
        finally:
            stopped.set()

    return rest()


def event(message: msgspec.Struct) -> bytes:
    """A message as one event."""
    return b"data: " + msgspec.json.encode(message) + b"\n\n"
