"""Every test of the contract runs against every store."""

from collections.abc import Iterator

import pytest

from factorcell.service.stores.store import Store
from tests.service.stores.servers import SERVERS, Server, emptied


@pytest.fixture(scope="session", params=SERVERS)
def started(request: pytest.FixtureRequest) -> Iterator[Server]:
    with SERVERS[request.param]() as server:
        yield server


@pytest.fixture
def server(started: Server) -> Server:
    return emptied(started)


@pytest.fixture
def store(server: Server) -> Iterator[Store]:
    opened = server.open()
    yield opened
    opened.close()
