"""A store that may fail: while it does, one thread asks it until it answers, and every other call fails at once.

Reading and writing fail separately: on a full disk, everything can still be read.
A store works only in the process that opened it: a forked process has the connections of its parent, which two
processes must not share, and none of its threads.
"""

import os
import threading
from collections.abc import Callable
from time import monotonic
from typing import ParamSpec, TypeVar

from factorcell.config import UserError
from factorcell.service import error_log
from factorcell.service.record import DamagedRecordError, Record, StoreError
from factorcell.service.stores.store import PAGE, Store

RETRY = 1.0  # seconds between two tries
CHECK = 1.0  # seconds between two checks of a store that works
CALM = 10.0  # seconds without a failure after which the next one is tried again at once
NOBODY = "-"  # the id in a query whose answer does not matter

P = ParamSpec("P")
T = TypeVar("T")


class CircuitBreakerStore:
    """A `Store` that raises a `StoreError` at once from when the `store` behind it fails until it answers again."""

    def __init__(self, store: Store) -> None:
        self.store, self._process, self._checked = store, os.getpid(), -CHECK
        self._reading = _Breaker(lambda: self.store.version(NOBODY))
        self._writing = _Breaker(lambda: self.store.check())

    def read(self, user: str) -> Record | None:
        return self._ask(self._reading, self.store.read, user)

    def version(self, user: str) -> int | None:
        return self._ask(self._reading, self.store.version, user)

    def write(self, record: Record, expected: int | None) -> bool:
        return self._ask(self._writing, self.store.write, record, expected)

    def delete(self, user: str, expected: int | None = None) -> bool:
        return self._ask(self._writing, self.store.delete, user, expected)

    def users(self, after: str = "", limit: int = PAGE) -> list[str]:
        return self._ask(self._reading, self.store.users, after, limit)

    def users_older_than(self, before: int, limit: int = PAGE) -> list[str]:
        return self._ask(self._reading, self.store.users_older_than, before, limit)

    def check(self) -> None:
        """Raise a `StoreError` unless the store works; a store that works is asked at most once per second."""
        if self._writing.down or monotonic() >= self._checked + CHECK:
            self._ask(self._writing, self.store.check)
            self._checked = monotonic()

    def purge(self) -> list[str]:
        return self.store.purge()

    def close(self) -> None:
        if os.getpid() == self._process:  # otherwise the connections are those of the parent
            self._reading.closed.set()
            self._writing.closed.set()
            self.store.close()

    def _ask(self, breaker: "_Breaker", question: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        if os.getpid() != self._process:
            raise UserError(
                "store: expected the process that opened it, got a process that was forked from it; "
                "open the store and make the service in each process"
            )
        if breaker.down:
            raise StoreError("the store has failed, and does not answer yet")
        try:
            return question(*args, **options)
        except DamagedRecordError:
            raise  # of one user: the store works
        except StoreError:
            breaker.fail()
            raise


class _Breaker:
    """Whether the store is `down` for reading or for writing; `probe` raises a `StoreError` as long as it is."""

    def __init__(self, probe: Callable[[], object]) -> None:
        self._probe, self.down, self._failed = probe, False, -CALM
        self.closed, self._lock = threading.Event(), threading.Lock()

    def fail(self) -> None:
        with self._lock:
            if self.down or self.closed.is_set():
                return
            self.down, before, self._failed = True, self._failed, monotonic()
        # A store that fails repeatedly although probes succeed (a disk that is nearly full) is left alone for longer.
        pause = RETRY if self._failed - before < CALM else 0.0
        threading.Thread(target=self._try, args=(pause,), name="factorcell-trying", daemon=True).start()

    def _try(self, pause: float) -> None:
        while not self.closed.wait(pause):
            pause = RETRY
            try:
                self._probe()
            except StoreError:
                continue
            except Exception as error:  # a thread that ends here would leave the store down for ever
                error_log.log_unexpected_error(error)
                continue
            self.down = False
            return
