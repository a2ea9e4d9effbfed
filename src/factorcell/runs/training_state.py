"""The state of the training in a folder: running, stopped before its end, or ended.

A running training holds the lock of the folder. Its log says how far it got.
"""

from collections.abc import Sequence
from pathlib import Path

from factorcell.errors import UserError
from factorcell.io import files, lock

LOG = "log.jsonl"
WEIGHTS = "weights.safetensors"
FACTS = "training.json"  # written at the end of a training
CHECKPOINT = "checkpoint.safetensors"  # the state from which training resumes
ENDED_SINCE = "its training ended after its files were read; run the command again"


class NoWeightsYetError(UserError):
    """The training in `folder` is running, and has not saved weights yet, for the `reason`."""

    def __init__(self, folder: Path) -> None:
        self.reason = f"{describe_running(folder)} and has no weights before its first evaluation"
        super().__init__(f"{folder}: {self.reason}; try again later")


def check_weights(folder: Path) -> None:
    """Raise a `UserError` if a training has begun in `folder` but has not saved weights."""
    if (folder / WEIGHTS).exists() or (folder / FACTS).exists():
        return
    if lock.is_locked(folder):
        raise NoWeightsYetError(folder)
    if (folder / LOG).exists() or (folder / CHECKPOINT).exists():
        problem = "training stopped before its first evaluation"
        raise UserError(f"{folder}: {problem}; run the training command again with --resume")


def describe_running(folder: Path) -> str:
    """Return a clause that the training in `folder` is running, with its step if the log has a row."""
    step, steps = _progress(files.read_rows(folder / LOG))
    return "its training is running" + (f" (step {step:,} of {steps:,})" if steps else "")


def describe_unfinished(folder: Path, was_running: bool = False) -> str | None:
    """Return a clause about a training that is running or that stopped before its last step; None if it has ended.

    `was_running` is whether the training was running when the files of the run were read.
    """
    if lock.is_locked(folder):
        return describe_running(folder)
    if was_running:
        return ENDED_SINCE
    step, steps = _progress(files.read_rows(folder / LOG))
    if not steps or (folder / FACTS).exists():
        return None
    return f"its training stopped after {step:,} of {steps:,} steps"


def _progress(log: Sequence[files.Row]) -> tuple[int, int]:
    """Return the last step in a log and the number of steps of the training; zeros if the log does not say them."""
    last_row = log[-1] if log else {}
    step, steps = last_row.get("step"), last_row.get("steps")
    return (step, steps) if isinstance(step, int) and isinstance(steps, int) else (0, 0)
