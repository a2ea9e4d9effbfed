"""Work in a process of its own that `kill -9` ends."""

import math
import os
import signal
import time
import warnings
from collections.abc import Callable

import pytest

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def killed(work: Callable[[], object], after: float = math.inf) -> bool:
    """Do `work` in a copy of this process, which is killed after so many seconds, or kills itself; whether it was."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a fork where there are threads; the child has none
        child = os.fork()
    if not child:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    if after < math.inf:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL)
    return status != 0
