"""Completions of one length on the wire, headers and all."""

import json
import re
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from factorcell.service.engine import Service
from factorcell.service.http.application import application
from factorcell.service.http.site import Settings, Site
from tests.service.listening import listening

STEP = 4096
ASKED: list[dict[str, Any]] = [
    {"query": "a"},
    {"query": "abba", "limit": 1},
    {"query": "qqq", "user": "ann"},
    {"query": "c", "explain": True},
    {"query": "", "limit": 3},
]


def exchange(connection: socket.socket, asked: dict[str, Any]) -> tuple[int, Any]:
    body = json.dumps(asked).encode()
    head = f"POST /v1/complete HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    connection.sendall(f"{head}\r\nHost: 127.0.0.1\r\n\r\n".encode() + body)
    came = b""
    while not (found := re.search(rb"content-length: (\d+)\r\n.*?\r\n\r\n", came, re.DOTALL)) or len(
        came
    ) < found.end() + int(found[1]):
        came += connection.recv(1 << 16)
    assert came.startswith(b"HTTP/1.1 200 ")
    return len(came), json.loads(came[found.end() :])


def answers(service: Service, pad: int) -> list[tuple[int, Any]]:
    with listening(application(Site(service, Settings(deadline=5.0, pad=pad)))) as url:
        parts = urlsplit(url)
        with socket.create_connection((parts.hostname, parts.port), timeout=30) as connection:
            return [exchange(connection, asked) for asked in ASKED]


def test_all_completions_take_as_many_bytes(opened: Callable[..., Service]) -> None:
    opened().accept("ann", "abba")
    plain, even = (answers(opened(), pad) for pad in (0, STEP))
    assert [one for _, one in even] == [one for _, one in plain]
    assert len({size for size, _ in plain}) == len(ASKED)
    (size,) = {size for size, _ in even}
    assert STEP < size < 2 * STEP
