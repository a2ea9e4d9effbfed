"""Requests whose scope lacks optional keys of ASGI, or has None for them, get the answers of complete scopes."""

import asyncio
import json
from typing import Any

import pytest
from starlette.types import ASGIApp, Message

from factorcell.service.engine import Service
from factorcell.service.http.application import Settings, Site, application
from factorcell.service.http.operations import OPERATIONS
from factorcell.service.http.pages import FILES

# The keys that servers may omit (ASGI specification, HTTP 2.5), with values that a server could send.
OPTIONAL: dict[str, Any] = {
    "scheme": "http",
    "raw_path": None,  # set from the path
    "query_string": b"",
    "root_path": "",
    "client": ("127.0.0.1", 1234),
    "server": ("127.0.0.1", 8000),
    "state": {},
    "extensions": {},
    "http_version": "1.1",
}
SCOPES = {
    "complete": OPTIONAL,
    "minimal": {},
    "all None": dict.fromkeys(OPTIONAL),
    **{f"no {name}": {key: value for key, value in OPTIONAL.items() if key != name} for name in OPTIONAL},
    **{f"{name} is None": {**OPTIONAL, name: None} for name in OPTIONAL},
    "a root path": {**OPTIONAL, "root_path": "/app"},
    "a query string": {**OPTIONAL, "query_string": b"a=1&b"},
}
BODIES: dict[str, dict[str, Any]] = {
    "complete": {"query": "ab", "user": "ann"},
    "accept": {"user": "ann", "text": "abba", "idempotency_key": "1"},
    "forget": {"text": "abba"},
}
ROUTES = [
    *((operation.method, operation.path, operation.name) for operation in OPERATIONS),
    *(("GET", path, "") for path in ("/healthz", "/openapi.json", "/metrics", "/nowhere", *FILES)),
    ("HEAD", "/healthz", ""),
    ("PUT", "/healthz", ""),
    ("OPTIONS", "/healthz", ""),
]


async def answer(app: ASGIApp, scope: dict[str, Any], body: bytes = b"") -> tuple[int, bytes]:
    """Return the status and the body that an application sends."""
    requests: list[Message] = [{"type": "http.request", "body": body} if body else {"type": "http.request"}]
    messages: list[Message] = []

    async def receive() -> Message:
        if requests:
            return requests.pop()
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        messages.append(message)

    await app(scope, receive, send)
    start, *parts = messages
    return start["status"], b"".join(part.get("body", b"") for part in parts)


def make_scope(method: str, path: str, optional: dict[str, Any]) -> dict[str, Any]:
    """Return a scope with the required keys and those in `optional`."""
    path = path.replace("{user}", "ann b")
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {"type": "http", "asgi": {"version": "3.0"}, "method": method, "path": path, "headers": headers, **optional}
    if "raw_path" in optional and optional != dict.fromkeys(OPTIONAL):
        scope["raw_path"] = path.replace(" ", "%20").encode()
    return scope


@pytest.mark.parametrize("name", SCOPES)
@pytest.mark.parametrize("origins", [(), ("https://shop.example",)])
def test_every_route_answers_with_any_optional_keys(name: str, origins: tuple[str, ...], service: Service) -> None:
    app = application(Site(service, Settings(deadline=5.0, host_names=("localhost",), origins=origins)))

    async def compare() -> None:
        for method, path, operation in ROUTES:
            body = json.dumps(BODIES.get(operation, {})).encode()
            expected = await answer(app, make_scope(method, path, OPTIONAL), body)
            scope = make_scope(method, path, SCOPES[name])
            if name == "raw_path is None":
                scope["raw_path"] = None
            before = {**scope}
            status, content = await answer(app, scope, body)
            assert {key: scope[key] for key in before} == before, "the scope belongs to the server"
            assert status == expected[0], (method, path)
            assert status < 500, (method, path)
            if operation not in ("complete", "accept", "forget") and path != "/metrics":
                assert content == expected[1], (method, path)

    asyncio.run(compare())


@pytest.mark.parametrize("headers", [[], [(b"host", b"\xff")], [(b"host", b"localhost"), (b"origin", b"\xff")]])
@pytest.mark.parametrize("path", ["", "/", "nowhere", "/é ☕%2F", "/\ud800", "/v1/users/%"])
@pytest.mark.parametrize("method", ["GET", "POST", "", "BREW"])
def test_unusual_scopes_are_answered(method: str, path: str, headers: list[Any], service: Service) -> None:
    app = application(Site(service, Settings(deadline=5.0)))
    for raw_path in ({}, {"raw_path": None}, {"raw_path": b"\xff\x00"}, {"raw_path": b""}):
        scope = {"type": "http", "method": method, "path": path, "headers": headers, **raw_path}
        status, _ = asyncio.run(answer(app, scope))
        assert 200 <= status < 500


@pytest.mark.parametrize("state", [{}, {"state": None}, {"state": {}}])
def test_the_application_starts_and_stops_without_a_state(state: dict[str, Any], service: Service) -> None:
    events = ["lifespan.startup", "lifespan.shutdown"]
    sent: list[str] = []

    async def receive() -> Message:
        return {"type": events.pop(0)}

    async def send(message: Message) -> None:
        sent.append(message["type"])

    app = application(Site(service, Settings()))

    async def live() -> None:
        await app({"type": "lifespan", "asgi": {"version": "3.0"}, **state}, receive, send)

    asyncio.run(live())
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
