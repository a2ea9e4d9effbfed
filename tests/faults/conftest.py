"""What the tests of tables share."""

import pytest

from factorcell import Run, fit
from tests.faults.tables import DATA, ROWS


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A tiny run with contexts of every kind."""
    few = {"embedding_size": 4, "hidden_size": 5, "context_size": 3, "rank": 2, "epochs": 2, "evaluations": 1}
    return fit(ROWS, ROWS, DATA.with_options(device="cpu", **few), tmp_path_factory.mktemp("run") / "tiny")
