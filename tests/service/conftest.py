"""Fixtures: two small models that all tests share, and a service with an SQLite store."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from factorcell.service.engine import Service
from factorcell.service.learning import ServedModel
from factorcell.service.stores.store import open_store
from tests.service import runs


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[ServedModel, ServedModel]:
    folder = tmp_path_factory.mktemp("models")
    first, second = (ServedModel(runs.make_run(folder / str(seed), seed)) for seed in (0, 1))
    return first, second


@pytest.fixture
def model(models: tuple[ServedModel, ServedModel]) -> ServedModel:
    return models[0]


@pytest.fixture
def open_service(model: ServedModel, tmp_path: Path) -> Iterator[Callable[..., Service]]:
    services = []

    def open_with(served: ServedModel = model, **options: Any) -> Service:
        services.append(Service(served, open_store(f"sqlite:///{tmp_path / 'users.db'}"), **options))
        return services[-1]

    yield open_with
    for service in services:
        service.close()


@pytest.fixture
def service(open_service: Callable[..., Service]) -> Service:
    return open_service()
