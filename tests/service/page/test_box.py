"""The search box: suggestions for typed text, keyboard control, and no lost or mixed-up responses and accepts."""

from typing import Any

import pytest

from factorcell.service.engine import Service
from factorcell.service.messages import CompletionRequest
from tests.service.page.box import (
    ACCEPT,
    ACTIVE,
    COMPLETE,
    IGNORE_ABORTS,
    OPTIONS,
    USER,
    OpenPage,
    Serve,
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


def test_typing_shows_the_suggestions_of_the_service(serve: Serve, open_page: OpenPage, service: Service) -> None:
    service.accept(USER, "abba")
    page = open_page(serve())
    assert query(page).get_attribute("aria-expanded") == "false"
    type_text(page, "ab")
    results = service.complete(CompletionRequest("ab", user=USER, limit=8)).results
    assert shown_texts(page) == [result.text for result in results]
    assert page.locator(".fc-typed").all_text_contents() == ["ab"] * len(results)
    assert page.locator(".fc-rest").all_text_contents() == [result.text[2:] for result in results]
    labels = {"model": "model", "popularity": "popular", "history": "your texts"}
    sources = [row.locator(".fc-source").all_text_contents() for row in page.locator(OPTIONS).all()]
    assert sources == [[labels[name] for name in result.source.split("+")] for result in results]
    assert query(page).get_attribute("aria-expanded") == "true"


def test_typed_letters_are_marked_in_either_case(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve())
    result = {"text": "abba", "source": "model", "score": -1.0, "typos": 0}
    page.route(COMPLETE, lambda route: route.fulfill(json={"results": [result], "degraded": None}))
    query(page).press_sequentially("AB")
    page.locator(OPTIONS).first.wait_for()
    assert page.locator(".fc-typed").all_text_contents() == ["ab"]
    assert page.locator(".fc-rest").all_text_contents() == ["ba"]


def test_arrows_select_and_enter_accepts(serve: Serve, open_page: OpenPage, service: Service) -> None:
    page = open_page(serve())
    type_text(page, "ab")
    rows = shown_texts(page)
    box = query(page)
    for key, index in (("ArrowDown", 0), ("ArrowDown", 1), ("ArrowUp", 0), ("ArrowUp", None), ("ArrowUp", -1)):
        box.press(key)
        active = page.locator(ACTIVE)
        assert active.locator(".fc-text").all_text_contents() == ([] if index is None else [rows[index]])
        assert box.get_attribute("aria-activedescendant") == (None if index is None else active.get_attribute("id"))
    box.press("Enter")
    wait_for_notice(page, f"Learned for {USER}.")
    assert box.input_value() == rows[-1]
    assert box.get_attribute("aria-expanded") == "false"
    assert page.locator(OPTIONS).count() == 0
    assert texts(service) == [rows[-1]]


def test_escape_closes_the_list_and_keeps_the_text(serve: Serve, open_page: OpenPage, service: Service) -> None:
    page = open_page(serve())
    type_text(page, "ab")
    query(page).press("ArrowDown")
    query(page).press("Escape")
    assert (query(page).input_value(), page.locator(OPTIONS).count()) == ("ab", 0)
    assert query(page).get_attribute("aria-expanded") == "false"
    query(page).press("ArrowDown")
    page.locator(OPTIONS).first.wait_for()
    assert texts(service) == []


def test_escape_drops_a_running_request(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve())
    routes: list[Any] = []
    page.route(COMPLETE, lambda route: routes.append(route))
    query(page).press_sequentially("a")
    while not routes:
        page.wait_for_timeout(20)
    query(page).press("Escape")
    routes[0].continue_()
    page.wait_for_timeout(500)
    assert (query(page).input_value(), page.locator(OPTIONS).count()) == ("a", 0)


def test_tab_inserts_a_suggestion_and_continues(serve: Serve, open_page: OpenPage, service: Service) -> None:
    page = open_page(serve())
    type_text(page, "a")
    first = shown_texts(page)[0]
    query(page).press("ArrowDown")
    with page.expect_request(COMPLETE) as request_info:
        query(page).press("Tab")
    assert (query(page).input_value(), request_body(request_info.value)["query"]) == (first, first)
    assert page.evaluate("document.activeElement.id") == "query"
    query(page).press("Tab")
    assert page.evaluate("document.activeElement.id") != "query"
    assert page.locator(OPTIONS).count() == 0
    assert texts(service) == []


def test_late_response_is_never_shown(serve: Serve, open_page: OpenPage) -> None:
    page = open_page()
    page.add_init_script(IGNORE_ABORTS)
    page.goto(serve())
    late: list[Any] = []

    def hold(route: Any) -> None:
        late.append(route) if request_body(route.request)["query"] == "a" else route.continue_()

    page.route(COMPLETE, hold)
    query(page).press_sequentially("a")
    page.wait_for_timeout(100)
    query(page).press_sequentially("b")
    page.locator(OPTIONS).first.wait_for()
    rows = shown_texts(page)
    assert rows
    assert len(late) == 1
    with page.expect_response(COMPLETE):
        late[0].continue_()
    page.wait_for_timeout(200)
    assert shown_texts(page) == rows
    assert all(result.startswith("ab") for result in rows)


def test_input_method_composition_is_not_disturbed(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve())
    sent: list[str] = []
    page.on(
        "request", lambda request: sent.append(request_body(request)["query"]) if "complete" in request.url else None
    )
    query(page).focus()
    editor = page.context.new_cdp_session(page)
    for text in ("k", "か", "かn"):
        editor.send("Input.imeSetComposition", {"text": text, "selectionStart": len(text), "selectionEnd": len(text)})
    page.wait_for_timeout(200)
    assert (query(page).input_value(), sent) == ("かn", [])
    with page.expect_response(COMPLETE):
        editor.send("Input.insertText", {"text": "かん"})
    assert sent == ["かん"]


@pytest.mark.parametrize(
    ("status", "words"), [(503, "busy"), (429, "Too many requests"), (500, "busy"), (422, "No suggestions")]
)
def test_refusal_shows_a_note(serve: Serve, open_page: OpenPage, status: int, words: str) -> None:
    page = open_page(serve())
    refused: list[int] = []

    def refuse(route: Any) -> None:
        if len(refused) < 1:
            refused.append(status)
            route.fulfill(**{**BUSY, "status": status})
        else:
            route.continue_()

    page.route(COMPLETE, refuse)
    query(page).press_sequentially("a")
    page.locator(".fc-note", has_text=words).wait_for()
    page.locator(".fc-hidden[role=status]", has_text=words).wait_for()
    assert query(page).input_value() == "a"
    assert query(page).get_attribute("aria-expanded") == "false"
    if status == 422:
        query(page).press_sequentially("b")
    page.locator(OPTIONS).first.wait_for()  # it retries by itself after the named time
    assert page.locator(".fc-note").text_content() == ""


def test_accept_while_offline_is_sent_later(serve: Serve, open_page: OpenPage, service: Service) -> None:
    page = open_page(serve())
    type_text(page, "a")
    page.context.set_offline(True)
    query(page).press_sequentially("b")
    page.locator(".fc-note", has_text="offline").wait_for()
    assert query(page).input_value() == "ab"
    query(page).press("Enter")
    wait_for_notice(page, "Not saved yet")
    assert texts(service) == []
    page.context.set_offline(False)
    wait_for_notice(page, "Learned")
    assert texts(service) == ["ab"]
    type_text(page, "ab")


def test_accept_with_a_lost_response_counts_once(serve: Serve, open_page: OpenPage, service: Service) -> None:
    page = open_page(serve())
    keys: list[str] = []

    def lose(route: Any) -> None:
        keys.append(request_body(route.request)["idempotency_key"])
        if len(keys) == 1:
            route.fetch()  # the request arrives
            route.abort()  # but its response is lost
        else:
            route.continue_()

    page.route(ACCEPT, lose)
    query(page).fill("abba")
    query(page).press("Enter")
    wait_for_notice(page, "Learned")
    assert texts(service) == ["abba"]
    assert len(keys) == 2
    assert len(set(keys)) == 1
