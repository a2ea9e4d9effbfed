"""Requests that are not valid Unicode: every route refuses them as malformed, wherever the text is.

The routes are read from the application, and the places of texts from the message types, so that new ones are tested
without a change here.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect
from starlette.routing import Route
from starlette.testclient import TestClient

from factorcell.service.http.application import application
from factorcell.service.http.operations import OPERATIONS
from factorcell.service.http.site import Site

BAD = {
    "Latin-1": b"caf\xe9",
    "continuation byte": b"a\x80b",
    "truncated emoji": b"\xf0\x9f\x98",
    "surrogate in UTF-8": b"\xed\xa0\x80",
    "surrogate pair in UTF-8": b"\xed\xa0\xbd\xed\xb8\x80",
    "overlong": b"\xc0\xaf",
    "above U+10FFFF": b"\xf4\x90\x80\x80",
    "byte that UTF-8 never has": b"\xff",
}
BAD_ESCAPES = {
    "high surrogate": rb"\ud800",
    "low surrogate": rb"\udc00",
    "half of an emoji": rb"\ud83d",
    "high surrogate before a letter": rb"\ud83d\u0041",
    "surrogates in the wrong order": rb"\ude00\ud83d",
}
BAD_BODIES = {
    "nothing": b"",
    "byte order mark": b"\xef\xbb\xbf",
    "UTF-16": "{}".encode("utf-16"),
    "UTF-32": "{}".encode("utf-32"),
    "ends within a letter": b'{"text":"\xc3',
    "after the JSON": b"{}\xff",
    "in a field of another type": b'{"limit":"\xff"}',
    "in an unknown field": b'{"unknown":"\xff"}',
    "in an unknown name": b'{"\xff":1}',
}
MARK = b"MARK"
TAKEN = {(one.method, one.path): one.takes for one in OPERATIONS}


def routes(site: Site) -> list[tuple[str, str]]:
    found = [one for one in application(site).routes if isinstance(one, Route)]
    return [(method, one.path) for one in found for method in sorted({*(one.methods or ())} - {"HEAD"})]


def marked(kind: inspect.Type) -> Iterator[bytes]:
    if isinstance(kind, inspect.Metadata):
        yield from marked(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from marked(one)
    elif isinstance(kind, inspect.StrType):
        yield b'"%b"' % MARK
    elif isinstance(kind, inspect.ListType):
        yield from (b"[%b]" % one for one in marked(kind.item_type))
    elif isinstance(kind, inspect.DictType):
        yield b'{"%b":1}' % MARK
        yield from (b'{"a":%b}' % one for one in marked(kind.value_type))
    elif isinstance(kind, inspect.StructType):
        for field in kind.fields:
            yield from (b'{"%b":%b}' % (field.encode_name.encode(), one) for one in marked(field.type))


def test_places_of_texts_are_found() -> None:
    class Inner(msgspec.Struct):
        name: str
        scores: dict[str, float]

    class Outer(msgspec.Struct):
        user: str | None
        limit: int
        inner: list[Inner]

    assert list(marked(inspect.type_info(Outer))) == [
        b'{"user":"MARK"}',
        b'{"inner":[{"name":"MARK"}]}',
        b'{"inner":[{"scores":{"MARK":1}}]}',
    ]


@pytest.mark.parametrize("bad", [*BAD.values(), *BAD_ESCAPES.values()], ids=[*BAD, *BAD_ESCAPES])
def test_bodies(client: TestClient, site: Site, caplog: pytest.LogCaptureFixture, bad: bytes) -> None:
    places = 0
    for method, path in routes(site):
        if (taken := TAKEN.get((method, path))) is not None and method != "GET":
            for content in marked(inspect.type_info(taken)):
                refused(client, method, path.replace("{user}", "ann"), content.replace(MARK, bad))
                places += 1
    assert places > 30
    assert caplog.records == []


@pytest.mark.parametrize("content", BAD_BODIES.values(), ids=BAD_BODIES)
def test_whole_bodies(client: TestClient, site: Site, caplog: pytest.LogCaptureFixture, content: bytes) -> None:
    for method, path in routes(site):
        if TAKEN.get((method, path)) is not None and method != "GET":
            refused(client, method, path.replace("{user}", "ann"), content)
    assert caplog.records == []


def test_every_post_route_is_tested(site: Site) -> None:
    for method, path in routes(site):
        assert method != "POST" or TAKEN[method, path] is not None or "{user}" in path, path


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_paths(client: TestClient, site: Site, caplog: pytest.LogCaptureFixture, bad: bytes) -> None:
    found = [(method, path) for method, path in routes(site) if "{user}" in path]
    assert len(found) > 5
    for method, path in found:
        refused(client, method, path.replace("{user}", escaped(bad)), b'{"text":"a"}')
    assert caplog.records == []


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
@pytest.mark.parametrize(
    "query", ["query=MARK", "query=a&user=MARK", "MARK=a", "query=a&context[MARK]=a", "query=a&context[city]=MARK"]
)
def test_queries(client: TestClient, caplog: pytest.LogCaptureFixture, query: str, bad: bytes) -> None:
    refused(client, "GET", "/v1/complete?" + query.replace("MARK", escaped(bad)), None)
    assert caplog.records == []


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
@pytest.mark.parametrize("name", ["authorization", "content-type", "origin", "host", "content-length", "x-other"])
def test_headers(client: TestClient, caplog: pytest.LogCaptureFixture, name: str, bad: bytes) -> None:
    headers = {b"content-type": b"application/json", name.encode(): bad}
    answer = client.post("/v1/complete", content=b'{"query":"a"}', headers=headers)
    assert answer.status_code < 500
    assert caplog.records == []


def escaped(bad: bytes) -> str:
    return "".join(f"%{byte:02x}" for byte in bad)


def refused(client: TestClient, method: str, address: str, content: bytes | None) -> None:
    fields: dict[str, Any] = {} if content is None else {"content": content}
    answer = client.request(method, address, headers={"content-type": "application/json"}, **fields)
    assert (answer.status_code, answer.json()["type"]) == (400, "/docs#malformed"), (method, address, content)
    assert answer.json()["detail"]
