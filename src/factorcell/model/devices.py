"""Where to compute: a processor or a GPU."""

import os
from functools import cache

import torch

from factorcell.config import UserError

CPU = torch.device("cpu")


@cache
def compute_on_one_thread_after_fork() -> None:
    """From now on, have PyTorch compute on one thread in each process that is forked from this one.

    The threads that the parent has computed on do not exist in the child, but GNU's OpenMP library, which PyTorch uses,
    waits for them forever. With one thread it starts no parallel work. PyTorch's DataLoader does the same in its
    workers. A process that is spawned, not forked, computes on all threads.
    """
    if hasattr(os, "register_at_fork"):  # not on Windows, where nothing is forked
        os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


def find_device(name: str) -> torch.device:
    """The device called `name`: "cpu", "cuda", or "auto": a GPU if there is one."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and not count):
        return CPU
    if not count:
        raise UserError("device is 'cuda', but PyTorch finds no GPU here; choose from auto, cpu")
    return torch.device("cuda", 0)
