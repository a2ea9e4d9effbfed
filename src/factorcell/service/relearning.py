"""A background thread that learns saved texts that the model has not learned yet, user by user."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from time import monotonic

from factorcell.service import error_log
from factorcell.service.record import StoreError

MAX_QUEUED = 10_000  # maximum number of queued users; a full queue omits a user until that user's next request


class Relearner:
    """A thread that calls `learn` for each added user, one after the other."""

    def __init__(self, learn: Callable[[str], object]) -> None:
        self._learn = learn
        self._queued: set[str] = set()
        self._lock = threading.Lock()
        self._executor = ThreadPoolExecutor(1, "factorcell-relearning")
        self._newest_task: Future[None] | None = None  # the task of the user queued last
        self._is_closed = False

    def add(self, user: str) -> None:
        """Queue a user, unless the user is queued already, the queue is full, or `close` was called."""
        with self._lock:
            if self._is_closed or user in self._queued or len(self._queued) >= MAX_QUEUED:
                return
            self._queued.add(user)
            self._newest_task = self._executor.submit(self._run, user)

    def wait_until_idle(self, seconds: float) -> bool:
        """Wait until the thread has processed all queued users; return False after `seconds` of waiting."""
        deadline = monotonic() + seconds
        while (task := self._newest_task) is not None and not task.done() and monotonic() < deadline:
            wait([task], deadline - monotonic())
        return self._newest_task is None or self._newest_task.done()

    def close(self) -> None:
        """Finish learning the current user and drop the queue."""
        with self._lock:
            self._is_closed = True
        self._executor.shutdown(cancel_futures=True)

    def _run(self, user: str) -> None:
        with self._lock:
            self._queued.discard(user)
        try:
            self._learn(user)
        except StoreError:
            pass  # the next request of this user queues the user again
        except Exception as error:  # the error concerns one user; the texts of other users must still be learned
            error_log.log_unexpected_error(error)
