"""Every function that reads a table reads a data set of Hugging Face like the rows that it contains."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorcell import Run, UserError, generate
from factorcell.config import Config
from factorcell.data import prepare
from factorcell.evaluation import advise, classify_points
from factorcell.training import finetune
from factorcell.training.fit import train_run
from tests.small_runs import CONTEXT, ROWS

datasets = pytest.importorskip("datasets", reason="datasets is not installed")

OPTIONS: dict[str, Any] = {"min_count": 1, "min_context_count": 1, "embedding_size": 4, "hidden_size": 4, "rank": 1}
CONFIG = Config.of(context=list(CONTEXT), epochs=1, **OPTIONS)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_run(ROWS * 2, ROWS * 2, CONFIG, tmp_path_factory.mktemp("runs") / "run")


def tables() -> list[Any]:
    """Return the same table as rows, as a data set, and as a streamed data set."""
    data_set = datasets.Dataset.from_list(ROWS * 2)
    return [ROWS * 2, data_set, data_set.to_iterable_dataset()]


def weights(run: Run) -> list[Any]:
    return [parameter.tolist() for parameter in run.model.parameters()]


def generated(run: Run, table: Any) -> list[Any]:
    columns = [name.partition(":")[0] for name in CONTEXT]
    is_list = isinstance(table, list)
    contexts = [{name: row[name] for name in columns} for row in table] if is_list else table.select_columns(columns)
    return [row["text"] for row in generate(run, contexts)]


POINTS = {"north": {"lat": 60.0, "lon": 10.0}, "south": {"lat": 43.0, "lon": 7.0}}
READERS: dict[str, Callable[[Run, Any], Any]] = {
    "prepare": lambda run, table: prepare(table, run.config).tokens.tolist(),
    "Run.prepare": lambda run, table: run.prepare(table).categories.tolist(),
    "score": lambda run, table: run.score_rows(table),
    "evaluate": lambda run, table: run.evaluate(table).row,
    "classify": lambda run, table: run.predict(table, "city", calibrate=table, combine=True).rows(),
    "classify_points": lambda run, table: classify_points(run, table, POINTS).rows(),
    "generate": generated,
    "advise": lambda run, table: advise(table, run.config),
}


@pytest.mark.parametrize("name", READERS)
def test_a_data_set_gives_the_same_result_as_its_rows(run: Run, name: str) -> None:
    rows, data_set, streamed = (READERS[name](run, table) for table in tables())
    np.testing.assert_equal(data_set, rows)  # reads NaN as equal to NaN
    np.testing.assert_equal(streamed, rows)


@pytest.mark.parametrize("index", [1, 2], ids=["in memory", "streamed"])
def test_a_data_set_trains_the_same_model_as_its_rows(run: Run, index: int, tmp_path: Path) -> None:
    table = tables()[index]
    trained = train_run(table, table, CONFIG, tmp_path / "run")
    assert weights(trained) == weights(run)
    tuned, expected = (
        finetune(run, source, dev=source, out=tmp_path / str(number)) for number, source in enumerate((table, ROWS * 2))
    )
    assert weights(tuned) == weights(expected)


def test_a_list_of_data_sets_is_an_error_about_its_first_row() -> None:
    with pytest.raises(UserError, match="row 1: expected a dict from column to value, got Dataset"):
        prepare([tables()[1]], CONFIG)


def test_results_of_texts_become_data_frames(run: Run) -> None:
    table = tables()[1]
    assert run.score_rows(table).to_pandas()["nats"].tolist() == run.score(ROWS * 2).tolist()
    result = run.predict(table, "city")
    frame = result.rows().to_pandas()
    np.testing.assert_allclose(
        frame[["probabilities.Oslo", "probabilities.Nice"]],
        result.probabilities[:, [result.names.index("Oslo"), result.names.index("Nice")]],
        atol=1e-6,
    )
