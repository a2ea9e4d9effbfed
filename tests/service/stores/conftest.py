"""Fixtures: each test of the contract runs with each store."""

from collections.abc import Iterator

import pytest

from factorcell.service.stores.store import Store
from tests.service.stores.servers import SERVERS, Server, clear


@pytest.fixture(scope="session", params=SERVERS)
def started(request: pytest.FixtureRequest) -> Iterator[Server]:
    with SERVERS[request.param]() as server:
        yield server


@pytest.fixture
def server(started: Server) -> Server:
    return clear(started)


@pytest.fixture
def store(server: Server) -> Iterator[Store]:
    opened = server.open()
    yield opened
    opened.close()
