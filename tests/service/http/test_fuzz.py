"""Thousands of requests generated from the OpenAPI description: no server error, and all responses as described.

Half of them are valid, half are invalid in some place. They are sent over a real socket to a server that requires
keys. Valid requests use existing users and columns, because random ones would only be unknown.

    FUZZ_REQUESTS=100000 pytest -m slow -s tests/service/http/test_fuzz.py

generates that many requests, different ones in each run.
"""

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from factorcell.service.engine import Service
from factorcell.service.http import keys
from factorcell.service.http.application import Settings, Site, application
from factorcell.service.http.keys import KeyRing
from factorcell.service.http.operations import OPERATIONS, Operation
from factorcell.service.http.pages import openapi
from factorcell.service.learning import ServedModel
from factorcell.service.stores.store import open_store
from tests.service.listening import listening

pytestmark = pytest.mark.slow
REQUEST_COUNT = os.environ.get("FUZZ_REQUESTS")
REQUESTS = int(REQUEST_COUNT or 10_000)
DEADLINE = 5000  # milliseconds, enough for a busy machine
FUZZED = [item for item in OPERATIONS if item.request_type is not None or "{user}" in item.path]
REQUESTS_PER_TEST = -(-REQUESTS // (2 * len(FUZZED)))
USERS = ("ann", "bob", "a/b", "a/export", "%2e", "?#&=;+ ", '"><script>', "\U0001f600é")
CONTEXTS: tuple[dict[str, Any], ...] = ({}, {"city": "Oslo"}, {"city": "Nice"})
HYPOTHESIS_OPTIONS: dict[str, Any] = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
CHECKS = {"checks": {"negative_data_rejection": {"expected-statuses": ["4xx"]}}}


@dataclass(frozen=True)
class Served:
    """A service, its address, and a key for it."""

    service: Service
    url: str
    key: str


@pytest.fixture(scope="module")
def served(models: tuple[ServedModel, ServedModel], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("fuzz")
    key = keys.add_key(folder / "keys.toml", "all", ["complete", "learn", "users", "admin"])
    service = Service(models[0], open_store(f"sqlite:///{folder / 'users.db'}"))
    site = Site(service, Settings(deadline=DEADLINE / 1000), KeyRing(folder / "keys.toml"))
    with listening(application(site)) as address:
        yield Served(service, address.rstrip("/"), key)


@pytest.mark.parametrize("is_valid", [True, False], ids=["valid", "invalid"])
@pytest.mark.parametrize("case_operation", FUZZED, ids=lambda item: f"{item.method} {item.path}")
@pytest.mark.filterwarnings("ignore")
def test_no_request_causes_a_server_error(
    case_operation: Operation,
    is_valid: bool,
    served: Served,
    caplog: pytest.LogCaptureFixture,
) -> None:
    schemathesis = pytest.importorskip("schemathesis", reason="generating requests needs the extra `slow`")
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    config = schemathesis.Config.from_dict(CHECKS)
    operation = schemathesis.openapi.from_dict(openapi(needs_keys=True), config=config)[case_operation.path][
        case_operation.method
    ]
    mode = schemathesis.GenerationMode.POSITIVE if is_valid else schemathesis.GenerationMode.NEGATIVE
    statuses: Counter[int] = Counter()
    folder = str(served.service.model.run.folder.parent)
    for user in USERS:
        served.service.accept(user, "abba", context={"city": "Oslo"})

    @settings(max_examples=REQUESTS_PER_TEST, derandomize=not REQUEST_COUNT, **HYPOTHESIS_OPTIONS)
    @given(case=operation.as_strategy(generation_mode=mode), data=st.data())
    def send(case: Any, data: st.DataObject) -> None:
        if is_valid:
            use_existing_users(case, data.draw)
        options = {"base_url": served.url, "headers": {"Authorization": f"Bearer {served.key}"}}
        answer = case.call(**options)
        statuses[answer.status_code] += 1
        assert folder not in answer.text
        assert "Traceback" not in answer.text
        if answer.status_code == 503 and has_short_deadline(case):
            assert answer.json()["type"] == "/docs#overloaded"
            assert answer.headers["retry-after"]
        else:
            case.validate_response(answer, excluded_checks=[positive_data_acceptance], transport_kwargs=options)

    send()
    print(f"\n{statuses.total()} requests: {dict(statuses)}")
    assert statuses.total() >= REQUESTS_PER_TEST
    assert not is_valid or statuses[200]
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    # A finding, such as "texts cut", is logged once.
    assert [record.getMessage() for record in warnings if not hasattr(record, "finding")] == []


def use_existing_users(case: Any, draw: Callable[[Any], Any]) -> None:
    places = [case.path_parameters, *([case.body] if isinstance(case.body, dict) else [])]
    for fields in filter(None, places):
        if "user" in fields and draw(st.integers(0, 3)):
            user = draw(st.sampled_from(USERS) | st.text("abc/", min_size=1))
            fields["user"] = quote(user, safe="") if fields is case.path_parameters else user
        if draw(st.booleans()):
            use_existing_values(fields, draw)


def use_existing_values(fields: dict[str, Any], draw: Callable[[Any], Any]) -> None:
    for name in fields:
        if name == "context":
            fields[name] = draw(st.sampled_from(CONTEXTS))
        elif name == "texts":
            fields[name] = [{"text": "abba", "time": 0}]
        elif name == "text":
            fields[name] = "abba"


def has_short_deadline(case: Any) -> bool:
    fields = case.body if isinstance(case.body, dict) else {}
    deadline = fields.get("deadline_ms")
    return deadline is not None and int(deadline) < DEADLINE
