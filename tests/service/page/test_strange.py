"""Texts that hide, steer or never end, a browser that keeps nothing, a service that is away: the page stays whole."""

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from factorcell.service.engine import Service
from tests.service.listening import listening
from tests.service.page.box import OPTIONS, PERSON, Serve, Tab, query, says, shown, typed, until

pytestmark = pytest.mark.slow

MARKUP = '<img src=x onerror="window.hit=1"><script>window.hit=1</script>&amp;\''
STEERING = "abc\u202egnp.exe\u202c\x1b[0m\u2066x"
SEEN = "abc\\u202egnp.exe\\u202c\\u001b[0m\\u2066x"
LONG = "abc" + "m" * 9_997
TALL = "abc" + " d" * 4_000
LOOSE = """<!doctype html><html lang="en"><title>Shop</title><script src="{url}factorcell.js"></script>
<input id="q"><p id="after">after</p><script>factorcell.attach(document.querySelector("#q"),
{{ user: "{user}", onAccept: (text) => {{ window.got = text; }} }});</script></html>"""


def test_characters_that_hide_or_steer_are_seen(serve: Serve, tab: Tab, service: Service) -> None:
    service.accept(PERSON, STEERING)
    opened = tab(serve())
    opened.locator("#texts .what", has_text=SEEN).wait_for()
    typed(opened, "abc")
    assert SEEN in shown(opened)
    opened.locator(OPTIONS, has_text=SEEN).click()
    says(opened, "Learned")
    opened.locator("#picture li", has_text=SEEN).wait_for()
    opened.get_by_role("button", name=f"Forget “{SEEN}”").click()
    says(opened, f"“{SEEN}” is forgotten.")
    kept = service.show(PERSON)
    assert kept is not None
    assert kept.texts == ()


@pytest.fixture
def loose() -> Iterator[Any]:
    given = {"url": "", "user": "eve"}

    async def answer(_: Request) -> Response:
        return HTMLResponse(LOOSE.format(**given))

    with listening(Starlette(routes=[Route("/", answer)])) as url:
        yield url, given


def test_no_text_is_markup_on_a_site_without_a_policy(serve: Serve, tab: Tab, service: Service, loose: Any) -> None:
    where, given = loose
    given["url"] = serve(origins=(where.rstrip("/"),))
    for text in (MARKUP, "abc" + MARKUP):
        service.accept("eve", text)
    opened = tab(where)
    opened.route("**/v1/accept", lambda route: route.fulfill(status=422, json={"detail": MARKUP}))
    for start in ("<", "abc"):
        query(opened).fill("")
        with opened.expect_response("**/v1/complete"):
            query(opened).press_sequentially(start)
        opened.locator(OPTIONS).first.wait_for()
        assert [text for text in shown(opened) if "<img" in text] == [(start if start != "<" else "") + MARKUP]
    opened.locator(OPTIONS, has_text="<img").first.click()
    until(opened, "window.got !== undefined")
    assert opened.evaluate("window.got") == "abc" + MARKUP
    opened.wait_for_timeout(300)
    assert opened.evaluate("window.hit") is None
    assert opened.locator("img, .fc-pop script").count() == 0
