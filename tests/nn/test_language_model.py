"""Tests of the language model: reading in parts, adaptation, dropout and equivalent models."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from factorcell.config import ADAPTERS, OUTPUT_BIASES, Config
from factorcell.data.columns.context import Context
from factorcell.data.tokenizers.tokenizer import START
from factorcell.nn import language_model
from factorcell.nn.backbones.backbone import dropout_mask
from factorcell.nn.language_model import LanguageModel
from factorcell.runs.run import Run
from tests.small_runs import CONTEXT, ROWS, as_any, make_run


def tiny_run(tmp_path: Path, **model: Any) -> Run:
    return make_run(tmp_path / "run", **model)


@pytest.mark.parametrize("steps", [1, 3, 7])
@pytest.mark.parametrize(
    "model",
    [
        {},
        {"layers": 2, "layer_norm": True},
        {"cell": "lstm"},
        {"cell": "gru", "adapt": ["concat"]},
        {"adapt": ["prefix"], "output_bias": []},
        {"output_bias": list(OUTPUT_BIASES)},
    ],
)
def test_reading_texts_in_parts_does_not_change_nats(
    tmp_path: Path, model: dict[str, Any], steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tiny_run(tmp_path, **model)
    batch = run.prepare(ROWS).batch(np.arange(5))
    conditioning = run.model.condition(batch.context)
    whole, read = run.model(batch, conditioning).detach(), run.model.backbone.forward
    monkeypatch.setattr(language_model, "MAX_STEPS", steps)
    sizes = []

    def record_size(inputs: torch.Tensor, *more: Any) -> Any:
        sizes.append(inputs.shape[1])
        return read(inputs, *more)

    monkeypatch.setattr(run.model.backbone, "forward", record_size)
    with torch.no_grad():
        torch.testing.assert_close(run.model(batch, conditioning), whole)
    assert max(sizes) <= steps
    sizes.clear()
    run.model(batch, conditioning).sum().backward()
    assert max(sizes) == batch.tokens.shape[1] - 1


def test_context_changes_nats_only_if_the_model_is_adapted(tmp_path: Path) -> None:
    rows = [{**ROWS[0], "city": city} for city in ("Oslo", "Nice")]
    for adapt, bias, is_same in (([], [], True), (["concat"], [], False), ([], ["one_hot"], False)):
        run = make_run(tmp_path / f"run{adapt}{bias}", adapt=adapt, output_bias=bias)
        nats = run.score(rows).tolist()
        assert (nats[0] == pytest.approx(nats[1], rel=1e-6)) is is_same


def test_dropout_is_applied_only_in_training(tmp_path: Path) -> None:
    for kind, variational in itertools.product(("recurrent", "input", "output"), (False, True)):
        run = tiny_run(tmp_path / f"{kind}{variational}", variational=variational, layers=2, **{f"dropout_{kind}": 0.5})
        batch = run.prepare(ROWS).batch(np.arange(5))
        with torch.no_grad():
            nats = run.model.eval()(batch)
            assert torch.equal(nats, run.model(batch))
            assert not torch.equal(nats, run.model.train()(batch))


@pytest.mark.parametrize("variational", [False, True])
def test_masks_are_drawn_per_step_or_per_text(
    variational: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = {f"dropout_{kind}": 0.5 for kind in ("recurrent", "input", "output")}
    run = tiny_run(tmp_path, variational=variational, layers=2, **rates)
    shapes = []

    def record_shape(shape: tuple[int, ...], rate: float, like: torch.Tensor) -> torch.Tensor:
        shapes.append(shape)
        return dropout_mask(shape, rate, like)

    for module in ("nn.backbones.recurrent", "nn.backbones.backbone"):
        monkeypatch.setattr(f"factorcell.{module}.dropout_mask", record_shape)
    batch = run.prepare(ROWS).batch(np.arange(5))
    steps = batch.tokens.shape[1] - 1
    run.model.train()(batch)
    layer = [(5, 6), (5, 1, 6)] if variational else [(steps, 5, 6), (5, steps, 6)]
    assert shapes == [(5, 1 if variational else steps, 5), *layer, *layer]


def test_model_without_context_variables_is_unadapted() -> None:
    from factorcell.data.columns.schema import ContextSchema

    model = LanguageModel(Config.of(embedding_size=3, hidden_size=4), 6, ContextSchema())
    assert model.encoder is None
    context = Context(torch.zeros(2, 0, dtype=torch.long), torch.zeros(2, 0))
    logs, _ = model.step(torch.tensor([START, START]), model.condition(context))
    assert logs.exp().sum(1).tolist() == pytest.approx([1, 1])
    assert len(CONTEXT) == 4


def test_factor_of_rank_zero_is_omitted(tmp_path: Path) -> None:
    torch.manual_seed(1)
    rank_zero = make_run(tmp_path / "zero", adapt=["concat", "factor"], rank=0)
    torch.manual_seed(1)
    concat = make_run(tmp_path / "concat", adapt=["concat"])
    assert [name for name, _ in rank_zero.model.named_parameters()] == [n for n, _ in concat.model.named_parameters()]
    corpus = rank_zero.prepare(ROWS)
    np.testing.assert_array_equal(rank_zero.nats(corpus), concat.nats(corpus))
    only_factor = make_run(tmp_path / "alone", adapt=["factor"], output_bias=[], rank=0)
    assert not only_factor.model.is_adapted


@pytest.mark.parametrize("adapt", [("concat",), ("factor",), ("scale",), ADAPTERS])
def test_model_in_one_context_equals_an_unadapted_model(adapt: tuple[str, ...], tmp_path: Path) -> None:
    rows = [{**row, "city": "Oslo", "stars": "5", "lat": 60.0, "lon": 10.0} for row in ROWS]
    run = make_run(tmp_path / "run", adapt=adapt, output_bias=OUTPUT_BIASES, layers=2)
    plain = make_run(tmp_path / "plain", adapt=[], output_bias=[], layers=2)
    corpus = run.prepare(rows)
    model, unadapted = run.model, plain.model
    with torch.no_grad():
        folded = model.fold(model.condition(corpus.context(np.array([0]))))
        shared = {name: value for name, value in model.state_dict().items() if name in unadapted.state_dict()}
        unadapted.load_state_dict(shared)
        for cell, adapted_cell, shift in zip(
            as_any(unadapted.backbone).cells,
            as_any(model.backbone).cells,
            as_any(folded.conditions).shifts,
            strict=True,
        ):
            cell.linear.weight.copy_(shift.matrix[0] if shift.matrix.dim() == 3 else shift.matrix)
            cell.linear.bias.copy_(adapted_cell.linear.shifted_bias(shift).expand(1, -1)[0])
        as_any(unadapted.head).bias.copy_(as_any(folded.head).bias[0].nan_to_num(neginf=0.0))
        batch = corpus.batch(np.arange(len(corpus)))
        every = torch.zeros(len(corpus), dtype=torch.long)
        start = folded.select(every).start
        conditioning = replace(unadapted.condition(batch.context), start=start)
        torch.testing.assert_close(unadapted(batch, conditioning), model(batch), rtol=1e-4, atol=1e-4)
