"""Ten thousand requests made up from the OpenAPI: no fault of ours, and every answer is as it is described.

Half of them are as the description wants them, half break it somewhere. They go over a real socket to a server that
wants keys. Those that are right are led to people and columns that there are, as random ones would only be unknown.

    FUZZ_REQUESTS=100000 pytest -m slow -s tests/service/http/test_fuzz.py

makes up as many, others each time.
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
from factorcell.service.http.application import application
from factorcell.service.http.keys import KeyRing
from factorcell.service.http.openapi import openapi
from factorcell.service.http.operations import OPERATIONS
from factorcell.service.http.site import Operation, Settings, Site
from factorcell.service.learning import ServedModel
from factorcell.service.stores.opening import open_store
from tests.service.listening import listening

pytestmark = pytest.mark.slow
WANTED = os.environ.get("FUZZ_REQUESTS")
REQUESTS = int(WANTED or 10_000)
DEADLINE = 5000  # milliseconds within which even a busy machine answers
FUZZED = [one for one in OPERATIONS if one.request_type is not None or "{user}" in one.path]
EACH = -(-REQUESTS // (2 * len(FUZZED)))
PEOPLE = ("ann", "bob", "a/b", "a/export", "%2e", "?#&=;+ ", '"><script>', "\U0001f600é")
CONTEXTS: tuple[dict[str, Any], ...] = ({}, {"city": "Oslo"}, {"city": "Nice"})
PLAIN = {"target": "city", "values": [], "lists": [{"hypotheses": [{"text": "abba"}]}], "weights": {}, "text": "abba"}
TEXT = {"text": "abba"}
QUIET: dict[str, Any] = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
CHECKS = {"checks": {"negative_data_rejection": {"expected-statuses": ["4xx"]}}}


@dataclass(frozen=True)
class Served:
    """A service, where it is asked, and with which key."""

    service: Service
    url: str
    key: str


@pytest.fixture(scope="module")
def served(models: tuple[ServedModel, ServedModel], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("fuzz")
    key = keys.add_key(folder / "keys.toml", "all", ["complete", "learn", "users", "admin"])
    service = Service(models[0], open_store(f"sqlite:///{folder / 'users.db'}"))
    site = Site(service, Settings(deadline=DEADLINE / 1000), KeyRing(folder / "keys.toml"))
    with listening(application(site)) as found:
        yield Served(service, found.rstrip("/"), key)


@pytest.mark.parametrize("right", [True, False], ids=["right", "wrong"])
@pytest.mark.parametrize("one", FUZZED, ids=lambda one: f"{one.method} {one.path}")
@pytest.mark.filterwarnings("ignore")
def test_no_request_is_a_fault(
    one: Operation,
    right: bool,
    served: Served,
    caplog: pytest.LogCaptureFixture,
) -> None:
    schemathesis = pytest.importorskip("schemathesis", reason="making up requests needs the extra slow")
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    config = schemathesis.Config.from_dict(CHECKS)
    operation = schemathesis.openapi.from_dict(openapi(keys=True), config=config)[one.path][one.method]
    mode = schemathesis.GenerationMode.POSITIVE if right else schemathesis.GenerationMode.NEGATIVE
    statuses: Counter[int] = Counter()
    folder = str(served.service.model.run.folder.parent)
    for user in PEOPLE:
        served.service.accept(user, "abba", context={"city": "Oslo"})

    @settings(max_examples=EACH, derandomize=not WANTED, **QUIET)
    @given(case=operation.as_strategy(generation_mode=mode), data=st.data())
    def ask(case: Any, data: st.DataObject) -> None:
        if right:
            lead(case, data.draw)
        sent = {"base_url": served.url, "headers": {"Authorization": f"Bearer {served.key}"}}
        answer = case.call(**sent)
        statuses[answer.status_code] += 1
        assert folder not in answer.text
        assert "Traceback" not in answer.text
        if answer.status_code == 503 and hurried(case):
            assert answer.json()["type"] == "/docs#overloaded"
            assert answer.headers["retry-after"]
        else:
            case.validate_response(answer, excluded_checks=[positive_data_acceptance], transport_kwargs=sent)

    ask()
    print(f"\n{statuses.total()} requests: {dict(statuses)}")
    assert statuses.total() >= EACH
    assert not right or statuses[200]
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def lead(case: Any, draw: Callable[[Any], Any]) -> None:
    places = [case.path_parameters, *([case.body] if isinstance(case.body, dict) else [])]
    for fields in filter(None, places):
        if "user" in fields and draw(st.integers(0, 3)):
            user = draw(st.sampled_from(PEOPLE) | st.text("abc/", min_size=1))
            fields["user"] = quote(user, safe="") if fields is case.path_parameters else user
        if draw(st.booleans()):
            known(fields, draw)
        if "cursor" in fields and draw(st.booleans()):
            fields["cursor"] = len(fields["query"])


def known(fields: dict[str, Any], draw: Callable[[Any], Any]) -> None:
    for name in fields:
        if name == "context":
            fields[name] = draw(st.sampled_from(CONTEXTS))
        elif name == "texts":
            fields[name] = [TEXT | ({"time": 0} if "paused" in fields else {})]
        elif name in PLAIN:
            fields[name] = PLAIN[name]


def hurried(case: Any) -> bool:
    fields = case.body if isinstance(case.body, dict) else {}
    wanted = fields.get("deadline_ms")
    return wanted is not None and int(wanted) < DEADLINE
