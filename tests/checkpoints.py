"""Checkpoints of trainings that take few steps."""

from collections.abc import Iterator
from typing import Any

import pytest

from factorcell.training import trainer as trainer_module


def checkpoints_every(steps: int) -> Any:
    """Return a fixture with which the trainings of a test module save a checkpoint every `steps` steps."""

    @pytest.fixture(scope="module", autouse=True)
    def frequent_checkpoints() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trainer_module, "SAVE_EVERY", steps)
            yield

    return frequent_checkpoints
