"""Tests that control codes act as tokens before each text that are not predicted."""

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from factorcell.adapters.encoder import Prefix
from factorcell.config import CELLS, Config
from factorcell.data.columns.context import Context
from factorcell.data.columns.schema import MISSING, UNKNOWN_VALUE, ContextSchema, Variable
from factorcell.data.corpus import Batch
from factorcell.data.tokenizers.tokenizer import END, START
from factorcell.nn.language_model import LanguageModel
from tests.small_runs import as_any

V = 7
SIZE: dict[str, Any] = {
    "embedding_size": 4,
    "hidden_size": 5,
    "context_size": 3,
    "variable_size": 2,
    "rank": 2,
}
CITY = Variable("city", "category", values=(UNKNOWN_VALUE, "a", "b"), counts=(1, 3, 4))
STARS = Variable("stars", "category", values=(UNKNOWN_VALUE, "1"), counts=(2, 6))
LAT, LON = (Variable(name, "number", mean=10.0, deviation=4.0) for name in ("lat", "lon"))
SCHEMA = ContextSchema((CITY, LAT, STARS, LON))
CONTEXT = Context(
    torch.tensor([[1, 1], [MISSING, 0], [2, MISSING]]),
    torch.tensor([[11.0, 3.0], [math.nan, 9.0], [2.0, math.nan]], dtype=torch.double),
)
TEXTS = ([3, 4, 0, END], [END], [5, 6, 3])
MODELS = [*((cell, 1, ()) for cell in CELLS), ("coupled", 2, ()), ("gru", 2, ("concat", "scale", "factor"))]


def make(
    cell: str, layers: int, adapt: tuple[str, ...], schema: ContextSchema = SCHEMA, dropout_input: float = 0.0
) -> LanguageModel:
    config = Config.of(
        cell=cell,
        layers=layers,
        adapt=(*adapt, "prefix"),
        output_bias=("low_rank",) if adapt else (),
        dropout_input=dropout_input,
        **SIZE,
    )
    model = LanguageModel(config, V, schema).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.6)
    return model.eval()


def make_batch() -> Batch:
    """Return `TEXTS` with their contexts and additional padding."""
    tokens = torch.full((3, 7), END)
    for row, text in enumerate(TEXTS):
        tokens[row, : len(text) + 1] = torch.tensor([START, *text])
    return Batch(tokens, torch.tensor([len(text) for text in TEXTS]), CONTEXT, torch.arange(3))


def codes(model: LanguageModel) -> Tensor:
    """Compute the codes (3, P, E) of `CONTEXT` from their definition."""
    p = {name.removeprefix("prefix."): value for name, value in model.named_parameters()}
    rows = []
    for (city, stars), numbers in zip(CONTEXT.categories.tolist(), CONTEXT.numbers.tolist(), strict=True):
        z = torch.tensor([0.0 if math.isnan(x) else (x - 10) / 4 for x in numbers], dtype=torch.double)
        cities, shares = p["tables.0"], torch.tensor([1, 3, 4]) / 8
        either = p["tables.1"]
        rows.append(
            [
                shares.double() @ cities if city == MISSING else cities[city],
                either[0] * 0.25 + either[1] * 0.75 if stars == MISSING else either[stars],
                p["linear.weight"] @ z + p["linear.bias"],
            ]
        )
    return torch.stack([torch.stack(row) for row in rows])


def nats_with_code_tokens(model: LanguageModel, text: int) -> Tensor:
    """Compute the nats of a text by a model without prefix that reads the codes as additional tokens."""
    prefix = codes(model)[text]
    options, adapt = as_any(model.backbone).options, model.config.adapt[:-1]
    config = Config(model=replace(model.config, adapt=adapt), backbone=options)
    plain = LanguageModel(config, V + len(prefix), SCHEMA).double()
    state: dict[str, Tensor] = dict(model.named_parameters())
    state["embedding"] = torch.cat([model.embedding, prefix])
    for name in ("head.bias", "head.adapters.low_rank.weight"):
        if name in state:
            state[name] = torch.cat([state[name], state[name][: len(prefix)]])

    class Reader(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = plain

        def forward(self) -> Tensor:
            conditioning = self.model.condition(CONTEXT.select(torch.tensor([text])))
            states, nats = None, []
            line = [*range(V, V + len(prefix)), START, *TEXTS[text]]
            for token, target in itertools.pairwise(line):
                logs, states = self.model.step(torch.tensor([token]), conditioning, states)
                if target < V and token < V:  # codes are never targets and have no probability
                    nats.append(-logs[0, :V].log_softmax(0)[target])
            return torch.stack(nats)

    parameters = {f"model.{name}": state[name] for name, _ in plain.named_parameters()}
    parameters["model.head.embedding"] = state["embedding"]
    nats: Tensor = torch.func.functional_call(Reader(), parameters, ())
    return nats


@pytest.mark.parametrize(("cell", "layers", "adapt"), MODELS)
def test_prefix_equals_tokens_before_the_text(cell: str, layers: int, adapt: tuple[str, ...]) -> None:
    model, batch = make(cell, layers, adapt), make_batch()
    names, parameters = zip(*model.named_parameters(), strict=True)
    nats = model(batch)
    expected = torch.zeros_like(nats)
    for row, text in enumerate(TEXTS):
        expected[row, : len(text)] = nats_with_code_tokens(model, row)
    torch.testing.assert_close(nats, expected)
    actual, slow = (torch.autograd.grad(n.sin().sum(), parameters) for n in (nats, expected))
    for name, gradient, expected_gradient in zip(names, actual, slow, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, msg=name)
        assert gradient.any(), name


@pytest.mark.parametrize("cell", CELLS)
def test_steps_and_selected_conditionings_start_after_the_prefix(cell: str) -> None:
    model, batch = make(cell, 2, ()), make_batch()
    rows = torch.tensor([2, 0, 1])
    conditioning, nats = model.condition(batch.context.select(rows)), model(batch)
    sorted_back = conditioning.select(rows.argsort())
    torch.testing.assert_close(model(batch, sorted_back), nats)
    states = None
    for step in range(batch.tokens.shape[1] - 1):
        logs, states = model.step(batch.tokens[:, step], sorted_back, states)
        target_nats = -logs.gather(1, batch.tokens[:, step + 1, None])[:, 0]
        torch.testing.assert_close(torch.where(batch.mask()[:, step], target_nats, 0.0), nats[:, step])


def test_codes_have_the_order_of_the_schema() -> None:
    prefix = Prefix(SCHEMA, 4).double()
    assert prefix(CONTEXT).shape == (3, 3, 4)
    assert torch.equal(prefix(CONTEXT)[0, 0], prefix.tables[0][1])
    assert torch.equal(prefix(CONTEXT)[1, 1], prefix.tables[1][0])
    words = Prefix(ContextSchema((STARS, CITY)), 4)
    context = Context(CONTEXT.categories[:, [1, 0]].clamp(min=0), torch.zeros(3, 0))
    assert torch.equal(words(context)[2], torch.stack([words.tables[0][0], words.tables[1][2]]))
    assert [name for name, _ in Prefix(ContextSchema((LAT,)), 4).named_parameters()] == ["linear.weight", "linear.bias"]


def test_prefix_without_other_adapters_needs_no_context_vector() -> None:
    model = make("coupled", 1, ())
    assert model.encoder is None
    assert model.is_adapted
    assert not make("coupled", 1, (), ContextSchema()).is_adapted
    assert make("coupled", 1, (), ContextSchema()).prefix is None


def test_dropout_applies_to_codes_as_to_tokens() -> None:
    model, batch = make("coupled", 1, (), dropout_input=0.5), make_batch()
    with torch.no_grad():
        without = [as_any(model.condition(batch.context).start)[0].hidden for _ in range(2)]
        model.train()
        with_dropout = [as_any(model.condition(batch.context).start)[0].hidden for _ in range(2)]
    assert torch.equal(*without)
    assert not torch.equal(*with_dropout)
