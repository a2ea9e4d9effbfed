"""A background thread that learns users whom a model has not learned yet, one after the other."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from time import monotonic

from factorcell.service import error_log
from factorcell.service.record import StoreError

WAITING = 10_000  # users that wait at most; others are added again by their next request


class Relearner:
    """Calls `learn` with each user that is added."""

    def __init__(self, learn: Callable[[str], object]) -> None:
        self._learn = learn
        self._waiting: set[str] = set()
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, "factorcell-relearning")
        self._last: Future[None] | None = None
        self._closed = False

    def add(self, user: str) -> None:
        """Learn a user soon; once, however often the user is added until it begins."""
        with self._lock:
            if self._closed or user in self._waiting or len(self._waiting) >= WAITING:
                return
            self._waiting.add(user)
            self._last = self._thread.submit(self._run, user)

    def wait_until_idle(self, seconds: float) -> bool:
        """Wait until nobody is left, at most so many seconds; return whether nobody is."""
        stop = monotonic() + seconds
        while (last := self._last) is not None and not last.done() and monotonic() < stop:
            wait([last], stop - monotonic())
        return self._last is None or self._last.done()

    def close(self) -> None:
        """Finish the user that is being learned, and drop the others."""
        with self._lock:
            self._closed = True
        self._thread.shutdown(cancel_futures=True)

    def _run(self, user: str) -> None:
        with self._lock:
            self._waiting.discard(user)
        try:
            self._learn(user)
        except StoreError:
            pass  # the next request of the user adds them again
        except Exception as error:  # of one user: the others are learned all the same
            error_log.log_unexpected_error(error)
