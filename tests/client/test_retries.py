"""Which calls are sent again, when and how often: no operation is lost or performed twice."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from factorcell.client import BusyError, RetryPolicy, ServiceError, UnreachableError, clients, retries
from factorcell.errors import UserError
from factorcell.service.http.site import Site
from tests.client.both import call
from tests.client.conftest import MakeClient
from tests.service.stores.proxy import Proxy

QUICK = RetryPolicy(first_pause=0.01, deadline=120, timeout=60)
OK = httpx.Response(200, json={"status": "ok"})
REMOVED = httpx.Response(200, json={"removed": 1})


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
    monkeypatch.setattr(retries, "monotonic", lambda: fake.now)
    monkeypatch.setattr(retries, "uniform", lambda low, high: high)
    monkeypatch.setattr(clients, "sleep", fake.sleep)
    monkeypatch.setattr(clients, "async_sleep", fake.async_sleep)
    return fake


def busy(status: int, retry: str | None = None, kind: str = "overloaded") -> httpx.Response:
    problem = {"type": f"/docs#{kind}", "title": "Busy", "status": status, "detail": "not now"}
    return httpx.Response(status, json=problem, headers={} if retry is None else {"Retry-After": retry})


def scripted(*answers: httpx.Response | Exception) -> tuple[Callable[[httpx.Request], httpx.Response], list[bytes]]:
    remaining, bodies = list(answers), list[bytes]()

    def handle(request: httpx.Request) -> httpx.Response:
        bodies.append(request.content)
        answer = remaining.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer.status_code, content=answer.content, headers=answer.headers)

    return handle, bodies


@contextmanager
def lossy_proxy(url: str, count: int) -> Iterator[tuple[str, Proxy]]:
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
        client = make_client(address, retry_policy=QUICK)
        answer = client.accept(user="ann", text="abba")
    assert answer.outcome == "repeated"
    profile = site.service.show("ann")
    assert profile is not None
    assert [text.text for text in profile.texts] == ["abba"]
    assert answer.user_version == profile.version


def test_undo_with_a_lost_response_is_not_repeated(make_client: MakeClient, site: Site, url: str) -> None:
    for text in ("abba", "cab"):
        site.service.accept("ann", text)
    with lossy_proxy(url, 1) as (address, _), pytest.raises(UnreachableError) as raised:
        make_client(address, retry_policy=QUICK).undo("ann")
    assert (raised.value.attempts, raised.value.may_have_run) == (1, True)
    profile = site.service.show("ann")
    assert profile is not None
    assert [text.text for text in profile.texts] == ["abba"]


def test_pauses_double_up_to_the_maximum(make_client: MakeClient, clock: Clock) -> None:
    handler, bodies = scripted(*[busy(503)] * 6)
    policy = RetryPolicy(deadline=1000, max_attempts=6, first_pause=0.5, max_pause=3)
    with pytest.raises(BusyError, match=r"\(tried 6 times\)") as raised:
        make_client("http://h", handler=handler, retry_policy=policy).complete(query="a")
    assert clock.slept == [0.5, 1, 2, 3, 3]
    assert (len(bodies), raised.value.attempts, raised.value.kind) == (6, 6, "overloaded")


def test_retry_after_is_respected(make_client: MakeClient, clock: Clock) -> None:
    handler, _ = scripted(busy(429, "7", "too-many"), busy(503, "2"), httpx.Response(200, json={"results": []}))
    policy = RetryPolicy(first_pause=0.25)
    assert make_client("http://h", handler=handler, retry_policy=policy).complete(query="a").results == []
    assert clock.slept == [7.25, 2.5]


def test_client_does_not_wait_beyond_its_deadline(make_client: MakeClient, clock: Clock) -> None:
    handler, bodies = scripted(busy(503, "1"), busy(503, "60"))
    with pytest.raises(BusyError) as raised:
        make_client("http://h", handler=handler, retry_policy=RetryPolicy(deadline=30)).complete(query="a")
    assert (raised.value.retry_after, raised.value.attempts, len(bodies)) == (60, 2, 2)
    assert len(clock.slept) == 1


@pytest.mark.parametrize(
    ("name", "args", "answer", "is_repeated"),
    [
        ("undo", ("ann",), httpx.ConnectError("refused"), True),
        ("undo", ("ann",), httpx.PoolTimeout("full"), True),
        ("undo", ("ann",), busy(503), True),
        ("undo", ("ann",), busy(429, kind="too-many"), True),
        ("undo", ("ann",), busy(503, kind="no-store"), False),
        ("undo", ("ann",), httpx.Response(503), False),
        ("undo", ("ann",), httpx.Response(502), False),
        ("undo", ("ann",), httpx.ReadTimeout("slow"), False),
        ("undo", ("ann",), httpx.WriteError("reset"), False),
        ("forget", ("ann", "a"), httpx.Response(502), True),
        ("forget", ("ann", "a"), busy(503, kind="no-store"), True),
        ("forget", ("ann", "a"), httpx.RemoteProtocolError("closed"), True),
        ("forget", ("ann", "a"), httpx.Response(500), False),
        ("forget", ("ann", "a"), httpx.Response(404), False),
        ("forget", ("ann", "a"), httpx.Response(302), False),
        ("ready", (), busy(503, kind="no-store"), False),
        ("ready", (), httpx.ConnectError("refused"), False),
    ],
)
def test_only_safe_calls_are_repeated(
    make_client: MakeClient,
    clock: Clock,
    name: str,
    args: tuple[str, ...],
    answer: httpx.Response | Exception,
    is_repeated: bool,
) -> None:
    handler, bodies = scripted(answer, REMOVED if name != "ready" else OK)
    client = make_client("http://h", handler=handler)
    if is_repeated:
        assert call(client, name, *args).removed == 1
    else:
        with pytest.raises(ServiceError):
            call(client, name, *args)
    assert len(bodies) == 1 + is_repeated


def test_cut_off_text_is_not_requested_again(make_client: MakeClient, clock: Clock) -> None:
    handler, bodies = scripted(busy(503), httpx.Response(200, content=b'data: {"text":"ab"}\n\n'))
    chunks = make_client("http://h", handler=handler).generate()
    assert next(chunks).text == "ab"
    with pytest.raises(UnreachableError, match="cut off"):
        next(chunks)
    assert len(bodies) == 2


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"deadline": 0}, "deadline"),
        ({"timeout": -1}, "timeout"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"first_pause": 0}, "first_pause"),
    ],
)
def test_invalid_policies_are_refused(values: dict[str, Any], field: str) -> None:
    with pytest.raises(UserError, match=f"{field} is"):
        RetryPolicy(**values)
