"""Actions and queries of the page tests, as a user would perform them."""

import json
from collections.abc import Callable
from typing import Any

Serve = Callable[..., str]  # the fixture `serve`
Tab = Callable[..., Any]  # the fixture `tab`
OPTIONS = '[role="option"]'
ACTIVE = '[role="option"][aria-selected="true"]'
COMPLETE, ACCEPT = "**/v1/complete", "**/v1/accept"
USER = "Ada"  # the user selected at first
# Lets aborted requests continue, for tests of late responses.
IGNORE_ABORTS = "const ask = fetch; window.fetch = (url, {signal, ...options}) => ask(url, options);"


def query(tab: Any) -> Any:
    return tab.get_by_role("combobox")


def shown_texts(tab: Any) -> list[str]:
    texts: list[str] = tab.locator(".fc-text").all_text_contents()
    return texts


def type_text(tab: Any, text: str) -> None:
    box = query(tab)
    box.fill("")
    with tab.expect_response(lambda answer: "complete" in answer.url and request_body(answer.request)["query"] == text):
        box.press_sequentially(text)
    tab.locator(OPTIONS).first.wait_for()


def accept_text(tab: Any, text: str) -> None:
    query(tab).fill(text)
    with tab.expect_response("**/v1/accept"):
        query(tab).press("Enter")
    wait_for_notice(tab, "Learned")


def wait_for_notice(tab: Any, text: str) -> None:
    tab.locator("#notice", has_text=text).wait_for()


def until(tab: Any, condition: str) -> None:
    for _ in range(200):
        if tab.evaluate(condition):
            return
        tab.wait_for_timeout(50)
    raise AssertionError(f"the condition was never met: {condition}")


def request_body(request: Any) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(request.post_data)
    return content
