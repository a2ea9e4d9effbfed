"""The number of processes that torchrun started."""

import os


def process_count() -> int:
    """Return the number of processes that torchrun started on all machines; 1 without torchrun."""
    return int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else 1
