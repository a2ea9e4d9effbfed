"""Functions that run in a child process, which can be killed."""

import math
import os
import signal
import time
import warnings
from collections.abc import Callable

import pytest

requires_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def start_process(work: Callable[[], object]) -> int:
    """Fork a child that runs `work`, and return its process id; its exit code is 0, or 1 if `work` raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a fork in a process with threads; the child has none
        child = os.fork()
    if not child:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return child


def wait_for_exit(child: int) -> int:
    """Wait for a process; return its exit code, or the negative number of the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run_and_kill(work: Callable[[], object], after: float = math.inf) -> bool:
    """Run `work` in a child that is killed after a number of seconds or kills itself; return whether it was killed."""
    child = start_process(work)
    if after < math.inf:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    status = wait_for_exit(child)
    assert status in (0, -signal.SIGKILL)
    return status != 0
