"""No text, query or user id appears in logs, metrics, or errors for others."""

import logging
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from factorcell.service.engine import Service
from factorcell.service.http.application import Settings, Site, application
from factorcell.service.http.operations import OPERATIONS
from factorcell.service.messages import CompletionRequest
from factorcell.service.record import Record, StoreError

# Long enough not to appear in a metric by chance.
WORDS = st.text("abcXYZ0189é\U0001f600%/\"'", min_size=1, max_size=12).map("qzj{}qzj".format)
INVALID = st.sampled_from(["\x00", "\n", "\ud7ff", ""])


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(WORDS, WORDS, WORDS, INVALID, st.sampled_from([item for item in OPERATIONS if item.request_type is not None]))
def test_logs_and_metrics_contain_no_user_data(
    client: TestClient,
    site: Site,
    caplog: pytest.LogCaptureFixture,
    user: str,
    text: str,
    key: str,
    invalid: str,
    operation: Any,
) -> None:
    caplog.set_level(logging.DEBUG)
    client.post("/v1/accept", json={"user": user, "text": text, "idempotency_key": key})
    client.post("/v1/complete", json={"query": text[:-1], "user": user})
    client.get(f"/v1/complete?query={text}&user={user}{invalid}".replace("\n", "%0A").replace("\x00", "%00"))
    client.get("/v1/users/" + user.replace("%", "%25").replace("/", "%2F"))
    for body in ({"user": user + invalid, "text": text}, {"texts": [{"text": text}]}, {key: text}, [text]):
        client.request("POST", operation.path.replace("{user}", "x"), json=body)
    client.request("BREW", f"/v1/{key}".replace("%", "").replace("/", "-"))
    messages = [record.getMessage() for record in caplog.records if record.name.startswith(("factorcell", "uvicorn"))]
    metrics = client.get("/metrics").text
    for word in (user, text, key):
        assert "qzj" not in metrics, word
        assert not [line for line in messages if "qzj" in line], word


def test_metric_labels_are_bounded(client: TestClient, site: Site) -> None:
    for number in range(50):
        client.get(f"/v1/{number}")
        client.get(f"/v1/users/{number}")
        client.request(f"METHOD{number}", "/v1/complete")
    metrics = client.get("/metrics").text
    names = set(re.findall(r'operation="([^"]*)"', metrics))
    assert names <= {item.name for item in OPERATIONS} | {"other"}
    assert 'factorcell_requests_total{operation="other",status="404"} 50.0' in metrics
    assert 'factorcell_requests_total{operation="show",status="404"} 50.0' in metrics


def test_metrics_count_requests_and_outcomes(client: TestClient) -> None:
    client.post("/v1/accept", json={"user": "ann", "text": "abba"})
    client.post("/v1/accept", json={"user": "ann", "text": "a@example.org"})
    client.post("/v1/complete", json={"query": "a"})
    metrics = client.get("/metrics").text
    for line in (
        'factorcell_accepts_total{outcome="learned"} 1.0',
        'factorcell_accepts_total{outcome="withheld"} 1.0',
        'factorcell_requests_total{operation="complete",status="200"} 1.0',
        'factorcell_request_seconds_count{operation="accept"} 2.0',
        'factorcell_waiting{lane="search"} 0.0',
    ):
        assert line in metrics


def test_damaged_record_is_logged_without_the_user(
    client: TestClient, site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def read(user: str) -> Record | None:
        return Record.from_bytes(b"damaged", user)

    monkeypatch.setattr(site.service.store, "read", read)
    assert client.get("/v1/users/qzj").status_code == 503
    messages = [record.getMessage() for record in caplog.records if record.name.startswith("factorcell")]
    assert messages == [
        "the record of a user is damaged; `factorcell users export` names all users with damaged records"
    ]


@pytest.mark.parametrize("error", [StoreError, OSError, ValueError, RuntimeError])
def test_no_error_contains_a_path(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: type[Exception]
) -> None:
    folder = str(service.model.run.folder)

    def fail(request: CompletionRequest) -> None:
        raise error(f"{folder}/weights.safetensors: {request.query}")

    monkeypatch.setattr(service, "complete", fail)
    with TestClient(application(Site(service, Settings(deadline=5.0)))) as client:
        answer = client.post("/v1/complete", json={"query": "qzj"})
    assert answer.status_code in (500, 503)
    assert folder not in answer.text
    assert str(Path(folder).parent) not in answer.text
    assert "qzj" not in caplog.text
