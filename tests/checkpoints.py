"""Checkpoints of trainings that take few steps, and trainings that are interrupted."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from factorcell.training import trainer as trainer_module


def checkpoints_every_step() -> Any:
    """Return a fixture with which the trainings of a test module save a checkpoint after every step."""

    @pytest.fixture(scope="module", autouse=True)
    def frequent_checkpoints() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trainer_module, "SAVE_SECONDS", 0.0)
            yield

    return frequent_checkpoints


@contextmanager
def interrupted_before_step(number: int) -> Iterator[None]:
    """Interrupt a training before its step `number`, from 0."""
    original = trainer_module.Trainer.step

    def interrupted_step(trainer: trainer_module.Trainer, batch: Any) -> None:
        if trainer.progress.step == number:
            raise KeyboardInterrupt
        original(trainer, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer_module.Trainer, "step", interrupted_step)
        with pytest.raises(KeyboardInterrupt):
            yield
