"""Fixtures: a service on the loopback interface, and clients of both kinds."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from factorcell.service.engine import Service
from factorcell.service.http.application import application
from factorcell.service.http.site import Settings, Site
from tests.client.both import CLIENT_KINDS, new_client
from tests.service.conftest import model, models, open_service, service
from tests.service.listening import listening

__all__ = ["model", "models", "open_service", "service"]

MakeClient = Callable[..., Any]


@pytest.fixture
def site(service: Service) -> Site:
    service.model.probe()
    return Site(service, Settings(deadline=5.0))


@pytest.fixture
def url(site: Site) -> Iterator[str]:
    with listening(application(site)) as address:
        yield address


@pytest.fixture(params=CLIENT_KINDS)
def make_client(request: pytest.FixtureRequest) -> Iterator[MakeClient]:
    with asyncio.Runner() as runner, ExitStack() as stack:

        def another(*args: Any, **options: Any) -> Any:
            client, close = new_client(request.param, runner, *args, **options)
            stack.callback(close)
            return client

        yield another


@pytest.fixture
def client(make_client: MakeClient, url: str) -> Any:
    return make_client(url)
