"""Actions and queries of the page tests, as a user would perform them."""

import json
from collections.abc import Callable
from typing import Any

Serve = Callable[..., str]  # the fixture `serve`
OpenPage = Callable[..., Any]  # the fixture `open_page`
OPTIONS = '[role="option"]'
ACTIVE = '[role="option"][aria-selected="true"]'
COMPLETE, ACCEPT = "**/v1/complete", "**/v1/accept"
USER = "Ada"  # the user that the fixture `open_page` selects
# Lets aborted requests continue, for tests of late responses.
IGNORE_ABORTS = "const ask = fetch; window.fetch = (url, {signal, ...options}) => ask(url, options);"


def query(page: Any) -> Any:
    return page.get_by_role("combobox")


def shown_texts(page: Any) -> list[str]:
    texts: list[str] = page.locator(".fc-text").all_text_contents()
    return texts


def type_text(page: Any, text: str) -> None:
    box = query(page)
    box.fill("")
    with page.expect_response(
        lambda answer: "complete" in answer.url and request_body(answer.request)["query"] == text
    ):
        box.press_sequentially(text)
    page.locator(OPTIONS).first.wait_for()


def accept_text(page: Any, text: str) -> None:
    query(page).fill(text)
    with page.expect_response("**/v1/accept"):
        query(page).press("Enter")
    wait_for_notice(page, "Learned")


def wait_for_notice(page: Any, text: str) -> None:
    page.locator("#notice", has_text=text).wait_for()


def wait_until(page: Any, condition: str) -> None:
    for _ in range(200):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"the condition was never met: {condition}")


def request_body(request: Any) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(request.post_data)
    return content
