"""Choice of the device to compute on, and threads in forked processes."""

import os
from functools import cache

import torch

from factorcell.config import UserError

CPU = torch.device("cpu")


@cache
def compute_on_one_thread_after_fork() -> None:
    """Let PyTorch compute on one thread in processes that are forked from now on.

    The threads of the parent do not exist in the child, but GNU's OpenMP library, which PyTorch uses, would wait for
    them forever. With one thread it starts no parallel work. PyTorch's DataLoader does the same in its workers. Spawned
    processes compute on all threads.
    """
    if hasattr(os, "register_at_fork"):  # Windows has no fork
        os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


def find_device(name: str) -> torch.device:
    """Return the device called `name`: "cpu", "cuda", or "auto", which is a GPU if there is one."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and not count):
        return CPU
    if not count:
        raise UserError("device: cuda needs a GPU, but PyTorch finds none; choose auto or cpu")
    return torch.device("cuda", 0)
