"""The protocol of uvicorn, and a bound on how long a connection may take to send the head of a request."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD = 10.0  # seconds from the first byte, or from when the connection was made, to the end of the headers


class Protocol(H11Protocol):
    """Closes a connection whose next request does not arrive."""

    late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Wait for the first request, but not for ever."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Read on; with the whole head of a request here, it is the application that waits for the rest."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._arrived()
        elif self.late is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._arrived()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self.late = self.loop.call_later(HEAD, self.transport.close)

    def _arrived(self) -> None:
        if self.late is not None:
            self.late.cancel()
            self.late = None
