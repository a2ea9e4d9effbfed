"""The page around the box: who types, what was learned of them, the picture; for keys, eyes and ears of all kinds."""

from typing import Any

import pytest

from factorcell.service.engine import Service
from tests.service.page.box import PERSON, Serve, Tab, accepted, query, says, shown, typed, until

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
