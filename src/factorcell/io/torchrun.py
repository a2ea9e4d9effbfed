"""The number of processes that torchrun started, and the error if one of them ends."""

import os

from factorcell.errors import UserError


class ProcessEndedError(UserError):
    """Another process of torchrun has ended."""


def process_count() -> int:
    """Return the number of processes that torchrun started on all machines; 1 without torchrun."""
    return int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else 1
