"""Every operation through both clients of a server on the loopback interface: results equal those of the service."""

import asyncio
import datetime
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from factorcell import client as clients
from factorcell.client import AsyncClient, Client, ServiceError
from factorcell.service.engine import Service
from factorcell.service.http import keys, problems
from factorcell.service.http.application import Settings, Site, application
from factorcell.service.http.keys import KeyRing
from factorcell.service.http.operations import OPERATIONS
from factorcell.service.messages import CompletionRequest
from tests.service.listening import listening
from tests.service.stores.proxy import Proxy

CLIENT_KINDS = ("blocking", "asynchronous")
Handler = Callable[[httpx.Request], httpx.Response]
MakeClient = Callable[..., Any]
UNUSUAL_IDS = ["a/b?c#d%", "..", "Zoë 😀", "~!*'();:@&=$,[]"]
FIELDS: dict[str, dict[str, Any]] = {
    "complete": {"query": "a"},
    "accept": {"user": "ann", "text": "a"},
    "forget": {"user": "ann", "text": "a"},
    "restore": {"format": 1, "user": "ann", "paused": False, "texts": []},
    **{name: {"user": "ann"} for name in ("show", "export", "delete", "undo", "pause", "resume")},
}
REMOVED, DELETED = httpx.Response(200, json={"removed": 1}), httpx.Response(200, json={"deleted": True})


class Awaited:
    """An `AsyncClient` with blocking methods, which run in its own event loop."""

    def __init__(self, client: AsyncClient, runner: asyncio.Runner) -> None:
        self.client, self.runner = client, runner

    def __getattr__(self, name: str) -> Any:
        return lambda **fields: self.runner.run(getattr(self.client, name)(**fields))


def new_client(
    kind: str, runner: asyncio.Runner, *args: Any, handler: Handler | None = None, **options: Any
) -> tuple[Any, Callable[[], None]]:
    http_options: dict[str, Any] = {"timeout": 60} if handler is None else {"transport": httpx.MockTransport(handler)}
    options = {"deadline": 120.0, **options}  # for busy machines
    if kind == "blocking":
        http = httpx.Client(**http_options)
        return Client(*args, http=http, **options), http.close
    async_http = httpx.AsyncClient(**http_options)
    return Awaited(AsyncClient(*args, http=async_http, **options), runner), lambda: runner.run(async_http.aclose())


@pytest.fixture(params=CLIENT_KINDS)
def make_client(request: pytest.FixtureRequest) -> Iterator[MakeClient]:
    with asyncio.Runner() as runner, ExitStack() as stack:

        def another(*args: Any, **options: Any) -> Any:
            client, close = new_client(request.param, runner, *args, **options)
            stack.callback(close)
            return client

        yield another


@pytest.fixture
def client(make_client: MakeClient, url: str) -> Any:
    return make_client(url)


def test_completions_equal_those_of_the_service(client: Any, site: Site) -> None:
    site.service.accept("ann", "abba")
    request = CompletionRequest("abx", user="ann", cursor=2, context={"city": "Oslo"}, limit=3)
    completions = site.service.complete(request)
    answer = client.complete(query="abx", user="ann", cursor=2, context={"city": "Oslo"}, limit=3, explain=True)
    assert [(result.text, result.score) for result in answer.results] == [
        (result.text, result.score) for result in completions.results
    ]
    assert (answer.user_version, answer.degraded) == (completions.user_version, None)
    assert all(result.parts for result in answer.results)


@pytest.mark.parametrize("user", UNUSUAL_IDS)
def test_all_operations_on_a_user(client: Any, user: str) -> None:
    outcomes = [client.accept(user=user, text=text).outcome for text in ("abba", "cab", "abba", "acc")]
    assert outcomes == ["learned"] * 4
    shown = client.show(user=user)
    assert [item.text for item in shown.texts] == ["abba", "cab", "abba", "acc"]
    assert client.undo(user=user).removed == 1
    assert client.forget(user=user, text="abba").removed == 2
    assert client.pause(user=user).paused
    assert client.accept(user=user, text="x").outcome == "paused"
    assert not client.resume(user=user).paused
    exported = client.export(user=user)
    fields = msgspec.structs.asdict(exported)
    with pytest.raises(ServiceError, match="409") as conflict:
        client.restore(**fields)
    assert (conflict.value.status, conflict.value.problem.type) == (409, "/docs#conflict")
    assert client.delete(user=user).deleted
    assert not client.delete(user=user).deleted
    with pytest.raises(ServiceError, match="404"):
        client.show(user=user)
    assert client.restore(**fields).user == user
    assert client.export(user=user) == exported


def test_every_route_has_a_method(make_client: MakeClient) -> None:
    sent: list[httpx.Request] = []

    def record(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(418)

    client = make_client("http://h", handler=record)
    for name, fields in FIELDS.items():
        with pytest.raises(ServiceError, match=f"{name}: 418 I'm a teapot"):
            getattr(client, name)(**fields)
    requests = {
        (request.method, re.sub("/v1/users/[^/]+", "/v1/users/{user}", request.url.path)): request for request in sent
    }
    routes = {
        (operation.method, operation.path): operation.request_type
        for operation in OPERATIONS
        if operation.path.startswith("/v1/")
    }
    assert requests.keys() == routes.keys()
    for route, request_type in routes.items():
        if request_type is not None and route[0] == "POST":
            msgspec.json.decode(requests[route].content, type=request_type)


@pytest.mark.parametrize(
    ("name", "fields", "field"),
    [
        ("complete", {"query": "a", "cursor": 2}, "cursor"),
        ("complete", {"query": "a", "nope": 0}, "nope"),
        ("accept", {"user": "\n", "text": "a"}, "user"),
    ],
)
def test_an_invalid_request_is_explained(client: Any, name: str, fields: dict[str, Any], field: str) -> None:
    with pytest.raises(ServiceError, match=field) as raised:
        getattr(client, name)(**fields)
    assert (raised.value.status, raised.value.problem.type) == (422, "/docs#invalid")


def test_keys_are_checked(make_client: MakeClient, service: Service, tmp_path: Path) -> None:
    key = keys.add_key(tmp_path / "keys.toml", "shop", ["complete"])
    site = Site(service, Settings(deadline=5.0), KeyRing(tmp_path / "keys.toml"))
    with listening(application(site)) as url:
        assert make_client(url, key).complete(query="a").results
        for sent, name, status in ((None, "complete", 401), ("fc_wrong", "complete", 401), (key, "accept", 403)):
            with pytest.raises(ServiceError, match=str(status)) as raised:
                getattr(make_client(url, sent), name)(**FIELDS[name])
            assert key not in str(raised.value)


def test_only_the_clients_own_connections_are_closed(url: str) -> None:
    with httpx.Client() as http:
        with Client(url, http=http) as client:
            client.complete(query="a")
        assert not http.is_closed
    with Client(url) as client:
        client.complete(query="a")
    with pytest.raises(RuntimeError, match="closed"):
        client.complete(query="a")

    async def use_own_http() -> None:
        async with AsyncClient(url) as client:
            await client.complete(query="a")
        with pytest.raises(RuntimeError, match="closed"):
            await client.complete(query="a")

    asyncio.run(use_own_http())


def sent_by(call: Callable[[Client], object]) -> httpx.Request:
    """Return the request that a call sends."""
    requests = list[httpx.Request]()

    def record(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(418)

    with httpx.Client(transport=httpx.MockTransport(record)) as http, suppress(ServiceError):
        call(Client("http://h", http=http))
    (request,) = requests
    return request


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_any_user_id_arrives_unchanged(user: str) -> None:
    path = sent_by(lambda client: client.export(user=user)).url.raw_path
    before, part, after = path.rpartition(b"/")[0].partition(b"/v1/users/")
    assert (before, b"/" in after) == (b"", False)
    assert part
    scope = {"type": "http", "path_params": {"user": after.decode("ascii")}}
    assert problems.path_parameter(Request(scope), "user") == user


def test_values_are_sent_as_json() -> None:
    context = {"stars": np.int64(4), "nights": np.float32(2.5), "day": datetime.date(2026, 1, 2), "is_new": np.True_}
    request = sent_by(lambda client: client.complete(query="ä", context=context))
    assert json.loads(request.content)["context"] == {"stars": 4, "nights": 2.5, "day": "2026-01-02", "is_new": True}
    with Client() as client, pytest.raises(TypeError, match="JSON"):
        client.complete(query="a", context={"city": object()})


def test_the_client_loads_neither_torch_nor_the_server() -> None:
    code = "import sys; from factorcell.client import Client; Client(); print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"torch", "numpy", "pyarrow", "starlette", "uvicorn", "redis"}
    assert {name.partition(".")[0] for name in loaded} & heavy == set()
    service_modules = {name for name in loaded if name.startswith("factorcell.service.")}
    assert service_modules == {"factorcell.service.messages", "factorcell.service.record"}


class Clock:
    """A clock that advances only when a client sleeps."""

    def __init__(self) -> None:
        self.now, self.slept = 1000.0, list[float]()

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    async def async_sleep(self, seconds: float) -> None:
        self.sleep(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(clients, "uniform", lambda low, high: high)
    monkeypatch.setattr(clients, "monotonic", lambda: fake.now)
    monkeypatch.setattr(clients, "sleep", fake.sleep)
    monkeypatch.setattr(clients, "async_sleep", fake.async_sleep)
    return fake


def busy(status: int, retry_after: str | None = None) -> httpx.Response:
    problem = {"type": "/docs#overloaded", "title": "Busy", "status": status, "detail": "not now"}
    return httpx.Response(status, json=problem, headers={} if retry_after is None else {"Retry-After": retry_after})


def scripted(
    answers: Iterator[httpx.Response | Exception],
) -> tuple[Callable[[httpx.Request], httpx.Response], list[bytes]]:
    """Return a handler that gives these answers, and the list of the bodies that it receives."""
    bodies = list[bytes]()

    def handle(request: httpx.Request) -> httpx.Response:
        bodies.append(request.content)
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer.status_code, content=answer.content, headers=answer.headers)

    return handle, bodies


def test_temporary_failures_are_repeated_with_the_same_body(make_client: MakeClient, clock: Clock) -> None:
    failures: list[httpx.Response | Exception] = [
        httpx.ConnectError("refused"),
        httpx.ReadError(""),
        *map(busy, (429, 502, 503, 504)),
    ]
    learned = httpx.Response(200, json={"outcome": "learned"})
    handler, bodies = scripted(iter([*failures, learned]))
    assert make_client("http://h", handler=handler).accept(user="ann", text="a").outcome == "learned"
    assert len(set(bodies)) == 1
    assert len(bodies) == 7
    assert clock.slept == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4])


def test_each_accept_has_its_own_key(make_client: MakeClient) -> None:
    handler, bodies = scripted(iter([httpx.Response(200, json={"outcome": "learned"})] * 21))
    client = make_client("http://h", handler=handler)
    for _ in range(20):
        client.accept(user="ann", text="a")
    client.accept(user="ann", text="a", idempotency_key="mine")
    sent = [json.loads(body)["idempotency_key"] for body in bodies]
    assert len({*sent}) == 21
    assert sent[-1] == "mine"


def test_a_call_ends_at_its_deadline(make_client: MakeClient, clock: Clock) -> None:
    handler, bodies = scripted(iter([busy(503)] * 100))
    with pytest.raises(ServiceError, match="complete: 503 Busy: not now"):
        make_client("http://h", handler=handler, deadline=30).complete(query="a")
    assert clock.now - 1000 <= 30
    assert len(bodies) == 8
    assert max(clock.slept) == 10
    handler, bodies = scripted(iter([busy(503, "7"), busy(503, "40")]))
    with pytest.raises(ServiceError) as raised:
        make_client("http://h", handler=handler, deadline=30).complete(query="a")
    assert clock.slept[-1] == pytest.approx(7.2)
    assert raised.value.retry_after == 40


@pytest.mark.parametrize("status", [400, 401, 404, 409, 413, 422, 500])
def test_other_statuses_are_not_repeated(status: int, make_client: MakeClient, clock: Clock) -> None:
    handler, bodies = scripted(iter([httpx.Response(status, content=b"\xff<html>")]))
    with pytest.raises(ServiceError, match=f"delete: {status}"):
        make_client("http://h", handler=handler).delete(user="ann")
    assert (len(bodies), clock.slept) == (1, [])


@pytest.mark.parametrize(
    ("failure", "is_repeated"),
    [(httpx.ConnectError("refused"), True), (httpx.ReadError(""), False), (busy(429), True), (busy(503), False)],
)
def test_undo_is_repeated_only_if_it_had_no_effect(
    failure: httpx.Response | Exception, is_repeated: bool, make_client: MakeClient, clock: Clock
) -> None:
    handler, bodies = scripted(iter([failure, REMOVED]))
    client = make_client("http://h", handler=handler)
    if is_repeated:
        assert client.undo(user="ann").removed == 1
    else:
        with pytest.raises((httpx.ReadError, ServiceError)):
            client.undo(user="ann")
    assert len(bodies) == len(clock.slept) + 1 == 1 + is_repeated
    handler, bodies = scripted(iter([failure, DELETED]))
    assert make_client("http://h", handler=handler).delete(user="ann").deleted


@contextmanager
def lossy_proxy(url: str, count: int) -> Iterator[tuple[str, Proxy]]:
    """Yield the address of a proxy that cuts the connection instead of the first `count` responses, and the proxy."""
    proxy, remaining = Proxy(url), [count]

    def cuts() -> bool:
        remaining[0] -= 1
        return remaining[0] >= 0

    proxy.cuts = cuts
    try:
        yield proxy.url, proxy
    finally:
        proxy.close()


@pytest.mark.parametrize("lost", [1, 3])
def test_accept_with_a_lost_response_counts_once(make_client: MakeClient, site: Site, url: str, lost: int) -> None:
    with lossy_proxy(url, lost) as (address, _):
        answer = make_client(address).accept(user="ann", text="abba")
    assert answer.outcome == "repeated"
    profile = site.service.show("ann")
    assert profile is not None
    assert [text.text for text in profile.texts] == ["abba"]
    assert answer.user_version == profile.version


def test_undo_with_a_lost_response_is_not_repeated(make_client: MakeClient, site: Site, url: str) -> None:
    for text in ("abba", "cab"):
        site.service.accept("ann", text)
    with lossy_proxy(url, 1) as (address, _), pytest.raises(httpx.RequestError):
        make_client(address).undo(user="ann")
    profile = site.service.show("ann")
    assert profile is not None
    assert [text.text for text in profile.texts] == ["abba"]
