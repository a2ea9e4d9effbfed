"""The device and the number type of computations, by fixed rules, and the number of threads in forked processes.

`auto` is a GPU if there is one. The number type `auto` is float32, but bfloat16 for a pretrained base on a GPU.
"""

import os
from functools import cache
from typing import Any

import torch

from factorcell.config import HuggingFaceOptions
from factorcell.errors import UserError

AUTO, FLOAT32, BFLOAT16 = "auto", "float32", "bfloat16"
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


def has_gpu() -> bool:
    """Return whether PyTorch finds a GPU."""
    return torch.cuda.is_available() and torch.cuda.device_count() > 0


def find_device(name: str) -> torch.device:
    """Return the device with the name "cpu", "cuda" or "auto"."""
    if name == "cpu" or (name == AUTO and not has_gpu()):
        return CPU
    if not has_gpu():
        raise UserError("device: cuda needs a GPU, but PyTorch finds none; choose auto or cpu")
    return torch.device("cuda", 0)


def find_precision(name: str, device: torch.device, backbone: Any) -> str:
    """Return the number type of matrix products, "float32" or "bfloat16"; `name` may also be "auto"."""
    if name != AUTO:
        return name
    is_pretrained = isinstance(backbone, HuggingFaceOptions) and backbone.is_pretrained
    return BFLOAT16 if is_pretrained and device.type == "cuda" else FLOAT32
