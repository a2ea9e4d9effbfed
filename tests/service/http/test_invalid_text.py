"""Requests that are not valid Unicode are refused as malformed, wherever the text is."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from factorcell.service.http.operations import OPERATIONS

INVALID = {
    "Latin-1": b"caf\xe9",
    "continuation byte": b"a\x80b",
    "truncated emoji": b"\xf0\x9f\x98",
    "surrogate in UTF-8": b"\xed\xa0\x80",
    "surrogate pair in UTF-8": b"\xed\xa0\xbd\xed\xb8\x80",
    "overlong": b"\xc0\xaf",
    "above U+10FFFF": b"\xf4\x90\x80\x80",
    "byte that UTF-8 never contains": b"\xff",
}
INVALID_BODIES = {
    "nothing": b"",
    "byte order mark": b"\xef\xbb\xbf",
    "UTF-16": "{}".encode("utf-16"),
    "ends within a letter": b'{"text":"\xc3',
    "after the JSON": b"{}\xff",
    "in a field of another type": b'{"limit":"\xff"}',
    "in an unknown name": b'{"\xff":1}',
    **{f"{name} in a text": b'{"text":"%b"}' % invalid for name, invalid in INVALID.items()},
}


@pytest.mark.parametrize("content", INVALID_BODIES.values(), ids=INVALID_BODIES)
def test_invalid_bodies_are_refused(client: TestClient, caplog: pytest.LogCaptureFixture, content: bytes) -> None:
    for operation in OPERATIONS:
        if operation.request_type is not None and operation.method == "POST":
            assert_malformed(client, operation.method, operation.path.replace("{user}", "ann"), content)
    assert caplog.records == []


@pytest.mark.parametrize("invalid", [rb"\ud800", rb"\udc00", rb"\ude00\ud83d", rb"\ud83d\u0041"])
def test_escaped_surrogates_are_refused(client: TestClient, invalid: bytes) -> None:
    for content in (b'{"query":"%b"}' % invalid, b'{"query":"a","context":{"%b":"a"}}' % invalid):
        assert_malformed(client, "POST", "/v1/complete", content)


@pytest.mark.parametrize("invalid", INVALID.values(), ids=INVALID)
def test_invalid_paths_are_refused(client: TestClient, caplog: pytest.LogCaptureFixture, invalid: bytes) -> None:
    for operation in OPERATIONS:
        if "{user}" in operation.path:
            assert_malformed(
                client, operation.method, operation.path.replace("{user}", escaped(invalid)), b'{"text":"a"}'
            )
    assert caplog.records == []


@pytest.mark.parametrize("name", ["authorization", "content-type", "origin", "host", "content-length", "x-other"])
def test_headers_with_any_bytes_cause_no_server_error(
    client: TestClient, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    for invalid in INVALID.values():
        headers = {b"content-type": b"application/json", name.encode(): invalid}
        assert client.post("/v1/complete", content=b'{"query":"a"}', headers=headers).status_code < 500
    assert caplog.records == []


def escaped(invalid: bytes) -> str:
    return "".join(f"%{byte:02x}" for byte in invalid)


def assert_malformed(client: TestClient, method: str, address: str, content: bytes | None) -> None:
    fields: dict[str, Any] = {} if content is None else {"content": content}
    answer = client.request(method, address, headers={"content-type": "application/json"}, **fields)
    assert (answer.status_code, answer.json()["type"]) == (400, "/docs#malformed"), (method, address, content)
    assert answer.json()["detail"]
