"""The prior on what is learned of single values: where a training ends under it, and whom it holds back most."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from factorcell.data.corpus import Corpus
from factorcell.model.run import Run
from factorcell.training.trainer import Trainer
from tests import small

ENOUGH = {"epochs": 300, "batch_tokens": 10_000, "learning_rate": 0.1, "decay": "linear", "clip": 0.0}
SELDOM = {"evaluations": 1, "log_every": 1000, "save_every": 1000}


def of_values_alone(folder: Path, prior: float, rows: list[dict[str, Any]], **model: Any) -> tuple[Run, Corpus]:
    """A run of which nothing but embeddings of values, or hashed buckets, has moved, as far as it goes."""
    model = {"adapt": ("concat",), "output_bias": (), **model}
    run = small.make_run(folder, ("city", "stars"), {**ENOUGH, **SELDOM, "value_prior": prior}, **model)
    for name, parameter in run.model.named_parameters():
        parameter.requires_grad_(name.startswith(("encoder.tables", "output.hashed")))
    corpus = run.prepare(rows)
    trainer = Trainer(run, corpus, corpus)
    for batch in trainer.batches():
        trainer.step(batch)
    return run, corpus


def gradients(run: Run, corpus: Corpus, tables: list[Tensor]) -> list[Tensor]:
    """Those of the mean nats of all texts."""
    run.model.zero_grad()
    (run.model(corpus.batch(np.arange(len(corpus)))).sum() / corpus.targets).backward()
    return [table.grad for table in tables if table.grad is not None]


@pytest.mark.parametrize("prior", [0.003, 0.03])
@pytest.mark.parametrize("bias", [(), ("hash",)])
def test_a_training_ends_where_prior_and_evidence_are_even(prior: float, bias: tuple[str, ...], tmp_path: Path) -> None:
    """Nats a target and the prior on squares are least in sum: the gradient of the nats is -2 prior w, everywhere."""
    run, corpus = of_values_alone(tmp_path / "run", prior, small.ROWS, output_bias=bias)
    assert run.model.encoder is not None
    tables = list(run.model.encoder.tables)
    if bias:
        assert run.model.output.hashed is not None
        tables.append(run.model.output.hashed.weight)
    found = gradients(run, corpus, tables)
    assert len(found) == len(tables)
    for gradient, table in zip(found, tables, strict=True):
        torch.testing.assert_close(gradient, -2 * prior * table.detach(), atol=3e-4, rtol=0.01)
        assert float(table.detach().abs().max()) > 0.01


def test_the_fewer_texts_the_nearer_to_zero(tmp_path: Path) -> None:
    """Two cities that write the same: that of more texts keeps more of what is learned of it."""
    rows = [{"text": "sun and sand", "city": city, "stars": "5"} for city in ("Oslo", *["Nice"] * 9)]
    run, _ = of_values_alone(tmp_path / "run", 0.003, rows)
    assert run.model.encoder is not None
    lengths = run.model.encoder.tables[0].detach().norm(dim=1)
    ids = {city: run.schema.variable("city").values.index(city) for city in ("Oslo", "Nice")}
    assert float(lengths[ids["Oslo"]]) < 0.7 * float(lengths[ids["Nice"]])


@pytest.mark.parametrize(("bias", "row_wise"), [((), True), (("hash",), False)])
def test_only_tables_that_are_held_lose_their_row_wise_steps(
    bias: tuple[str, ...], row_wise: bool, tmp_path: Path
) -> None:
    """Embeddings of values are dense anyhow; hashed buckets must not miss a proximal step."""
    training = {"loss": "sampled", "samples": 5, "value_prior": 0.01}
    run = small.make_run(tmp_path / "run", training=training, output_bias=bias)
    corpus = run.prepare(small.ROWS)
    assert bool(Trainer(run, corpus, corpus).rows) == row_wise
