"""Starts the shop of examples/shop in front of a service that requires keys."""

import runpy
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from starlette.types import ASGIApp

import factorcell
from factorcell.service.engine import Service
from factorcell.service.http.application import Settings, Site, application
from factorcell.service.http.keys import KeyRing, add_key
from tests.service.listening import listening

SERVER = Path(__file__).parents[3] / "examples" / "shop" / "server.py"
SCRIPT = Path(factorcell.__file__).parent / "service" / "page" / "factorcell.js"


@contextmanager
def shop_of(service: Service, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ASGIApp]:
    """Yield the application of a copy of the shop; its key has the scopes `complete` and `learn`."""
    shop = shutil.copytree(SERVER.parent, folder / "shop")
    shutil.copy(SCRIPT, shop / "pages")
    key = add_key(folder / "keys.toml", "shop", ["complete", "learn"])
    site = Site(service, Settings(deadline=5.0), KeyRing(folder / "keys.toml"))
    with listening(application(site)) as url:
        for name, value in {"KEY": key, "SECRET": "secret", "SERVICE": url}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(shop)
        app: ASGIApp = runpy.run_path(SERVER.name)["app"]
        yield app
