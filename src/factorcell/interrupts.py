"""Ctrl-C and SIGTERM: a stop of long work that loses nothing."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

INTERRUPTED_EXIT_CODE = 130  # the exit code after Ctrl-C
ASKED = b"\nstopping as soon as all is saved; Ctrl-C again stops at once\n"


class Stopped(KeyboardInterrupt):
    """Work that was asked to stop has saved what there is; its text says where it stands."""


class Stop:
    """Within it the first Ctrl-C or SIGTERM only sets `asked`, or raises `Stopped` in a block `at_once`.

    The next one is a `KeyboardInterrupt`. Signals that somebody else sees to, and other threads, are left alone. It
    says what it waits for if it is `aloud`.
    """

    def __init__(self, aloud: bool = False) -> None:
        self.is_requested, self.aloud = False, aloud
        self._before: dict[int, Any] = {}
        self._at_once = False

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():
            for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
                before = signal.getsignal(number)
                if before == usual or isinstance(getattr(before, "__self__", None), Stop):
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, before in self._before.items():
            if signal.getsignal(number) == self._note:
                signal.signal(number, before)
        self._before = {}

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """A block that may end anywhere: a stop that was asked for raises `Stopped` in it, also before it begins."""
        self._at_once = True
        try:
            if self.is_requested:
                raise Stopped
            yield
        finally:
            self._at_once = False

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        if self.is_requested or not self._before:  # of a block that has ended, whose handler somebody has put back
            raise KeyboardInterrupt
        self.is_requested = True
        if self.aloud:
            os.write(2, ASKED)
        if self._at_once:
            raise Stopped
