"""The cores of the processor that this process may use: all, unless it was pinned to some of them, or shares them."""

import os


def usable() -> int:
    """The cores that the system lets this process run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def share() -> int:
    """Those of them that are left to each of the processes that torchrun has started on this machine."""
    return max(1, usable() // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
