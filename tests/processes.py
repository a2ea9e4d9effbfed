"""Work in a process of its own, which `kill -9` may end."""

import math
import os
import signal
import time
import warnings
from collections.abc import Callable

import pytest

requires_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def start_process(work: Callable[[], object]) -> int:
    """Do `work` in a copy of this process, whose number it is; the copy ends with 0 if nothing was raised, else 1."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a fork where there are threads; the child has none
        child = os.fork()
    if not child:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return child


def wait_for_exit(child: int) -> int:
    """Wait for a process; what it ended with, or the signal that killed it as a negative number."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run_and_kill(work: Callable[[], object], after: float = math.inf) -> bool:
    """Do `work` in a copy of this process, which is killed after so many seconds, or kills itself; whether it was."""
    child = start_process(work)
    if after < math.inf:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    status = wait_for_exit(child)
    assert status in (0, -signal.SIGKILL)
    return status != 0
