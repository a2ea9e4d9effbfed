"""The page around the box: users, saved texts, the chart, keys, and accessibility."""

from typing import Any

import pytest

from factorcell.service.engine import Service
from tests.service.page.box import (
    USER,
    OpenPage,
    Serve,
    accept_text,
    query,
    shown_texts,
    type_text,
    wait_for_notice,
    wait_until,
)

pytestmark = pytest.mark.slow

# Roles that need an accessible name.
ROLES_WITH_NAME = {"button", "textbox", "combobox", "radio", "option", "listbox", "dialog", "link"}


def texts(service: Service, user: str = USER) -> list[str] | None:
    profile = service.show(user)
    return None if profile is None else [text.text for text in profile.texts]


def rows(page: Any) -> list[str]:
    texts: list[str] = page.locator("#texts .text").all_text_contents()
    return texts


def fill(service: Service, *texts_to_save: str) -> None:
    for text in texts_to_save:
        service.accept(USER, text)


def add_user(page: Any, name: str) -> None:
    page.get_by_label("Add a user").fill(name)
    page.get_by_label("Add a user").press("Enter")


def press(page: Any, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def test_saved_texts_are_shown_newest_first(serve: Serve, open_page: OpenPage, service: Service) -> None:
    fill(service, "abba", "cab", "abba")
    page = open_page(serve())
    page.locator("#summary", has_text="3 texts are saved.").wait_for()
    assert rows(page) == ["abba", "cab"]
    assert page.locator("#texts time").all_text_contents() == ["2 times", ""]
    accept_text(page, "acca b")
    page.locator("#summary", has_text="4 texts").wait_for()
    assert rows(page) == ["acca b", "abba", "cab"]


def test_one_text_is_forgotten(serve: Serve, open_page: OpenPage, service: Service) -> None:
    fill(service, "abba", "cab", "abba")
    page = open_page(serve())
    press(page, "Forget “abba”")
    wait_for_notice(page, "“abba” was forgotten.")
    page.locator("#summary", has_text="1 text is saved.").wait_for()
    assert (rows(page), texts(service)) == (["cab"], ["cab"])
    wait_until(page, "document.activeElement.ariaLabel === 'Forget “cab”'")  # the focus moves to the next button
    page.keyboard.press("Enter")
    page.locator("#texts li").wait_for(state="detached")
    wait_until(page, "document.activeElement.id === 'saved-title'")
    assert texts(service) == []


@pytest.mark.parametrize("button", ["Undo", "Undo last"])
def test_last_accept_is_undone(serve: Serve, open_page: OpenPage, service: Service, button: str) -> None:
    fill(service, "cab")
    page = open_page(serve())
    accept_text(page, "abba")
    press(page, button)
    wait_for_notice(page, "The last text was forgotten.")
    page.locator("#summary", has_text="1 text").wait_for()
    assert texts(service) == ["cab"] == rows(page)


def test_context_of_the_address_is_shown_and_checked(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve().rstrip("/") + "/?context[city]=Oslo")
    type_text(page, "a")
    assert page.locator("#context").inner_text() == "city: Oslo"
    wrong = open_page(page.url.replace("city", "town"))
    query(wrong).press_sequentially("a")
    wait_for_notice(wrong, "Unknown context column 'town'; choose from")
    assert wrong.locator("#context").inner_text() == "town: Oslo"
    assert not open_page(page.url.partition("?")[0]).locator("#context").is_visible()


def test_learning_is_paused_and_resumed(serve: Serve, open_page: OpenPage, service: Service) -> None:
    fill(service, "cab")
    page = open_page(serve())
    press(page, "Pause")
    page.locator("#summary", has_text="Learning is paused.").wait_for()
    assert page.get_by_role("button", name="Resume").get_attribute("aria-pressed") == "true"
    query(page).fill("abba")
    query(page).press("Enter")
    wait_for_notice(page, "Not saved: learning is paused.")
    assert texts(service) == ["cab"]
    press(page, "Resume")
    wait_for_notice(page, "Learning has resumed.")
    accept_text(page, "abba")
    assert texts(service) == ["cab", "abba"]


def test_no_user_is_selected_at_first(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve(), user="No user")
    page.locator("#summary", has_text="No user is selected.").wait_for()
    assert [radio.get_attribute("value") for radio in page.get_by_role("radio").all()] == ["No user"]


def test_the_page_of_a_deleted_user_shows_nothing_of_the_texts(
    serve: Serve, open_page: OpenPage, service: Service
) -> None:
    page = open_page(serve())
    type_text(page, "ab")
    accept_text(page, "abba")
    page.locator("#chart circle").first.wait_for()
    assert page.locator("#chart .tick").all_text_contents() == ["0", "1"]  # numbers of saved texts
    press(page, "Delete all")
    page.get_by_role("dialog").get_by_role("button", name="Delete all").click()
    wait_for_notice(page, "All data of Ada was deleted.")
    assert (query(page).input_value(), page.locator("#prefix").input_value()) == ("", "")
    assert page.locator("#chart *").count() == 0
    assert "abba" not in page.locator("main").inner_text()


def test_a_new_user_causes_no_error_in_the_console(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve())
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    add_user(page, "Ben")
    page.locator("#summary", has_text="No texts yet.").wait_for()
    accept_text(page, "abba")
    page.locator("#summary", has_text="1 text is saved.").wait_for()
    page.reload()
    page.locator("#summary", has_text="1 text is saved.").wait_for()
    assert messages == []


def test_all_data_is_deleted_after_confirmation(serve: Serve, open_page: OpenPage, service: Service) -> None:
    fill(service, "abba")
    page = open_page(serve())
    for end in ("Cancel", None):
        press(page, "Delete all")
        dialog = page.get_by_role("dialog", name="Delete all data of Ada?")
        dialog.wait_for()
        press(page, end) if end else page.keyboard.press("Escape")
        dialog.wait_for(state="hidden")
        assert texts(service) == ["abba"]
    press(page, "Delete all")
    page.get_by_role("dialog").get_by_role("button", name="Delete all").click()
    wait_for_notice(page, "All data of Ada was deleted.")
    page.locator("#summary", has_text="No texts yet.").wait_for()
    assert (texts(service), rows(page)) == (None, [])
    accept_text(page, "cab")
    press(page, "Delete all")
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="hidden")
    page.wait_for_timeout(300)
    assert texts(service) == ["cab"], "Escape after an earlier deletion"


def test_texts_of_users_are_separate(serve: Serve, open_page: OpenPage, service: Service) -> None:
    page = open_page(serve())
    accept_text(page, "abba")
    add_user(page, "Ben")
    page.locator("#panel-user", has_text="Ben").wait_for()
    assert rows(page) == []
    accept_text(page, "cab")
    add_user(page, "Дана")
    page.locator("#panel-user", has_text="Дана").wait_for()
    accept_text(page, "ccc")
    assert [texts(service, name) for name in (USER, "Ben", "Дана")] == [["abba"], ["cab"], ["ccc"]]
    page.reload()
    page.locator("#panel-user", has_text="Дана").wait_for()
    page.get_by_role("radio", name="No user").check()
    page.locator("#summary", has_text="No user is selected").wait_for()
    query(page).fill("bbb")
    query(page).press("Enter")
    wait_for_notice(page, "Accepted. Not learned")


def test_every_control_has_a_role_and_a_name(serve: Serve, open_page: OpenPage, service: Service) -> None:
    fill(service, "abba")
    page = open_page(serve())
    page.locator("#texts li").wait_for()
    type_text(page, "ab")
    query(page).press("ArrowDown")
    tree = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    nodes = [(node["role"]["value"], node["name"]["value"]) for node in tree if "name" in node and not node["ignored"]]
    assert [role for role, name in nodes if role in ROLES_WITH_NAME and not name.strip()] == []
    names = dict(nodes)
    assert names["combobox"] == "Completions that learn from you"
    assert names["listbox"] == "Suggestions"
    assert {"banner", "main", "search", "heading", "region", "status", "group"} <= set(names)
    options = [name for role, name in nodes if role == "option"]
    assert len(options) == len(shown_texts(page))
    assert all(
        name.startswith(text) and " from " in name for name, text in zip(options, shown_texts(page), strict=True)
    )
    box = query(page)
    controls, active = box.get_attribute("aria-controls"), box.get_attribute("aria-activedescendant")
    assert page.locator(f"#{controls}").get_attribute("role") == "listbox"
    assert page.locator(f"#{controls} > #{active}").get_attribute("aria-selected") == "true"


def test_key_is_requested_and_sent(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve())

    def check(route: Any) -> None:
        if route.request.headers.get("authorization") == "Bearer sesame":
            route.continue_()
        else:
            route.fulfill(status=401, json={"detail": "a valid key is needed"})

    page.route("**/v1/**", check)
    page.reload()
    page.get_by_label("Key for this service").fill("sesame")
    page.get_by_role("button", name="Use").click()
    page.get_by_label("Key for this service").wait_for(state="hidden")
    type_text(page, "ab")
    accept_text(page, "abba")
