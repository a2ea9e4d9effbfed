"""Whether the store can be read and written now, for all who ask: it is asked itself once a second at most.

Anybody may ask, without a key, and each time the store would write to its disk.
"""

import math
import threading
import time
from collections.abc import Callable

from factorcell.service.record import StoreError

EVERY = 1.0  # seconds


class Readiness:
    """What came of the last check. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._checked, self._fault = -math.inf, ""

    def ask(self, check: Callable[[], None]) -> None:
        """`StoreError` if that is what `check` raised, now or within the last second."""
        with self._lock:
            if time.monotonic() >= self._checked + EVERY:
                try:
                    check()
                    self._fault = ""
                except StoreError as error:
                    self._fault = str(error) or "the store failed"
                self._checked = time.monotonic()
            if self._fault:
                raise StoreError(self._fault)
