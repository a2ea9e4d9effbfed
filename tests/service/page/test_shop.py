"""The shop of examples/shop: only its pages, of users who are logged in, reach the service, and only as this user."""

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import AsyncMock

import httpx
import pytest
from starlette.testclient import TestClient

from factorcell.service.engine import Service
from tests.service.listening import listening
from tests.service.page.box import OPTIONS, OpenPage, query
from tests.service.page.shop import SERVER, shop_of

SAME_SITE = {"origin": "http://testserver"}
MAX_LINES = 50


@pytest.fixture
def client(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    with shop_of(service, tmp_path, monkeypatch) as app, TestClient(app, headers=SAME_SITE) as client:
        yield client


def log_in(client: TestClient, user: str) -> None:
    assert client.post("/session", json={"user": user}).status_code == 200


def test_the_service_sees_the_user_who_is_logged_in(client: TestClient, service: Service) -> None:
    log_in(client, "ann")
    assert client.post("/session", json={}).json() == {"user": "ann"}
    answer = client.post("/v1/accept", json={"user": "ann", "text": "abba"})
    assert answer.json()["outcome"] == "learned"
    profile = service.show("ann")
    assert profile is not None
    assert [text.text for text in profile.texts] == ["abba"]
    results = client.post("/v1/complete", json={"user": "ann", "query": "ab"}).json()["results"]
    assert "history" in next(result["source"] for result in results if result["text"] == "abba")


@pytest.mark.parametrize("other", ["bob", None])
def test_texts_of_a_page_that_another_user_opened_are_refused(
    client: TestClient, service: Service, other: str | None
) -> None:
    log_in(client, "ann")
    for path, content in (("/v1/accept", {"text": "abba"}), ("/v1/complete", {"query": "ab"})):
        assert client.post(path, json={**content, "user": other}).status_code == 409
    assert service.show("ann") is None
    assert service.show("bob") is None


def test_a_user_logs_out(client: TestClient) -> None:
    log_in(client, "ann")
    assert client.post("/session", json={"user": None}).status_code == 200
    assert client.post("/session", json={}).json() == {"user": None}
    assert client.post("/v1/accept", json={"text": "abba", "user": None}).status_code == 422


def test_an_error_of_the_service_is_passed_on(client: TestClient) -> None:
    log_in(client, "ann")
    answer = client.post("/v1/complete", json={"user": "ann", "query": 7})
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("origin", ["http://evil.example", "http://testserver.evil.example", "null", ""])
def test_pages_of_other_sites_are_refused(client: TestClient, service: Service, origin: str) -> None:
    log_in(client, "ann")
    headers = {"origin": origin}
    assert client.post("/v1/accept", json={"user": "ann", "text": "abba"}, headers=headers).status_code == 403
    assert client.post("/session", json={"user": "mallory"}, headers=headers).status_code == 403
    assert client.post("/session", json={}).json() == {"user": "ann"}
    assert service.show("ann") is None


def test_a_visitor_who_is_not_logged_in_gets_suggestions_and_teaches_nothing(
    client: TestClient, service: Service
) -> None:
    service.accept("bob", "abba")
    results = client.post("/v1/complete", json={"query": "ab"}).json()["results"]
    assert results
    assert not any("history" in result["source"] for result in results)
    assert client.post("/v1/accept", json={"text": "cab"}).status_code == 422
    assert "log-in" in client.get("/").text


def test_a_forged_session_is_refused(client: TestClient) -> None:
    client.cookies.set("session", "eyJ1c2VyIjogImJvYiJ9.aaaa.aaaa")
    assert client.post("/session", json={}).json() == {"user": None}
    assert client.post("/v1/accept", json={"text": "cab", "user": "bob"}).status_code == 409


def test_the_rate_of_one_user_does_not_limit_another(client: TestClient) -> None:
    log_in(client, "ann")
    statuses = [client.post("/v1/complete", json={"user": "ann", "query": "ab"}).status_code for _ in range(400)]
    assert {200, 429} == set(statuses)
    log_in(client, "bob")
    assert client.post("/v1/complete", json={"user": "bob", "query": "ab"}).status_code == 200


@pytest.mark.parametrize("path", ["/v1/users/bob", "/v1/accepts", "/metrics", "/server.py", "/../server.py"])
def test_no_other_request_is_forwarded(client: TestClient, path: str) -> None:
    log_in(client, "ann")
    assert client.post(path, json={}).status_code in (404, 405)
    assert client.get(path).status_code in (404, 405)


def test_a_service_that_is_down_is_reported(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", AsyncMock(side_effect=httpx.ConnectError("")))
    answer = client.post("/v1/complete", json={"query": "ab"})
    assert (answer.status_code, answer.json()["title"]) == (503, "the service does not answer")


def test_the_script_is_served(client: TestClient) -> None:
    assert "factorcell.attach" in client.get("/factorcell.js").text


def test_the_server_is_short() -> None:
    assert len(SERVER.read_text().splitlines()) <= MAX_LINES


@pytest.mark.slow
def test_a_browser_logs_in_completes_and_learns(
    open_page: OpenPage, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shop_of(service, tmp_path, monkeypatch) as app, listening(app) as url:
        page = open_page(url)
        query(page).press_sequentially("ab")
        page.locator(OPTIONS).first.wait_for()
        assert page.locator(".fc-source").count() == 0
        page.get_by_label("Name").fill("ann")
        with page.expect_navigation():
            page.get_by_role("button").click()
        query(page).press_sequentially("ab")
        page.locator(OPTIONS).first.wait_for()
        query(page).fill("abba")
        query(page).press("Enter")
        for _ in range(100):
            if service.show("ann"):
                break
            page.wait_for_timeout(50)
        profile = service.show("ann")
        assert profile is not None
        assert [text.text for text in profile.texts] == ["abba"]
        assert service.show("me") is None
