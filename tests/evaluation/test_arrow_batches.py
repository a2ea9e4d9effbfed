"""Runs that are applied to Arrow batches: the figures are those of whole tables, in batches of any size."""

from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest

from factorcell import UserError
from factorcell.generation import GenerationOptions
from factorcell.runs.run import Run
from tests.small_runs import ROWS, make_run

TABLE = pa.Table.from_pylist([{"id": number, **row} for number, row in enumerate(ROWS)])
CONTEXTS = TABLE.select(["id", "city", "stars"])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = make_run(tmp_path_factory.mktemp("runs") / "run")
    run.save_weights({})
    return Run.open(run.folder)


def in_batches(function: Any, table: pa.Table, size: int, **options: Any) -> pa.Table:
    return pa.concat_tables([function(batch, **options) for batch in table.to_batches(max_chunksize=size)])


@pytest.mark.parametrize("size", [1, 3, 10])
def test_scores_are_those_of_the_table(run: Run, size: int) -> None:
    result = in_batches(run.score_arrow, TABLE, size)
    assert result.select(TABLE.column_names) == TABLE
    rows = run.score_rows(TABLE)
    for name in ("nats", "perplexity"):
        np.testing.assert_allclose(result[name], [row[name] for row in rows], rtol=1e-5)
    for name in ("targets", "unknown_targets"):
        assert result[name].to_pylist() == [row[name] for row in rows]


@pytest.mark.parametrize("size", [1, 10])
def test_predictions_are_those_of_the_table(run: Run, size: int) -> None:
    result = in_batches(run.predict_arrow, TABLE, size, target="city")
    rows = run.predict(TABLE, "city").rows()
    assert result["predicted"].to_pylist() == [row["predicted"] for row in rows]
    expected = [row["probabilities"][row["predicted"]] for row in rows]
    np.testing.assert_allclose(result["probability"], expected, rtol=1e-4)


def test_vectors_are_those_of_the_contexts(run: Run) -> None:
    whole = in_batches(run.embed_arrow, TABLE, 10)["context_vector"].to_pylist()
    assert {len(vector) for vector in whole} == {run.config.model.context_size}
    encoder = run.model.encoder
    assert encoder is not None
    expected = encoder(run.prepare(TABLE).context(np.arange(len(ROWS))))
    np.testing.assert_allclose(whole, expected.detach().numpy(), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(in_batches(run.embed_arrow, TABLE, 3)["context_vector"].to_pylist(), whole, rtol=1e-5)
    without_coordinates = run.embed_arrow(CONTEXTS)["context_vector"].to_pylist()
    assert not np.allclose(without_coordinates, whole)


def test_generated_texts_depend_on_the_seed_and_the_rows(run: Run) -> None:
    options = GenerationOptions(max_tokens=8)
    texts = run.generate_arrow(CONTEXTS, options=options)["generated"].to_pylist()
    assert len(texts) == len(ROWS)
    assert run.generate_arrow(CONTEXTS, options=options)["generated"].to_pylist() == texts
    others = CONTEXTS.set_column(0, "id", pa.array(range(10, 20)))
    assert run.generate_arrow(others, options=options)["generated"].to_pylist() != texts
    other_seed = GenerationOptions(max_tokens=8, seed=1)
    assert run.generate_arrow(CONTEXTS, options=other_seed)["generated"].to_pylist() != texts
    assert run.generate_arrow(CONTEXTS.select(["id"]), options=options).num_rows == len(ROWS)


def test_an_empty_batch_has_the_same_columns(run: Run) -> None:
    for function, options in (
        (run.score_arrow, {}),
        (run.predict_arrow, {"target": "city"}),
        (run.embed_arrow, {}),
        (run.generate_arrow, {}),
    ):
        assert function(TABLE.slice(0, 0), **options).schema == function(TABLE, **options).schema


def test_batches_that_cannot_be_read_are_errors(run: Run) -> None:
    with pytest.raises(UserError, match="expected no column 'nats', which the result adds; rename it"):
        run.score_arrow(TABLE.append_column("nats", TABLE["id"]))
    with pytest.raises(UserError, match="no column 'text'"):
        run.score_arrow(TABLE.drop_columns(["text"]))
    with pytest.raises(UserError, match="expected no time limit"):
        run.generate_arrow(CONTEXTS, options=GenerationOptions(seconds=1.0))


def test_a_run_is_opened_from_an_address(run: Run, tmp_path: Path) -> None:
    system = fsspec.filesystem("memory")
    system.put(str(run.folder), "/models/run", recursive=True)
    system.pipe("/models/run/checkpoint.safetensors", b"not needed")
    opened = Run.open("memory://models/run")
    assert opened.score(TABLE).tolist() == run.score(TABLE).tolist()
    folder = opened.folder
    assert folder.name == "run"
    assert (folder / "schema.json").exists()
    assert not (folder / "checkpoint.safetensors").exists()
    del opened
    assert not folder.parent.exists()
    assert Run.open(f"file://{run.folder}").fingerprint == run.fingerprint


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("memory://models/none", "memory://models/none: expected a run folder, got an address that does not exist"),
        ("nowhere://models/run", "nowhere://models/run: cannot be read .*nowhere"),
        ("memory://empty/run", "memory://empty/run: expected a run folder, got a folder without config.json"),
    ],
)
def test_an_address_that_is_not_a_run_is_an_error(address: str, message: str) -> None:
    fsspec.filesystem("memory").pipe("/empty/run/readme", b"")
    with pytest.raises(UserError, match=message) as caught:
        Run.open(address)
    assert "\n" not in str(caught.value)
