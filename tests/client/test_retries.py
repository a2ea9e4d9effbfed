"""What is sent again, when, and how often: nothing that counts is lost or done twice."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorcell.client import BusyError, FailedError, Patience, UnreachableError, asynchronous, blocking, calls, trying
from factorcell.client.errors import ServiceError, refused
from factorcell.client.trying import Attempts
from factorcell.config import UserError
from factorcell.service.http.messages import Problem
from factorcell.service.http.site import Site
from tests.client.both import ask
from tests.client.conftest import Make
from tests.service.stores.proxy import Proxy

QUICK = Patience(first=0.01, deadline=120, timeout=60)
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
    monkeypatch.setattr(trying, "monotonic", lambda: made.now)
    monkeypatch.setattr(trying, "uniform", lambda least, most: most)
    monkeypatch.setattr(blocking, "sleep", made.sleep)
    monkeypatch.setattr(asynchronous, "sleep", made.sleep_too)
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
    assert (raised.value.tries, raised.value.begun) == (1, True)
    kept = site.service.show("ann")
    assert kept is not None
    assert [one.text for one in kept.texts] == ["abba"]


@pytest.mark.parametrize(("name", "args"), [("complete", {"query": "a"}), ("generate", {"prompt": "a"})])
def test_what_changes_nothing_is_asked_again(make: Make, url: str, name: str, args: dict[str, Any]) -> None:
    expected = ask(make(url), name, **args)
    with losing(url, 2) as (at, _):
        assert ask(make(at, patience=QUICK), name, **args) == expected


def test_same_body_is_sent_at_each_try(make: Make, clock: Clock) -> None:
    accepted = httpx.Response(200, json={"outcome": "learned"})
    handler, bodies = scripted(httpx.ReadError("reset"), busy(503), accepted)
    assert make("http://h", handler=handler).accept(user="ann", text="a").outcome == "learned"
    assert len(bodies) == 3
    assert len(set(bodies)) == 1


def test_pauses_double_up_to_the_longest(make: Make, clock: Clock) -> None:
    handler, bodies = scripted(*[busy(503)] * 6)
    patience = Patience(deadline=1000, tries=6, first=0.5, longest=3)
    with pytest.raises(BusyError, match=r"\(tried 6 times\)") as raised:
        make("http://h", handler=handler, patience=patience).complete(query="a")
    assert clock.slept == [0.5, 1, 2, 3, 3]
    assert (len(bodies), raised.value.tries, raised.value.kind) == (6, 6, "overloaded")


def test_retry_after_is_heeded(make: Make, clock: Clock) -> None:
    handler, _ = scripted(busy(429, "7", "too-many"), busy(503, "2"), httpx.Response(200, json={"results": []}))
    patience = Patience(first=0.25)
    assert make("http://h", handler=handler, patience=patience).complete(query="a").results == []
    assert clock.slept == [7.25, 2.5]


def test_nobody_waits_for_what_comes_too_late(make: Make, clock: Clock) -> None:
    handler, bodies = scripted(busy(503, "1"), busy(503, "60"))
    with pytest.raises(BusyError) as raised:
        make("http://h", handler=handler, patience=Patience(deadline=30)).complete(query="a")
    assert (raised.value.retry_after, raised.value.tries, len(bodies)) == (60, 2, 2)
    assert len(clock.slept) == 1


@pytest.mark.parametrize(
    ("name", "args", "answer", "again"),
    [
        ("undo", ("ann",), httpx.ConnectError("refused"), True),
        ("undo", ("ann",), httpx.ConnectTimeout("slow"), True),
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
        ("forget", ("ann", "a"), httpx.DecodingError("no gzip"), True),
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


@pytest.mark.parametrize("name", ["complete", "generate"])
def test_answer_of_something_else(make: Make, clock: Clock, name: str) -> None:
    handler, _ = scripted(httpx.Response(404, content=b"<html>", headers={"Content-Type": "text/html"}))
    with pytest.raises(ServiceError, match=f"{name}: 404 Not Found$"):
        ask(make("http://h", handler=handler), name, **({"query": "a"} if name == "complete" else {}))
    handler, _ = scripted(httpx.Response(500, content=b"\xff"))
    with pytest.raises(FailedError):
        make("http://h", handler=handler).health()


@contextmanager
def trickling(head: bytes, every: float) -> Iterator[str]:
    stop = threading.Event()

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.sendall(head)
            while not stop.wait(every):
                connection.sendall(b" " if head else b"")

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            stop.set()
            listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"])
@pytest.mark.parametrize("name", ["complete", "generate"])
def test_deadline_ends_what_does_not_end(make: Make, head: bytes, name: str) -> None:
    with trickling(head, 0.02) as url, pytest.raises(UnreachableError):
        ask(make(url, patience=Patience(deadline=0.2)), name, **({"query": "a"} if name == "complete" else {}))


def test_other_patience_over_the_same_connections(make: Make, clock: Clock) -> None:
    handler, bodies = scripted(busy(503), busy(503), httpx.Response(200, json={"results": []}))
    client = make("http://h", handler=handler)
    with pytest.raises(BusyError):
        client.with_patience(Patience(tries=1)).complete(query="a")
    assert client.complete(query="a").results == []
    assert len(bodies) == 3


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"deadline": 0}, "deadline"), ({"timeout": -1}, "timeout"), ({"tries": 0}, "tries"), ({"first": 0}, "first")],
)
def test_what_is_no_patience(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=f"{said} is"):
        Patience(**wrong)


@given(st.floats(0.01, 100), st.floats(0.01, 10), st.floats(0.01, 100), st.integers(1, 8), st.lists(st.integers(0, 9)))
def test_no_try_begins_after_the_deadline(
    deadline: float, first: float, longest: float, tries: int, delays: list[int]
) -> None:
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trying, "monotonic", lambda: clock.now)
        attempts = Attempts(calls.complete(query="a"), Patience(deadline, 5, tries, first, longest))
        stop, begun = clock.now + deadline, 0
        problem = Problem(type="/docs#overloaded", title="", status=503, detail="")
        with suppress(BusyError):
            while True:
                assert clock.now < stop
                assert 0 < attempts.begin() <= 5
                begun += 1
                pause = attempts.pause(refused("complete", problem, float(delays.pop()) if delays else None))
                assert pause >= 0
                clock.sleep(pause)
        assert 1 <= begun <= tries
