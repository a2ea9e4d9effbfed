"""Clients that break the protocol, take nothing, leave, or come in thousands: others are served all the same."""

import gc
import json
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from factorcell.config import UserError
from factorcell.service.engine import CompletionRequest, Completions, Service
from factorcell.service.http import batches, protocol, reading
from factorcell.service.http.application import application
from factorcell.service.http.site import Settings, Site
from tests.service.http.sockets import GET, HOST, PATIENCE, answered, connected, posted, to_the_end, until
from tests.service.listening import listening

SECRET = "qzj"
MOST_DROPS = 400  # of a request that comes in drops; twenty would do on an idle machine


@pytest.fixture
def served(service: Service) -> Site:
    return Site(service, Settings(deadline=5.0))


@pytest.fixture
def url(served: Site) -> Iterator[str]:
    with listening(application(served)) as found:
        yield found


@pytest.fixture
def held(service: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    goes_on = threading.Event()

    def complete(request: CompletionRequest) -> Completions:
        goes_on.wait(PATIENCE)
        raise UserError(f"no completion of {request.query}")

    monkeypatch.setattr(service, "complete", complete)
    yield goes_on
    goes_on.set()


def test_body_of_two_lengths_is_not_read(url: str) -> None:
    head = b"POST /v1/users/ann/undo HTTP/1.1\r\n" + HOST
    both = b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    for lengths in (both, both.replace(b"chunked", b"Chunked"), b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd"):
        with connected(url) as connection:
            connection.sendall(head + lengths + GET)
            answer = to_the_end(connection)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("path", ["/v1/complete", "/v1/accept", "/v1/users/ann/undo", "/v1/generate", "/nothing"])
def test_requests_that_follow_at_once_stay_apart(url: str, path: str) -> None:
    with connected(url) as connection:
        connection.sendall(posted(path, GET) + GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        answers = to_the_end(connection).split(b"HTTP/1.1 ")
    assert len(answers) == 3
    assert answers[2].startswith(b"200 ")
    assert answers[2].endswith(b'{"status":"ok"}')


@pytest.mark.parametrize("when", ["before", "while", "after"])
def test_body_that_breaks_off_breaks_nothing(
    url: str, served: Site, held: threading.Event, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    path = b"/v1/complete?query=a" if when == "while" else b"/healthz"
    head = b"GET " + path + b" HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    with connected(url) as connection:
        if when == "before":
            connection.sendall(head + b"zz\r\n")
        else:
            connection.sendall(head)
            assert until(lambda: served.search.running == 1) if when == "while" else answered(connection) == 200
            connection.sendall(b"zz\r\n")
        answer = to_the_end(connection)
    held.set()
    assert until(lambda: served.search.running == 0)
    assert answer.count(b"HTTP/1.1 ") == (0 if when == "after" else 1)
    with connected(url) as connection:
        assert answered(connection, GET) == 200
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.WARNING] == []


def test_what_is_no_request_is_a_problem(url: str) -> None:
    for noise in (
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"GET / HTTP/1.1\r\n: x\r\n\r\n",
        b"GET /" + b"a" * (1 << 17),
    ):
        with connected(url) as connection:
            connection.sendall(noise)
            head, _, body = to_the_end(connection).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert b"content-type: application/problem+json" in head
        assert json.loads(body)["type"] == "/docs#malformed"


def test_error_of_a_request_whose_client_has_left_is_in_no_log(
    url: str, served: Site, held: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    with connected(url) as connection:
        connection.sendall(posted("/v1/complete", f'{{"query":"{SECRET}"}}'.encode()))
        assert until(lambda: served.search.running == 1)
    assert until(lambda: "499" in served.metrics.text().decode())
    held.set()
    assert until(lambda: served.search.running == 0)
    with connected(url) as connection:  # the loop has gone on
        assert answered(connection, GET) == 200
    gc.collect()
    assert SECRET not in caplog.text
    assert "Traceback" not in caplog.text


def test_text_that_nobody_reads_any_more_is_written_no_further(
    url: str, served: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces: list[int] = []

    def endless(*_: Any, **__: Any) -> Iterator[str]:
        while True:
            pieces.append(1)
            yield "a"
            time.sleep(0.005)

    monkeypatch.setattr(batches, "stream", endless)
    with connected(url) as connection:
        connection.sendall(posted("/v1/generate", b"{}"))
        assert connection.recv(1 << 10).startswith(b"HTTP/1.1 200 ")
        assert until(lambda: len(pieces) > 3)
    assert until(lambda: served.batch.running == 0)
    with connected(url) as connection:
        assert answered(connection, GET) == 200
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_pieces_for_a_client_that_has_left_are_dropped_in_silence(
    url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = threading.Event()

    def pieces(*_: Any, **__: Any) -> Iterator[str]:
        yield "a"
        left.wait(PATIENCE)
        yield from "a" * 200

    monkeypatch.setattr(batches, "stream", pieces)
    connection = connected(url)
    connection.sendall(posted("/v1/generate", b"{}"))
    assert connection.recv(1 << 10).startswith(b"HTTP/1.1 200 ")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    left.set()
    connection.close()  # by a reset
    with connected(url) as other:
        assert answered(other, GET) == 200
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_client_that_takes_nothing_is_left(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(protocol, "TAKING", 0.3)
    wanted = GET.replace(b"healthz", b"factorcell.js")
    with socket.socket() as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.settimeout(PATIENCE)
        lazy.connect(("127.0.0.1", urlsplit(url).port))
        lazy.sendall(wanted * 2000)
        time.sleep(1.5)
        received = to_the_end(lazy)
    assert received.count(b"HTTP/1.1 200 ") < 1000
    with connected(url) as connection:
        assert answered(connection, GET) == 200
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\nX: ", b""),
        (posted("/v1/complete", b" " * 10_000).rstrip(b" "), b"HTTP/1.1 408 "),
        (posted("/nothing", b" " * 10_000).rstrip(b" "), b"HTTP/1.1 404 "),
    ],
    ids=["head", "body", "body of nothing"],
)
def test_request_that_comes_in_drops_is_not_waited_for(
    url: str, monkeypatch: pytest.MonkeyPatch, head: bytes, status: bytes
) -> None:
    monkeypatch.setattr(protocol, "HEAD", 0.4)
    monkeypatch.setattr(reading, "ARRIVING", 0.4)
    monkeypatch.setattr(protocol, "LEAVING", 0.4)
    with connected(url) as connection:
        connection.sendall(head)
        drops = 0
        while drops < MOST_DROPS:
            try:
                connection.sendall(b" ")
            except OSError:
                break
            time.sleep(0.05)
            drops += 1
        answer = to_the_end(connection)
    assert drops < MOST_DROPS
    assert answer.startswith(status)
    assert status or not answer


def test_one_more_connection_takes_the_place_of_the_idlest(
    url: str, monkeypatch: pytest.MonkeyPatch, held: threading.Event, served: Site
) -> None:
    monkeypatch.setattr(protocol, "most_connections", lambda: 4)
    connections = [connected(url)]
    connections[0].sendall(posted("/v1/complete", b'{"query":"a"}'))
    assert until(lambda: served.search.running == 1)
    for _ in range(3):
        connections.append(connected(url))
        assert answered(connections[-1], GET) == 200
    assert answered(connections[1], GET) == 200  # so the second has been idle longest
    for _ in range(2):
        connections.append(connected(url))
        assert answered(connections[-1], GET) == 200
    for closed in connections[2:4]:
        assert to_the_end(closed) == b""
    for kept in (connections[1], *connections[4:]):
        assert answered(kept, GET) == 200
    held.set()
    assert answered(connections[0]) == 422
    for one in connections:
        one.close()


def test_store_is_not_written_whenever_anybody_asks_whether_it_is_ready(
    url: str, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: list[int] = []
    monkeypatch.setattr(service.store, "check", lambda: checks.append(1))
    began = time.monotonic()
    with connected(url) as connection:
        for _ in range(50):
            assert answered(connection, GET.replace(b"healthz", b"readyz")) == 200
    assert len(checks) <= 1 + (time.monotonic() - began)


def test_as_many_connections_as_there_are_files(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource", reason="Windows has no limit of open files")
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: raised.append(limits))
    rest = protocol.BACKLOG + protocol.SPARE
    most = protocol.MOST + rest
    endless = resource.RLIM_INFINITY
    cases: list[tuple[tuple[int, int], int, list[tuple[int, int]]]] = [
        ((1024, 1 << 20), protocol.MOST, [(most, 1 << 20)]),
        ((1024, endless), protocol.MOST, [(most, endless)]),
        ((1024, 2048), 2048 - rest, [(2048, 2048)]),
        ((most, most), protocol.MOST, []),
        ((endless, endless), protocol.MOST, []),
        ((16, 16), 1, [(16, 16)]),
    ]
    for limits, count, wanted in cases:
        raised.clear()
        monkeypatch.setattr(resource, "getrlimit", lambda _, limits=limits: limits)
        made: Callable[[], int] = protocol.most_connections.__wrapped__
        assert made() == count
        assert raised == wanted


@pytest.mark.parametrize(
    ("request_line", "body", "status"),
    [
        (b"GET /v1/complete?query=" + b"a" * (4 << 20), b"", b"400"),
        (b"POST /v1/complete", b"x" * (8 << 20), b"413"),
        (b"\x00\x01" * (1 << 20), b"", b"400"),
    ],
    ids=["address", "body", "noise"],
)
def test_refusal_arrives_although_more_was_sent_than_is_read(
    url: str, request_line: bytes, body: bytes, status: bytes
) -> None:
    length = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
    with connected(url) as connection:
        connection.sendall(request_line + b" HTTP/1.1\r\n" + HOST + length + b"\r\n" + body)
        time.sleep(0.2)
        answer = to_the_end(connection)
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert answer.count(b"HTTP/1.1 ") == 1
