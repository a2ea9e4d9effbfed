"""A service on the loopback, and clients of both kinds."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from factorcell.service.engine import Service
from factorcell.service.http.application import application
from factorcell.service.http.site import Settings, Site
from tests.client.both import KINDS, made
from tests.service.conftest import model, models, opened, service
from tests.service.listening import listening

__all__ = ["model", "models", "opened", "service"]

Make = Callable[..., Any]


@pytest.fixture
def site(service: Service) -> Site:
    service.model.probe()
    return Site(service, Settings(deadline=5.0))


@pytest.fixture
def url(site: Site) -> Iterator[str]:
    with listening(application(site)) as address:
        yield address


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    with asyncio.Runner() as runner, ExitStack() as stack:

        def another(*args: Any, **options: Any) -> Any:
            client, close = made(request.param, runner, *args, **options)
            stack.callback(close)
            return client

        yield another


@pytest.fixture
def client(make: Make, url: str) -> Any:
    return make(url)
