"""HTTP/1.1 over one connection that is kept, cheap enough that it is the server that is measured.

An answer is read by its head and its Content-Length, which the service gives with all that it does not stream.
"""

import asyncio
import json
import socket
import time
from dataclasses import dataclass
from typing import Any

HOST = "127.0.0.1"
MARK = b"\r\n\r\n"  # which a head ends with
PATIENCE = 30.0  # seconds
PIECE = 1 << 16


@dataclass(frozen=True)
class Answer:
    """The status, seconds of Retry-After if there are, and the body as it came."""

    status: int
    retry: int | None
    body: bytes

    @property
    def json(self) -> Any:
        """The body, read."""
        return json.loads(self.body)


def encode_request(method: str, path: str, content: Any = None) -> bytes:
    """Return the bytes of an HTTP request, with `content` as its JSON body if there is one."""
    body = b"" if content is None else json.dumps(content).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: {HOST}\r\n"
    if content is not None:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return f"{head}\r\n".encode() + body


def read_head(head: bytes) -> tuple[int, int, int | None]:
    """Status, length of the body and seconds of Retry-After that a head tells."""
    first, *lines = head.decode("latin-1").split("\r\n")
    fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    retry = fields.get("retry-after")
    return int(first.split(" ", 2)[1]), int(fields.get("content-length", 0)), None if retry is None else int(retry)


class Connection:
    """Asks one request after the other. `ConnectionError` where the server is not there, or leaves."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._socket: socket.socket | None = None

    def ask(self, method: str, path: str, body: Any = None) -> Answer:
        """The answer to a request. After an error the next one is asked over a new connection."""
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
        """Leave."""
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
    """The same for many in one thread."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: Any = None) -> Answer:
        """See `Connection`. Who cancels it leaves."""
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
        """Leave."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def until_answered(connection: Connection, method: str, path: str, body: Any = None, seconds: float = 60.0) -> Answer:
    """The answer to a request that is sent until it is neither lost nor put off; each time it is the same."""
    stop = time.monotonic() + seconds
    while True:
        try:
            answer = connection.ask(method, path, body)
            if answer.status not in (429, 503):
                return answer
        except ConnectionError:
            pass
        if time.monotonic() > stop:
            raise TimeoutError(f"{method} {path}: not answered within {seconds:g} s")
        time.sleep(0.01)


def wait_until_ready(port: int, seconds: float = 120.0) -> None:
    """Wait until a server is ready."""
    connection = Connection(port)
    until_answered(connection, "GET", "/readyz", seconds=seconds)
    connection.close()


def _piece(connection: socket.socket) -> bytes:
    piece = connection.recv(PIECE)
    if not piece:
        raise ConnectionError("the server has left")
    return piece
