"""Work that blocks, done by threads: as much as can be done in time, and no more.

    expected = (waiting / threads + 1) * mean seconds of late

What is expected later than it must be answered is refused when it comes, not after it has waited: so what is let in
keeps its time, however much comes. Each kind of work has a lane of its own, so that none starves another.
"""

import asyncio
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from factorcell.service.http.problems import ProblemError

T = TypeVar("T")

FADING = 0.05  # share of the newest in the moving mean of seconds
BUSY = "too much is being asked at once; it was not begun"


class Lane:
    """So many `threads` for one kind of work, for which at most `room` requests wait."""

    def __init__(self, name: str, threads: int, room: int) -> None:
        self.name, self.threads, self.room = name, threads, room
        self.mean, self.waiting, self.running = 0.0, 0, 0
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(threads, f"factorcell-{name}")

    def expected(self) -> float:
        """Seconds until what comes now would be done; 0 if a thread waits for it."""
        if self.waiting + self.running < self.threads:
            return 0.0
        return (math.floor(self.waiting / self.threads) + 2) * self.mean

    async def run(self, work: Callable[[float], T], seconds: float, gone: Callable[[], Any]) -> T:
        """What `work` gives, called with the seconds left; `ProblemError` if it cannot be done within `seconds`.

        `gone` gives an awaitable that ends when nobody waits for it any more: work that has not begun is then dropped.
        """
        stop = time.monotonic() + seconds
        with self._lock:
            if self.waiting >= self.room or self.expected() > seconds:
                raise ProblemError("overloaded", BUSY, retry=self.expected())
            self.waiting += 1
        future = self._pool.submit(self._work, work, stop)
        leaving = asyncio.ensure_future(gone())
        answer = asyncio.wrap_future(future)
        try:
            await asyncio.wait({answer, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            raise GoneError
        finally:
            leaving.cancel()
            self._leave(future)
            answer.cancel()  # an error that nobody waits for would be logged, with what was asked

    def close(self) -> None:
        """Wait for what has begun."""
        self._pool.shutdown(cancel_futures=True)

    def _leave(self, future: "Future[Any]") -> None:
        """Drop work that has not begun, if it has not."""
        if future.cancel():
            with self._lock:
                self.waiting -= 1

    def _work(self, work: Callable[[float], T], stop: float) -> T:
        began = time.monotonic()
        with self._lock:
            self.waiting -= 1
            self.running += 1
        try:
            if began >= stop:
                raise ProblemError("overloaded", BUSY, retry=self.expected())
            return work(stop - began)
        finally:
            took = time.monotonic() - began
            with self._lock:
                self.running -= 1
                if began < stop:
                    self.mean += (FADING if self.mean else 1) * (took - self.mean)


class GoneError(Exception):
    """Whoever asked does not wait for the answer."""
