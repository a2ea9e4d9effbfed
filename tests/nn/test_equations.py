"""Tests of the whole model against its published equations in plain numpy, and of its gradients.

TACL 2018, equations 2 to 6, 8 and 9; thesis 2018, equation 2.4. Only the parameters are shared with the code. The
equations of adapters are in `oracles`.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from factorcell.config import ADAPTERS, OUTPUT_BIASES, Config
from factorcell.data.columns.context import Context
from factorcell.data.columns.schema import MISSING, UNKNOWN_VALUE, ContextSchema, Variable
from factorcell.data.corpus import Batch
from factorcell.data.tokenizers.tokenizer import END, START
from factorcell.errors import UserError
from factorcell.nn.language_model import LanguageModel
from factorcell.nn.output import Proposal, Samples
from paper_kinds import SizedSoftmaxOptions
from tests.nn import oracles
from tests.nn.oracles import Array
from tests.small_runs import as_any, hash_bucket

V = 6
SIZE: dict[str, Any] = {"embedding_size": 3, "hidden_size": 4, "context_size": 3, "variable_size": 2, "rank": 2}
SIZE |= {"head": SizedSoftmaxOptions.kind, "hash_size": 11, "bloom_size": 300}  # few buckets, so that pairs collide
TRAINING_PAIRS = [(0, 1, 3), (0, 2, 3), (0, 2, 4), (0, 0, 5), (1, 0, 0), (1, 1, END)]  # variable, value, token
CITY = Variable("city", "category", values=(UNKNOWN_VALUE, "a", "b"), counts=(1, 3, 4))
STARS = Variable("stars", "category", values=(UNKNOWN_VALUE, "1"), counts=(2, 6))
LAT = Variable("lat", "number", mean=10.0, deviation=4.0)
SCHEMAS = {
    "nothing": ContextSchema(),
    "numbers": ContextSchema((LAT,)),
    "categories": ContextSchema((CITY, STARS)),
    "both": ContextSchema((CITY, LAT, STARS)),
}
TEXTS = ([3, 4, 0, END], [END], [5, 5, 3])  # the last text was cut and has no end token
ADAPTS = [(), *((name,) for name in ADAPTERS), ("concat", "factor"), ADAPTERS]
LAYERS = (1, 2)
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {  # by the name of a `context_layer`
    "tanh": np.tanh,
    "relu": lambda values: np.where(values > 0, values, 0.0),
    "linear": lambda values: values,
}
BIASES = [(), *((name,) for name in OUTPUT_BIASES), ("low_rank", "hash"), ("low_rank_each", "sparse"), OUTPUT_BIASES]


@pytest.fixture(autouse=True)
def small_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the network over numbers small."""
    monkeypatch.setattr("factorcell.adapters.encoder.NUMBER_SIZE", 3)


def make(
    schema: ContextSchema, adapt: tuple[str, ...], bias: tuple[str, ...], layers: int = 1, **more: Any
) -> LanguageModel:
    """Make a model in double precision with random weights; `more` are further options."""
    options: dict[str, Any] = {**SIZE, **more}
    config = Config.of(adapt=adapt, output_bias=bias, layers=layers, **options)
    model = LanguageModel(config, V, schema).double()
    if as_any(model.head).hashed is not None:
        for column, value, token in TRAINING_PAIRS:
            categories = np.full((1, len(schema.categories)), MISSING)
            categories[0, column] = value
            as_any(model.head).hashed.observe(np.array([token]), categories)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.6)
    return model.eval()


def make_batch(schema: ContextSchema) -> Batch:
    """Return `TEXTS` with their contexts, one city and one latitude missing, and additional padding."""
    tokens = torch.full((3, 7), END)
    for row, text in enumerate(TEXTS):
        tokens[row, : len(text) + 1] = torch.tensor([START, *text])
    columns = {"city": (1, MISSING, 2), "stars": (0, 1, 1), "lat": (12.0, 3.5, math.nan)}
    categories = [[columns[variable.name][row] for variable in schema.categories] for row in range(3)]
    numbers = [[columns[variable.name][row] for variable in schema.numbers] for row in range(3)]
    return Batch(
        tokens,
        torch.tensor([len(text) for text in TEXTS]),
        Context(torch.tensor(categories, dtype=torch.long), torch.tensor(numbers, dtype=torch.double)),
        torch.arange(3),
    )


class NumpyModel:
    """The model of one text in plain numpy."""

    def __init__(self, model: LanguageModel, schema: ContextSchema, context: Context, row: int) -> None:
        self.p = {name: value.detach().double().numpy() for name, value in model.named_parameters()}
        self.config, self.options = model.config, as_any(model.backbone).options
        self.schema, self.rows = schema, context.categories[row].tolist()
        self.numbers = context.numbers[row].tolist()
        self.context = None if model.encoder is None else self.encode()
        self.layers = [self.recurrent(f"backbone.cells.{layer}") for layer in range(self.options.layers)]
        self.start = [np.zeros((2, self.options.hidden_size)) for _ in self.layers]
        for code in self.codes():
            self.start = self.read(code, self.start)

    def pick(self, table: Array, column: int) -> Array:
        if self.rows[column] != MISSING:
            return np.asarray(table[self.rows[column]])
        counts = self.schema.categories[column].counts
        return np.asarray(sum(count * row for count, row in zip(counts, table, strict=True)) / sum(counts))

    def standardized_numbers(self) -> Array:
        pairs = zip(self.numbers, self.schema.numbers, strict=True)
        return np.array([0.0 if math.isnan(x) else (x - variable.mean) / variable.deviation for x, variable in pairs])

    def encode(self) -> Array:
        """Thesis, equation 2.4: c = tanh(sum_i M_i F_i f_i + b0), or another layer; sets `parts`."""
        parts = [self.pick(self.p[f"encoder.tables.{column}"], column) for column in range(len(self.rows))]
        if self.numbers:
            z = self.standardized_numbers()
            for layer in range(2):
                name = f"encoder.network.{2 * layer}"
                z = np.tanh(self.p[f"{name}.weight"] @ z + self.p[f"{name}.bias"])
            parts.append(z)
        self.parts = np.concatenate(parts)
        if self.config.context_layer == "none":
            return self.parts
        joined = self.p["encoder.joint.weight"] @ self.parts + self.p["encoder.joint.bias"]
        return np.asarray(ACTIVATIONS[self.config.context_layer](joined))

    def codes(self) -> list[Array]:
        tables = [self.pick(table, column) for column, table in enumerate(self.tables("prefix.tables"))]
        if "prefix.linear.weight" in self.p:
            tables.append(self.p["prefix.linear.weight"] @ self.standardized_numbers() + self.p["prefix.linear.bias"])
        return tables

    def tables(self, name: str) -> list[Array]:
        """Return the parameters `name`.0, `name`.1 and so on."""
        return [self.p[f"{name}.{column}"] for column in range(len(self.rows)) if f"{name}.{column}" in self.p]

    def recurrent(self, layer: str) -> tuple[Array, Array]:
        """Return W' and b' of a layer, by the equations in `oracles`."""
        adapters: dict[str, dict[str, Array]] = {}
        for name, value in self.p.items():
            if name.startswith(f"{layer}.linear.adapters."):
                adapter, parameter = name.split(".")[-2:]
                adapters.setdefault(adapter, {})[parameter] = value
        matrix, c = self.p[f"{layer}.linear.weight"], np.zeros(0) if self.context is None else self.context
        adapted = oracles.adapted(matrix, self.p[f"{layer}.linear.bias"], adapters, c)
        return adapted.matrix, adapted.bias

    def softmax_bias(self) -> Array:
        """TACL, equation 6, b + Q c; thesis, A.1; one-hot, sparse and hashed biases."""
        total = self.p["head.bias"].copy()
        if "head.adapters.low_rank.weight" in self.p:
            total += self.p["head.adapters.low_rank.weight"] @ self.context
        if "head.adapters.low_rank_each.weight" in self.p:
            total += self.p["head.adapters.low_rank_each.weight"] @ self.parts
        columns = np.cumsum([0, *(len(variable.values) for variable in self.schema.categories)])
        for column, (first, end) in enumerate(itertools.pairwise(columns)):
            for name in ("one_hot", "sparse"):
                if f"head.adapters.{name}.weight" in self.p:
                    total += self.pick(self.p[f"head.adapters.{name}.weight"][:, first:end].T, column)
            if "head.hashed.weight" in self.p:
                values = range(end - first)
                total += self.pick(
                    np.array([[self.hashed_bias(column, f, w) for w in range(V)] for f in values]), column
                )
        return np.asarray(total)

    def hashed_bias(self, column: int, value: int, token: int) -> float:
        """Thesis, equations 3.4 and 3.5, with the pairs of training in place of the Bloom filter."""
        if (column, value, token) not in TRAINING_PAIRS:
            return 0.0
        buckets = self.p["head.hashed.weight"][:, 0]
        return float(buckets[hash_bucket(column, value, token, len(buckets))])

    def read(self, x: Array, states: list[Array]) -> list[Array]:
        """TACL, equations 8 and 9: return h and m (2, H) of each layer after one more input."""
        after = []
        for layer, ((matrix, bias), (h, m)) in enumerate(zip(self.layers, states, strict=True)):
            gates = (np.concatenate([x, h]) @ matrix + bias).reshape(3, -1)
            i, f, o = (self.normalize(layer, index, gate) for index, gate in enumerate(gates))
            f, o = 1 / (1 + np.exp(-(f + 1))), 1 / (1 + np.exp(-o))
            m = f * m + (1 - f) * np.tanh(i)
            x = np.tanh(self.normalize(layer, 3, m)) * o
            after.append(np.stack([x, m]))
        return after

    def normalize(self, layer: int, index: int, values: Array) -> Array:
        """Apply layer normalization (Ba et al. 2016), if enabled, to gate `index`, or to m, whose index is 3."""
        if not self.options.layer_norm:
            return values
        gain, shift = (
            self.p[f"backbone.cells.{layer}.{name}"].reshape(-1, len(values))[index] for name in ("gain", "offset")
        )
        return np.asarray(gain * (values - values.mean()) / math.sqrt(values.var() + 1e-5) + shift)

    def logits(self, text: list[int]) -> list[dict[int, float]]:
        """TACL, equation 5: return the logit of every token at each position of `text`."""
        shift, states, rows = self.softmax_bias(), self.start, []
        for before in [START, *text[:-1]]:
            states = self.read(self.p["embedding"][before], states)
            h = states[-1][0]
            logits = {v: self.p["embedding"][v] @ (h @ self.p["head.projection"]) + shift[v] for v in range(len(shift))}
            del logits[START]
            rows.append({v: float(logit) for v, logit in logits.items()})
        return rows

    def nats(self, text: list[int]) -> list[float]:
        """Return -log p of each token of `text`."""
        return [
            math.log(sum(math.exp(logit) for logit in logits.values())) - logits[token]
            for logits, token in zip(self.logits(text), text, strict=True)
        ]

    def sampled_nats(self, text: list[int], samples: list[int], inclusion: list[float]) -> list[float]:
        """Return nats over the target and the `samples`, with each weight divided by its inclusion probability."""
        nats = []
        for logits, token in zip(self.logits(text), text, strict=True):
            weights = {v: math.exp(logits[v]) / inclusion[v] for v in {token, *samples}}
            nats.append(-math.log(weights[token] / sum(weights.values())))
        return nats


def nats_by_equations(model: LanguageModel, schema: ContextSchema) -> Array:
    """Return the nats of `NumpyModel` for the batch of the `schema` (3, 6), zero on padding."""
    context, nats = make_batch(schema).context, np.zeros((3, 6))
    for row, text in enumerate(TEXTS):
        nats[row, : len(text)] = NumpyModel(model, schema, context, row).nats(list(text))
    return nats


@pytest.mark.parametrize(("layers", "schema"), [*((1, name) for name in SCHEMAS), (2, "both")])
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("adapt", ADAPTS)
def test_every_combination_equals_the_equations(
    layers: int, adapt: tuple[str, ...], bias: tuple[str, ...], schema: str
) -> None:
    model, batch = make(SCHEMAS[schema], adapt, bias, layers), make_batch(SCHEMAS[schema])
    expected = nats_by_equations(model, SCHEMAS[schema])
    np.testing.assert_allclose(model(batch).detach().numpy(), expected, atol=1e-9)
    with torch.no_grad():
        np.testing.assert_allclose(model(batch).numpy(), expected, atol=1e-9)
    every = Samples(torch.tensor([token for token in range(V) if token != START]), torch.zeros(V, dtype=torch.double))
    np.testing.assert_allclose(model.sampled_nats(batch, every).detach().numpy(), expected, atol=1e-9)


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("adapt", ADAPTS)
def test_sampled_loss_equals_its_definition(adapt: tuple[str, ...], bias: tuple[str, ...]) -> None:
    model, batch = make(SCHEMAS["both"], adapt, bias), make_batch(SCHEMAS["both"])
    tokens, inclusion = [0, 3, 5], [0.9, 1.0, 0.05, 0.4, 0.7, 0.2]
    expected = np.zeros((3, 6))
    for row, text in enumerate(TEXTS):
        numpy_model = NumpyModel(model, SCHEMAS["both"], batch.context, row)
        expected[row, : len(text)] = numpy_model.sampled_nats(list(text), tokens, inclusion)
    samples = Samples(torch.tensor(tokens), torch.tensor(inclusion, dtype=torch.double).log())
    np.testing.assert_allclose(model.sampled_nats(batch, samples).detach().numpy(), expected, atol=1e-9)


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("adapt", ADAPTS)
def test_probabilities_of_prefixes_and_finished_texts_sum_to_one(adapt: tuple[str, ...], bias: tuple[str, ...]) -> None:
    model, schema = make(SCHEMAS["both"], adapt, bias), SCHEMAS["both"]
    context = make_batch(schema).context.select(torch.tensor([1]))
    inner = [token for token in range(V) if token not in (START, END)]
    with torch.no_grad():
        conditioning = model.condition(context)
        finished, prefixes = 0.0, [(START, 0.0, None)]
        for _ in range(3):
            longer: list[Any] = []
            for token, log, state in prefixes:
                logs, after = model.step(torch.tensor([token]), conditioning, state)
                finished += math.exp(log + float(logs[0, END]))
                longer += [(v, log + float(logs[0, v]), after) for v in inner]
                assert float(logs[0, START]) == -math.inf
            prefixes = longer
    assert 0 < finished < 1
    assert finished + sum(math.exp(log) for _, log, _ in prefixes) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("schema", ["categories", "both"])
@pytest.mark.parametrize("loss", ["exact", "sampled"])
def test_gradients_of_all_parameters_equal_finite_differences(loss: str, schema: str) -> None:
    smooth = tuple(name for name in OUTPUT_BIASES if name != "sparse")
    model, batch = make(SCHEMAS[schema], ADAPTERS, smooth, layers=2), make_batch(SCHEMAS[schema])
    samples = Samples(torch.tensor([0, 3, 5]), torch.linspace(-2, 0, V, dtype=torch.double))
    names = [name for name, _ in model.named_parameters()]

    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self) -> Tensor:
            nats: Tensor = model(batch) if loss == "exact" else model.sampled_nats(batch, samples)
            return nats.sum(1)

    whole = Loss()

    def run(*values: Tensor) -> Any:
        return torch.func.functional_call(whole, {f"model.{n}": v for n, v in zip(names, values, strict=True)}, ())

    leaves = tuple(parameter.detach().clone().requires_grad_() for parameter in model.parameters())
    assert torch.autograd.gradcheck(run, leaves, fast_mode=True)  # along random directions
    gradients = torch.autograd.grad(run(*leaves).sum(), leaves)
    assert [name for name, gradient in zip(names, gradients, strict=True) if not gradient.any()] == []


def test_sampled_loss_is_zero_if_only_the_target_is_sampled() -> None:
    model, batch = make(SCHEMAS["both"], ADAPTERS, OUTPUT_BIASES), make_batch(SCHEMAS["both"])
    single = Batch(batch.tokens[:1, :2], torch.tensor([1]), batch.context.select(torch.tensor([0])), torch.tensor([0]))
    samples = Samples(single.tokens[0, 1:], torch.zeros(V, dtype=torch.double))
    nats = model.sampled_nats(single, samples)
    torch.autograd.backward(nats.sum())
    assert float(nats.detach()) == 0
    assert all(bool((p.grad == 0).all()) for p in model.parameters() if p.grad is not None)


def test_proposal_of_a_corpus_with_one_word() -> None:
    proposal = Proposal(torch.tensor([0, 0, 7]), 3)
    samples = proposal.draw()
    assert samples.tokens.tolist() == [2]
    assert float(samples.log_inclusion[2]) == 0


def test_override_replaces_a_table_row_for_the_cell_and_the_bias() -> None:
    schema = SCHEMAS["both"]
    model, batch = make(schema, ("concat", "factor"), ("low_rank",)), make_batch(schema)
    assert model.encoder is not None
    categories = batch.context.categories.clone()
    categories[:, 0] = 2
    embedding = model.encoder.tables[0][torch.tensor([2, 2, 2])]
    expected = Batch(batch.tokens, batch.lengths, Context(categories, batch.context.numbers), batch.rows)
    torch.testing.assert_close(model(batch, model.condition(batch.context, {"city": embedding})), model(expected))


def test_override_of_a_model_with_control_codes_is_rejected() -> None:
    model, batch = make(SCHEMAS["both"], ("prefix",), ()), make_batch(SCHEMAS["both"])
    with pytest.raises(UserError, match="override of city: a model with control codes does not support it"):
        model.condition(batch.context, {"city": torch.zeros(3, 2)})


WITHOUT_HASH = tuple(name for name in OUTPUT_BIASES if name != "hash")


def assert_equals_equations(model: LanguageModel, schema: ContextSchema) -> None:
    np.testing.assert_allclose(model(make_batch(schema)).detach().numpy(), nats_by_equations(model, schema), atol=1e-9)


@pytest.mark.parametrize("schema", ["numbers", "categories", "both"])
@pytest.mark.parametrize("context_layer", ACTIVATIONS)
def test_context_layers_equal_the_equations(context_layer: str, schema: str) -> None:
    model = make(SCHEMAS[schema], ADAPTERS, WITHOUT_HASH, context_layer=context_layer)
    assert_equals_equations(model, SCHEMAS[schema])


SINGLE_VARIABLES: dict[str, tuple[ContextSchema, dict[str, int]]] = {
    "category": (ContextSchema((CITY,)), {"variable_size": 3}),
    "number": (SCHEMAS["numbers"], {"context_size": 4}),
}


@pytest.mark.parametrize("adapt", ADAPTS)
@pytest.mark.parametrize("name", SINGLE_VARIABLES)
def test_embedding_of_a_single_variable_can_be_the_context_vector(name: str, adapt: tuple[str, ...]) -> None:
    """c is the embedding of a category (thesis 2018, section 2.3.1) or of a number; a missing value has the mean."""
    schema, sizes = SINGLE_VARIABLES[name]
    model = make(schema, adapt, WITHOUT_HASH, context_layer="none", **sizes)
    assert_equals_equations(model, schema)


@pytest.mark.parametrize("adapt", ADAPTS)
@pytest.mark.parametrize("layers", LAYERS)
def test_layer_normalization_equals_the_equations(layers: int, adapt: tuple[str, ...]) -> None:
    model = make(SCHEMAS["both"], adapt, ("low_rank",), layers, layer_norm=True)
    assert_equals_equations(model, SCHEMAS["both"])
