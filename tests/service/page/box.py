"""What the tests of the page do and see as a person would."""

import json
from collections.abc import Callable
from typing import Any

Serve = Callable[..., str]  # the fixture `serve`
Tab = Callable[..., Any]  # the fixture `tab`
OPTIONS = '[role="option"]'
ACTIVE = '[role="option"][aria-selected="true"]'
COMPLETE, ACCEPT = "**/v1/complete", "**/v1/accept"
PERSON = "Ada"  # who types at first
# Some of these tests want answers of requests that were given up: fetch as if nothing were ever given up.
STUBBORN = "const ask = fetch; window.fetch = (url, {signal, ...options}) => ask(url, options);"


def query(tab: Any) -> Any:
    return tab.get_by_role("combobox")


def shown(tab: Any) -> list[str]:
    texts: list[str] = tab.locator(".fc-text").all_text_contents()
    return texts


def typed(tab: Any, text: str) -> None:
    box = query(tab)
    box.fill("")
    with tab.expect_response(lambda answer: "complete" in answer.url and asked(answer.request)["query"] == text):
        box.press_sequentially(text)
    tab.locator(OPTIONS).first.wait_for()


def accepted(tab: Any, text: str) -> None:
    query(tab).fill(text)
    with tab.expect_response("**/v1/accept"):
        query(tab).press("Enter")
    says(tab, "Learned")


def says(tab: Any, words: str) -> None:
    tab.locator("#words", has_text=words).wait_for()


def until(tab: Any, condition: str) -> None:
    for _ in range(200):
        if tab.evaluate(condition):
            return
        tab.wait_for_timeout(50)
    raise AssertionError(f"it never came to this: {condition}")


def asked(request: Any) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(request.post_data)
    return content
