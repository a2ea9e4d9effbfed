"""The box on a page of another origin, with a strict policy, styles and forms."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from factorcell.service.engine import Service
from tests.service.listening import listening
from tests.service.page.box import COMPLETE, OPTIONS, OpenPage, Serve, query, shown_texts, wait_until

pytestmark = pytest.mark.slow

MARKUP = """<!doctype html><html lang="en"><title>Shop</title>
<link rel="stylesheet" href="site.css">
<script src="{url}factorcell.js" defer></script><script src="site.js" defer></script>
<div class="bar"><form action="/results"><label>Find <input name="q" autocomplete="on"></label></form></div></html>"""
STYLE = """* { margin: 0; padding: 0 } .fc-rest { color: rgb(1, 2, 3) }
.bar { overflow: hidden; height: 40px; transform: scale(1) }"""
SCRIPT = """const box = factorcell.attach(document.querySelector("input"), {{ {options} }});"""
POLICY = "default-src 'none'; script-src 'self' {url}; style-src 'self'; connect-src {url}; form-action 'self'"


@pytest.fixture
def shop() -> Iterator[Any]:
    values = {"url": "", "options": ""}

    def send(content: str, media: str) -> Callable[[Request], Response]:
        headers = {"content-security-policy": POLICY.format(**values)}
        return lambda _: Response(content.format(**values), headers=headers, media_type=media)

    async def answer(request: Request) -> Response:
        files = {"/": (MARKUP, "text/html"), "/site.js": (SCRIPT, "text/javascript")}
        content, media = files.get(request.url.path, ("<p>results</p>", "text/html"))
        if request.url.path == "/site.css":
            return Response(STYLE, media_type="text/css")
        return send(content, media)(request)

    with listening(Starlette(routes=[Route("/{path:path}", answer)])) as url:

        def make(service: str, options: str) -> str:
            values.update(url=service, options=options)
            return url

        make.url = url  # type: ignore[attr-defined]
        yield make


def test_box_works_on_another_origin(serve: Serve, open_page: OpenPage, shop: Any, service: Service) -> None:
    url = serve(origins=(shop.url.rstrip("/"),))
    page = open_page(
        shop(url, "user: 'eve', context: {city: 'Oslo'}, limit: 3, onAccept: text => { window.accepted = text; }")
    )
    query(page).press_sequentially("ab")
    page.locator(OPTIONS).first.wait_for()
    rows = shown_texts(page)
    assert 0 < len(rows) <= 3
    # The bar clips its content, but not the list.
    bounds = page.locator(OPTIONS).first.bounding_box()
    is_visible = f"document.elementFromPoint({bounds['x'] + 9}, {bounds['y'] + 9}).closest('.fc-option') !== null"
    assert page.evaluate(is_visible)
    style = "getComputedStyle(document.querySelector('{}')).{}"
    # Rules of the site for classes of the box override its styles, but universal resets do not.
    assert page.evaluate(style.format(".fc-rest", "color")) == "rgb(1, 2, 3)"
    assert page.evaluate(style.format(".fc-option", "paddingLeft")) == "10px"
    with page.expect_response("**/v1/accept"):
        page.locator(OPTIONS).first.click()
    assert page.evaluate("window.accepted") == rows[0]
    profile = service.show("eve")
    assert profile is not None
    assert [(text.text, text.context) for text in profile.texts] == [(rows[0], {"city": "Oslo"})]


def test_form_of_the_site_is_submitted_and_its_text_learned(
    serve: Serve, open_page: OpenPage, shop: Any, service: Service
) -> None:
    url = serve(origins=(shop.url.rstrip("/"),))
    for number, is_selected in enumerate((False, True), 1):
        page = open_page(shop(url, "user: 'eve'"))
        query(page).press_sequentially("ab")
        page.locator(OPTIONS).first.wait_for()
        text = shown_texts(page)[0] if is_selected else "ab"
        if is_selected:
            query(page).press("ArrowDown")
        query(page).press("Enter")
        page.wait_for_url("**/results?q=*")
        assert page.url.endswith("q=" + text.replace(" ", "+"))
        for _ in range(100):
            profile = service.show("eve")
            if profile is not None and len(profile.texts) == number:
                break
            page.wait_for_timeout(50)
        assert profile is not None
        assert [text.text for text in profile.texts][number - 1 :] == [text]


def test_private_session_leaves_no_trace(serve: Serve, open_page: OpenPage, shop: Any, service: Service) -> None:
    url = serve(origins=(shop.url.rstrip("/"),))
    page = open_page(shop(url, "user: 'eve', learn: false, onAccept: text => { window.accepted = text; }"))
    accepts: list[str] = []
    page.on("request", lambda request: accepts.append(request.url) if "accept" in request.url else None)
    with page.expect_request(COMPLETE) as request_info:
        query(page).press_sequentially("a")
    assert request_info.value.post_data_json["learn"] is False
    page.locator(OPTIONS).first.click()
    wait_until(page, "window.accepted !== undefined")
    page.wait_for_timeout(300)
    assert accepts == []
    assert service.show("eve") is None
