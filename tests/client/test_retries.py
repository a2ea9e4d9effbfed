"""What is sent again, when, and how often: nothing that counts is lost or done twice."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from factorcell.client import BusyError, RetryPolicy, ServiceError, UnreachableError, clients, retries
from factorcell.config import UserError
from factorcell.service.http.site import Site
from tests.client.both import ask
from tests.client.conftest import Make
from tests.service.stores.proxy import Proxy

QUICK = RetryPolicy(first_pause=0.01, deadline=120, timeout=60)
OK = httpx.Response(200, json={"status": "ok"})
REMOVED = httpx.Response(200, json={"removed": 1})


class Clock:
    """Time that passes where one sleeps, and nowhere else."""

    def __init__(self) -> None:
        self.now, self.slept = 1000.0, list[float]()

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    async def sleep_too(self, seconds: float) -> None:
        self.sleep(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(retries, "monotonic", lambda: made.now)
    monkeypatch.setattr(retries, "uniform", lambda least, most: most)
    monkeypatch.setattr(clients, "sleep", made.sleep)
    monkeypatch.setattr(clients, "async_sleep", made.sleep_too)
    return made


def busy(status: int, retry: str | None = None, kind: str = "overloaded") -> httpx.Response:
    problem = {"type": f"/docs#{kind}", "title": "Busy", "status": status, "detail": "not now"}
    return httpx.Response(status, json=problem, headers={} if retry is None else {"Retry-After": retry})


def scripted(*answers: httpx.Response | Exception) -> tuple[Callable[[httpx.Request], httpx.Response], list[bytes]]:
    left, bodies = list(answers), list[bytes]()

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(request.content)
        given = left.pop(0)
        if isinstance(given, Exception):
            raise given
        return httpx.Response(given.status_code, content=given.content, headers=given.headers)

    return answer, bodies


@contextmanager
def losing(url: str, count: int) -> Iterator[tuple[str, Proxy]]:
    proxy, left = Proxy(url), [count]

    def cuts() -> bool:
        left[0] -= 1
        return left[0] >= 0

    proxy.cuts = cuts
    try:
        yield proxy.url, proxy
    finally:
        proxy.close()


@pytest.mark.parametrize("lost", [1, 3])
def test_accept_whose_answer_is_lost_counts_once(make: Make, site: Site, url: str, lost: int) -> None:
    with losing(url, lost) as (at, _):
        client = make(at, patience=QUICK)
        answer = client.accept(user="ann", text="abba")
    assert answer.outcome == "repeated"
    kept = site.service.show("ann")
    assert kept is not None
    assert [one.text for one in kept.texts] == ["abba"]
    assert answer.user_version == kept.version


def test_undo_whose_answer_is_lost_is_not_repeated(make: Make, site: Site, url: str) -> None:
    for text in ("abba", "cab"):
        site.service.accept("ann", text)
    with losing(url, 1) as (at, _), pytest.raises(UnreachableError) as raised:
        make(at, patience=QUICK).undo("ann")
    assert (raised.value.attempts, raised.value.may_have_run) == (1, True)
    kept = site.service.show("ann")
    assert kept is not None
    assert [one.text for one in kept.texts] == ["abba"]


def test_pauses_double_up_to_the_longest(make: Make, clock: Clock) -> None:
    handler, bodies = scripted(*[busy(503)] * 6)
    patience = RetryPolicy(deadline=1000, max_attempts=6, first_pause=0.5, max_pause=3)
    with pytest.raises(BusyError, match=r"\(tried 6 times\)") as raised:
        make("http://h", handler=handler, patience=patience).complete(query="a")
    assert clock.slept == [0.5, 1, 2, 3, 3]
    assert (len(bodies), raised.value.attempts, raised.value.kind) == (6, 6, "overloaded")


def test_retry_after_is_heeded(make: Make, clock: Clock) -> None:
    handler, _ = scripted(busy(429, "7", "too-many"), busy(503, "2"), httpx.Response(200, json={"results": []}))
    patience = RetryPolicy(first_pause=0.25)
    assert make("http://h", handler=handler, patience=patience).complete(query="a").results == []
    assert clock.slept == [7.25, 2.5]


def test_nobody_waits_for_what_comes_too_late(make: Make, clock: Clock) -> None:
    handler, bodies = scripted(busy(503, "1"), busy(503, "60"))
    with pytest.raises(BusyError) as raised:
        make("http://h", handler=handler, patience=RetryPolicy(deadline=30)).complete(query="a")
    assert (raised.value.retry_after, raised.value.attempts, len(bodies)) == (60, 2, 2)
    assert len(clock.slept) == 1


@pytest.mark.parametrize(
    ("name", "args", "answer", "again"),
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
def test_only_what_is_safe_is_sent_again(
    make: Make, clock: Clock, name: str, args: tuple[str, ...], answer: httpx.Response | Exception, again: bool
) -> None:
    handler, bodies = scripted(answer, REMOVED if name != "ready" else OK)
    client = make("http://h", handler=handler)
    if again:
        assert ask(client, name, *args).removed == 1
    else:
        with pytest.raises(ServiceError):
            ask(client, name, *args)
    assert len(bodies) == 1 + again


def test_text_that_breaks_off_is_not_begun_again(make: Make, clock: Clock) -> None:
    handler, bodies = scripted(busy(503), httpx.Response(200, content=b'data: {"text":"ab"}\n\n'))
    pieces = make("http://h", handler=handler).generate()
    assert next(pieces).text == "ab"
    with pytest.raises(UnreachableError, match="broke off"):
        next(pieces)
    assert len(bodies) == 2


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"deadline": 0}, "deadline"), ({"timeout": -1}, "timeout"), ({"tries": 0}, "tries"), ({"first": 0}, "first")],
)
def test_what_is_no_patience(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=f"{said} is"):
        RetryPolicy(**wrong)
