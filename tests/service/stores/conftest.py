"""Every test of the contract runs against every store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from factorcell.service.stores.store import Store
from tests.service.stores import servers
from tests.service.stores.servers import Server


@pytest.fixture(params=["sqlite"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Server:
    """A store with nobody in it."""
    return servers.sqlite(tmp_path)


@pytest.fixture
def store(server: Server) -> Iterator[Store]:
    """The same, open."""
    opened = server.open()
    yield opened
    opened.close()
