"""Tests that all ways of computing nats agree, for every cell with all combinations of adapters and layers."""

import itertools
from typing import Any

import pytest
import torch

from factorcell.config import ADAPTERS, CELLS, Config
from factorcell.data.columns.context import Context
from factorcell.data.columns.schema import UNKNOWN_VALUE, ContextSchema, Variable
from factorcell.data.corpus import Batch
from factorcell.data.tokenizers.tokenizer import END, START
from factorcell.nn.language_model import LanguageModel
from tests.small_runs import as_any

V, B = 6, 3
SIZE: dict[str, Any] = {
    "embedding_size": 3,
    "hidden_size": 4,
    "context_size": 3,
    "variable_size": 2,
    "rank": 2,
}
SCHEMA = ContextSchema(
    (
        Variable("city", "category", values=(UNKNOWN_VALUE, "a", "b"), counts=(1, 3, 4)),
        Variable("lat", "number", mean=1.0),
    )
)
COMBINATIONS = [names for count in range(len(ADAPTERS) + 1) for names in itertools.combinations(ADAPTERS, count)]


def make(adapt: tuple[str, ...], **options: Any) -> LanguageModel:
    config = Config.of(adapt=adapt, output_bias=("low_rank",), **{**SIZE, **options})
    model = LanguageModel(config, V, SCHEMA).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.5)
    return model.eval()


def make_batch() -> Batch:
    tokens = torch.tensor([[START, 3, 4, 5, END], [START, 0, END, END, END], [START, 5, 3, 3, 4]])
    context = Context(torch.tensor([[1], [2], [0]]), torch.tensor([[0.0], [2.0], [3.0]], dtype=torch.double))
    return Batch(tokens, torch.tensor([4, 2, 4]), context, torch.arange(B))


def directional_derivatives(model: LanguageModel, batch: Batch) -> tuple[float, float]:
    """Return the derivative in a random direction by gradients and by a finite difference."""
    directions = [torch.randn_like(parameter) for parameter in model.parameters()]
    factor = torch.linspace(0.5, 1.5, B * 4, dtype=torch.double).view(B, 4)
    loss = (model(batch) * factor).sum()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    slope = sum(float((g * d).sum()) for g, d in zip(gradients, directions, strict=True))
    ends, step = list[float](), 1e-6
    with torch.no_grad():
        for shift in (step, -2 * step):
            for parameter, direction in zip(model.parameters(), directions, strict=True):
                parameter.add_(direction, alpha=shift)
            ends.append(float((model(batch) * factor).sum()))
    return slope, (ends[0] - ends[1]) / (2 * step)


@pytest.mark.parametrize(
    ("layers", "layer_norm"),
    [(2, True), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, False), (1, True), (2, False)))],
)
@pytest.mark.parametrize("cell", CELLS)
def test_all_ways_of_computing_nats_agree(cell: str, layer_norm: bool, layers: int) -> None:
    for adapt in COMBINATIONS:
        model, batch = make(adapt, cell=cell, layer_norm=layer_norm, layers=layers), make_batch()
        with torch.no_grad():
            nats, once = model(batch), model.condition(batch.context)
            folded = model.fold(once)
            assert all(shift.left is shift.scale is None for shift in as_any(folded.conditions).shifts)
            torch.testing.assert_close(model(batch, folded), nats)
            for conditioning in (once, folded):
                states = None
                for step in range(batch.tokens.shape[1] - 1):
                    logs, states = model.step(batch.tokens[:, step], conditioning, states)
                    target_nats = -logs.gather(1, batch.tokens[:, step + 1, None])[:, 0]
                    torch.testing.assert_close(torch.where(batch.mask()[:, step], target_nats, 0.0), nats[:, step])
            for row in range(B):
                index = torch.tensor([row])
                alone = Batch(batch.tokens[index], batch.lengths[index], batch.context.select(index), index)
                torch.testing.assert_close(model(alone)[0], nats[row])
                torch.testing.assert_close(model(alone, once.select(index))[0], nats[row])
        slope, difference = directional_derivatives(model, batch)
        assert slope == pytest.approx(difference, rel=1e-5, abs=1e-5), adapt
