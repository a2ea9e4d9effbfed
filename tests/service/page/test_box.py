"""The box: what is typed is completed, keys do what they say, and neither answers nor accepts get lost or mixed up."""

from typing import Any

import pytest

from factorcell.service.engine import CompletionRequest, Service
from tests.service.page.box import (
    ACCEPT,
    ACTIVE,
    COMPLETE,
    OPTIONS,
    PERSON,
    STUBBORN,
    Serve,
    Tab,
    asked,
    query,
    says,
    shown,
    typed,
)

pytestmark = pytest.mark.slow

BUSY = {"status": 503, "headers": {"retry-after": "3"}, "json": {"detail": "busy"}}


def texts(service: Service) -> list[str]:
    profile = service.show(PERSON)
    return [] if profile is None else [one.text for one in profile.texts]


def test_typing_shows_what_the_service_suggests(serve: Serve, tab: Tab, service: Service) -> None:
    service.accept(PERSON, "abba")
    opened = tab(serve())
    assert query(opened).get_attribute("aria-expanded") == "false"
    typed(opened, "ab")
    found = service.complete(CompletionRequest("ab", user=PERSON, limit=8)).results
    assert shown(opened) == [one.text for one in found]
    assert opened.locator(".fc-typed").all_text_contents() == ["ab"] * len(found)
    assert opened.locator(".fc-rest").all_text_contents() == [one.text[2:] for one in found]
    words = {"model": "model", "popularity": "popular", "history": "own"}
    sources = [row.locator(".fc-source").all_text_contents() for row in opened.locator(OPTIONS).all()]
    assert sources == [[words[name] for name in one.source.split("+")] for one in found]
    assert query(opened).get_attribute("aria-expanded") == "true"


def test_arrows_choose_and_enter_accepts(serve: Serve, tab: Tab, service: Service) -> None:
    opened = tab(serve())
    typed(opened, "ab")
    rows = shown(opened)
    box = query(opened)
    for key, place in (("ArrowDown", 0), ("ArrowDown", 1), ("ArrowUp", 0), ("ArrowUp", None), ("ArrowUp", -1)):
        box.press(key)
        active = opened.locator(ACTIVE)
        assert active.locator(".fc-text").all_text_contents() == ([] if place is None else [rows[place]])
        assert box.get_attribute("aria-activedescendant") == (None if place is None else active.get_attribute("id"))
    box.press("Enter")
    says(opened, f"Learned for {PERSON}.")
    assert box.input_value() == rows[-1]
    assert box.get_attribute("aria-expanded") == "false"
    assert opened.locator(OPTIONS).count() == 0
    assert texts(service) == [rows[-1]]


def test_escape_closes_and_keeps_what_is_typed(serve: Serve, tab: Tab, service: Service) -> None:
    opened = tab(serve())
    typed(opened, "ab")
    query(opened).press("ArrowDown")
    query(opened).press("Escape")
    assert (query(opened).input_value(), opened.locator(OPTIONS).count()) == ("ab", 0)
    assert query(opened).get_attribute("aria-expanded") == "false"
    query(opened).press("ArrowDown")
    opened.locator(OPTIONS).first.wait_for()
    assert texts(service) == []


def test_tab_takes_a_suggestion_and_goes_on(serve: Serve, tab: Tab, service: Service) -> None:
    opened = tab(serve())
    typed(opened, "a")
    first = shown(opened)[0]
    query(opened).press("ArrowDown")
    with opened.expect_request(COMPLETE) as found:
        query(opened).press("Tab")
    assert (query(opened).input_value(), asked(found.value)["query"]) == (first, first)
    assert opened.evaluate("document.activeElement.id") == "query"
    query(opened).press("Tab")
    assert opened.evaluate("document.activeElement.id") != "query"
    assert opened.locator(OPTIONS).count() == 0
    assert texts(service) == []


def test_late_answer_is_never_shown(serve: Serve, tab: Tab) -> None:
    opened = tab()
    opened.add_init_script(STUBBORN)
    opened.goto(serve())
    late: list[Any] = []

    def hold(route: Any) -> None:
        late.append(route) if asked(route.request)["query"] == "a" else route.continue_()

    opened.route(COMPLETE, hold)
    query(opened).press_sequentially("a")
    opened.wait_for_timeout(100)
    query(opened).press_sequentially("b")
    opened.locator(OPTIONS).first.wait_for()
    rows = shown(opened)
    assert rows
    assert len(late) == 1
    with opened.expect_response(COMPLETE):
        late[0].continue_()
    opened.wait_for_timeout(200)
    assert shown(opened) == rows
    assert all(one.startswith("ab") for one in rows)


def test_composition_is_left_alone(serve: Serve, tab: Tab) -> None:
    opened = tab(serve())
    sent: list[str] = []
    opened.on("request", lambda request: sent.append(asked(request)["query"]) if "complete" in request.url else None)
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
    ("status", "words"), [(503, "busy"), (429, "too fast"), (500, "busy"), (422, "No suggestions")]
)
def test_refusal_is_told_in_a_line(serve: Serve, tab: Tab, status: int, words: str) -> None:
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
    opened.locator(OPTIONS).first.wait_for()  # it asks again by itself, when it was told to
    assert opened.locator(".fc-note").text_content() == ""


def test_offline_loses_nothing_and_ends_by_itself(serve: Serve, tab: Tab, service: Service) -> None:
    opened = tab(serve())
    typed(opened, "a")
    opened.context.set_offline(True)
    query(opened).press_sequentially("b")
    opened.locator(".fc-note", has_text="offline").wait_for()
    assert query(opened).input_value() == "ab"
    query(opened).press("Enter")
    says(opened, "Not kept yet")
    assert texts(service) == []
    opened.context.set_offline(False)
    says(opened, "Learned")
    assert texts(service) == ["ab"]
    typed(opened, "ab")


def test_accept_whose_answer_is_lost_counts_once(serve: Serve, tab: Tab, service: Service) -> None:
    opened = tab(serve())
    keys: list[str] = []

    def lose(route: Any) -> None:
        keys.append(asked(route.request)["idempotency_key"])
        if len(keys) == 1:
            route.fetch()  # it arrives
            route.abort()  # and its answer does not
        else:
            route.continue_()

    opened.route(ACCEPT, lose)
    query(opened).fill("abba")
    query(opened).press("Enter")
    says(opened, "Learned")
    assert texts(service) == ["abba"]
    assert len(keys) == 2
    assert len(set(keys)) == 1
