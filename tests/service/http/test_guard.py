"""Who may ask from where: names of the server, pages of other servers."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from factorcell.config import UserError
from factorcell.service.engine import Service
from factorcell.service.http.application import application
from factorcell.service.http.guard import LATE, TURNS, Guard
from factorcell.service.http.reading import ARRIVED
from factorcell.service.http.site import Settings, Site

SHOP = "https://shop.example"
ACCEPT = {"user": "ann", "text": "abba"}


@pytest.fixture
def client_of(service: Service) -> Iterator[Callable[[Settings], TestClient]]:
    made = []

    def make(settings: Settings) -> TestClient:
        made.append(TestClient(application(Site(service, settings)), base_url="http://127.0.0.1:8000"))
        return made[-1].__enter__()

    yield make
    for client in made:
        client.__exit__()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8000", 200),
        ("localhost", 200),
        ("LOCALHOST:1", 200),
        ("[::1]:8000", 200),
        ("rebound.example", 421),
        ("127.0.0.1.example", 421),
        ("", 421),
        ("[", 421),
        (":", 421),
    ],
)
def test_server_without_keys_has_the_names_of_its_machine(
    client_of: Callable[[Settings], TestClient], host: str, status: int
) -> None:
    client = client_of(Settings(names=("localhost", "127.0.0.1", "::1")))
    assert client.get("/healthz", headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    ("origin", "status"), [(None, 200), ("http://127.0.0.1:8000", 200), (SHOP, 403), ("null", 403), ("http://[", 403)]
)
def test_pages_of_other_servers_change_nothing(
    client_of: Callable[[Settings], TestClient], origin: str | None, status: int
) -> None:
    client = client_of(Settings())
    headers = {} if origin is None else {"Origin": origin}
    answer = client.post("/v1/accept", json=ACCEPT, headers=headers)
    assert answer.status_code == status
    assert client.post("/v1/users/ann/undo", headers=headers).status_code == status
    assert "access-control-allow-origin" not in answer.headers


def test_cross_origin_requests_of_named_pages(client_of: Callable[[Settings], TestClient]) -> None:
    client = client_of(Settings(origins=(SHOP,)))
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    before = client.options("/v1/accept", headers={"Origin": SHOP, **asked})
    assert (before.status_code, before.headers["access-control-allow-origin"]) == (200, SHOP)
    answer = client.post("/v1/accept", json=ACCEPT, headers={"Origin": SHOP})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, SHOP)
    other = client.options("/v1/accept", headers={"Origin": "https://other.example", **asked})
    assert (other.status_code, "access-control-allow-origin" in other.headers) == (400, False)
    refused = client.post("/v1/accept", json=ACCEPT, headers={"Origin": "https://other.example"})
    assert refused.status_code == 403


@pytest.mark.parametrize(
    "origin",
    ["", "*", "null", "shop.example", "https://shop.example/", "https://Shop.example", "https://a b", "https://a\nb"],
)
def test_what_no_browser_sends_is_no_origin(origin: str) -> None:
    with pytest.raises(UserError, match="valid is https://NAME"):
        Settings(origins=(SHOP, origin))


@pytest.mark.parametrize("origin", ["http://localhost:3000", "https://[::1]:8443", "https://a-b.example", "app://shop"])
def test_origins(origin: str) -> None:
    assert Settings(origins=(origin,)).origins == (origin,)


def test_pages_that_are_named_can_read_why_they_are_refused(client_of: Callable[[Settings], TestClient]) -> None:
    client = client_of(Settings(origins=(SHOP,), names=("127.0.0.1",)))
    answer = client.post("/v1/accept", json=ACCEPT, headers={"Origin": SHOP, "Host": "rebound.example"})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (421, SHOP)


@pytest.mark.parametrize(
    ("path", "others", "waited", "status"),
    [
        ("/v1/complete", 19, 0.05, 503),
        ("/v1/complete", 19, 0.005, 200),
        ("/v1/complete", 0, 0.05, 200),
        ("/v1/accept", 19, 0.05, 200),
        ("/healthz", 19, 0.05, 200),
    ],
)
def test_what_a_busy_loop_would_answer_late_is_refused_first(
    service: Service, path: str, others: int, waited: float, status: int
) -> None:
    site = Site(service, Settings(deadline=0.1))
    lates: list[float] = []

    async def scenario() -> int:
        event, statuses = asyncio.Event(), []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            lates.append(scope[LATE])
            if scope["state"]:
                await send({"type": "http.response.start", "status": 200, "headers": []})
            else:
                await event.wait()

        async def send(message: Any) -> None:
            statuses.append(message.get("status"))

        def asked(state: dict[str, float]) -> Any:
            scope = {"type": "http", "method": "GET", "query_string": b"", "headers": [], "state": state}
            return guard({**scope, "raw_path": path.encode()}, None, send)  # type: ignore[arg-type]

        guard = Guard(app, site, {"/v1/complete"})
        rest = [asyncio.ensure_future(asked({})) for _ in range(others)]
        await asyncio.sleep(0)
        await asked({ARRIVED: time.monotonic() - waited})
        event.set()
        await asyncio.gather(*rest)
        return int(statuses[0])

    assert asyncio.run(scenario()) == status
    if status == 200:
        assert lates[-1] >= waited * min(others + 1, TURNS)
