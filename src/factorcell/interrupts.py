"""Ctrl-C while modules load: a line and an end. It imports next to nothing, so that it is there before all else.

Then nothing is to be saved, and an import that is interrupted fails in ways of its own.
"""

import os
import signal
import threading
from types import FrameType

STOPPED = 130  # exit code of one who stops


def end_at_once() -> None:
    """From now on Ctrl-C ends the process with a line, unless somebody else sees to it."""
    there = threading.current_thread() is threading.main_thread()
    if there and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_again() -> None:
    """From now on Ctrl-C is a `KeyboardInterrupt` again, if `end_at_once` has changed it."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(_number: int, _frame: FrameType | None) -> None:
    os.write(2, b"\nstopped\n")
    os._exit(STOPPED)
