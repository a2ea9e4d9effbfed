"""The page around the box: users, saved texts, the chart, keys, and accessibility."""

from typing import Any

import pytest

from factorcell.service.engine import Service
from tests.service.page.box import USER, Serve, Tab, accept_text, query, shown_texts, type_text, until, wait_for_notice

pytestmark = pytest.mark.slow

ROLES_WITH_NAME = {
    "button",
    "textbox",
    "combobox",
    "radio",
    "option",
    "listbox",
    "dialog",
    "link",
}  # roles that need an accessible name


def texts(service: Service, user: str = USER) -> list[str] | None:
    profile = service.show(user)
    return None if profile is None else [text.text for text in profile.texts]


def rows(tab: Any) -> list[str]:
    texts: list[str] = tab.locator("#texts .text").all_text_contents()
    return texts


def fill(service: Service, *texts_to_save: str) -> None:
    for text in texts_to_save:
        service.accept(USER, text)


def press(tab: Any, name: str) -> None:
    tab.get_by_role("button", name=name, exact=True).click()


def test_saved_texts_are_shown_newest_first(serve: Serve, tab: Tab, service: Service) -> None:
    fill(service, "abba", "cab", "abba")
    opened = tab(serve())
    opened.locator("#summary", has_text="3 texts are saved.").wait_for()
    assert rows(opened) == ["abba", "cab"]
    assert opened.locator("#texts time").all_text_contents() == ["2 times", ""]
    accept_text(opened, "acca b")
    opened.locator("#summary", has_text="4 texts").wait_for()
    assert rows(opened) == ["acca b", "abba", "cab"]


def test_one_text_is_forgotten(serve: Serve, tab: Tab, service: Service) -> None:
    fill(service, "abba", "cab", "abba")
    opened = tab(serve())
    press(opened, "Forget “abba”")
    wait_for_notice(opened, "“abba” was forgotten.")
    opened.locator("#summary", has_text="1 text is saved.").wait_for()
    assert (rows(opened), texts(service)) == (["cab"], ["cab"])
    until(opened, "document.activeElement.ariaLabel === 'Forget “cab”'")  # the focus moves to the next button
    opened.keyboard.press("Enter")
    opened.locator("#texts li").wait_for(state="detached")
    until(opened, "document.activeElement.id === 'learned-title'")
    assert texts(service) == []


@pytest.mark.parametrize("button", ["Undo", "Undo last"])
def test_last_accept_is_undone(serve: Serve, tab: Tab, service: Service, button: str) -> None:
    fill(service, "cab")
    opened = tab(serve())
    accept_text(opened, "abba")
    press(opened, button)
    wait_for_notice(opened, "The last text was forgotten.")
    opened.locator("#summary", has_text="1 text").wait_for()
    assert texts(service) == ["cab"] == rows(opened)


def test_context_of_the_address_is_shown_and_checked(serve: Serve, tab: Tab) -> None:
    opened = tab(serve().rstrip("/") + "/?context[city]=Oslo")
    type_text(opened, "a")
    assert opened.locator("#context").inner_text() == "city: Oslo"
    wrong = tab(opened.url.replace("city", "town"))
    query(wrong).press_sequentially("a")
    wait_for_notice(wrong, "Unknown context column 'town'; choose from")
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
    wait_for_notice(opened, "Not saved: learning is paused.")
    assert texts(service) == ["cab"]
    press(opened, "Resume")
    wait_for_notice(opened, "Learning has resumed.")
    accept_text(opened, "abba")
    assert texts(service) == ["cab", "abba"]


def test_all_data_is_deleted_after_confirmation(serve: Serve, tab: Tab, service: Service) -> None:
    fill(service, "abba")
    opened = tab(serve())
    for end in ("Cancel", None):
        press(opened, "Delete all")
        sure = opened.get_by_role("dialog", name="Delete all data of Ada?")
        sure.wait_for()
        press(opened, end) if end else opened.keyboard.press("Escape")
        sure.wait_for(state="hidden")
        assert texts(service) == ["abba"]
    press(opened, "Delete all")
    opened.get_by_role("dialog").get_by_role("button", name="Delete all").click()
    wait_for_notice(opened, "All data of Ada was deleted.")
    opened.locator("#summary", has_text="No texts yet.").wait_for()
    assert (texts(service), rows(opened)) == (None, [])


def test_texts_of_users_are_separate(serve: Serve, tab: Tab, service: Service) -> None:
    opened = tab(serve())
    accept_text(opened, "abba")
    opened.get_by_role("radio", name="Ben").check()
    opened.locator("#panel-user", has_text="Ben").wait_for()
    assert rows(opened) == []
    accept_text(opened, "cab")
    opened.get_by_label("Other user").fill("Дана")
    opened.get_by_label("Other user").press("Enter")
    opened.locator("#panel-user", has_text="Дана").wait_for()
    accept_text(opened, "ccc")
    assert [texts(service, name) for name in (USER, "Ben", "Дана")] == [["abba"], ["cab"], ["ccc"]]
    opened.reload()
    opened.locator("#panel-user", has_text="Дана").wait_for()
    opened.get_by_role("radio", name="No user").check()
    opened.locator("#summary", has_text="No user is selected").wait_for()
    query(opened).fill("bbb")
    query(opened).press("Enter")
    wait_for_notice(opened, "Accepted. Not learned")


def test_every_control_has_a_role_and_a_name(serve: Serve, tab: Tab, service: Service) -> None:
    fill(service, "abba")
    opened = tab(serve())
    opened.locator("#texts li").wait_for()
    type_text(opened, "ab")
    query(opened).press("ArrowDown")
    tree = opened.context.new_cdp_session(opened).send("Accessibility.getFullAXTree")["nodes"]
    nodes = [(node["role"]["value"], node["name"]["value"]) for node in tree if "name" in node and not node["ignored"]]
    assert [role for role, name in nodes if role in ROLES_WITH_NAME and not name.strip()] == []
    names = dict(nodes)
    assert names["combobox"] == "Completions that learn from you"
    assert names["listbox"] == "Suggestions"
    assert {"banner", "main", "search", "heading", "region", "status", "group"} <= set(names)
    options = [name for role, name in nodes if role == "option"]
    assert len(options) == len(shown_texts(opened))
    assert all(
        name.startswith(text) and " from " in name for name, text in zip(options, shown_texts(opened), strict=True)
    )
    box = query(opened)
    controls, active = box.get_attribute("aria-controls"), box.get_attribute("aria-activedescendant")
    assert opened.locator(f"#{controls}").get_attribute("role") == "listbox"
    assert opened.locator(f"#{controls} > #{active}").get_attribute("aria-selected") == "true"


def test_key_is_requested_and_sent(serve: Serve, tab: Tab) -> None:
    opened = tab(serve())

    def check(route: Any) -> None:
        if route.request.headers.get("authorization") == "Bearer sesame":
            route.continue_()
        else:
            route.fulfill(status=401, json={"detail": "a valid key is needed"})

    opened.route("**/v1/**", check)
    opened.reload()
    opened.get_by_label("Key for this service").fill("sesame")
    opened.get_by_role("button", name="Use").click()
    opened.get_by_label("Key for this service").wait_for(state="hidden")
    type_text(opened, "ab")
    accept_text(opened, "abba")
