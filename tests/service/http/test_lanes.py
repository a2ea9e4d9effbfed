"""Lanes: what cannot be done in time is refused at once, and what nobody waits for is not begun."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from factorcell.service.http.lanes import GoneError, Lane
from factorcell.service.http.problems import ProblemError


async def never() -> None:
    """Somebody who waits."""
    await asyncio.Event().wait()


def held(event: threading.Event) -> Callable[[float], str]:
    """Work that takes until the event."""

    def work(left: float) -> str:
        assert event.wait(10)
        return "done"

    return work


def run(scenario: Callable[[Lane], Any], threads: int = 1, room: int = 2) -> None:
    """A scenario with a lane of its own."""
    lane = Lane("test", threads, room)
    try:
        asyncio.run(scenario(lane))
    finally:
        lane.close()


def test_errors_and_answers_come_back() -> None:
    async def scenario(lane: Lane) -> None:
        def fail(left: float) -> None:
            raise KeyError("x")

        assert 4 < await lane.run(lambda left: left, 5, never) <= 5
        with pytest.raises(KeyError):
            await lane.run(fail, 5, never)
        assert (lane.waiting, lane.running) == (0, 0)

    run(scenario)


def test_queue_is_bounded() -> None:
    async def scenario(lane: Lane) -> None:
        event = threading.Event()
        doing = [asyncio.ensure_future(lane.run(held(event), 5, never)) for _ in range(3)]
        await asyncio.sleep(0.05)
        with pytest.raises(ProblemError) as refused:
            await lane.run(held(event), 5, never)
        assert (refused.value.kind, int(refused.value.headers["Retry-After"])) == ("overloaded", 1)
        event.set()
        assert await asyncio.gather(*doing) == ["done"] * 3

    run(scenario)


def test_what_would_be_late_is_refused_at_once() -> None:
    async def scenario(lane: Lane) -> None:
        lane.mean = 1.0
        event = threading.Event()
        doing = [asyncio.ensure_future(lane.run(held(event), 9, never)) for _ in range(2)]
        await asyncio.sleep(0.05)
        assert lane.expected() == 3.0
        with pytest.raises(ProblemError) as refused:
            await lane.run(held(event), 2.9, never)
        assert refused.value.headers["Retry-After"] == "3"
        event.set()
        await asyncio.gather(*doing)

    run(scenario)


def test_idle_lane_takes_anything() -> None:
    """However long work took before: else a slow start would never be forgotten."""

    async def scenario(lane: Lane) -> None:
        lane.mean = 100.0
        assert await lane.run(lambda left: "done", 0.5, never) == "done"
        assert lane.mean < 100

    run(scenario)


def test_what_nobody_waits_for_is_not_begun() -> None:
    async def scenario(lane: Lane) -> None:
        event, left = threading.Event(), asyncio.Event()
        begun: list[float] = []
        doing = asyncio.ensure_future(lane.run(held(event), 5, never))
        await asyncio.sleep(0.02)
        leaving = asyncio.ensure_future(lane.run(begun.append, 5, left.wait))
        await asyncio.sleep(0.02)
        assert lane.waiting == 1
        left.set()
        with pytest.raises(GoneError):
            await leaving
        assert lane.waiting == 0
        cancelled = asyncio.ensure_future(lane.run(begun.append, 5, never))
        await asyncio.sleep(0.02)
        cancelled.cancel()
        await asyncio.sleep(0.02)
        assert lane.waiting == 0
        event.set()
        await doing
        assert await lane.run(lambda left: "next", 5, never) == "next"
        assert begun == []

    run(scenario)


def test_what_waited_too_long_is_not_begun() -> None:
    async def scenario(lane: Lane) -> None:
        begun: list[float] = []
        doing = asyncio.ensure_future(lane.run(lambda left: time.sleep(0.2), 5, never))
        await asyncio.sleep(0.02)
        with pytest.raises(ProblemError, match="overloaded"):
            await lane.run(begun.append, 0.05, never)
        await doing
        assert begun == []

    run(scenario)


def test_at_ten_times_the_load_what_is_let_in_is_in_time() -> None:
    """Work of 10 ms in one thread, a request every millisecond, 100 ms for each."""

    async def scenario(lane: Lane) -> None:
        times: list[float] = []
        refused: list[float] = []

        async def ask() -> None:
            began = time.monotonic()
            try:
                await lane.run(lambda left: time.sleep(0.01), 0.1, never)
                times.append(time.monotonic() - began)
            except ProblemError:
                refused.append(time.monotonic() - began)

        await ask()
        asking = []
        for _ in range(400):
            asking.append(asyncio.ensure_future(ask()))
            await asyncio.sleep(0.001)
        await asyncio.gather(*asking)
        assert len(times) > 20
        assert len(refused) > 200
        assert sorted(times)[int(len(times) * 0.95)] < 0.2  # the machine of a test may be busy
        assert sorted(refused)[len(refused) // 2] < 0.02

    run(scenario, room=256)
