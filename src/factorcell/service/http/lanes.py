"""Threads for work that blocks, and the admission of work that can be done in time.

    share = time left / (1 + waiting)                    of a search that begins: the time left, divided among all
    expected = (waiting / threads + 2) * mean seconds that recent work needed

Work that would end after its deadline is refused when it arrives, not after it has waited. Work that may be cut short
(a search) takes its share of the time; it counts with the `least` seconds that it needs. Each kind of work has its own
lane, so that none starves another.
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

FADING = 0.05  # weight of the newest value in the moving mean of seconds
BUSY = "too much is being asked at once; it was not begun"


class DisconnectedError(Exception):
    """The client has disconnected."""


@dataclass(frozen=True)
class TimeLimit:
    """What work may take: the time until `deadline` (`time.monotonic()`), unless `stop` is set before."""

    deadline: float
    stop: Stop


Gone = Callable[[], Awaitable[None]]  # returns when the client has disconnected


class Lane:
    """A pool of threads, for which at most `room` requests wait.

    `least`: the seconds that work which can be cut short gets however many wait; by default none can be cut short.
    """

    def __init__(self, name: str, threads: int, room: int, least: float = math.inf) -> None:
        self.name, self.threads, self.room, self.least = name, threads, room, least
        self.mean, self.waiting, self.running = 0.0, 0, 0
        self._lock = Lock()
        self._pool = ThreadPoolExecutor(threads, f"factorcell-{name}")

    def expected(self) -> float:
        """Return the seconds until new work would be done; 0 if a thread is idle."""
        if self.waiting + self.running < self.threads:
            return 0.0
        return (math.floor(self.waiting / self.threads) + 2) * self.mean

    async def run(self, work: Callable[[TimeLimit], T], deadline: float, gone: Gone) -> T:
        """Return what `work` returns; `ProblemError` if it cannot be done by `deadline` (`time.monotonic()`).

        When `gone` returns, work that has not begun is dropped, work that has begun is stopped, and a `GoneError` is
        raised.
        """
        stop = Stop()
        with self._lock:
            if self.waiting >= self.room or self.expected() > deadline - time.monotonic():
                raise ProblemError("overloaded", BUSY, retry=self.expected())
            self.waiting += 1
        future = self._pool.submit(self._work, work, deadline, stop)
        answer, leaving = asyncio.wrap_future(future), asyncio.ensure_future(gone())
        try:
            await asyncio.wait((answer, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise DisconnectedError
            return answer.result()
        finally:
            leaving.cancel()
            if future.cancel():
                with self._lock:
                    self.waiting -= 1
            answer.cancel()  # asyncio would log an error that nobody awaits, with what was asked
            stop.set()

    async def stream(self, work: Callable[[TimeLimit], Iterator[T]], deadline: float, gone: Gone) -> AsyncIterator[T]:
        """Return what `work` yields, once its first value is there; errors before it are raised here.

        When `gone` returns or the iterator is closed, the thread ends at its next value.
        """
        loop, values = asyncio.get_running_loop(), asyncio.Queue[T | None]()

        def put(turn: TimeLimit) -> None:
            for value in work(turn):
                if turn.stop.is_set:
                    return
                loop.call_soon_threadsafe(values.put_nowait, value)

        def end(task: asyncio.Task[None]) -> None:
            values.put_nowait(None)
            if not task.cancelled():
                task.exception()  # or asyncio logs it if nobody awaits it

        task = asyncio.ensure_future(self.run(put, deadline, gone))
        task.add_done_callback(end)
        first = await values.get()
        if first is None:
            await task

        async def rest() -> AsyncIterator[T]:
            try:
                value = first
                while value is not None:
                    yield value
                    value = await values.get()
                with suppress(DisconnectedError):
                    await task
            finally:
                task.cancel()

        return rest()

    def close(self) -> None:
        """Wait for work that has begun; drop the rest."""
        self._pool.shutdown(cancel_futures=True)

    def _work(self, work: Callable[[TimeLimit], T], deadline: float, stop: Stop) -> T:
        began = time.monotonic()
        left = deadline - began
        with self._lock:
            self.waiting -= 1
            self.running += 1
            share = min(left, max(self.least, left / (1 + self.waiting)))
        try:
            if share <= 0:
                raise ProblemError("overloaded", BUSY, retry=self.expected())
            return work(TimeLimit(began + share, stop))
        finally:
            took = time.monotonic() - began
            with self._lock:
                self.running -= 1
                if share > 0 and not stop.is_set:
                    needed = max(0.0, took - share) + min(took, share, self.least)
                    self.mean += (FADING if self.mean else 1) * (needed - self.mean)
