"""Work that cannot be finished in time is refused at once, and work for a disconnected client is not started."""

import asyncio
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from factorcell.service.http.lanes import Lane, TimeLimit
from factorcell.service.http.problems import DisconnectedError, ProblemError


async def never() -> None:
    await asyncio.Event().wait()


def within(seconds: float) -> float:
    return time.monotonic() + seconds


def waiting_work(event: threading.Event) -> Callable[[TimeLimit], str]:
    def work(limit: TimeLimit) -> str:
        assert event.wait(10)
        return "done"

    return work


def seconds_left(limit: TimeLimit) -> float:
    return limit.deadline - time.monotonic()


def run(scenario: Callable[[Lane], Any], threads: int = 1, max_waiting: int = 2, min_seconds: float = math.inf) -> None:
    lane = Lane("test", threads, max_waiting, min_seconds)
    try:
        asyncio.run(scenario(lane))
    finally:
        lane.close()


def test_results_and_errors_are_returned() -> None:
    async def scenario(lane: Lane) -> None:
        def fail(limit: TimeLimit) -> None:
            raise KeyError("x")

        assert 4 < await lane.run(seconds_left, within(5), never) <= 5
        with pytest.raises(KeyError):
            await lane.run(fail, within(5), never)
        assert (lane.waiting_count, lane.running_count) == (0, 0)

    run(scenario)


def test_queue_is_bounded() -> None:
    async def scenario(lane: Lane) -> None:
        event = threading.Event()
        running = [asyncio.ensure_future(lane.run(waiting_work(event), within(5), never)) for _ in range(3)]
        await asyncio.sleep(0.05)
        with pytest.raises(ProblemError) as refused:
            await lane.run(waiting_work(event), within(5), never)
        assert (refused.value.kind, int(refused.value.headers["Retry-After"])) == ("overloaded", 1)
        event.set()
        assert await asyncio.gather(*running) == ["done"] * 3

    run(scenario)


def test_work_that_would_be_late_is_refused_at_once() -> None:
    async def scenario(lane: Lane) -> None:
        lane.mean_seconds = 1.0
        event = threading.Event()
        running = [asyncio.ensure_future(lane.run(waiting_work(event), within(9), never)) for _ in range(2)]
        await asyncio.sleep(0.05)
        assert lane.expected_seconds() == 3.0
        with pytest.raises(ProblemError) as refused:
            await lane.run(waiting_work(event), within(2.9), never)
        assert refused.value.headers["Retry-After"] == "3"
        running.append(asyncio.ensure_future(lane.run(waiting_work(event), within(3.1), never)))
        event.set()
        await asyncio.gather(*running)

    run(scenario, max_waiting=3)


def test_idle_lane_accepts_work_regardless_of_past_durations() -> None:
    async def scenario(lane: Lane) -> None:
        lane.mean_seconds = 100.0
        assert await lane.run(lambda limit: "done", within(0.5), never) == "done"

    run(scenario)


def test_work_of_a_disconnected_client_is_not_started() -> None:
    async def scenario(lane: Lane) -> None:
        event, started = threading.Event(), list[TimeLimit]()
        first = asyncio.ensure_future(lane.run(waiting_work(event), within(5), never))
        await asyncio.sleep(0.05)

        async def disconnected() -> None:
            await asyncio.sleep(0.02)

        with pytest.raises(DisconnectedError):
            await lane.run(started.append, within(5), disconnected)
        assert lane.waiting_count == 0
        event.set()
        await first
        assert await lane.run(lambda limit: "next", within(5), never) == "next"
        assert started == []

    run(scenario)


def test_running_work_is_stopped_on_disconnection_and_not_counted() -> None:
    async def scenario(lane: Lane) -> None:
        left, ended = asyncio.Event(), threading.Event()

        async def disconnected() -> None:
            await left.wait()

        def work(limit: TimeLimit) -> None:
            while not limit.stop.is_set:
                time.sleep(0.002)
            ended.set()

        for disconnect in (left.set, None):
            running = asyncio.ensure_future(lane.run(work, within(5), disconnected))
            await asyncio.sleep(0.05)
            disconnect() if disconnect else running.cancel()
            with pytest.raises(DisconnectedError if disconnect else asyncio.CancelledError):
                await running
            left.clear()
            assert await asyncio.to_thread(ended.wait, 5)
            ended.clear()
        assert await lane.run(lambda limit: limit.stop.is_set, within(5), never) is False
        assert lane.mean_seconds < 0.04

    run(scenario)


def test_work_that_can_be_cut_short_shares_the_time_left() -> None:
    async def scenario(lane: Lane) -> None:
        event = threading.Event()
        first = asyncio.ensure_future(lane.run(waiting_work(event), within(5), never))
        await asyncio.sleep(0.02)
        rest = [asyncio.ensure_future(lane.run(seconds_left, within(seconds), never)) for seconds in (9, 9, 1, 9)]
        await asyncio.sleep(0.02)
        event.set()
        await first
        shares = await asyncio.gather(*rest)
        assert [round(share) for share in shares] == [1, 2, 1, 8]
        assert 0.5 < shares[2] <= 0.8, "the minimum time, although half of the time left is less"

    run(scenario, max_waiting=9, min_seconds=0.8)


def test_work_that_can_be_cut_short_shares_the_time_with_other_running_work() -> None:
    async def scenario(lane: Lane) -> None:
        event = threading.Event()
        first = asyncio.ensure_future(lane.run(waiting_work(event), within(5), never))
        await asyncio.sleep(0.02)
        assert round(await lane.run(seconds_left, within(10), never)) == 5
        event.set()
        await first
        assert round(await lane.run(seconds_left, within(10), never)) == 9

    run(scenario, threads=2, min_seconds=0.8)


def test_work_that_waited_past_its_deadline_is_not_started() -> None:
    async def scenario(lane: Lane) -> None:
        started: list[TimeLimit] = []
        running = asyncio.ensure_future(lane.run(lambda limit: time.sleep(0.2), within(5), never))
        await asyncio.sleep(0.02)
        with pytest.raises(ProblemError, match="overloaded"):
            await lane.run(started.append, within(0.05), never)
        await running
        assert started == []

    run(scenario)


def test_accepted_work_is_in_time_at_ten_times_the_load() -> None:

    async def scenario(lane: Lane) -> None:
        times, refused = list[float](), list[float]()

        async def send() -> None:
            start = time.monotonic()
            try:
                await lane.run(lambda limit: time.sleep(0.01), within(0.1), never)
                times.append(time.monotonic() - start)
            except ProblemError:
                refused.append(time.monotonic() - start)

        await send()
        tasks = []
        for _ in range(400):
            tasks.append(asyncio.ensure_future(send()))
            await asyncio.sleep(0.001)
        await asyncio.gather(*tasks)
        assert len(times) > 20
        assert len(refused) > 200
        assert sorted(times)[int(len(times) * 0.95)] < 0.2  # allows for a busy machine
        assert sorted(refused)[len(refused) // 2] < 0.02

    run(scenario, max_waiting=256)
