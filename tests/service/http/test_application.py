"""HTTP responses equal the results of the service, and invalid requests are problems that give a reason."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from factorcell.service.http.application import Site
from factorcell.service.messages import CompletionRequest
from factorcell.service.record import StoreError


def test_completions_equal_those_of_the_service(client: TestClient, site: Site) -> None:
    site.service.accept("ann", "abba")
    completions = site.service.complete(CompletionRequest("ab", user="ann", context={"city": "Oslo"}, limit=3))
    request = {"query": "ab", "user": "ann", "context": {"city": "Oslo"}, "limit": 3}
    answer = client.post("/v1/complete", json=request).json()
    results = [
        (result["text"], result["source"], result["score"], result["typos"], result["parts"])
        for result in answer["results"]
    ]
    assert results == [(result.text, result.source, result.score, result.typos, None) for result in completions.results]
    assert (answer["degraded"], answer["user_version"]) == (None, completions.user_version)


@pytest.mark.parametrize("explain", [False, True])
@pytest.mark.parametrize("learn", [False, True])
def test_completions_respect_learn_and_explain(client: TestClient, explain: bool, learn: bool) -> None:
    client.post("/v1/accept", json={"user": "ann", "text": "abba"})
    answer = client.post(
        "/v1/complete", json={"query": "ab", "user": "ann", "explain": explain, "learn": learn, "deadline_ms": 5000}
    ).json()
    assert (answer["user_version"] is not None) == learn
    assert all((result["parts"] is not None) == explain for result in answer["results"])


def test_accept_with_a_key_counts_once(client: TestClient, site: Site) -> None:
    request = {"user": "ann", "text": "abba", "idempotency_key": "1", "context": {"city": "Oslo"}}
    first, again = (client.post("/v1/accept", json=request).json() for _ in range(2))
    assert (first["outcome"], again["outcome"]) == ("learned", "repeated")
    assert first["user_version"] == again["user_version"]
    profile = site.service.show("ann")
    assert profile is not None
    assert [(text.text, text.context) for text in profile.texts] == [("abba", {"city": "Oslo"})]


def test_readiness_depends_on_the_store(client: TestClient, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client.get("/healthz").json() == client.get("/readyz").json() == {"status": "ok"}

    def fail() -> None:
        raise StoreError("/secret/users.db is missing")

    monkeypatch.setattr(site.service.store, "check", fail)
    refused = client.get("/readyz")
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert "secret" not in refused.text
    assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "options", "status", "kind"),
    [
        ("GET", "/nothing", {}, 404, "not-found"),
        ("PUT", "/v1/complete", {}, 405, "wrong-method"),
        ("GET", "/v1/accept", {}, 405, "wrong-method"),
        ("GET", "/v1/complete?query=a", {}, 405, "wrong-method"),
        ("POST", "/v1/complete", {"content": b"{}"}, 415, "wrong-type"),
        ("POST", "/v1/complete", {"json": {"query": "a"}, "headers": {"content-encoding": "gzip"}}, 415, "wrong-type"),
        ("POST", "/v1/complete", {"json": {}}, 422, "invalid"),
        ("POST", "/v1/complete", {"json": {"query": "a", "user": "\n"}}, 422, "invalid"),
        ("POST", "/v1/complete", {"json": {"query": "a", "limit": 0}}, 422, "invalid"),
        ("POST", "/v1/complete", {"json": {"query": "a", "context": {"planet": "x"}}}, 422, "invalid"),
        ("POST", "/v1/complete", {"json": {"query": "a", "colour": "x"}}, 422, "invalid"),
        ("POST", "/v1/accept", {"json": {"user": "ann", "text": ""}}, 422, "invalid"),
        ("POST", "/v1/accept", {"json": {"user": "ann", "text": "a" * (1 << 20)}}, 413, "too-large"),
    ],
)
def test_invalid_requests_are_problems(
    client: TestClient, method: str, path: str, options: dict[str, Any], status: int, kind: str
) -> None:
    answer = client.request(method, path, **options)
    problem = answer.json()
    assert (answer.status_code, problem["status"], problem["type"]) == (status, status, f"/docs#{kind}")
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["detail"]


@pytest.mark.parametrize("value", [True, False, "true", 5, 5.5])
def test_context_values_keep_their_type(client: TestClient, site: Site, value: Any) -> None:
    context = {"city": value}
    requests: dict[str, dict[str, Any]] = {
        "complete": {"query": "a", "context": context},
        "accept": {"user": "ann", "text": "abba", "context": context},
    }
    for name, request in requests.items():
        answer = client.post(f"/v1/{name}", json={**request, "unknown": "group"})
        assert answer.status_code == 200, answer.text
    exported = client.get("/v1/users/ann").json()
    client.delete("/v1/users/ann")
    assert client.post("/v1/users", json=exported).status_code == 200
    (text,) = client.get("/v1/users/ann").json()["texts"]
    assert (text["context"]["city"], type(text["context"]["city"])) == (value, type(value))


@pytest.mark.parametrize(
    ("context", "detail"),
    [
        ({"city": "Olso"}, "city 'Olso' was never seen in training (did you mean 'Oslo'?)"),
        ({"citi": "Oslo"}, "unknown context column 'citi' (did you mean 'city'?)"),
    ],
)
def test_mistyped_contexts_are_refused_as_on_the_command_line(
    client: TestClient, context: dict[str, str], detail: str
) -> None:
    requests: dict[str, dict[str, Any]] = {
        "complete": {"query": "a", "context": context},
        "accept": {"user": "zoe", "text": "abba", "context": context},
    }
    for name, request in requests.items():
        answer = client.post(f"/v1/{name}", json=request)
        assert (answer.status_code, answer.json()["type"]) == (422, "/docs#invalid"), name
        assert detail in answer.json()["detail"], name
        for unknown in ("group", "expected"):
            answer = client.post(f"/v1/{name}", json={**request, "unknown": unknown})
            assert answer.status_code == (200 if "city" in context else 422), (name, unknown)
    assert client.post("/v1/complete", json={"query": "a", "unknown": "ignore"}).status_code == 422


@pytest.mark.parametrize("content", [b"", b"{", b'{"query": "\\ud800"}', b"\xff"])
def test_body_that_is_not_json_is_malformed(client: TestClient, content: bytes) -> None:
    answer = client.post("/v1/complete", content=content, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["type"]) == (400, "/docs#malformed")


def test_byte_order_mark_in_a_body_is_ignored(client: TestClient) -> None:
    answer = client.post(
        "/v1/complete", content=b'\xef\xbb\xbf{"query": "a"}', headers={"content-type": "application/json"}
    )
    assert answer.json() == client.post("/v1/complete", json={"query": "a"}).json()


def test_unexpected_error_is_logged_without_the_request(
    client: TestClient, site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(request: CompletionRequest, *_: object) -> None:
        raise RuntimeError(request.query)

    monkeypatch.setattr(site.service, "complete", fail)
    answer = client.post("/v1/complete", json={"query": "secret", "user": "ann"})
    assert (answer.status_code, answer.json()["type"]) == (500, "/docs#failed")
    assert "RuntimeError" in caplog.text
    assert "secret" not in caplog.text + answer.text


def test_responses_must_not_be_cached_or_framed(client: TestClient) -> None:
    for path in ("/healthz", "/nothing"):
        headers = client.get(path).headers
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "access-control-allow-origin" not in headers
