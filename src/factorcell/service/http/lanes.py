"""Work that blocks, done by threads: as much as can be done in time, and no more.

    share = left / (1 + waiting)                         of a search that begins: what is left of its time, for all
    expected = (waiting / threads + 2) * mean seconds that work has needed of late

What is expected later than it must be answered is refused when it comes, not after it has waited: so what is let in
keeps its time, however much comes. Work that may be cut short (a search) takes its share; what counts of it is what it
needs at the `least`. Each kind of work has a lane of its own, so that none starves another.
"""

import asyncio
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from factorcell.completion.search import Stop
from factorcell.service.http.problems import ProblemError

T = TypeVar("T")

FADING = 0.05  # share of the newest in the moving mean of seconds
HOPE = 0.7  # share of its time within which work is to be done if it is let in
BUSY = "too much is being asked at once; it was not begun"


@dataclass(frozen=True)
class Turn:
    """What work may take: so many `seconds`, and no more once `stop` is set, as nobody waits for it any longer."""

    seconds: float
    stop: Stop


Work = Callable[[Turn], T]


class Lane:
    """So many `threads` for one kind of work, for which at most `room` requests wait.

    `least`: seconds that work which can be cut short gets however many wait; by default none can.
    """

    def __init__(self, name: str, threads: int, room: int, least: float = math.inf) -> None:
        self.name, self.threads, self.room, self.least = name, threads, room, least
        self.mean, self.waiting, self.running = 0.0, 0, 0
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(threads, f"factorcell-{name}")

    def expected(self) -> float:
        """Seconds until what comes now would be done; 0 if a thread waits for it."""
        if self.waiting + self.running < self.threads:
            return 0.0
        return (math.floor(self.waiting / self.threads) + 2) * self.mean

    async def run(self, work: Work[T], seconds: float, gone: Callable[[], Any]) -> T:
        """What `work` gives, called with its turn; `ProblemError` if it cannot be done within `seconds`.

        `gone` gives an awaitable that ends when nobody waits for it any more: work that has not begun is then dropped,
        and what has begun is told to stop.
        """
        loop, stop = asyncio.get_running_loop(), Stop()
        answer: asyncio.Future[T] = loop.create_future()
        # An error that nobody waits for any more would be logged, with what was asked.
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        with self._lock:
            if self.waiting >= self.room or self.expected() > HOPE * seconds:
                raise ProblemError("overloaded", BUSY, retry=self.expected())
            self.waiting += 1
        end = time.monotonic() + seconds

        def settle(error: BaseException | None, given: Any = None) -> None:
            loop.call_soon_threadsafe(_settle, answer, error, given)

        doing = self._pool.submit(self._do, work, end, stop, settle)
        leaving = asyncio.ensure_future(gone())
        leaving.add_done_callback(lambda _: _settle(answer, GoneError()))
        try:
            return await answer
        finally:
            leaving.cancel()
            self._leave(doing, stop)

    def close(self) -> None:
        """Wait for what has begun."""
        self._pool.shutdown(cancel_futures=True)

    def _leave(self, doing: "Future[None]", stop: Stop) -> None:
        """Drop work that has not begun, and stop what has, if it is not done."""
        if doing.cancel():
            with self._lock:
                self.waiting -= 1
        stop.set()

    def _do(self, work: Work[T], end: float, stop: Stop, settle: Callable[..., object]) -> None:
        """In a thread: do the work, and have the loop settle what came of it."""
        try:
            given = self._work(work, end, stop)
        except BaseException as error:
            settle(error)
        else:
            settle(None, given)

    def _work(self, work: Work[T], end: float, stop: Stop) -> T:
        began = time.monotonic()
        with self._lock:
            self.waiting -= 1
            self.running += 1
            share = min(end - began, max(self.least, (end - began) / (1 + self.waiting)))
        try:
            if share <= 0:
                raise ProblemError("overloaded", BUSY, retry=self.expected())
            return work(Turn(share, stop))
        finally:
            took = time.monotonic() - began
            with self._lock:
                self.running -= 1
                if share > 0 and not stop.is_set:
                    needed = max(0.0, took - share) + min(took, share, self.least)
                    self.mean += (FADING if self.mean else 1) * (needed - self.mean)


class GoneError(Exception):
    """Whoever asked does not wait for the answer."""


def _settle(answer: "asyncio.Future[Any]", error: BaseException | None, given: Any = None) -> None:
    """In the loop: hand over what was given, or the error; in one turn, where waiting for several things takes more."""
    if answer.done():
        return
    if error is None:
        answer.set_result(given)
    else:
        answer.set_exception(error)
