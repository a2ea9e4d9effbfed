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
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import TypeVar

from factorcell.completion.search import Stop
from factorcell.service.http.problems import DisconnectedError, ProblemError

T = TypeVar("T")

SMOOTHING = 0.05  # weight of the newest work in the moving mean of the seconds that work needed
SEARCH_SHARE = 0.9  # share of the remaining time that work which can be cut short may use
BUSY = "too many requests are waiting; nothing was done, try again later"


@dataclass(frozen=True)
class TimeLimit:
    """The time limit of work, which must end at `deadline` (`time.monotonic()`), or as soon as `stop` is set."""

    deadline: float
    stop: Stop


class Lane:
    """A pool of threads with a bounded queue of at most `max_waiting` requests; `name` names it in the metrics.

    Work may be cut short after `min_seconds`; infinite seconds (the default) mean that it cannot be cut short.
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

    async def run(
        self, work: Callable[[TimeLimit], T], deadline: float, wait_for_disconnect: Callable[[], Awaitable[None]]
    ) -> T:
        """Run `work` in a thread, with a time limit before `deadline` (`time.monotonic()`), and return its result.

        Raise a `ProblemError` if it cannot be finished by then, a `DisconnectedError` if the client has disconnected.
        """
        stop = Stop()
        with self._lock:
            if self.waiting_count >= self.max_waiting or self.expected_seconds() > deadline - time.monotonic():
                raise ProblemError("overloaded", BUSY, retry_after=self.expected_seconds())
            self.waiting_count += 1
        thread_future = self._pool.submit(self._run_in_thread, work, deadline, stop)
        result = asyncio.wrap_future(thread_future)
        disconnection = asyncio.ensure_future(wait_for_disconnect())
        try:
            await asyncio.wait((result, disconnection), return_when=asyncio.FIRST_COMPLETED)
            if not result.done():
                raise DisconnectedError
            return result.result()
        finally:
            disconnection.cancel()
            if thread_future.cancel():  # the work waits
                with self._lock:
                    self.waiting_count -= 1
            result.cancel()  # otherwise, asyncio would log a later error of the work, with texts of the user
            stop.set()

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
