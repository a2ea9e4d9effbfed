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


@pytest.mark.parametrize("key", ["Home", "End", "ArrowLeft", "ArrowRight"])
def test_keys_of_the_text_leave_the_list(serve: Serve, tab: Tab, service: Service, key: str) -> None:
    opened = tab(serve())
    typed(opened, "ab")
    query(opened).press("ArrowDown")
    assert opened.locator(ACTIVE).count() == 1
    query(opened).press(key)
    assert opened.locator(ACTIVE).count() == 0
    query(opened).press("Enter")  # what is typed, not what was active
    says(opened, "Learned")
    assert texts(service) == ["ab"]


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


@pytest.mark.parametrize("touch", [False, True])
def test_pointing_accepts(serve: Serve, tab: Tab, service: Service, touch: bool) -> None:
    opened = tab(serve(), has_touch=touch)
    typed(opened, "ab")
    row = opened.locator(OPTIONS).nth(1)
    text = row.locator(".fc-text").text_content()
    row.tap() if touch else row.click()
    says(opened, "Learned")
    assert texts(service) == [text] == [query(opened).input_value()]
    assert opened.evaluate("document.activeElement.id") == "query"


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


def test_request_is_given_up_at_the_next_key(serve: Serve, tab: Tab) -> None:
    opened = tab(serve())
    opened.route(COMPLETE, lambda route: None if asked(route.request)["query"] == "a" else route.continue_())
    with opened.expect_event("requestfailed", lambda request: asked(request)["query"] == "a"):
        query(opened).press_sequentially("ab")
    opened.locator(OPTIONS).first.wait_for()


def test_answer_of_another_seq_is_not_shown(serve: Serve, tab: Tab) -> None:
    opened = tab(serve())

    def other(route: Any) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json={**answer.json(), "seq": asked(route.request)["seq"] - 1})

    opened.route(COMPLETE, other)
    with opened.expect_response(COMPLETE):
        query(opened).press_sequentially("a")
    opened.wait_for_timeout(200)
    assert opened.locator(OPTIONS).count() == 0


def test_seq_grows_within_a_session(serve: Serve, tab: Tab) -> None:
    opened = tab(serve())
    sent: list[dict[str, Any]] = []
    opened.on("request", lambda request: sent.append(asked(request)) if "complete" in request.url else None)
    typed(opened, "abc"[:2])
    typed(opened, "ca")
    numbers = [one["seq"] for one in sent]
    assert numbers == sorted(set(numbers))
    assert len({one["session"] for one in sent}) == 1
    assert {one["user"] for one in sent} == {PERSON}


@pytest.mark.parametrize(
    ("value", "place", "cursor"), [("ab", 1, 1), ("😀ab", 3, 2), ("a👩‍👩‍👧b", 9, 6), ("ab😀", 4, 3), ("\ud83dab", 2, 2)]
)
def test_cursor_is_sent_in_code_points(serve: Serve, tab: Tab, value: str, place: int, cursor: int) -> None:
    opened = tab(serve())
    with opened.expect_request(COMPLETE) as found:
        opened.evaluate(
            """([codes, place]) => { const box = document.querySelector("#query");
            box.value = String.fromCharCode(...codes); box.setSelectionRange(place, place);
            box.dispatchEvent(new InputEvent("input")); }""",
            [[int.from_bytes(pair) for pair in units(value)], place],
        )
    assert (asked(found.value)["cursor"], len(asked(found.value)["query"])) == (cursor, len(value))
    assert found.value.response().status == 200


def units(text: str) -> list[bytes]:
    content = text.encode("utf-16-be", "surrogatepass")
    return [content[at : at + 2] for at in range(0, len(content), 2)]


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


@pytest.mark.parametrize("degraded", ["time", "store"])
def test_degraded_answer_is_told_quietly(serve: Serve, tab: Tab, degraded: str) -> None:
    opened = tab(serve())

    def worse(route: Any) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json={**answer.json(), "degraded": degraded})

    opened.route(COMPLETE, worse)
    query(opened).press_sequentially("ab")
    opened.locator(OPTIONS).first.wait_for()
    note = {"time": "Time was up", "store": "out of reach"}[degraded]
    assert note in opened.locator(".fc-note").text_content()


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


def test_accepts_stay_in_order(serve: Serve, tab: Tab, service: Service) -> None:
    opened = tab(serve())
    keys: list[str] = []

    def refuse(route: Any) -> None:
        keys.append(asked(route.request)["idempotency_key"])
        route.fulfill(**BUSY) if len(keys) == 1 else route.continue_()

    opened.route(ACCEPT, refuse)
    for text in ("abba", "cab"):
        query(opened).fill(text)
        query(opened).press("Enter")
    opened.locator("#texts li").nth(1).wait_for()
    assert texts(service) == ["abba", "cab"]
    assert keys[0] == keys[1] != keys[2]


def test_accept_that_cannot_be_is_told(serve: Serve, tab: Tab) -> None:
    opened = tab(serve())
    opened.route(ACCEPT, lambda route: route.fulfill(status=422, json={"detail": "a text of no kind"}))
    query(opened).fill("abba")
    query(opened).press("Enter")
    says(opened, "Not learned: a text of no kind.")
    assert query(opened).input_value() == "abba"


def test_screen_reader_is_told_how_many(serve: Serve, tab: Tab) -> None:
    opened = tab(serve())
    typed(opened, "ab")
    count = len(shown(opened))
    opened.get_by_role("status").filter(has_text=f"{count} suggestions").wait_for()


def test_texts_are_shown_as_text(serve: Serve, tab: Tab, service: Service) -> None:
    hostile = '<img src=x onerror="window.hit=1">&amp;<b>\''
    service.accept(PERSON, hostile)
    opened = tab(serve())
    opened.locator("#texts li").wait_for()
    typed(opened, "<")
    query(opened).press("ArrowDown")
    assert opened.locator(ACTIVE).locator(".fc-text").text_content() == hostile
    assert opened.locator("#texts .what").text_content() == hostile
    query(opened).press("Enter")
    says(opened, "Learned")
    opened.locator("#picture li", has_text=hostile).wait_for()
    opened.locator("#other").fill(hostile)
    opened.locator("#other").press("Enter")
    opened.locator("#whose", has_text=hostile).wait_for()
    assert opened.evaluate("window.hit") is None
    assert opened.locator("main img, #people img, b").count() == 0
