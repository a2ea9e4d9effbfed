"""Stopping of long work on Ctrl-C or SIGTERM without losing progress."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

INTERRUPTED_EXIT_CODE = 130
NOTICE = b"\nstopping after the next save; press Ctrl-C again to stop immediately\n"


class Stopped(KeyboardInterrupt):
    """The work has saved its progress and stopped as requested; the text of the exception says how far the work got."""


class Stop:
    """Context manager that turns the first Ctrl-C or SIGTERM into a request to stop.

    The first signal sets `is_requested`; inside an `interruptible` block it also raises `Stopped`. The second signal
    raises `KeyboardInterrupt`. If the application has its own handler of a signal, or if the thread is not the main
    thread, the context manager changes nothing.

    Args:
        verbose: Whether the first signal prints a notice on standard error.
    """

    def __init__(self, verbose: bool = False) -> None:
        self.is_requested, self.verbose = False, verbose
        self._handlers: dict[int, Any] = {}
        self._is_interruptible = False

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():
            for number, default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
                handler = signal.getsignal(number)
                if handler == default or isinstance(getattr(handler, "__self__", None), Stop):
                    self._handlers[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._handlers.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, handler)
        self._handlers = {}

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Mark a block that may stop at any point: a request to stop, also an earlier one, raises `Stopped` in it."""
        self._is_interruptible = True
        try:
            if self.is_requested:
                raise Stopped
            yield
        finally:
            self._is_interruptible = False

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        # Without handlers, the block of this context manager has ended, but other code has restored this handler.
        if self.is_requested or not self._handlers:
            raise KeyboardInterrupt
        self.is_requested = True
        if self.verbose:
            os.write(2, NOTICE)
        if self._is_interruptible:
            raise Stopped
