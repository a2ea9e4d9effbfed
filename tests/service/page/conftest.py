"""Fixtures: the page as the service serves it, in a real browser."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from factorcell.service.engine import Service
from factorcell.service.http.application import Settings, Site, application
from tests.service.listening import listening
from tests.service.page.box import USER

TIMEOUT = 10_000  # milliseconds, enough for a busy machine


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


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open pages in new windows, with `user` as the selected user of the demo page; fail on errors of their scripts."""
    errors: list[str] = []
    windows = []

    def open_url(url: str | None = None, user: str = USER, **options: Any) -> Any:
        windows.append(browser.new_context(**options))
        windows[-1].set_default_timeout(TIMEOUT)
        windows[-1].add_init_script(f"try {{ sessionStorage['factorcell.user'] ??= {json.dumps(user)} }} catch {{}}")
        page = windows[-1].new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if "Content Security" in message.text else None)
        if url:
            page.goto(url)
        return page

    yield open_url
    for window in windows:
        window.close()
    assert errors == []
