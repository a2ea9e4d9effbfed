"""Chromium, driven by Playwright."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


def chromium_path() -> str | None:
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


@contextmanager
def open_chromium() -> Iterator[Any]:
    """Yield a browser, and close it; meanwhile, an event loop runs in this thread, so that no other can be started."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=OPTIONS)
        yield browser
        browser.close()
