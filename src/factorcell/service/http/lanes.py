"""Thread pools ("lanes") that run blocking work, and refuse work that they cannot finish in time.

    expected = (floor(waiting / threads) + 2) * mean
    allotted = remaining / (1 + waiting)
    limit = min(0.9 remaining, remaining / (1 + running + 2 waiting))

`waiting` requests wait for one of the `threads` of a lane, and `running` other threads work. Recent work needed `mean`
seconds on average, and new work would be done after `expected` seconds. The lane refuses work that must be done
earlier.

Work that can be cut short (a search) starts with `remaining` seconds until its deadline. It is cut after `limit`
seconds, but not before `min_seconds`, so that its answer can be written within the `allotted` seconds. The mean counts
the first `min_seconds` of such work, and the seconds that it used beyond its allotted ones.

Each kind of work has its own lane, so that no kind can keep another from running.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import TypeVar

from factorcell.completion.search import Stop
from factorcell.service.http.problems import ProblemError

T = TypeVar("T")

SMOOTHING = 0.05  # weight of the newest work in the moving mean of the seconds that work needed
SEARCH_SHARE = 0.9  # share of the remaining time that work which can be cut short may use
BUSY = "too many requests are waiting; nothing was done, try again later"


class DisconnectedError(Exception):
    """The client has disconnected."""


@dataclass(frozen=True)
class TimeLimit:
    """The time limit of work, which must end at `deadline` (`time.monotonic()`), or as soon as `stop` is set."""

    deadline: float
    stop: Stop


DisconnectWaiter = Callable[[], Awaitable[None]]  # returns when the client has disconnected


class Lane:
    """A pool of threads with a bounded queue.

    Args:
        name: The name of the lane in thread names and metrics.
        threads: Number of threads.
        max_waiting: Maximum number of waiting requests.
        min_seconds: Minimum seconds for work that can be cut short; infinite (the default) if work cannot be cut short.
    """

    def __init__(self, name: str, threads: int, max_waiting: int, min_seconds: float = math.inf) -> None:
        self.name, self.threads, self.max_waiting, self.min_seconds = name, threads, max_waiting, min_seconds
        self.mean_seconds, self.waiting_count, self.running_count = 0.0, 0, 0
        self._lock = Lock()
        self._pool = ThreadPoolExecutor(threads, f"factorcell-{name}")

    def expected_seconds(self) -> float:
        """Return the seconds after which new work would be done, or 0 if a thread is idle."""
        if self.waiting_count + self.running_count < self.threads:
            return 0.0
        return (math.floor(self.waiting_count / self.threads) + 2) * self.mean_seconds

    async def run(self, work: Callable[[TimeLimit], T], deadline: float, wait_for_disconnect: DisconnectWaiter) -> T:
        """Run `work` in a thread and return its result.

        When `wait_for_disconnect` returns, the lane drops waiting work and stops running work.

        Args:
            work: Called with its time limit.
            deadline: The `time.monotonic()` at which the work must be done.
            wait_for_disconnect: Returns when the client has disconnected.

        Raises:
            ProblemError: The work cannot be finished by the deadline.
            DisconnectedError: The client has disconnected.
        """
        stop = Stop()
        with self._lock:
            if self.waiting_count >= self.max_waiting or self.expected_seconds() > deadline - time.monotonic():
                raise ProblemError("overloaded", BUSY, retry_after=self.expected_seconds())
            self.waiting_count += 1
        thread_future = self._pool.submit(self._run_in_thread, work, deadline, stop)
        loop = asyncio.get_running_loop()
        ended = loop.create_future()  # when the work is done or the client has disconnected

        def end(_: object) -> None:
            if not ended.done():
                ended.set_result(None)

        def end_from_thread(_: object) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(end, None)

        disconnect_task = asyncio.ensure_future(wait_for_disconnect())
        disconnect_task.add_done_callback(end)
        thread_future.add_done_callback(end_from_thread)
        try:
            await ended
            if not thread_future.done():
                raise DisconnectedError
            return thread_future.result()
        finally:
            disconnect_task.cancel()
            if thread_future.cancel():
                with self._lock:
                    self.waiting_count -= 1
            stop.set()

    async def stream(
        self, work: Callable[[TimeLimit], Iterator[T]], deadline: float, wait_for_disconnect: DisconnectWaiter
    ) -> AsyncIterator[T]:
        """Wait for the first value that `work` yields, and return an iterator over all its values.

        This method raises errors that occur before the first value; the iterator raises later ones. When the client
        disconnects or the iterator is closed, the thread stops as soon as `work` yields its next value.
        """
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[T | None]()  # None marks the end

        def put_values(time_limit: TimeLimit) -> None:
            for value in work(time_limit):
                if time_limit.stop.is_set:
                    return
                loop.call_soon_threadsafe(queue.put_nowait, value)

        def put_end(task: asyncio.Task[None]) -> None:
            queue.put_nowait(None)
            if not task.cancelled():
                task.exception()  # otherwise asyncio would log an unretrieved error

        task = asyncio.ensure_future(self.run(put_values, deadline, wait_for_disconnect))
        task.add_done_callback(put_end)
        first_value = await queue.get()
        if first_value is None:
            await task

        async def all_values() -> AsyncIterator[T]:
            try:
                value = first_value
                while value is not None:
                    yield value
                    await asyncio.sleep(0)  # lets the server notice a disconnection although more values are queued
                    value = await queue.get()
                with suppress(DisconnectedError):
                    await task
            finally:
                task.cancel()

        return all_values()

    def close(self) -> None:
        """Wait for running work and drop the queue."""
        self._pool.shutdown(cancel_futures=True)

    def _run_in_thread(self, work: Callable[[TimeLimit], T], deadline: float, stop: Stop) -> T:
        """Run `work` with the seconds allotted to it, and update the mean."""
        start = time.monotonic()
        remaining = deadline - start
        with self._lock:
            self.waiting_count -= 1
            self.running_count += 1
            allotted = min(remaining, max(self.min_seconds, remaining / (1 + self.waiting_count)))
            limit = allotted
            if math.isfinite(self.min_seconds):
                share = remaining / (self.running_count + 2 * self.waiting_count)
                limit = min(SEARCH_SHARE * remaining, max(self.min_seconds, share))
        try:
            if allotted <= 0:
                raise ProblemError("overloaded", BUSY, retry_after=self.expected_seconds())
            return work(TimeLimit(start + limit, stop))
        finally:
            elapsed = time.monotonic() - start
            with self._lock:
                self.running_count -= 1
                if allotted > 0 and not stop.is_set:
                    needed = max(0.0, elapsed - allotted) + min(elapsed, allotted, self.min_seconds)
                    weight = SMOOTHING if self.mean_seconds else 1  # the first work determines the mean alone
                    self.mean_seconds += weight * (needed - self.mean_seconds)
