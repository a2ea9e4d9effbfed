"""An HTTP/1.1 client with one persistent connection, cheap enough not to distort measurements of the server.

The length of a response comes from Content-Length, which the service sends with everything that it does not stream.
"""

import asyncio
import json
import socket
import time
from dataclasses import dataclass
from typing import Any

HOST = "127.0.0.1"
MARK = b"\r\n\r\n"  # end of a head
PATIENCE = 30.0  # seconds until a request fails
PIECE = 1 << 16  # maximum bytes per read
TEMPORARY = (429, 502, 503, 504)  # statuses after which the same request may succeed, as in factorcell.js


@dataclass(frozen=True)
class Answer:
    """A response: status, seconds of Retry-After if present, and the body."""

    status: int
    retry: int | None
    body: bytes

    @property
    def json(self) -> Any:
        """The parsed body."""
        return json.loads(self.body)


def encode_request(method: str, path: str, content: Any = None) -> bytes:
    """Return the bytes of an HTTP request, with `content` as its JSON body if there is one."""
    body = b"" if content is None else json.dumps(content).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: {HOST}\r\n"
    if content is not None:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return f"{head}\r\n".encode() + body


def read_head(head: bytes) -> tuple[int, int, int | None]:
    """Return status, length of the body and seconds of Retry-After of a response head."""
    first, *lines = head.decode("latin-1").split("\r\n")
    fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    retry = fields.get("retry-after")
    return int(first.split(" ", 2)[1]), int(fields.get("content-length", 0)), None if retry is None else int(retry)


class Connection:
    """Sends one request after the other. Raises `ConnectionError` if the server does not answer."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._socket: socket.socket | None = None

    def ask(self, method: str, path: str, body: Any = None) -> Answer:
        """Send a request and return the response; after an error the next request opens a new connection."""
        try:
            if self._socket is None:
                self._socket = socket.create_connection((HOST, self.port), PATIENCE)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.sendall(encode_request(method, path, body))
            return self._answer(self._socket)
        except OSError as error:
            self.close()
            raise ConnectionError(str(error)) from error

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    @staticmethod
    def _answer(connection: socket.socket) -> Answer:
        content = b""
        while MARK not in content:
            content += _piece(connection)
        head, _, body = content.partition(MARK)
        status, length, retry = read_head(head)
        while len(body) < length:
            body += _piece(connection)
        return Answer(status, retry, body)


class AsyncConnection:
    """An asynchronous `Connection`; cancelling a request closes it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: Any = None) -> Answer:
        """Send a request and return the response."""
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection(HOST, self.port)
            reader, writer = self._streams
            writer.write(encode_request(method, path, body))
            status, length, retry = read_head(await reader.readuntil(MARK))
            return Answer(status, retry, await reader.readexactly(length))
        except (OSError, EOFError) as error:
            self.close()
            raise ConnectionError(str(error)) from error
        except asyncio.CancelledError:
            self.close()
            raise

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def until_answered(connection: Connection, method: str, path: str, body: Any = None, seconds: float = 60.0) -> Answer:
    """Repeat a request until a response arrives whose status is not temporary, and return it."""
    stop = time.monotonic() + seconds
    while True:
        try:
            answer = connection.ask(method, path, body)
            if answer.status not in TEMPORARY:
                return answer
        except ConnectionError:
            pass
        if time.monotonic() > stop:
            raise TimeoutError(f"{method} {path}: not answered within {seconds:g} s")
        time.sleep(0.01)


def wait_until_ready(port: int, seconds: float = 120.0) -> None:
    connection = Connection(port)
    until_answered(connection, "GET", "/readyz", seconds=seconds)
    connection.close()


def _piece(connection: socket.socket) -> bytes:
    piece = connection.recv(PIECE)
    if not piece:
        raise ConnectionError("the server closed the connection")
    return piece
