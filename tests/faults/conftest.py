"""What the tests of tables share."""

import pytest

from factorcell import Config, Run, TrainingConfig, fit
from tests.faults.tables import DATA, ROWS


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A tiny run with contexts of every kind."""
    model = Config.of(embedding_size=4, hidden_size=5, context_size=3, rank=2)
    training = TrainingConfig(epochs=2, evaluations=1, device="cpu")
    return fit(ROWS, ROWS, Config(DATA, model, training), tmp_path_factory.mktemp("run") / "tiny")
