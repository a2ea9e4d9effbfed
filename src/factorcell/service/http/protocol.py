"""The protocol of uvicorn, with bounds on what a connection may keep for how long, and on how many there are.

A process that has no file left to open can neither accept nor answer, and asyncio logs each try. So as many
connections are held as the system has files for; one more takes the place of the one that has been idle longest.
"""

import asyncio
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from factorcell.service.http.problems import ProblemError
from factorcell.service.http.reading import ARRIVED

HEAD = 10.0  # seconds from the first byte, or from when the connection was made, to the end of the headers
TAKING = 20.0  # seconds that a client may leave what it was sent lying; shorter than the server waits when it stops
LEAVING = 2.0  # seconds that a client may go on sending what nobody reads, once it was told so
MOST = 4096  # connections at once
BACKLOG = 128  # connections that asyncio accepts before it looks at any
UNREADABLE = "what came is no request of HTTP/1.1, or its head is far too large"
SPARE = 128  # files that the store, the model and the logs open


@cache
def most_connections() -> int:
    """Connections that this process may have at once; its limit of open files is raised to allow for them."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return MOST
    wanted = MOST + BACKLOG + SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return MOST if soft == resource.RLIM_INFINITY else max(1, min(MOST, soft - BACKLOG - SPARE))


class Transport:
    """A transport that does not close on a client that is still sending, if something is `unread`.

    The system would then take back what was sent last, which says why.
    """

    def __init__(self, transport: Any, unread: Callable[[], bool], loop: asyncio.AbstractEventLoop) -> None:
        self.own, self.unread, self.loop = transport, unread, loop
        self.leaving: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)

    def is_closing(self) -> bool:
        """See `asyncio.Transport`."""
        return self.leaving is not None or bool(self.own.is_closing())

    def write(self, data: bytes) -> None:
        """Send more, if anybody is there: asyncio logs each piece that nobody can get."""
        if not self.is_closing():
            self.own.write(data)

    def close(self) -> None:
        """Send what there is, and wait a moment until the client has closed."""
        if not self.unread():
            self.own.close()
        elif not self.is_closing():
            self.leaving = self.loop.call_later(LEAVING, self.own.abort)
            self.own.write_eof()
            self.own.resume_reading()

    def lost(self) -> None:
        """The client has closed."""
        if self.leaving is not None:
            self.leaving.cancel()


class Protocol(H11Protocol):
    """Closes a connection whose next request does not arrive, or whose answer is not taken."""

    late: asyncio.TimerHandle | None = None
    stuck: asyncio.TimerHandle | None = None
    since = 0.0  # when it was last heard of

    def connection_made(self, transport: Any) -> None:
        """Wait for the first request, but not for ever."""
        super().connection_made(cast(asyncio.Transport, Transport(transport, self._unread, self.loop)))
        self.since = self.loop.time()
        self._wait()
        if len(self.connections) > most_connections():
            self._make_room()

    def data_received(self, data: bytes) -> None:
        """Read on; with the whole head of a request here, it is the application that waits for the rest."""
        if self.transport.is_closing():
            return
        self.since = self.loop.time()
        super().data_received(data)
        if not self.idle:
            self.cycle.scope["state"][ARRIVED] = self.since
            self._arrived()
        elif self.late is None:
            self._wait()

    def pause_writing(self) -> None:
        """The client takes less than it is sent: wait for it, but not for ever."""
        super().pause_writing()
        self.stuck = self.loop.call_later(TAKING, self.transport.abort)

    def resume_writing(self) -> None:
        """It has taken most of it."""
        self._taken()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Say in our own way that what came is no request, if nothing else is being said, and close."""
        if self.cycle is not None:  # what it may still have to say is for nobody
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            response = ProblemError("malformed", UNREADABLE).response()
            headers = [*response.raw_headers, (b"connection", b"close")]
            for event in (
                h11.Response(status_code=response.status_code, headers=headers, reason=STATUS_PHRASES[400]),
                h11.Data(data=bytes(response.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def timeout_keep_alive_handler(self) -> None:
        """See uvicorn; closing waits for what is still to be sent, and that was given its time."""
        super().timeout_keep_alive_handler()
        if self.transport.get_write_buffer_size():
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._arrived()
        self._taken()
        cast(Transport, self.transport).lost()
        super().connection_lost(exc)

    @property
    def idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _make_room(self) -> None:
        """Close the connection that has been idle longest, this one if all others are at work."""
        idle = (one for one in self.connections if isinstance(one, Protocol) and one.idle)
        open_ones = [one for one in idle if not one.transport.is_closing()]
        min(open_ones, key=lambda one: one.since).transport.abort()

    def _unread(self) -> bool:
        """Whether there is more of a request than was read."""
        return self.conn.their_state in (h11.SEND_BODY, h11.ERROR)

    def _wait(self) -> None:
        self.late = self.loop.call_later(HEAD, self.transport.close)

    def _arrived(self) -> None:
        if self.late is not None:
            self.late.cancel()
            self.late = None

    def _taken(self) -> None:
        if self.stuck is not None:
            self.stuck.cancel()
            self.stuck = None
