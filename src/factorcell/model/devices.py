"""Where to compute: a processor or a GPU."""

import os

import torch

from factorcell.config import UserError

CPU = torch.device("cpu")


def find_device(name: str) -> torch.device:
    """The device called `name`: "cpu", "cuda", of several the one of this process, or "auto": a GPU if there is one."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and not count):
        return CPU
    local = int(os.environ.get("LOCAL_RANK", 0))
    if not count:
        raise UserError("device is 'cuda', but PyTorch finds no GPU here; choose from auto, cpu")
    if local >= count:
        raise UserError(f"process {local + 1} of this machine has no GPU, there are {count}: start as many processes")
    return torch.device("cuda", local)
