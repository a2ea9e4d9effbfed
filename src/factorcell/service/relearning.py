"""People whom a model has not learned yet, or no longer, learned in the background, one after the other."""

import queue
import threading
import time
from collections.abc import Callable

from factorcell.service import faults
from factorcell.service.record import StoreError

WAITING = 10_000  # people that wait at most; whoever finds no room comes again with the next request


class Relearner:
    """Calls `learn` with each person who is handed in, in a thread of its own, which begins with the first."""

    def __init__(self, learn: Callable[[str], object]) -> None:
        self._learn = learn
        self._queue: queue.Queue[str | None] = queue.Queue(WAITING)
        self._waiting: set[str] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, user: str) -> None:
        """Have a person learned soon; once, however often they are handed in until it begins."""
        with self._lock:
            if user in self._waiting or self._queue.full():
                return
            self._waiting.add(user)
            self._queue.put_nowait(user)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="factorcell-relearning", daemon=True)
                self._thread.start()

    def settle(self, seconds: float) -> bool:
        """Wait until nobody is left, at most so long; whether nobody is."""
        stop = time.monotonic() + seconds
        while self._queue.unfinished_tasks and time.monotonic() < stop:
            time.sleep(0.002)
        return not self._queue.unfinished_tasks

    def close(self) -> None:
        """Leave those who wait; the one being learned is finished."""
        with self._lock:
            thread, self._thread = self._thread, None
            while not self._queue.empty():
                self._queue.get_nowait()
                self._queue.task_done()
            self._waiting.clear()
            if thread is not None:
                self._queue.put_nowait(None)
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            user = self._queue.get()
            try:
                if user is None:
                    return
                with self._lock:
                    self._waiting.discard(user)
                self._learn(user)
            except StoreError:
                pass  # the next request of the person hands them in again
            except Exception as error:  # one person's: the others are learned all the same
                faults.log(error)
            finally:
                self._queue.task_done()
