"""Which host names and origins may send requests."""

from collections.abc import Callable, Iterator

import pytest
from starlette.testclient import TestClient

from factorcell.errors import UserError
from factorcell.service.engine import Service
from factorcell.service.http.application import Settings, Site, application

SHOP = "https://shop.example"
ACCEPT = {"user": "ann", "text": "abba"}


@pytest.fixture
def client_of(service: Service) -> Iterator[Callable[[Settings], TestClient]]:
    clients = []

    def make(settings: Settings) -> TestClient:
        clients.append(TestClient(application(Site(service, settings)), base_url="http://127.0.0.1:8000"))
        return clients[-1].__enter__()

    yield make
    for client in clients:
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
def test_server_without_keys_accepts_only_loopback_names(
    client_of: Callable[[Settings], TestClient], host: str, status: int
) -> None:
    client = client_of(Settings(host_names=("localhost", "127.0.0.1", "::1")))
    assert client.get("/healthz", headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    ("origin", "status"), [(None, 200), ("http://127.0.0.1:8000", 200), (SHOP, 403), ("null", 403), ("http://[", 403)]
)
def test_pages_of_other_origins_cannot_change_data(
    client_of: Callable[[Settings], TestClient], origin: str | None, status: int
) -> None:
    client = client_of(Settings())
    headers = {} if origin is None else {"Origin": origin}
    answer = client.post("/v1/accept", json=ACCEPT, headers=headers)
    assert answer.status_code == status
    assert client.post("/v1/users/ann/undo", headers=headers).status_code == status
    assert "access-control-allow-origin" not in answer.headers


def test_allowed_origins_may_send_requests(client_of: Callable[[Settings], TestClient]) -> None:
    client = client_of(Settings(origins=(SHOP,)))
    preflight = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    before = client.options("/v1/accept", headers={"Origin": SHOP, **preflight})
    assert (before.status_code, before.headers["access-control-allow-origin"]) == (200, SHOP)
    answer = client.post("/v1/accept", json=ACCEPT, headers={"Origin": SHOP})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, SHOP)
    other = client.options("/v1/accept", headers={"Origin": "https://other.example", **preflight})
    assert (other.status_code, "access-control-allow-origin" in other.headers) == (400, False)
    refused = client.post("/v1/accept", json=ACCEPT, headers={"Origin": "https://other.example"})
    assert refused.status_code == 403


@pytest.mark.parametrize(
    "origin",
    ["", "*", "null", "shop.example", "https://shop.example/", "https://Shop.example", "https://a b", "https://a\nb"],
)
def test_invalid_origins_are_refused(origin: str) -> None:
    with pytest.raises(UserError, match="expected https://NAME"):
        Settings(origins=(SHOP, origin))
