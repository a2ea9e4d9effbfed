"""Unusual scopes are answered, and the application starts and stops without a state."""

import asyncio
from typing import Any
from urllib.parse import quote

import pytest
from starlette.types import ASGIApp, Message

from factorcell.service.engine import Service
from factorcell.service.http.application import Settings, Site, application


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


@pytest.mark.parametrize("headers", [[], [(b"host", b"\xff")], [(b"host", b"localhost"), (b"origin", b"\xff")]])
@pytest.mark.parametrize("path", ["", "/", "nowhere", "/é ☕%2F", "/\ud800", "/v1/users/%"])
@pytest.mark.parametrize("method", ["GET", "POST", "", "BREW"])
def test_unusual_scopes_are_answered(method: str, path: str, headers: list[Any], service: Service) -> None:
    app = application(Site(service, Settings(deadline=5.0)))
    for raw_path in (quote(path, errors="replace").encode(), b"\xff\x00", b""):
        scope = {"type": "http", "method": method, "path": path, "headers": headers, "raw_path": raw_path}
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
