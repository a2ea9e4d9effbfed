"""Fixtures of the tests of tables."""

import pytest

from factorcell import Run
from factorcell.training.fit import train_run
from tests.faults.tables import CONFIG, ROWS


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A tiny run with contexts of every kind."""
    sizes = {"embedding_size": 4, "hidden_size": 5, "context_size": 3, "rank": 2, "epochs": 2, "evaluations": 1}
    return train_run(ROWS, ROWS, CONFIG.with_options(device="cpu", **sizes), tmp_path_factory.mktemp("run") / "tiny")
