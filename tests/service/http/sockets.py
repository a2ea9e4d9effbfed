"""What is sent to a server byte by byte, as no client library would."""

import socket
import time
from collections.abc import Callable
from http.client import HTTPResponse
from urllib.parse import urlsplit

HOST = b"Host: 127.0.0.1\r\n"
JSON = b"Content-Type: application/json\r\n"
GET = b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"
PATIENCE = 20.0  # seconds that a busy machine may take


def connected(url: str) -> socket.socket:
    found = urlsplit(url)
    made = socket.create_connection((found.hostname, found.port or 80))
    made.settimeout(PATIENCE)
    return made


def posted(path: str, content: bytes, *headers: bytes) -> bytes:
    more = b"".join(header + b"\r\n" for header in headers)
    return b"POST %b HTTP/1.1\r\n%b%b%bContent-Length: %d\r\n\r\n%b" % (
        path.encode(),
        HOST,
        JSON,
        more,
        len(content),
        content,
    )


def to_the_end(connection: socket.socket) -> bytes:
    parts = []
    try:
        while part := connection.recv(1 << 16):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def answered(connection: socket.socket, request: bytes = b"") -> int:
    connection.sendall(request)
    with HTTPResponse(connection) as answer:
        answer.begin()
        answer.read()
        return answer.status


def until(condition: Callable[[], bool]) -> bool:
    stop = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > stop:
            return False
        time.sleep(0.01)
    return True
