"""The page and the API page at the widths of a phone, a laptop and a large screen."""

import pytest

from factorcell.service.engine import Service
from tests.screenshots import WINDOWS, find_problems
from tests.service.page.box import USER, OpenPage, Serve, accept_text, type_text

pytestmark = pytest.mark.slow

LONG_TEXT = "abba " * 30


@pytest.mark.parametrize("width", WINDOWS)
def test_the_page_fits_the_window(serve: Serve, open_page: OpenPage, service: Service, width: int) -> None:
    service.accept(USER, LONG_TEXT.strip())
    page = open_page(serve(), viewport={"width": width, "height": WINDOWS[width]})
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    type_text(page, "ab")
    accept_text(page, "abba")
    page.locator("#chart circle").first.wait_for()
    type_text(page, "ab")
    assert (find_problems(page), messages) == ([], [])
    assert page.locator("#query").bounding_box()["y"] < WINDOWS[width] / 2


@pytest.mark.parametrize("width", WINDOWS)
def test_the_api_page_fits_the_window(serve: Serve, open_page: OpenPage, width: int) -> None:
    page = open_page(viewport={"width": width, "height": WINDOWS[width]})
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.goto(f"{serve().rstrip('/')}/docs")
    page.locator("#no-store").wait_for()
    assert (find_problems(page), errors) == ([], [])
