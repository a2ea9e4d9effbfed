"""The search box: suggestions for typed text, keyboard control, and no lost or mixed-up responses and accepts."""

from typing import Any

import pytest

from factorcell.service.engine import CompletionRequest, Service
from tests.service.page.box import (
    ACCEPT,
    ACTIVE,
    COMPLETE,
    IGNORE_ABORTS,
    OPTIONS,
    USER,
    Serve,
    Tab,
    query,
    request_body,
    shown_texts,
    type_text,
    wait_for_notice,
)

pytestmark = pytest.mark.slow

BUSY = {"status": 503, "headers": {"retry-after": "3"}, "json": {"detail": "busy"}}


def texts(service: Service) -> list[str]:
    profile = service.show(USER)
    return [] if profile is None else [result.text for result in profile.texts]


def test_typing_shows_the_suggestions_of_the_service(serve: Serve, tab: Tab, service: Service) -> None:
    service.accept(USER, "abba")
    opened = tab(serve())
    assert query(opened).get_attribute("aria-expanded") == "false"
    type_text(opened, "ab")
    results = service.complete(CompletionRequest("ab", user=USER, limit=8)).results
    assert shown_texts(opened) == [result.text for result in results]
    assert opened.locator(".fc-typed").all_text_contents() == ["ab"] * len(results)
    assert opened.locator(".fc-rest").all_text_contents() == [result.text[2:] for result in results]
    labels = {"model": "model", "popularity": "popular", "history": "your texts"}
    sources = [row.locator(".fc-source").all_text_contents() for row in opened.locator(OPTIONS).all()]
    assert sources == [[labels[name] for name in result.source.split("+")] for result in results]
    assert query(opened).get_attribute("aria-expanded") == "true"


def test_arrows_select_and_enter_accepts(serve: Serve, tab: Tab, service: Service) -> None:
    opened = tab(serve())
    type_text(opened, "ab")
    rows = shown_texts(opened)
    box = query(opened)
    for key, index in (("ArrowDown", 0), ("ArrowDown", 1), ("ArrowUp", 0), ("ArrowUp", None), ("ArrowUp", -1)):
        box.press(key)
        active = opened.locator(ACTIVE)
        assert active.locator(".fc-text").all_text_contents() == ([] if index is None else [rows[index]])
        assert box.get_attribute("aria-activedescendant") == (None if index is None else active.get_attribute("id"))
    box.press("Enter")
    wait_for_notice(opened, f"Learned for {USER}.")
    assert box.input_value() == rows[-1]
    assert box.get_attribute("aria-expanded") == "false"
    assert opened.locator(OPTIONS).count() == 0
    assert texts(service) == [rows[-1]]


def test_escape_closes_the_list_and_keeps_the_text(serve: Serve, tab: Tab, service: Service) -> None:
    opened = tab(serve())
    type_text(opened, "ab")
    query(opened).press("ArrowDown")
    query(opened).press("Escape")
    assert (query(opened).input_value(), opened.locator(OPTIONS).count()) == ("ab", 0)
    assert query(opened).get_attribute("aria-expanded") == "false"
    query(opened).press("ArrowDown")
    opened.locator(OPTIONS).first.wait_for()
    assert texts(service) == []


def test_tab_inserts_a_suggestion_and_continues(serve: Serve, tab: Tab, service: Service) -> None:
    opened = tab(serve())
    type_text(opened, "a")
    first = shown_texts(opened)[0]
    query(opened).press("ArrowDown")
    with opened.expect_request(COMPLETE) as request_info:
        query(opened).press("Tab")
    assert (query(opened).input_value(), request_body(request_info.value)["query"]) == (first, first)
    assert opened.evaluate("document.activeElement.id") == "query"
    query(opened).press("Tab")
    assert opened.evaluate("document.activeElement.id") != "query"
    assert opened.locator(OPTIONS).count() == 0
    assert texts(service) == []


def test_late_response_is_never_shown(serve: Serve, tab: Tab) -> None:
    opened = tab()
    opened.add_init_script(IGNORE_ABORTS)
    opened.goto(serve())
    late: list[Any] = []

    def hold(route: Any) -> None:
        late.append(route) if request_body(route.request)["query"] == "a" else route.continue_()

    opened.route(COMPLETE, hold)
    query(opened).press_sequentially("a")
    opened.wait_for_timeout(100)
    query(opened).press_sequentially("b")
    opened.locator(OPTIONS).first.wait_for()
    rows = shown_texts(opened)
    assert rows
    assert len(late) == 1
    with opened.expect_response(COMPLETE):
        late[0].continue_()
    opened.wait_for_timeout(200)
    assert shown_texts(opened) == rows
    assert all(result.startswith("ab") for result in rows)


def test_input_method_composition_is_not_disturbed(serve: Serve, tab: Tab) -> None:
    opened = tab(serve())
    sent: list[str] = []
    opened.on(
        "request", lambda request: sent.append(request_body(request)["query"]) if "complete" in request.url else None
    )
    query(opened).focus()
    editor = opened.context.new_cdp_session(opened)
    for text in ("k", "か", "かn"):
        editor.send("Input.imeSetComposition", {"text": text, "selectionStart": len(text), "selectionEnd": len(text)})
    opened.wait_for_timeout(200)
    assert (query(opened).input_value(), sent) == ("かn", [])
    with opened.expect_response(COMPLETE):
        editor.send("Input.insertText", {"text": "かん"})
    assert sent == ["かん"]


@pytest.mark.parametrize(
    ("status", "words"), [(503, "busy"), (429, "Too many requests"), (500, "busy"), (422, "No suggestions")]
)
def test_refusal_shows_a_note(serve: Serve, tab: Tab, status: int, words: str) -> None:
    opened = tab(serve())
    refused: list[int] = []

    def refuse(route: Any) -> None:
        if len(refused) < 1:
            refused.append(status)
            route.fulfill(**{**BUSY, "status": status})
        else:
            route.continue_()

    opened.route(COMPLETE, refuse)
    query(opened).press_sequentially("a")
    opened.locator(".fc-note", has_text=words).wait_for()
    opened.locator(".fc-hidden[role=status]", has_text=words).wait_for()
    assert query(opened).input_value() == "a"
    assert query(opened).get_attribute("aria-expanded") == "false"
    if status == 422:
        query(opened).press_sequentially("b")
    opened.locator(OPTIONS).first.wait_for()  # it retries by itself after the named time
    assert opened.locator(".fc-note").text_content() == ""


def test_accept_while_offline_is_sent_later(serve: Serve, tab: Tab, service: Service) -> None:
    opened = tab(serve())
    type_text(opened, "a")
    opened.context.set_offline(True)
    query(opened).press_sequentially("b")
    opened.locator(".fc-note", has_text="offline").wait_for()
    assert query(opened).input_value() == "ab"
    query(opened).press("Enter")
    wait_for_notice(opened, "Not saved yet")
    assert texts(service) == []
    opened.context.set_offline(False)
    wait_for_notice(opened, "Learned")
    assert texts(service) == ["ab"]
    type_text(opened, "ab")


def test_accept_with_a_lost_response_counts_once(serve: Serve, tab: Tab, service: Service) -> None:
    opened = tab(serve())
    keys: list[str] = []

    def lose(route: Any) -> None:
        keys.append(request_body(route.request)["idempotency_key"])
        if len(keys) == 1:
            route.fetch()  # the request arrives
            route.abort()  # but its response is lost
        else:
            route.continue_()

    opened.route(ACCEPT, lose)
    query(opened).fill("abba")
    query(opened).press("Enter")
    wait_for_notice(opened, "Learned")
    assert texts(service) == ["abba"]
    assert len(keys) == 2
    assert len(set(keys)) == 1
