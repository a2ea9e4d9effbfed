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
from tests.service.page.box import OPTIONS, PERSON, Serve, Tab, accepted, query, says, shown, typed, until

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


@pytest.mark.parametrize("text", [LONG, TALL], ids=["long", "tall"])
@pytest.mark.parametrize("width", [390, 1280])
def test_text_without_end_takes_a_few_lines(serve: Serve, tab: Tab, service: Service, text: str, width: int) -> None:
    service.accept(PERSON, text)
    opened = tab(serve(), viewport={"width": width, "height": 800})
    assert opened.locator("#texts li").bounding_box()["height"] < 130
    typed(opened, "abc")
    assert text in shown(opened)
    own = opened.locator(OPTIONS).nth(shown(opened).index(text))
    assert own.bounding_box()["height"] < 120
    own.click()
    says(opened, "Learned")
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.evaluate("document.documentElement.scrollHeight") < 1800
    name = opened.locator("#texts button").get_attribute("aria-label")
    assert len(name) < 80
    opened.locator("#texts button").click()
    says(opened, "is forgotten.")
    assert opened.locator("#words").bounding_box()["height"] < 90


def test_button_beside_a_long_name_stays_whole(serve: Serve, tab: Tab) -> None:
    opened = tab(serve(), viewport={"width": 360, "height": 800})
    opened.locator("#other").fill("x" * 60)
    opened.locator("#other").press("Enter")
    accepted(opened, "abba")
    assert opened.locator("#take-back").bounding_box()["height"] < 50
    assert opened.evaluate("document.documentElement.scrollWidth") == 360


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_who_types_is_readable_under_the_pointer(serve: Serve, tab: Tab, scheme: str) -> None:
    opened = tab(serve(), color_scheme=scheme)
    chosen = opened.locator("#names :checked + span")
    colours = "one => [getComputedStyle(one).color, getComputedStyle(one).backgroundColor]"
    before = chosen.evaluate(colours)
    opened.locator("#names :checked").hover()
    opened.wait_for_timeout(300)
    assert chosen.evaluate(colours) == before


def test_service_that_is_away_is_no_person_without_texts(serve: Serve, tab: Tab, service: Service) -> None:
    service.accept("Ben", "abba")
    opened = tab(serve())
    opened.route("**/v1/**", lambda route: route.abort())
    opened.get_by_role("radio", name="Ben").check()
    says(opened, "The service cannot be reached.")
    opened.locator("#summary", has_text="cannot be shown now").wait_for()
    assert opened.locator("#tools").is_hidden()
    opened.unroute("**/v1/**")
    typed(opened, "ab")  # which shows that it is there again
    opened.locator("#summary", has_text="One text is kept.").wait_for()


def test_browser_that_keeps_nothing(serve: Serve, tab: Tab) -> None:
    opened = tab()
    blocked = "{ get() { throw new DOMException('blocked', 'SecurityError'); } }"
    opened.add_init_script(f"Object.defineProperty(window, 'sessionStorage', {blocked})")
    opened.goto(serve())
    typed(opened, "ab")
    accepted(opened, "abba")


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
