"""The prior on values: where a training ends with it, and that it restricts values with few texts most."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from factorcell.data.corpus import Corpus
from factorcell.runs.run import Run
from factorcell.training.trainer import Trainer
from tests import small_runs

CONVERGED = {"epochs": 200, "batch_tokens": 10_000, "learning_rate": 0.1}
FEW_ROWS = {"evaluations": 1}


def train_values(folder: Path, prior: float, rows: list[dict[str, Any]], **model: Any) -> tuple[Run, Corpus]:
    """Train only the embeddings of values or the hashed biases of a run, to convergence."""
    model = {"adapt": ("concat",), "output_bias": (), **model}
    run = small_runs.make_run(folder, ("city", "stars"), {**CONVERGED, **FEW_ROWS, "value_prior": prior}, **model)
    for name, parameter in run.model.named_parameters():
        parameter.requires_grad_(name.startswith(("encoder.tables", "head.hashed")))
    corpus = run.prepare(rows)
    trainer = Trainer(run, corpus, corpus)
    for batch in trainer.batches():
        trainer.step(batch)
    return run, corpus


def gradients(run: Run, corpus: Corpus, tables: list[Tensor]) -> list[Tensor]:
    """Return the gradients of the mean nats of all texts with respect to `tables`."""
    run.model.zero_grad()
    (run.model(corpus.batch(np.arange(len(corpus)))).sum() / corpus.target_count).backward()
    return [table.grad for table in tables if table.grad is not None]


@pytest.mark.parametrize(("prior", "bias"), [(0.03, ()), (0.003, ("hash",))])
def test_a_training_ends_where_gradients_of_prior_and_nats_cancel(
    prior: float, bias: tuple[str, ...], tmp_path: Path
) -> None:
    run, corpus = train_values(tmp_path / "run", prior, small_runs.ROWS, output_bias=bias)
    assert run.model.encoder is not None
    tables = list(run.model.encoder.tables)
    if bias:
        tables.append(small_runs.as_any(run.model.head).hashed.weight)
    computed = gradients(run, corpus, tables)
    assert len(computed) == len(tables)
    for gradient, table in zip(computed, tables, strict=True):
        torch.testing.assert_close(gradient, -2 * prior * table.detach(), atol=3e-4, rtol=0.01)
        assert float(table.detach().abs().max()) > 0.01


def test_values_with_fewer_texts_have_smaller_embeddings(tmp_path: Path) -> None:
    rows = [{"text": "sun and sand", "city": city, "stars": "5"} for city in ("Oslo", *["Nice"] * 9)]
    run, _ = train_values(tmp_path / "run", 0.003, rows)
    assert run.model.encoder is not None
    lengths = run.model.encoder.tables[0].detach().norm(dim=1)
    ids = {city: run.schema.variable("city").values.index(city) for city in ("Oslo", "Nice")}
    assert float(lengths[ids["Oslo"]]) < 0.7 * float(lengths[ids["Nice"]])
