"""The page around the box: who types, what was learned of them, the picture; for keys, eyes and ears of all kinds."""

import json
from pathlib import Path
from typing import Any

import pytest

from factorcell.service.engine import Service
from tests.service.page.box import OPTIONS, PERSON, Serve, Tab, accepted, query, says, shown, typed, until

pytestmark = pytest.mark.slow

NAMED = {"button", "textbox", "combobox", "radio", "option", "listbox", "dialog", "link"}  # roles that need a name


def texts(service: Service, user: str = PERSON) -> list[str] | None:
    profile = service.show(user)
    return None if profile is None else [one.text for one in profile.texts]


def rows(tab: Any) -> list[str]:
    found: list[str] = tab.locator("#texts .what").all_text_contents()
    return found


def fill(service: Service, *kept: str) -> None:
    for text in kept:
        service.accept(PERSON, text)


def press(tab: Any, name: str) -> None:
    tab.get_by_role("button", name=name, exact=True).click()


def test_learned_texts_are_shown_newest_first(serve: Serve, tab: Tab, service: Service) -> None:
    fill(service, "abba", "cab", "abba")
    opened = tab(serve())
    opened.locator("#summary", has_text="3 texts are kept.").wait_for()
    assert rows(opened) == ["abba", "cab"]
    assert opened.locator("#texts time").all_text_contents() == ["2 times", ""]
    accepted(opened, "acca b")
    opened.locator("#summary", has_text="4 texts").wait_for()
    assert rows(opened) == ["acca b", "abba", "cab"]


def test_many_texts_are_shown_when_asked_for(serve: Serve, tab: Tab, service: Service) -> None:
    fill(service, *(f"ab {'c' * number}" for number in range(1, 11)))
    opened = tab(serve())
    press(opened, "Show all 10")
    assert len(rows(opened)) == 10
    press(opened, "Show fewer")
    assert len(rows(opened)) == 8


def test_one_text_is_forgotten(serve: Serve, tab: Tab, service: Service) -> None:
    fill(service, "abba", "cab", "abba")
    opened = tab(serve())
    press(opened, "Forget “abba”")
    says(opened, "“abba” is forgotten.")
    opened.locator("#summary", has_text="One text is kept.").wait_for()
    assert (rows(opened), texts(service)) == (["cab"], ["cab"])
    until(opened, "document.activeElement.ariaLabel === 'Forget “cab”'")  # where keys go on
    opened.keyboard.press("Enter")
    opened.locator("#texts li").wait_for(state="detached")
    until(opened, "document.activeElement.id === 'learned-title'")
    assert texts(service) == []


@pytest.mark.parametrize("button", ["Undo", "Undo last"])
def test_last_accept_is_undone(serve: Serve, tab: Tab, service: Service, button: str) -> None:
    fill(service, "cab")
    opened = tab(serve())
    accepted(opened, "abba")
    press(opened, button)
    says(opened, "The last text is forgotten.")
    opened.locator("#summary", has_text="One text").wait_for()
    assert texts(service) == ["cab"] == rows(opened)


def test_context_of_the_address_is_seen_and_what_is_wrong_with_it_said(serve: Serve, tab: Tab) -> None:
    opened = tab(serve().rstrip("/") + "/?context[city]=Oslo")
    typed(opened, "a")
    assert opened.locator("#context").inner_text() == "city: Oslo"
    wrong = tab(opened.url.replace("city", "town"))
    query(wrong).press_sequentially("a")
    says(wrong, "Unknown context column 'town'; choose from")
    assert wrong.locator("#context").inner_text() == "town: Oslo"
    assert not tab(opened.url.partition("?")[0]).locator("#context").is_visible()


def test_who_types_is_asked_in_words_on_a_phone_too(serve: Serve, tab: Tab) -> None:
    phone = tab(serve(), viewport={"width": 390, "height": 844})
    box = phone.get_by_text("Typing as").bounding_box()
    assert box["width"] > 50
    assert box["height"] > 12
    assert box["y"] < phone.get_by_text("Ada", exact=True).first.bounding_box()["y"]


def test_learning_is_paused_and_resumed(serve: Serve, tab: Tab, service: Service) -> None:
    fill(service, "cab")
    opened = tab(serve())
    press(opened, "Pause")
    opened.locator("#summary", has_text="Learning is paused.").wait_for()
    assert opened.get_by_role("button", name="Resume").get_attribute("aria-pressed") == "true"
    query(opened).fill("abba")
    query(opened).press("Enter")
    says(opened, "Not kept: learning is paused.")
    assert texts(service) == ["cab"]
    press(opened, "Resume")
    says(opened, "Learning goes on.")
    accepted(opened, "abba")
    assert texts(service) == ["cab", "abba"]


def test_secret_is_not_kept_and_the_page_says_why(serve: Serve, tab: Tab, service: Service) -> None:
    opened = tab(serve())
    query(opened).fill("ann@example.org")
    query(opened).press("Enter")
    says(opened, "Not kept: it looks like an e-mail address.")
    assert texts(service) is None


def test_export_is_that_of_the_service(serve: Serve, tab: Tab, service: Service) -> None:
    fill(service, "abba", "cab")
    opened = tab(serve())
    with opened.expect_download() as found:
        press(opened, "Export")
    assert found.value.suggested_filename == "Ada.json"
    assert json.loads(Path(found.value.path()).read_text(encoding="utf-8")) == service.export(PERSON)


def test_all_is_deleted_once_it_is_confirmed(serve: Serve, tab: Tab, service: Service) -> None:
    fill(service, "abba")
    opened = tab(serve())
    for end in ("Keep", None):
        press(opened, "Delete all")
        sure = opened.get_by_role("dialog", name="Delete all of Ada?")
        sure.wait_for()
        press(opened, end) if end else opened.keyboard.press("Escape")
        sure.wait_for(state="hidden")
        assert texts(service) == ["abba"]
    press(opened, "Delete all")
    opened.get_by_role("dialog").get_by_role("button", name="Delete all").click()
    says(opened, "All of Ada is deleted.")
    opened.locator("#summary", has_text="Nothing yet.").wait_for()
    assert (texts(service), rows(opened)) == (None, [])


def test_people_are_kept_apart(serve: Serve, tab: Tab, service: Service) -> None:
    opened = tab(serve())
    accepted(opened, "abba")
    opened.get_by_role("radio", name="Ben").check()
    opened.locator("#whose", has_text="Ben").wait_for()
    assert rows(opened) == []
    accepted(opened, "cab")
    opened.get_by_label("Somebody else").fill("Дана")
    opened.get_by_label("Somebody else").press("Enter")
    opened.locator("#whose", has_text="Дана").wait_for()
    accepted(opened, "ccc")
    assert [texts(service, name) for name in (PERSON, "Ben", "Дана")] == [["abba"], ["cab"], ["ccc"]]
    opened.reload()
    opened.locator("#whose", has_text="Дана").wait_for()
    opened.get_by_role("radio", name="Nobody").check()
    opened.locator("#summary", has_text="Nobody is learned").wait_for()
    query(opened).fill("bbb")
    query(opened).press("Enter")
    says(opened, "Accepted; nobody learns it.")


def test_picture_shows_how_a_text_rises(serve: Serve, tab: Tab) -> None:
    opened = tab(serve())
    typed(opened, "ba")
    accepted(opened, "bab b")
    opened.locator("#picture li").first.wait_for()
    assert opened.locator("#prefix").input_value() == "ba"
    assert opened.locator("#picture .tick").all_text_contents() == ["0", "1"]
    accepted(opened, "bab b")
    opened.locator("#picture .tick", has_text="2").wait_for()
    assert opened.locator("#picture li.own span").all_text_contents() == ["bab b"]
    typed(opened, "ba")
    assert opened.locator("#picture li span").all_text_contents() == shown(opened)[:5]
    query(opened).press("Escape")
    press(opened, "Undo last")
    opened.locator("#picture .tick", has_text="−").wait_for()


def test_prefix_of_the_picture_can_be_chosen(serve: Serve, tab: Tab) -> None:
    opened = tab(serve())
    opened.locator("#prefix").fill("ca")
    opened.locator("#prefix").press("Enter")
    opened.locator("#picture .tick", has_text="now").wait_for()
    first = opened.locator("#picture li span").all_text_contents()
    assert first
    assert all(text.startswith("ca") for text in first)
    accepted(opened, "cac")
    opened.locator("#picture .tick", has_text="1").wait_for()
    assert opened.locator("#prefix").input_value() == "ca"


def test_all_can_be_done_by_keys(serve: Serve, tab: Tab, service: Service) -> None:
    opened = tab(serve())
    keys = opened.keyboard
    assert opened.evaluate("document.activeElement.id") == "query"
    keys.type("abba")
    keys.press("Enter")
    opened.locator("#texts li").wait_for()
    reached = []
    for _ in range(16):
        keys.press("Tab")
        reached.append(opened.evaluate("(document.activeElement.ariaLabel || document.activeElement.innerText)"))
    wanted = ["Accept what is typed", "Undo", "Undo last", "Pause", "Export", "Delete all", "Forget “abba”"]
    assert [name for name in reached if name in wanted][: len(wanted)] == wanted
    opened.get_by_role("button", name="Delete all").focus()
    keys.press("Enter")
    assert opened.evaluate("document.activeElement.innerText") == "Keep"
    keys.press("Tab")
    keys.press("Enter")
    says(opened, "All of Ada is deleted.")
    assert texts(service) is None
    opened.get_by_role("radio", name="Ada").focus()
    keys.press("ArrowRight")
    opened.locator("#whose", has_text="Ben").wait_for()


def test_everything_has_a_role_and_a_name(serve: Serve, tab: Tab, service: Service) -> None:
    fill(service, "abba")
    opened = tab(serve())
    opened.locator("#texts li").wait_for()
    typed(opened, "ab")
    query(opened).press("ArrowDown")
    tree = opened.context.new_cdp_session(opened).send("Accessibility.getFullAXTree")["nodes"]
    found = [(one["role"]["value"], one["name"]["value"]) for one in tree if "name" in one and not one["ignored"]]
    assert [role for role, name in found if role in NAMED and not name.strip()] == []
    names = dict(found)
    assert names["combobox"] == "It learns how you go on"
    assert names["listbox"] == "Suggestions"
    assert {"banner", "main", "search", "heading", "region", "status", "group"} <= set(names)
    options = [name for role, name in found if role == "option"]
    assert len(options) == len(shown(opened))
    assert all(name.startswith(text) and " from " in name for name, text in zip(options, shown(opened), strict=True))
    box = query(opened)
    controls, active = box.get_attribute("aria-controls"), box.get_attribute("aria-activedescendant")
    assert opened.locator(f"#{controls}").get_attribute("role") == "listbox"
    assert opened.locator(f"#{controls} > #{active}").get_attribute("aria-selected") == "true"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_from_what_is_behind_them(serve: Serve, tab: Tab, service: Service, scheme: str) -> None:
    fill(service, "abba")
    opened = tab(serve(), color_scheme=scheme)
    opened.locator("#texts li").wait_for()
    typed(opened, "ab")
    query(opened).press("ArrowDown")
    paper = opened.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (max(colour(paper)) < 64) == (scheme == "dark")
    found = opened.evaluate(SEEN)
    assert len(found) > 20
    faint = [(one, front) for one, front, behind in found if contrast(colour(front), colour(behind)) < 4.5]
    assert faint == []


# Every text that is seen, its colour, and that of the nearest element behind it that has one.
SEEN = """() => [...document.querySelectorAll("body *")].filter(one => one.checkVisibility()
    && [...one.childNodes].some(node => node.nodeType === 3 && node.data.trim())).map(one => {
  let behind = one;
  while (/rgba.* 0\\)/.test(getComputedStyle(behind).backgroundColor)) behind = behind.parentElement;
  return [one.textContent.trim(), getComputedStyle(one).color, getComputedStyle(behind).backgroundColor];
})"""


def colour(text: str) -> list[float]:
    return [float(part) for part in text[text.index("(") + 1 :].rstrip(")").split(",")[:3]]


def contrast(front: list[float], behind: list[float]) -> float:
    high, low = sorted((luminance(front), luminance(behind)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def luminance(colour: list[float]) -> float:
    linear = [(c / 255 / 12.92 if c <= 10.31 else ((c / 255 + 0.055) / 1.055) ** 2.4) for c in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("width", [320, 390, 768])
def test_narrow_windows_hold_all_of_it(serve: Serve, tab: Tab, service: Service, width: int) -> None:
    fill(service, "abba", "b" * 60 + " " + "c" * 40)
    opened = tab(serve(), viewport={"width": width, "height": 700}, has_touch=True, is_mobile=True)
    opened.locator("#texts li").first.wait_for()
    accepted(opened, "bab b")
    typed(opened, "b")
    assert opened.evaluate("document.documentElement.scrollWidth") == width
    at = opened.locator(".fc-pop").bounding_box()
    box = query(opened).bounding_box()
    assert (at["x"], at["width"]) == (box["x"], box["width"])
    assert at["y"] >= box["y"] + box["height"]
    assert all(row.bounding_box()["height"] >= 44 for row in opened.locator(OPTIONS).all())


def test_list_opens_above_where_there_is_no_room_below(serve: Serve, tab: Tab) -> None:
    opened = tab(serve(), viewport={"width": 900, "height": 500})
    opened.evaluate("document.querySelector('.stage').className = 'low'")
    opened.evaluate("document.querySelector('#search').style.marginTop = '260px'")
    typed(opened, "ab")
    at, box = opened.locator(".fc-pop").bounding_box(), query(opened).bounding_box()
    assert at["y"] + at["height"] <= box["y"]
    assert at["y"] >= 0


def test_key_is_asked_for_and_sent(serve: Serve, tab: Tab) -> None:
    opened = tab(serve())

    def check(route: Any) -> None:
        if route.request.headers.get("authorization") == "Bearer sesame":
            route.continue_()
        else:
            route.fulfill(status=401, json={"detail": "a valid key is needed"})

    opened.route("**/v1/**", check)
    opened.reload()
    opened.get_by_label("Key of this service").fill("sesame")
    opened.get_by_role("button", name="Use").click()
    opened.get_by_label("Key of this service").wait_for(state="hidden")
    typed(opened, "ab")
    accepted(opened, "abba")
