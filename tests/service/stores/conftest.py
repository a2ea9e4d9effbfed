"""Every test of the contract runs against every store."""

from collections.abc import Iterator

import pytest

from factorcell.service.stores.store import Store
from tests.service.stores.servers import SERVERS, Server, emptied


@pytest.fixture(scope="session", params=SERVERS)
def started(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A store that runs; skipped where what it needs is not installed."""
    with SERVERS[request.param]() as server:
        yield server


@pytest.fixture
def server(started: Server) -> Server:
    """The same with nobody in it."""
    return emptied(started)


@pytest.fixture
def store(server: Server) -> Iterator[Store]:
    """The same, open."""
    opened = server.open()
    yield opened
    opened.close()
