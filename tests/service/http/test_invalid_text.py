"""Requests that are not valid Unicode are refused as malformed, wherever the text is."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from factorcell.service.http.operations import OPERATIONS

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
BAD_BODIES = {
    "nothing": b"",
    "byte order mark": b"\xef\xbb\xbf",
    "UTF-16": "{}".encode("utf-16"),
    "ends within a letter": b'{"text":"\xc3',
    "after the JSON": b"{}\xff",
    "in a field of another type": b'{"limit":"\xff"}',
    "in an unknown name": b'{"\xff":1}',
    **{f"{name} in a text": b'{"text":"%b"}' % bad for name, bad in BAD.items()},
}


@pytest.mark.parametrize("content", BAD_BODIES.values(), ids=BAD_BODIES)
def test_bodies(client: TestClient, caplog: pytest.LogCaptureFixture, content: bytes) -> None:
    for one in OPERATIONS:
        if one.request_type is not None and one.method == "POST":
            refused(client, one.method, one.path.replace("{user}", "ann"), content)
    assert caplog.records == []


@pytest.mark.parametrize("bad", [rb"\ud800", rb"\udc00", rb"\ude00\ud83d", rb"\ud83d\u0041"])
def test_escaped_surrogates(client: TestClient, bad: bytes) -> None:
    for content in (b'{"query":"%b"}' % bad, b'{"query":"a","context":{"%b":"a"}}' % bad):
        refused(client, "POST", "/v1/complete", content)


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_paths(client: TestClient, caplog: pytest.LogCaptureFixture, bad: bytes) -> None:
    for one in OPERATIONS:
        if "{user}" in one.path:
            refused(client, one.method, one.path.replace("{user}", escaped(bad)), b'{"text":"a"}')
    assert caplog.records == []


@pytest.mark.parametrize("name", ["authorization", "content-type", "origin", "host", "content-length", "x-other"])
def test_headers_of_any_bytes_are_no_fault_of_the_server(
    client: TestClient, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    for bad in BAD.values():
        headers = {b"content-type": b"application/json", name.encode(): bad}
        assert client.post("/v1/complete", content=b'{"query":"a"}', headers=headers).status_code < 500
    assert caplog.records == []


def escaped(bad: bytes) -> str:
    return "".join(f"%{byte:02x}" for byte in bad)


def refused(client: TestClient, method: str, address: str, content: bytes | None) -> None:
    fields: dict[str, Any] = {} if content is None else {"content": content}
    answer = client.request(method, address, headers={"content-type": "application/json"}, **fields)
    assert (answer.status_code, answer.json()["type"]) == (400, "/docs#malformed"), (method, address, content)
    assert answer.json()["detail"]
