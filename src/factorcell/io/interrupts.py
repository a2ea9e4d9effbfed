"""Stopping of long work on Ctrl-C or SIGTERM without losing progress."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

INTERRUPTED_EXIT_CODE = 130
MESSAGE = b"\nstopping after the next save; press Ctrl-C again to stop immediately\n"


class Stopped(KeyboardInterrupt):
    """The work has saved its progress and stopped as requested; the message says how far the work got."""


class Stop:
    """Context manager that turns the first Ctrl-C or SIGTERM into a request to stop, unless the application handles it.

    The first signal sets `is_requested` and prints a message; inside an `interruptible` block it raises `Stopped`. The
    second signal raises `KeyboardInterrupt`. In other threads than the main one, nothing changes.
    """

    def __init__(self) -> None:
        self.is_requested = False
        self._default_handlers: dict[int, Any] = {}  # by the number of the signal
        self._is_interruptible = False

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():
            for number, default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
                if signal.getsignal(number) == default:
                    self._default_handlers[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._default_handlers.items():
            signal.signal(number, handler)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Mark a block that may stop at any point: a request to stop, made before or in the block, raises `Stopped`."""
        self._is_interruptible = True
        try:
            if self.is_requested:
                raise Stopped
            yield
        finally:
            self._is_interruptible = False

    def _handle(self, _signal_number: int, _frame: FrameType | None) -> None:
        if self.is_requested:
            raise KeyboardInterrupt
        self.is_requested = True
        os.write(2, MESSAGE)  # standard error; `print` is not safe in a signal handler
        if self._is_interruptible:
            raise Stopped
