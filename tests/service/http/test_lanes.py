"""Work that cannot be done in time is refused at once, and work that nobody waits for is not begun."""

import asyncio
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from factorcell.service.http.lanes import DisconnectedError, Lane, TimeLimit
from factorcell.service.http.problems import ProblemError


async def never() -> None:
    await asyncio.Event().wait()


def within(seconds: float) -> float:
    return time.monotonic() + seconds


def held(event: threading.Event) -> Callable[[TimeLimit], str]:
    def work(turn: TimeLimit) -> str:
        assert event.wait(10)
        return "done"

    return work


def left(turn: TimeLimit) -> float:
    return turn.deadline - time.monotonic()


def run(scenario: Callable[[Lane], Any], threads: int = 1, room: int = 2, least: float = math.inf) -> None:
    lane = Lane("test", threads, room, least)
    try:
        asyncio.run(scenario(lane))
    finally:
        lane.close()


def test_errors_and_answers_come_back() -> None:
    async def scenario(lane: Lane) -> None:
        def fail(turn: TimeLimit) -> None:
            raise KeyError("x")

        assert 4 < await lane.run(left, within(5), never) <= 5
        with pytest.raises(KeyError):
            await lane.run(fail, within(5), never)
        assert (lane.waiting, lane.running) == (0, 0)

    run(scenario)


def test_queue_is_bounded() -> None:
    async def scenario(lane: Lane) -> None:
        event = threading.Event()
        doing = [asyncio.ensure_future(lane.run(held(event), within(5), never)) for _ in range(3)]
        await asyncio.sleep(0.05)
        with pytest.raises(ProblemError) as refused:
            await lane.run(held(event), within(5), never)
        assert (refused.value.kind, int(refused.value.headers["Retry-After"])) == ("overloaded", 1)
        event.set()
        assert await asyncio.gather(*doing) == ["done"] * 3

    run(scenario)


def test_work_that_would_be_late_is_refused_at_once() -> None:
    async def scenario(lane: Lane) -> None:
        lane.mean = 1.0
        event = threading.Event()
        doing = [asyncio.ensure_future(lane.run(held(event), within(9), never)) for _ in range(2)]
        await asyncio.sleep(0.05)
        assert lane.expected() == 3.0
        with pytest.raises(ProblemError) as refused:
            await lane.run(held(event), within(2.9), never)
        assert refused.value.headers["Retry-After"] == "3"
        doing.append(asyncio.ensure_future(lane.run(held(event), within(3.1), never)))
        event.set()
        await asyncio.gather(*doing)

    run(scenario, room=3)


def test_idle_lane_takes_anything_however_long_work_took_before() -> None:
    async def scenario(lane: Lane) -> None:
        lane.mean = 100.0
        assert await lane.run(lambda turn: "done", within(0.5), never) == "done"

    run(scenario)


def test_work_that_nobody_waits_for_is_not_begun() -> None:
    async def scenario(lane: Lane) -> None:
        event, begun = threading.Event(), list[TimeLimit]()
        first = asyncio.ensure_future(lane.run(held(event), within(5), never))
        await asyncio.sleep(0.05)

        async def gone() -> None:
            await asyncio.sleep(0.02)

        with pytest.raises(DisconnectedError):
            await lane.run(begun.append, within(5), gone)
        assert lane.waiting == 0
        event.set()
        await first
        assert await lane.run(lambda turn: "next", within(5), never) == "next"
        assert begun == []

    run(scenario)


def test_work_is_stopped_when_nobody_waits_any_more_and_then_counts_nothing() -> None:
    async def scenario(lane: Lane) -> None:
        leaving, ended = asyncio.Event(), threading.Event()

        async def gone() -> None:
            await leaving.wait()

        def work(turn: TimeLimit) -> None:
            while not turn.stop.is_set:
                time.sleep(0.002)
            ended.set()

        for leave in (leaving.set, None):
            doing = asyncio.ensure_future(lane.run(work, within(5), gone))
            await asyncio.sleep(0.05)
            leave() if leave else doing.cancel()
            with pytest.raises(DisconnectedError if leave else asyncio.CancelledError):
                await doing
            leaving.clear()
            assert await asyncio.to_thread(ended.wait, 5)
            ended.clear()
        assert await lane.run(lambda turn: turn.stop.is_set, within(5), never) is False
        assert lane.mean < 0.04

    run(scenario)


def test_work_that_can_be_cut_short_shares_its_time_with_what_waits() -> None:
    async def scenario(lane: Lane) -> None:
        event = threading.Event()
        first = asyncio.ensure_future(lane.run(held(event), within(5), never))
        await asyncio.sleep(0.02)
        rest = [asyncio.ensure_future(lane.run(left, within(seconds), never)) for seconds in (9, 9, 1, 9)]
        await asyncio.sleep(0.02)
        event.set()
        await first
        shares = await asyncio.gather(*rest)
        assert [round(share) for share in shares] == [2, 3, 1, 9]
        assert 0.5 < shares[2] <= 0.8, "what it needs, though half of its time would be less"

    run(scenario, room=9, least=0.8)


def test_work_that_waited_too_long_is_not_begun() -> None:
    async def scenario(lane: Lane) -> None:
        begun: list[TimeLimit] = []
        doing = asyncio.ensure_future(lane.run(lambda turn: time.sleep(0.2), within(5), never))
        await asyncio.sleep(0.02)
        with pytest.raises(ProblemError, match="overloaded"):
            await lane.run(begun.append, within(0.05), never)
        await doing
        assert begun == []

    run(scenario)


def test_at_ten_times_the_load_admitted_work_is_in_time() -> None:

    async def scenario(lane: Lane) -> None:
        times, refused = list[float](), list[float]()

        async def ask() -> None:
            began = time.monotonic()
            try:
                await lane.run(lambda turn: time.sleep(0.01), within(0.1), never)
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
