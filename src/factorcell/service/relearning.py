"""A background thread that learns users whose texts the model has not learned yet."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from time import monotonic

from factorcell.service import error_log
from factorcell.service.record import StoreError

MAX_QUEUED = 10_000  # queued users; the next request of any further user adds that user again


class Relearner:
    """Calls `learn` for each added user, one after the other."""

    def __init__(self, learn: Callable[[str], object]) -> None:
        self._learn = learn
        self._queued: set[str] = set()
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, "factorcell-relearning")
        self._last: Future[None] | None = None
        self._closed = False

    def add(self, user: str) -> None:
        """Queue a user; a user that is already queued is learned once."""
        with self._lock:
            if self._closed or user in self._queued or len(self._queued) >= MAX_QUEUED:
                return
            self._queued.add(user)
            self._last = self._thread.submit(self._run, user)

    def wait_until_idle(self, seconds: float) -> bool:
        """Wait until the queue is empty; return False after `seconds`."""
        deadline = monotonic() + seconds
        while (last := self._last) is not None and not last.done() and monotonic() < deadline:
            wait([last], deadline - monotonic())
        return self._last is None or self._last.done()

    def close(self) -> None:
        """Finish the current user and drop the queue."""
        with self._lock:
            self._closed = True
        self._thread.shutdown(cancel_futures=True)

    def _run(self, user: str) -> None:
        with self._lock:
            self._queued.discard(user)
        try:
            self._learn(user)
        except StoreError:
            pass  # the next request of this user queues the user again
        except Exception as error:  # it concerns one user; the others must still be learned
            error_log.log_unexpected_error(error)
