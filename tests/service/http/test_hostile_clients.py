"""Clients that disconnect, read nothing, or send invalid HTTP do not affect others, and no log contains a text."""

import gc
import logging
import threading
import time
from collections.abc import Iterator

import pytest

from factorcell.errors import UserError
from factorcell.service.engine import Service
from factorcell.service.http.application import Settings, Site, application
from factorcell.service.messages import CompletionRequest, Completions
from tests.service.http.sockets import GET, TIMEOUT, connect, post, status_of, wait_until
from tests.service.listening import listening

SECRET = "qzj"


@pytest.fixture
def served(service: Service) -> Site:
    return Site(service, Settings(deadline=5.0))


@pytest.fixture
def url(served: Site) -> Iterator[str]:
    with listening(application(served)) as address:
        yield address


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    gc.collect()
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_error_for_a_disconnected_client_is_not_logged(
    url: str, served: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_continue, search = threading.Event(), served.lanes["search"]

    def complete(request: CompletionRequest, *_: object) -> Completions:
        may_continue.wait(TIMEOUT)
        raise UserError(f"no completion of {request.query}")

    monkeypatch.setattr(served.service, "complete", complete)
    with connect(url) as connection:
        connection.sendall(post("/v1/complete", f'{{"query":"{SECRET}"}}'.encode()))
        assert wait_until(lambda: search.running_count == 1)
    assert wait_until(lambda: "499" in served.metrics.text().decode())
    may_continue.set()
    assert wait_until(lambda: search.running_count == 0)
    with connect(url) as connection:
        assert status_of(connection, GET) == 200
    assert warnings(caplog) == []


def test_readiness_requests_do_not_each_write_the_store(
    url: str, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: list[int] = []
    monkeypatch.setattr(service.store, "_check", lambda: checks.append(1))
    start = time.monotonic()
    with connect(url) as connection:
        for _ in range(50):
            assert status_of(connection, GET.replace(b"healthz", b"readyz")) == 200
    assert len(checks) <= 1 + (time.monotonic() - start)
