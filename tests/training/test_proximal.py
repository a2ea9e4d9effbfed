"""Parts of a model and penalties of fine-tuning: proximal steps against explicit minimization."""

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from factorcell.config import ADAPTERS, NAMES, OUTPUT_BIASES, PREFIX
from factorcell.data.corpus import Corpus
from factorcell.errors import UserError
from factorcell.nn.language_model import LanguageModel
from factorcell.runs.run import Run
from factorcell.training import proximal
from factorcell.training.adam import DenseAdam
from factorcell.training.proximal import PARTS, StartingPoint, part_of, select_parts
from factorcell.training.trainer import Trainer, train
from tests import small_runs


def values_of(model: LanguageModel) -> dict[str, Tensor]:
    """Return copies of all parameters."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def make_finetuning(folder: Path, parts: tuple[str, ...], l1: float, model: dict[str, Any], **training: Any) -> Run:
    """Return a run with random weights that are the start of a fine-tuning."""
    run = small_runs.make_run(folder, training=training, **model)
    StartingPoint(values_of(run.model), parts, l1).write(folder)
    return run


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("output_bias", [(), *((name,) for name in OUTPUT_BIASES)])
@pytest.mark.parametrize("adapt", [(), *((name,) for name in ADAPTERS)])
def test_every_parameter_has_a_part(
    adapt: tuple[str, ...], output_bias: tuple[str, ...], layer_norm: bool, tmp_path: Path
) -> None:
    model = small_runs.make_run(tmp_path / "run", adapt=adapt, output_bias=output_bias, layer_norm=layer_norm).model
    parts = {name: part_of(name) for name, _ in model.named_parameters()}
    assert set(parts.values()) == set(PARTS) - (set() if {*adapt} - {NAMES} or output_bias else {"context"})
    assert parts["embedding"] == "embedding"
    cells = {name: part for name, part in parts.items() if name.startswith("backbone.")}
    assert {part for name, part in cells.items() if ".adapters." in name} == ({"context"} & set(cells.values()))
    assert {part for name, part in cells.items() if ".adapters." not in name} == {"backbone"}
    assert ("context" in cells.values()) == bool({*adapt} - {PREFIX, NAMES})
    assert {parts[name] for name in parts if "bias" in name and name.startswith("head.")} == {"output_bias"}
    assert parts["head.projection"] == "projection"
    assert select_parts(model, ["all"]) == tuple(part for part in PARTS if part in parts.values())


def test_unknown_parts_are_refused(tmp_path: Path) -> None:
    model = small_runs.make_run(tmp_path / "run", adapt=(), output_bias=()).model
    with pytest.raises(UserError, match=r"unknown part 'output-bias' .did you mean 'output_bias'.*backbone"):
        select_parts(model, ["output-bias"])
    with pytest.raises(UserError, match=r"has no part 'context' .*it has embedding, backbone, output_bias, projection"):
        select_parts(model, ["backbone", "context"])
    assert select_parts(model, ["output_bias", "backbone", "output_bias"]) == ("backbone", "output_bias")


def test_the_proximal_step_minimizes_penalty_and_distance(tmp_path: Path) -> None:
    model = small_runs.make_run(tmp_path / "run", adapt=(), output_bias=()).model
    start, l1, rate = StartingPoint(values_of(model), ("output_bias",), 0.3), 0.3, 0.02
    start.apply_to(model)
    bias = small_runs.as_any(model.head).bias
    optimizer = DenseAdam([{"params": [bias], "lr": rate, "weight_decay": 0.0}])
    for step in range(4):  # gradients from far below to far above the penalty
        bias.grad = torch.linspace(-1, 1, len(bias)) * (1 + step / 4)
        optimizer.step()
        after, state = bias.detach().clone(), optimizer.state[bias]
        proximal.take_proximal_steps(optimizer, {bias: proximal.Penalty(start.values["head.bias"], l1)})
        step_sizes = rate / ((state["exp_avg_sq"] / (1 - 0.999 ** (step + 1))).sqrt() + 1e-8)
        for value, w, w0, s in zip(
            bias.tolist(), after.tolist(), start.values["head.bias"].tolist(), step_sizes, strict=True
        ):
            grid = np.append(np.linspace(min(w, w0) - 1e-3, max(w, w0) + 1e-3, 5_001), w0)
            costs = l1 * np.abs(grid - w0) + (grid - w) ** 2 / (2 * float(s))
            assert value == pytest.approx(grid[costs.argmin()], abs=1e-5)
    unmoved = (bias == start.values["head.bias"]).sum()
    assert 0 < unmoved < len(bias)


def full_batch(run: Run) -> Corpus:
    return run.prepare(small_runs.ROWS)


def test_training_minimizes_the_penalized_loss(tmp_path: Path) -> None:
    """Training only the softmax bias is a convex problem, whose minimum has known gradients of the mean nats.

    The gradient is between -l1 and l1 for a value at its start, -l1 for a value above it, and l1 for a value below it.
    """
    l1 = 0.01
    options = {"epochs": 300, "batch_tokens": 10_000, "learning_rate": 0.1}
    options |= {"evaluations": 1}
    run = make_finetuning(tmp_path / "run", ("output_bias",), l1, {"adapt": (), "output_bias": ()}, **options)
    corpus = full_batch(run)
    trainer = Trainer(run, corpus, corpus)
    for batch in trainer.batches():
        trainer.step(batch)
    assert trainer.starting_point is not None
    run.model.zero_grad()
    (run.model(corpus.batch(np.arange(len(corpus)))).sum() / corpus.target_count).backward()
    bias = small_runs.as_any(run.model.head).bias
    gradient, distance = bias.grad, bias.detach() - trainer.starting_point.values["head.bias"]
    moved = distance != 0
    assert torch.allclose(gradient[moved], -l1 * distance[moved].sign(), atol=3e-4)
    assert bool((gradient[~moved].abs() <= l1 + 3e-4).all())
    assert 0 < int(moved.sum()) < len(distance)


def test_a_large_penalty_keeps_every_value_at_its_start(tmp_path: Path) -> None:
    for l1, expected in ((100.0, 0), (0.0, None)):
        run = make_finetuning(tmp_path / f"{l1}", tuple(PARTS), l1, {}, epochs=3, batch_tokens=40, evaluations=1)
        before, corpus = values_of(run.model), full_batch(run)
        trainer = Trainer(run, corpus, corpus)
        for batch in trainer.batches():
            trainer.step(batch)
        assert trainer.starting_point is not None
        rows = trainer.starting_point.count_moved(run.model)
        assert [row["part"] for row in rows] == list(PARTS)
        assert sum(row["values"] for row in rows) == run.model.parameter_count()
        counted = {name: int((value != before[name]).sum()) for name, value in run.model.named_parameters()}
        for row in rows:
            assert row["moved"] == sum(count for name, count in counted.items() if part_of(name) == row["part"])
            assert expected is None or row["moved"] == expected
        assert expected == 0 or all(row["moved"] > 0 for row in rows)


CHOICES = [(part,) for part in PARTS] + [("context", "output_bias"), tuple(PARTS)]


@pytest.mark.parametrize("samples", [0, 5])
@pytest.mark.parametrize("parts", CHOICES, ids=",".join)
def test_only_the_selected_parts_move(parts: tuple[str, ...], samples: int, tmp_path: Path) -> None:
    options = {"samples": samples, "weight_decay": 0.1, "epochs": 3, "batch_tokens": 40, "evaluations": 1}
    run = make_finetuning(tmp_path / "run", parts, 0.0, {"output_bias": ("low_rank", "one_hot")}, **options)
    before, corpus = values_of(run.model), full_batch(run)
    trainer = Trainer(run, corpus, corpus)
    assert bool(trainer.row_optimizers) == (samples > 0 and {"embedding", "output_bias"} <= set(parts))
    for batch in trainer.batches():
        trainer.step(batch)
    trainer.catch_up()
    for name, parameter in run.model.named_parameters():
        assert torch.equal(parameter, before[name]) == (part_of(name) not in parts), name


def test_row_wise_and_dense_adam_give_the_same_weights(tmp_path: Path) -> None:
    ends = []
    for l1 in (0.0, 1e-30):
        options = {"samples": 6, "epochs": 6, "batch_tokens": 40, "evaluations": 1}
        torch.manual_seed(1)
        run = make_finetuning(tmp_path / f"{l1}", tuple(PARTS), l1, {}, **options)
        trainer = Trainer(run, full_batch(run), full_batch(run))
        assert (not trainer.row_optimizers) == (l1 > 0)
        for batch in trainer.batches():
            trainer.step(batch)
        trainer.catch_up()
        ends.append(values_of(run.model))
    for name, value in ends[0].items():
        assert torch.allclose(value, ends[1][name], atol=1e-4), name


def test_the_log_of_a_fine_tuning_begins_with_the_perplexity_of_its_start(tmp_path: Path) -> None:
    """The first row of the log has the perplexity of the base weights, with the softmax bias unchanged.

    If every step raises the perplexity, the best weights are those of the start.
    """
    options = {"learning_rate": 2.0, "epochs": 4, "batch_tokens": 40, "evaluations": 4}
    run = make_finetuning(tmp_path / "run", tuple(PARTS), 0.0, {}, **options)
    before, corpus = values_of(run.model), full_batch(run)
    perplexity = math.exp(
        sum(itertools.chain(*(small_runs.nats_of(run, row) for row in small_runs.ROWS))) / corpus.target_count
    )
    rows = list(train(run, corpus, corpus))
    assert (rows[0]["split"], rows[0]["step"]) == ("dev", 0)
    assert rows[0]["perplexity"] == pytest.approx(perplexity, rel=1e-5)
    assert rows[-1]["perplexity"] > rows[0]["perplexity"]
    assert all(torch.equal(value, before[name]) for name, value in run.model.named_parameters())
    assert all(torch.equal(value, before[name]) for name, value in Run.open(run.folder).model.named_parameters())
