"""Choice of the device to compute on, and the number of threads in forked processes."""

import os
from functools import cache

import torch

from factorcell.config import UserError

CPU = torch.device("cpu")


@cache
def compute_on_one_thread_after_fork() -> None:
    """Let PyTorch compute on one thread in processes that are forked from now on.

    PyTorch uses GNU's OpenMP library. In a forked process, this library would wait forever for threads that exist only
    in the parent process; with one thread it does not wait. PyTorch's DataLoader also limits its workers to one thread.
    Spawned processes still compute on all threads.
    """
    if hasattr(os, "register_at_fork"):  # Windows has no fork
        os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


def find_device(name: str) -> torch.device:
    """Return the device called `name`: "cpu", "cuda", or "auto", a GPU if there is one."""
    gpu_count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and not gpu_count):
        return CPU
    if not gpu_count:
        raise UserError("device: cuda needs a GPU, but PyTorch finds none; choose auto or cpu")
    return torch.device("cuda", 0)
