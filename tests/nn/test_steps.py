"""Tests of training steps against Adam in numpy, of log rows, epochs, random numbers and evaluations."""

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from factorcell.config import Config
from factorcell.data.corpus import Corpus
from factorcell.data.preparation import prepare
from factorcell.io import files
from factorcell.runs.run import Run
from factorcell.training import optimization, schedule
from factorcell.training import trainer as trainer_module
from factorcell.training.schedule import learning_rate
from factorcell.training.trainer import Trainer, train
from tests import synthetic


def make_training(folder: Path, dropout: float = 0.0, **training: Any) -> tuple[Run, Corpus]:
    sizes = {"embedding_size": 6, "hidden_size": 8, "context_size": 3, "variable_size": 3, "rank": 2}
    config = Config.of(
        **{
            "context": ["dialect"],
            "min_count": 1,
            **sizes,
            "dropout_recurrent": dropout,
            "dropout_output": dropout,
            "epochs": 1,
            "batch_tokens": 200,
            "evaluations": 1,
            **training,
        }
    )
    corpus = prepare(synthetic.two_dialects(120, 1)[0], config)
    return Run.create(folder, config, corpus.tokenizer, corpus.schema), corpus


@pytest.mark.parametrize("clip", [0.05, 100.0])
def test_steps_equal_adam_in_numpy(clip: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kingma and Ba 2015, algorithm 1, after clipping the norm of all gradients; decoupled weight decay of matrices.

    The embeddings, the values of the context and the adapted softmax bias have three times the learning rate, and a
    FactorCell of rank 24 half of it.
    """
    monkeypatch.setattr(optimization, "MAX_GRADIENT_NORM", clip)
    monkeypatch.setattr(schedule, "WARMUP", 0.3)
    run, corpus = make_training(tmp_path / "run", rank=24, weight_decay=0.1, learning_rate=0.02, token_rate=3)
    trainer = Trainer(run, corpus, corpus)
    model = run.model
    names = [name for name, _ in model.named_parameters()]
    value = {name: parameter.detach().double().numpy().copy() for name, parameter in model.named_parameters()}
    first, second = ({name: np.zeros_like(value[name]) for name in names} for _ in range(2))
    batches = trainer.batches()
    for step in range(4):
        batch = next(batches)
        loss = model(batch).sum() / int(batch.lengths.sum())
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        norm = math.sqrt(sum(float((gradient.double() ** 2).sum()) for gradient in gradients))
        rate = learning_rate(step, trainer.progress.steps, 0.02, 0.3)
        for name, gradient in zip(names, gradients, strict=True):
            g = gradient.double().numpy() * min(1.0, clip / norm)
            first[name] = 0.9 * first[name] + 0.1 * g
            second[name] = 0.999 * second[name] + 0.001 * g**2
            m, v = first[name] / (1 - 0.9 ** (step + 1)), second[name] / (1 - 0.999 ** (step + 1))
            own_rate = rate * (0.5 if ".factor." in name else 1)
            if name.startswith(("embedding", "head.adapters", "encoder.tables")):
                own_rate = 3 * rate
            value[name] *= 1 - (own_rate * 0.1 if value[name].ndim > 1 else 0)
            value[name] -= own_rate * m / (np.sqrt(v) + 1e-8)
        trainer.step(batch)
        # If a gradient is almost zero, its sign, which rounding may change, determines the step of Adam.
        for name, parameter in model.named_parameters():
            is_certain = np.sqrt(second[name]) > 1e-6
            np.testing.assert_allclose(
                parameter.detach().numpy()[is_certain], value[name][is_certain], atol=2e-4, err_msg=name
            )
            value[name] = parameter.detach().double().numpy().copy()
    assert trainer.progress.step == 4


def test_logged_loss_equals_exact_nats_at_a_learning_rate_of_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_module, "LOG_EVERY", 2)
    run, corpus = make_training(tmp_path / "run", learning_rate=0.0)
    rows = list(train(run, corpus, corpus))
    losses = [row for row in rows if row["split"] == "train"]
    counts = np.diff([0, *(row["tokens"] for row in losses)])
    assert losses[-1]["tokens"] == corpus.target_count
    assert len(losses) == math.ceil(rows[-1]["steps"] / 2)
    mean = sum(row["loss"] * count for row, count in zip(losses, counts, strict=True)) / corpus.target_count
    assert mean == pytest.approx(float(run.nats(corpus).astype(np.float64).mean()), rel=1e-5)
    assert rows[-1]["perplexity"] == pytest.approx(math.exp(mean), rel=1e-5)


@pytest.mark.parametrize("epochs", [0.4, 1.0, 2.5])
def test_every_row_is_read_once_per_epoch(epochs: float, tmp_path: Path) -> None:
    run, corpus = make_training(tmp_path / "run", epochs=epochs)
    trainer = Trainer(run, corpus, corpus)
    reads = np.zeros(len(corpus), dtype=int)
    for batch in trainer.batches():
        reads[batch.rows.numpy()] += 1
        trainer.progress.step += 1
    assert trainer.progress.step == trainer.progress.steps == round(epochs * len(corpus.batches(200, seed=0)))
    assert set(reads) <= {math.floor(epochs), math.ceil(epochs)}


def test_every_epoch_has_another_order_of_rows(tmp_path: Path) -> None:
    orders = []
    for name in ("a", "b"):
        run, corpus = make_training(tmp_path / name, epochs=2)
        trainer, rows = Trainer(run, corpus, corpus), []
        for batch in trainer.batches():
            rows.append(batch.rows.tolist())
            trainer.progress.step += 1
        half = len(rows) // 2
        orders.append((rows[:half], rows[half:]))
    (first, second), repeated = orders
    assert (first, second) == repeated
    assert sorted(itertools.chain(*first)) == list(range(len(corpus)))
    assert list(itertools.chain(*first)) != list(itertools.chain(*second))
    assert {frozenset(part) for part in first} != {frozenset(part) for part in second}


def test_random_numbers_depend_on_seed_and_step_only(tmp_path: Path) -> None:
    weights = {}
    for name, noise, seed in (("a", 1, 0), ("b", 2, 0), ("c", 1, 1)):
        run, corpus = make_training(tmp_path / name, dropout=0.3, samples=6, seed=seed)
        torch.manual_seed(noise)
        expected = torch.rand(3)
        torch.manual_seed(noise)
        list(train(run, corpus, corpus))
        assert torch.equal(torch.rand(3), expected)
        weights[name] = torch.cat([parameter.detach().flatten() for parameter in run.model.parameters()])
    assert torch.equal(weights["a"], weights["b"])
    assert not torch.equal(weights["a"], weights["c"])


def test_dropout_differs_between_steps(tmp_path: Path) -> None:
    run, corpus = make_training(tmp_path / "run", dropout=0.5, learning_rate=0.0)
    trainer = Trainer(run, corpus, corpus)
    batch = next(trainer.batches())
    nats = []
    for _ in range(2):
        before = trainer.progress.nats
        trainer.step(batch)
        nats.append(trainer.progress.nats - before)
    assert nats[0] != pytest.approx(nats[1], rel=1e-6)
    assert not run.model.training


@pytest.mark.parametrize(("evaluations", "steps"), [(1, 12), (3, 12), (5, 12), (50, 12)])
def test_evaluations_are_evenly_spaced_and_include_the_last_step(evaluations: int, steps: int, tmp_path: Path) -> None:
    """There are `evaluations` of them, or one per step if there are fewer steps."""
    run, corpus = make_training(tmp_path / "run", evaluations=evaluations)
    per_epoch = len(corpus.batches(200, seed=0))
    run, corpus = make_training(tmp_path / "even", evaluations=evaluations, epochs=steps / per_epoch)
    evaluated = [row["step"] for row in train(run, corpus, corpus) if row["split"] == "dev"]
    assert evaluated[-1] == steps
    assert len(evaluated) == min(evaluations, steps)
    assert all(abs(step - steps * (number + 1) / len(evaluated)) < 1 for number, step in enumerate(evaluated))


def test_patience_counts_from_the_last_improvement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An equal perplexity does not count as an improvement, and the best weights are saved."""
    run, corpus = make_training(tmp_path / "run", evaluations=12, patience=3, epochs=3)
    perplexities = iter([9.0, 8.0, 8.5, 8.0, 7.0, 7.5, 7.2, 7.0, 6.0])
    figures = "factorcell.training.trainer.development_figures"
    monkeypatch.setattr(figures, lambda *_: ({"perplexity": next(perplexities)}, {}))
    rows = [row for row in train(run, corpus, corpus) if row["split"] == "dev"]
    assert [row["perplexity"] for row in rows] == [9.0, 8.0, 8.5, 8.0, 7.0, 7.5, 7.2, 7.0]
    assert [row["best"] for row in rows] == [9.0, 8.0, 8.0, 8.0, 7.0, 7.0, 7.0, 7.0]
    _, facts = files.load_tensors(run.folder / "weights.safetensors")
    assert facts["step"] == rows[4]["step"]
