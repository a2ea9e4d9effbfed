"""Clients that leave, read nothing, or send what is not HTTP: others are served all the same, and no log has a text."""

import gc
import logging
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from factorcell.config import UserError
from factorcell.service.engine import CompletionRequest, Completions, Service
from factorcell.service.http import operations
from factorcell.service.http.application import application
from factorcell.service.http.site import Settings, Site
from tests.service.http.sockets import GET, PATIENCE, answered, connected, posted, until
from tests.service.listening import listening

SECRET = "qzj"


@pytest.fixture
def served(service: Service) -> Site:
    return Site(service, Settings(deadline=5.0))


@pytest.fixture
def url(served: Site) -> Iterator[str]:
    with listening(application(served)) as found:
        yield found


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    gc.collect()
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_error_of_a_client_that_has_left_is_not_logged(
    url: str, served: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, search = threading.Event(), served.lanes["search"]

    def complete(request: CompletionRequest) -> Completions:
        goes_on.wait(PATIENCE)
        raise UserError(f"no completion of {request.query}")

    monkeypatch.setattr(served.service, "complete", complete)
    with connected(url) as connection:
        connection.sendall(posted("/v1/complete", f'{{"query":"{SECRET}"}}'.encode()))
        assert until(lambda: search.running == 1)
    assert until(lambda: "499" in served.metrics.text().decode())
    goes_on.set()
    assert until(lambda: search.running == 0)
    with connected(url) as connection:
        assert answered(connection, GET) == 200
    assert warnings(caplog) == []


@pytest.mark.parametrize("reset", [False, True])
def test_text_for_a_client_that_has_left_is_written_no_further(
    url: str, served: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, reset: bool
) -> None:
    pieces: list[int] = []

    def endless(*_: Any, **__: Any) -> Iterator[str]:
        while True:
            pieces.append(1)
            yield "a"
            time.sleep(0.005)

    monkeypatch.setattr(operations, "stream", endless)
    with connected(url) as connection:
        connection.sendall(posted("/v1/generate", b"{}"))
        assert connection.recv(1 << 10).startswith(b"HTTP/1.1 200 ")
        assert until(lambda: len(pieces) > 3)
        if reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert until(lambda: served.lanes["batch"].running == 0)
    with connected(url) as connection:
        assert answered(connection, GET) == 200
    assert warnings(caplog) == []


def test_store_is_not_written_for_each_question_whether_it_is_ready(
    url: str, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: list[int] = []
    monkeypatch.setattr(service.store.store, "check", lambda: checks.append(1))
    began = time.monotonic()
    with connected(url) as connection:
        for _ in range(50):
            assert answered(connection, GET.replace(b"healthz", b"readyz")) == 200
    assert len(checks) <= 1 + (time.monotonic() - began)
