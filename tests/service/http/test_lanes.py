"""Lanes: what cannot be done in time is refused at once, and what nobody waits for is not begun."""

import asyncio
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from factorcell.service.http.lanes import HOPE, GoneError, Lane, Turn
from factorcell.service.http.problems import ProblemError


async def never() -> None:
    await asyncio.Event().wait()


def held(event: threading.Event) -> Callable[[Turn], str]:

    def work(turn: Turn) -> str:
        assert event.wait(10)
        return "done"

    return work


def run(scenario: Callable[[Lane], Any], threads: int = 1, room: int = 2, least: float = math.inf) -> None:
    lane = Lane("test", threads, room, least)
    try:
        asyncio.run(scenario(lane))
    finally:
        lane.close()


def test_errors_and_answers_come_back() -> None:
    async def scenario(lane: Lane) -> None:
        def fail(turn: Turn) -> None:
            raise KeyError("x")

        assert 4 < await lane.run(lambda turn: turn.seconds, 5, never) <= 5
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
            await lane.run(held(event), 3 / HOPE - 0.01, never)
        assert refused.value.headers["Retry-After"] == "3"
        doing.append(asyncio.ensure_future(lane.run(held(event), 3 / HOPE + 0.01, never)))
        event.set()
        await asyncio.gather(*doing)

    run(scenario, room=3)


def test_idle_lane_takes_anything() -> None:

    async def scenario(lane: Lane) -> None:
        lane.mean = 100.0
        assert await lane.run(lambda turn: "done", 0.5, never) == "done"
        assert lane.mean < 100

    run(scenario)


def test_what_nobody_waits_for_is_not_begun() -> None:
    async def scenario(lane: Lane) -> None:
        event, left = threading.Event(), asyncio.Event()
        begun: list[Turn] = []
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
        assert await lane.run(lambda turn: "next", 5, never) == "next"
        assert begun == []

    run(scenario)


def test_what_nobody_waits_for_any_more_is_stopped() -> None:

    async def scenario(lane: Lane) -> None:
        left, ended = asyncio.Event(), threading.Event()

        def work(turn: Turn) -> None:
            while not turn.stop.is_set:
                time.sleep(0.002)
            ended.set()

        for leave in (left.set, None):
            doing = asyncio.ensure_future(lane.run(work, 5, left.wait))
            await asyncio.sleep(0.05)
            leave() if leave else doing.cancel()
            with pytest.raises(GoneError if leave else asyncio.CancelledError):
                await doing
            left.clear()
            assert await asyncio.to_thread(ended.wait, 5)
            ended.clear()
        assert await lane.run(lambda turn: turn.stop.is_set, 5, never) is False
        assert lane.mean < 0.04

    run(scenario)


def test_what_can_be_cut_short_gets_a_share_of_its_time() -> None:

    async def scenario(lane: Lane) -> None:
        event = threading.Event()
        first = asyncio.ensure_future(lane.run(held(event), 5, never))
        await asyncio.sleep(0.02)
        rest = [asyncio.ensure_future(lane.run(lambda turn: turn.seconds, seconds, never)) for seconds in (9, 9, 1, 9)]
        await asyncio.sleep(0.02)
        event.set()
        await first
        shares = await asyncio.gather(*rest)
        assert [round(share) for share in shares] == [2, 3, 1, 9]
        assert 0.5 < shares[2] <= 0.8, "what it needs, though half of its time would be less"

    run(scenario, room=9, least=0.8)


def test_what_can_be_cut_short_counts_for_what_it_needs() -> None:

    async def scenario(lane: Lane) -> None:
        await lane.run(lambda turn: time.sleep(turn.seconds), 0.2, never)
        assert 0.01 <= lane.mean < 0.1

    async def too_long(lane: Lane) -> None:
        await lane.run(lambda turn: time.sleep(turn.seconds + 0.2), 0.1, never)
        assert lane.mean >= 0.21

    run(scenario, least=0.01)
    run(too_long, least=0.01)


def test_one_who_types_fast_is_not_refused() -> None:

    async def scenario(lane: Lane) -> None:
        def search(turn: Turn) -> None:
            end = time.monotonic() + 0.9 * turn.seconds
            while time.monotonic() < end and not turn.stop.is_set:
                time.sleep(0.002)

        answered = 0
        for _ in range(30):
            left = asyncio.Event()
            asking = asyncio.ensure_future(lane.run(search, 0.3, left.wait))
            await asyncio.wait({asking}, timeout=0.03)
            left.set()
            try:
                await asking
                answered += 1
            except GoneError:
                pass
        assert answered < 30
        assert lane.expected() < 0.1

    run(scenario, threads=2, room=256, least=0.003)


def test_what_waited_too_long_is_not_begun() -> None:
    async def scenario(lane: Lane) -> None:
        begun: list[Turn] = []
        doing = asyncio.ensure_future(lane.run(lambda turn: time.sleep(0.2), 5, never))
        await asyncio.sleep(0.02)
        with pytest.raises(ProblemError, match="overloaded"):
            await lane.run(begun.append, 0.05, never)
        await doing
        assert begun == []

    run(scenario)


def test_at_ten_times_the_load_what_is_let_in_is_in_time() -> None:

    async def scenario(lane: Lane) -> None:
        times: list[float] = []
        refused: list[float] = []

        async def ask() -> None:
            began = time.monotonic()
            try:
                await lane.run(lambda turn: time.sleep(0.01), 0.1, never)
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
