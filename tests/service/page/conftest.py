"""A real browser, and the page as the service serves it."""

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from factorcell.service.engine import Service
from factorcell.service.http.application import application
from factorcell.service.http.site import Settings, Site
from tests.service.listening import listening

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
PATIENCE = 10_000  # milliseconds for which a browser is waited for: the machine may be busy


@pytest.fixture
def serve(service: Service) -> Iterator[Callable[..., str]]:
    contexts = []

    def start(**settings: Any) -> str:
        site = Site(service, Settings(deadline=5.0, **settings))
        contexts.append(listening(application(site)))
        return contexts[-1].__enter__()

    yield start
    for context in contexts:
        context.__exit__(None, None, None)


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    driver = pytest.importorskip("playwright.sync_api", reason="Playwright drives the browser: make check-slow has it")
    path = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if path is None:
        pytest.skip("there is no Chromium on the path")
    with driver.sync_playwright() as playing:
        opened = playing.chromium.launch(executable_path=path, args=QUIET)
        yield opened
        opened.close()


@pytest.fixture
def tab(browser: Any) -> Iterator[Callable[..., Any]]:
    faults: list[str] = []
    windows = []

    def open_tab(url: str | None = None, **options: Any) -> Any:
        windows.append(browser.new_context(**options))
        windows[-1].set_default_timeout(PATIENCE)
        opened = windows[-1].new_page()
        opened.on("pageerror", lambda error: faults.append(str(error)))
        opened.on("console", lambda told: faults.append(told.text) if "Content Security" in told.text else None)
        if url:
            opened.goto(url)
        return opened

    yield open_tab
    for window in windows:
        window.close()
    assert faults == []
