"""Choice of the device to compute on, by measurement, and the number of threads in forked processes.

A GPU is not always faster than the processor: a small model waits for the launches of its kernels. Therefore `auto`
times the work on both devices.
"""

import os
import time
from collections.abc import Callable, Mapping
from functools import cache

import torch

from factorcell.config import UserError

AUTO = "auto"
CPU = torch.device("cpu")
REPETITIONS = 2  # timings per device, after a call that is not timed; the shortest counts


@cache
def compute_on_one_thread_after_fork() -> None:
    """Let PyTorch compute on one thread in processes that are forked from now on.

    PyTorch uses GNU's OpenMP library. In a forked process, this library would wait forever for threads that exist only
    in the parent process; with one thread it does not wait. PyTorch's DataLoader also limits its workers to one thread.
    Spawned processes still compute on all threads.
    """
    if hasattr(os, "register_at_fork"):  # Windows has no fork
        os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


def has_gpu() -> bool:
    """Return whether PyTorch finds a GPU."""
    return torch.cuda.is_available() and torch.cuda.device_count() > 0


def find_device(name: str) -> torch.device:
    """Return the device called `name`: "cpu", "cuda", or "auto", a GPU if there is one."""
    if name == "cpu" or (name == AUTO and not has_gpu()):
        return CPU
    if not has_gpu():
        raise UserError("device: cuda needs a GPU, but PyTorch finds none; choose auto or cpu")
    return torch.device("cuda", 0)


def choose_device(works: Mapping[str, Callable[[], int]], clock: Callable[[], float] = time.perf_counter) -> str:
    """Return the name of the device that reads the most tokens per second.

    Args:
        works: Functions by names of devices. Each computes on its device, and returns the number of tokens that it has
            read when its results are computed. A device whose memory is too small for the work is not chosen.
        clock: Returns the time in seconds.
    """
    rates = {}
    for name, work in works.items():
        try:
            rates[name] = max(_measure_rate(work, clock, is_timed=number > 0) for number in range(REPETITIONS + 1))
        except torch.OutOfMemoryError:
            rates[name] = 0.0
    return max(rates, key=rates.__getitem__)


def _measure_rate(work: Callable[[], int], clock: Callable[[], float], *, is_timed: bool) -> float:
    """Return the tokens per second of `work`, or 0 if it is not timed."""
    start = clock()
    token_count = work()
    return token_count / max(clock() - start, 1e-9) if is_timed else 0.0


def describe_device(name: str) -> str:
    """Name the measured device in one line."""
    return f"computing on the {'processor' if name == 'cpu' else 'GPU'}, the faster device when tried; --device sets it"
