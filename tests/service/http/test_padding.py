"""Padded completions have the same length on the wire, including headers."""

import json
import re
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from factorcell.service.engine import Service
from factorcell.service.http.application import Settings, Site, application
from tests.service.listening import listening

STEP = 4096
REQUESTS: list[dict[str, Any]] = [
    {"query": "a"},
    {"query": "abba", "limit": 1},
    {"query": "qqq", "user": "ann"},
    {"query": "c", "explain": True},
    {"query": "", "limit": 3},
]


def exchange(connection: socket.socket, request: dict[str, Any]) -> tuple[int, Any]:
    body = json.dumps(request).encode()
    head = f"POST /v1/complete HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    connection.sendall(f"{head}\r\nHost: 127.0.0.1\r\n\r\n".encode() + body)
    received = b""
    while not (match := re.search(rb"content-length: (\d+)\r\n.*?\r\n\r\n", received, re.DOTALL)) or len(
        received
    ) < match.end() + int(match[1]):
        received += connection.recv(1 << 16)
    assert received.startswith(b"HTTP/1.1 200 ")
    return len(received), json.loads(received[match.end() :])


def answers(service: Service, pad: int) -> list[tuple[int, Any]]:
    with listening(application(Site(service, Settings(deadline=5.0, pad=pad)))) as url:
        parts = urlsplit(url)
        with socket.create_connection((parts.hostname, parts.port), timeout=30) as connection:
            return [exchange(connection, request) for request in REQUESTS]


def test_padded_completions_have_equal_length(open_service: Callable[..., Service]) -> None:
    open_service().accept("ann", "abba")
    plain, padded = (answers(open_service(), pad) for pad in (0, STEP))
    assert [body for _, body in padded] == [body for _, body in plain]
    assert len({size for size, _ in plain}) == len(REQUESTS)
    (size,) = {size for size, _ in padded}
    assert STEP < size < 2 * STEP
