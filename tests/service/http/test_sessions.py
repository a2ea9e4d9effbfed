"""Answers to one who types come in order: a keystroke that a later one has overtaken is not searched for."""

import asyncio
import threading

import httpx
import pytest

from factorcell.service.engine import CompletionRequest, Completions, Service
from factorcell.service.http.application import application
from factorcell.service.http.lanes import Lane
from factorcell.service.http.site import Settings, Site


@pytest.fixture
def narrow(service: Service) -> Site:
    return Site(service, Settings(deadline=5.0), search=Lane("search", 1, 256))


def searching(site: Site, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], threading.Event]:
    searched: list[str] = []
    event, plain = threading.Event(), site.service.complete

    def complete(request: CompletionRequest) -> Completions:
        searched.append(request.query)
        assert event.wait(10)
        return plain(request)

    monkeypatch.setattr(site.service, "complete", complete)
    return searched, event


def client_of(site: Site) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=application(site))
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")


def test_overtaken_keystrokes_are_not_searched_for(narrow: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    searched, event = searching(narrow, monkeypatch)

    async def scenario() -> list[dict[str, object]]:
        async with client_of(narrow) as client:
            asked = [{"query": "abcb"[: seq + 1], "session": "box", "seq": seq} for seq in range(4)]
            tasks = []
            for one in asked:
                tasks.append(asyncio.ensure_future(client.post("/v1/complete", json=one)))
                await asyncio.sleep(0.02)
            event.set()
            return [answer.json() for answer in await asyncio.gather(*tasks)]

    answers = asyncio.run(scenario())
    assert [one["seq"] for one in answers] == [0, 1, 2, 3]
    assert [one["degraded"] for one in answers] == [None, "superseded", "superseded", None]
    assert searched == ["a", "abcb"]


def test_other_sessions_are_not_overtaken(narrow: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    searched, event = searching(narrow, monkeypatch)
    event.set()

    async def scenario() -> None:
        async with client_of(narrow) as client:
            for session, seq in (("a", 5), ("b", 1), ("a", 6)):
                answer = await client.post("/v1/complete", json={"query": "a", "session": session, "seq": seq})
                assert answer.json()["degraded"] is None

    asyncio.run(scenario())
    assert len(searched) == 3


def test_search_of_one_who_left_is_not_begun(narrow: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    searched, event = searching(narrow, monkeypatch)
    app = application(narrow)

    async def scenario() -> None:
        async with client_of(narrow) as client:
            first = asyncio.ensure_future(client.get("/v1/complete?query=a"))
            await asyncio.sleep(0.05)
            messages = [{"type": "http.request", "body": b"", "more_body": False}, {"type": "http.disconnect"}]
            sent = []

            async def receive() -> dict[str, object]:
                return messages.pop(0)  # type: ignore[return-value]

            async def send(message: object) -> None:
                sent.append(message)

            scope = {
                "type": "http",
                "method": "GET",
                "path": "/v1/complete",
                "raw_path": b"/v1/complete",
                "query_string": b"query=ab",
                "headers": [],
            }
            await app(scope, receive, send)
            assert narrow.search.waiting == 0
            event.set()
            await first

    asyncio.run(scenario())
    assert searched == ["a"]
