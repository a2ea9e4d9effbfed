"""Completions of one length on the wire, headers and all."""

import json
import re
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorcell.service.engine import Service
from factorcell.service.http.application import application, padded
from factorcell.service.http.site import Settings, Site
from tests.service.listening import listening

STEP = 4096
ASKED: list[dict[str, Any]] = [
    {"query": "a"},
    {"query": "abba", "limit": 1},
    {"query": "qqq", "user": "ann"},
    {"query": "c", "explain": True, "seq": 7},
    {"query": "a", "session": "box", "seq": 2},
    {"query": "a", "session": "box", "seq": 1},  # which is superseded, and has no result
    {"query": "", "limit": 3},
]


@given(st.binary(max_size=300), st.integers(0, 100))
def test_padding_is_space_up_to_the_next_multiple(content: bytes, step: int) -> None:
    found = padded(content, step)
    assert found.startswith(content)
    assert found[len(content) :].strip(b" ") == b""
    assert (len(found) % step == 0 and len(found) - len(content) < step) if step else found == content


def exchange(connection: socket.socket, asked: dict[str, Any], method: str) -> tuple[int, Any]:
    if method == "GET":
        query = "&".join(f"{name}={quote(str(value).lower())}" for name, value in asked.items())
        head, body = f"GET /v1/complete?{query} HTTP/1.1", b""
    else:
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


def answers(service: Service, pad: int, method: str) -> list[tuple[int, Any]]:
    with listening(application(Site(service, Settings(deadline=5.0, pad=pad)))) as url:
        parts = urlsplit(url)
        with socket.create_connection((parts.hostname, parts.port), timeout=30) as connection:
            return [exchange(connection, asked, method) for asked in ASKED]


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_all_completions_take_as_many_bytes(opened: Callable[..., Service], method: str) -> None:
    opened().accept("ann", "abba")
    plain, even = (answers(opened(), pad, method) for pad in (0, STEP))
    assert [one for _, one in even] == [one for _, one in plain]
    assert len({size for size, _ in plain}) == len(ASKED)
    (size,) = {size for size, _ in even}
    assert STEP < size < 2 * STEP
