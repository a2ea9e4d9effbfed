"""The HTTP protocol of the server: uvicorn's httptools protocol, which is faster than h11, with stricter limits."""

import re
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 << 10  # maximum bytes of a request line and headers that arrive in several pieces
# A field Upgrade. It does not occur in JSON, where CR and LF are only allowed between tokens.
UPGRADE_FIELD = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
IGNORED_FIELD = b"\r\nignored:"  # has the same length, so that Content-Length stays correct


class StrictHttpToolsProtocol(HttpToolsProtocol):
    """A connection that bounds the memory for heads, requires a host, and ignores requests for other protocols.

    httptools collects a head, a trailer or a chunk extension of any size. Therefore this class counts the bytes since
    the last complete head or the last bytes of a body. httptools also drops the body of a request with a field Upgrade,
    which some clients send to offer HTTP/2; RFC 9110 lets servers ignore this field.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._pending_bytes, self._is_in_body = 0, False

    def data_received(self, data: bytes) -> None:
        """Parse bytes from the client."""
        self._pending_bytes += len(data)
        super().data_received(data if self._is_in_body else UPGRADE_FIELD.sub(IGNORED_FIELD, data))
        if self._pending_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("Request head too large.")

    def on_headers_complete(self) -> None:
        """Start the request; an error closes the connection with the status 400."""
        if sum(name == b"host" for name, _ in self.headers) != 1 and self.parser.get_http_version() == "1.1":
            raise ValueError("expected one field Host")
        if self.parser.should_upgrade():
            raise ValueError("expected a request without a change of protocol")
        self._pending_bytes, self._is_in_body = 0, True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Collect a part of the body."""
        self._pending_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the request."""
        self._pending_bytes, self._is_in_body = 0, False
        super().on_message_complete()
