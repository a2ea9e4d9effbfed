"""Texts that hide characters, change direction or contain markup, and sites without a content security policy."""

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from factorcell.service.engine import Service
from tests.service.listening import listening
from tests.service.page.box import (
    OPTIONS,
    USER,
    OpenPage,
    Serve,
    query,
    shown_texts,
    type_text,
    wait_for_notice,
    wait_until,
)

pytestmark = pytest.mark.slow

MARKUP = '<img src=x onerror="window.hit=1"><script>window.hit=1</script>&amp;\''
BIDIRECTIONAL = "abc\u202egnp.exe\u202c\x1b[0m\u2066x"
VISIBLE = "abcgnp.exe[0mx"  # the form in which the service stores the text
LONG = "abc" + "m" * 9_997
TALL = "abc" + " d" * 4_000
PAGE_WITHOUT_POLICY = """<!doctype html><html lang="en"><title>Shop</title><script src="{url}factorcell.js"></script>
<input id="q"><p id="after">after</p><script>factorcell.attach(document.querySelector("#q"),
{{ user: "{user}", onAccept: (text) => {{ window.accepted = text; }} }});</script></html>"""


def test_texts_have_no_invisible_and_bidirectional_characters(
    serve: Serve, open_page: OpenPage, service: Service
) -> None:
    service.accept(USER, BIDIRECTIONAL)
    page = open_page(serve())
    page.locator("#texts .text", has_text=VISIBLE).wait_for()
    type_text(page, "abc")
    assert VISIBLE in shown_texts(page)
    page.locator(OPTIONS, has_text=VISIBLE).click()
    wait_for_notice(page, "Learned")
    page.locator("#chart li", has_text=VISIBLE).wait_for()
    page.get_by_role("button", name=f"Forget “{VISIBLE}”").click()
    wait_for_notice(page, f"“{VISIBLE}” was forgotten.")
    profile = service.show(USER)
    assert profile is not None
    assert profile.texts == []


@pytest.fixture
def unprotected_site() -> Iterator[Any]:
    values = {"url": "", "user": "eve"}

    async def answer(_: Request) -> Response:
        return HTMLResponse(PAGE_WITHOUT_POLICY.format(**values))

    with listening(Starlette(routes=[Route("/", answer)])) as url:
        yield url, values


def test_no_text_becomes_markup_on_a_site_without_a_policy(
    serve: Serve, open_page: OpenPage, service: Service, unprotected_site: Any
) -> None:
    address, values = unprotected_site
    values["url"] = serve(origins=(address.rstrip("/"),))
    for text in (MARKUP, "abc" + MARKUP):
        service.accept("eve", text)
    page = open_page(address)
    page.route("**/v1/accept", lambda route: route.fulfill(status=422, json={"detail": MARKUP}))
    for start in ("<", "abc"):
        query(page).fill("")
        with page.expect_response("**/v1/complete"):
            query(page).press_sequentially(start)
        page.locator(OPTIONS).first.wait_for()
        assert [text for text in shown_texts(page) if "<img" in text] == [(start if start != "<" else "") + MARKUP]
    page.locator(OPTIONS, has_text="<img").first.click()
    wait_until(page, "window.accepted !== undefined")
    assert page.evaluate("window.accepted") == "abc" + MARKUP
    page.wait_for_timeout(300)
    assert page.evaluate("window.hit") is None
    assert page.locator("img, .fc-pop script").count() == 0
