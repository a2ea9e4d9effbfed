"""Every page in Chromium at the widths of a phone, a laptop and a large screen."""

from typing import Any

import pytest

from tests.screenshots import WINDOWS, find_problems, static_pages

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return static_pages()


@pytest.mark.parametrize("width", WINDOWS)
@pytest.mark.parametrize("name", ["run", "runs", "demo", "contexts", "explain"])
def test_the_content_is_visible_and_nothing_is_cut_off(
    browser: Any, pages: dict[str, str], name: str, width: int
) -> None:
    tab = browser.new_page(viewport={"width": width, "height": WINDOWS[width]})
    messages: list[str] = []
    tab.on("console", lambda message: messages.append(message.text))
    tab.set_content(pages[name])
    assert tab.locator("section table, section svg, section img, .figures dd").count() > 0
    problems = find_problems(tab)
    tab.close()
    assert (problems, messages) == ([], [])


def test_problems_are_found(browser: Any) -> None:
    tab = browser.new_page(viewport={"width": 390, "height": 844})
    wide = "<div style='width: 500px'>wide</div>"
    figure = "<dl class='figures' style='margin-top: 900px'><dd>7</dd></dl>"
    tab.set_content(f"{figure}<div style='overflow-x: auto'>{wide}</div>")
    assert [problem.partition(":")[0] for problem in find_problems(tab)] == ["not in the window", "wider than its box"]
    tab.set_content(wide)
    assert find_problems(tab) == ["the page is 508 pixels wide in a window of 390 pixels"]
    tab.close()
