"""A circuit breaker around a store: after a failure, calls fail at once until a probing thread gets an answer.

Reads and writes have separate breakers, because a store on a full disk can still be read.
A store works only in the process that opened it. A forked process has copies of the connections, which two processes
must not share, and it lacks the threads of the store.
"""

import os
import threading
from collections.abc import Callable
from time import monotonic
from typing import ParamSpec, TypeVar

from factorcell.errors import UserError
from factorcell.service import error_log
from factorcell.service.record import DamagedRecordError, Record, StoreError
from factorcell.service.stores.store import PAGE_SIZE, Store

PROBE_INTERVAL = 1.0  # seconds between two probes
CHECK_INTERVAL = 1.0  # seconds between two checks of a working store
CALM_SECONDS = 10.0  # the first probe is sent at once if the previous failure is at least this many seconds old
PROBE_USER = "-"  # the user id in the reading probe, whose result is ignored

P = ParamSpec("P")
T = TypeVar("T")


class CircuitBreakerStore:
    """A `Store` that calls another store; while that store fails, every call raises a `StoreError` at once."""

    def __init__(self, store: Store) -> None:
        self.store, self._process_id, self._checked_at = store, os.getpid(), -CHECK_INTERVAL
        self._read_breaker = _Breaker(lambda: self.store.version(PROBE_USER))
        self._write_breaker = _Breaker(lambda: self.store.check())

    def read(self, user: str) -> Record | None:
        return self._call(self._read_breaker, self.store.read, user)

    def version(self, user: str) -> int | None:
        return self._call(self._read_breaker, self.store.version, user)

    def write(self, record: Record, expected_version: int | None) -> bool:
        return self._call(self._write_breaker, self.store.write, record, expected_version)

    def delete(self, user: str, expected_version: int | None = None) -> bool:
        return self._call(self._write_breaker, self.store.delete, user, expected_version)

    def users(self, after: str = "", limit: int = PAGE_SIZE) -> list[str]:
        return self._call(self._read_breaker, self.store.users, after, limit)

    def users_older_than(self, before: int, limit: int = PAGE_SIZE) -> list[str]:
        return self._call(self._read_breaker, self.store.users_older_than, before, limit)

    def check(self) -> None:
        """Raise a `StoreError` unless the store works; a working store is queried at most once per second."""
        if self._write_breaker.is_down or monotonic() >= self._checked_at + CHECK_INTERVAL:
            self._call(self._write_breaker, self.store.check)
            self._checked_at = monotonic()

    def purge(self) -> list[str]:
        return self.store.purge()

    def close(self) -> None:
        if os.getpid() == self._process_id:  # the connections of a forked process belong to its parent
            self._read_breaker.closed.set()
            self._write_breaker.closed.set()
            self.store.close()

    def _call(self, breaker: "_Breaker", operation: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if os.getpid() != self._process_id:
            raise UserError(
                "store: it was opened in another process, from which this process was forked; "
                "open the store and create the service in each process"
            )
        if breaker.is_down:
            raise StoreError("store: the last call failed and the store does not answer yet; try again later")
        try:
            return operation(*args, **kwargs)
        except DamagedRecordError:
            raise  # the error concerns one record; the store works
        except StoreError:
            breaker.mark_down()
            raise


class _Breaker:
    """A breaker for reads or for writes: `is_down` is true after a failure until `probe` succeeds.

    `probe` raises a `StoreError` while the store fails. The probing thread ends after `closed` is set.
    """

    def __init__(self, probe: Callable[[], object]) -> None:
        self._probe, self.is_down, self._failed_at = probe, False, -CALM_SECONDS
        self.closed, self._lock = threading.Event(), threading.Lock()

    def mark_down(self) -> None:
        """Mark the store as down, and start the thread that probes it."""
        with self._lock:
            if self.is_down or self.closed.is_set():
                return
            previously_failed_at = self._failed_at
            self.is_down, self._failed_at = True, monotonic()
        # A store may fail again soon after a probe succeeded, for example on a nearly full disk; then the probe waits.
        pause = PROBE_INTERVAL if self._failed_at - previously_failed_at < CALM_SECONDS else 0.0
        threading.Thread(target=self._probe_until_up, args=(pause,), name="factorcell-store-probe", daemon=True).start()

    def _probe_until_up(self, first_pause: float) -> None:
        pause = first_pause  # seconds
        while not self.closed.wait(pause):
            pause = PROBE_INTERVAL
            try:
                self._probe()
            except StoreError:
                continue
            except Exception as error:  # if the thread ended here, the store would stay down forever
                error_log.log_unexpected_error(error)
                continue
            self.is_down = False
            return
