"""Fixtures: a service with an SQLite store, a test client of its application, and its address."""

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from factorcell.service.engine import Service
from factorcell.service.http.application import Settings, Site, application
from tests.service.listening import listening


@pytest.fixture
def site(service: Service) -> Site:
    return Site(service, Settings(deadline=5.0))


@pytest.fixture
def client(site: Site) -> Iterator[TestClient]:
    with TestClient(application(site), base_url="http://127.0.0.1") as test_client:
        yield test_client


@pytest.fixture
def url(site: Site) -> Iterator[str]:
    site.service.model.probe()
    with listening(application(site)) as address:
        yield address
