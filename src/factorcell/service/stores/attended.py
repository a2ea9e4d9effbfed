"""A store that may fail: while it does, nobody waits for it but a thread that tries until it answers.

Reading and writing fail apart: where the disk is full, all is still there to be read.

A process that is forked has the connections of its parent, which two processes must not use, and none of its threads.
So a store answers only in the process that opened it.
"""

import os
import threading
from collections.abc import Callable
from time import monotonic
from typing import TypeVar

from factorcell.config import UserError
from factorcell.service import faults
from factorcell.service.record import DamagedRecordError, Record, StoreError
from factorcell.service.stores.store import PAGE, Store

RETRY = 1.0  # seconds between two tries
CALM = 10.0  # seconds without a failure after which one counts as the first, and is over as soon as a try succeeds
NOBODY = "-"  # who is asked for to see whether there is an answer at all

T = TypeVar("T")


class AttendedStore:
    """The `Store` behind it, or at once a `StoreError` from when it has failed until it answers again."""

    def __init__(self, store: Store) -> None:
        self.store, self._process = store, os.getpid()
        self._reading = _Line(lambda: self.store.version(NOBODY))
        self._writing = _Line(lambda: self.store.check())

    def read(self, user: str) -> Record | None:
        """See `Store`."""
        return self._ask(self._reading, lambda: self.store.read(user))

    def version(self, user: str) -> int | None:
        """See `Store`."""
        return self._ask(self._reading, lambda: self.store.version(user))

    def write(self, record: Record, expected: int | None) -> bool:
        """See `Store`."""
        return self._ask(self._writing, lambda: self.store.write(record, expected))

    def delete(self, user: str, expected: int | None = None) -> bool:
        """See `Store`."""
        return self._ask(self._writing, lambda: self.store.delete(user, expected))

    def users(self, after: str = "", limit: int = PAGE) -> list[str]:
        """See `Store`."""
        return self._ask(self._reading, lambda: self.store.users(after, limit))

    def aged(self, before: int, limit: int = PAGE) -> list[str]:
        """See `Store`."""
        return self._ask(self._reading, lambda: self.store.aged(before, limit))

    def check(self) -> None:
        """See `Store`."""
        self._ask(self._writing, lambda: self.store.check())

    def purge(self) -> list[str]:
        """See `Store`: it has time."""
        return self.store.purge()

    def close(self) -> None:
        """See `Store`."""
        if os.getpid() != self._process:
            return  # the connections are those of the parent
        self._reading.close()
        self._writing.close()
        self.store.close()

    def _ask(self, line: "_Line", question: Callable[[], T]) -> T:
        """Return the answer to a question. `UserError` in a process that was forked from the one of this store."""
        if os.getpid() != self._process:
            raise UserError(
                "store: expected the process that opened it, got a process that was forked from it; "
                "open the store and make the service in each process"
            )
        return line.ask(question)


class _Line:
    """One way to ask a store. `probe` raises a `StoreError` as long as it leads nowhere."""

    def __init__(self, probe: Callable[[], object]) -> None:
        self._probe, self._down, self._failed = probe, False, -CALM
        self._closed, self._lock = threading.Event(), threading.Lock()

    def ask(self, question: Callable[[], T]) -> T:
        """The answer to a question."""
        if self._down:
            raise StoreError("the store has failed, and does not answer yet")
        try:
            return question()
        except DamagedRecordError:
            raise  # one person's
        except StoreError:
            self._fail()
            raise

    def close(self) -> None:
        """Try no more."""
        self._closed.set()

    def _fail(self) -> None:
        with self._lock:
            if self._down or self._closed.is_set():
                return
            self._down, before, self._failed = True, self._failed, monotonic()
        # What fails again and again, though a try succeeds between (not all fits on a full disk), is left alone longer.
        pause = RETRY if self._failed - before < CALM else 0.0
        threading.Thread(target=self._try, args=(pause,), name="factorcell-trying", daemon=True).start()

    def _try(self, pause: float) -> None:
        while not self._closed.wait(pause):
            pause = RETRY
            try:
                self._probe()
            except StoreError:
                continue
            except Exception as error:  # whoever ends here leaves the store unanswered for ever
                faults.log(error)
                continue
            self._down = False
            return
