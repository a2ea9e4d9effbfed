"""Raw HTTP over sockets, which can send what a client library would not."""

import socket
import time
from collections.abc import Callable
from http.client import HTTPResponse
from urllib.parse import urlsplit

HOST = b"Host: 127.0.0.1\r\n"
JSON = b"Content-Type: application/json\r\n"
GET = b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"
TIMEOUT = 20.0  # seconds on a busy machine


def connect(url: str) -> socket.socket:
    parts = urlsplit(url)
    connection = socket.create_connection((parts.hostname, parts.port or 80))
    connection.settimeout(TIMEOUT)
    return connection


def post(path: str, content: bytes, *headers: bytes) -> bytes:
    extra = b"".join(header + b"\r\n" for header in headers)
    return b"POST %b HTTP/1.1\r\n%b%b%bContent-Length: %d\r\n\r\n%b" % (
        path.encode(),
        HOST,
        JSON,
        extra,
        len(content),
        content,
    )


def read_all(connection: socket.socket) -> bytes:
    parts = []
    try:
        while part := connection.recv(1 << 16):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def status_of(connection: socket.socket, request: bytes = b"") -> int:
    connection.sendall(request)
    with HTTPResponse(connection) as answer:
        answer.begin()
        answer.read()
        return answer.status


def wait_until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
