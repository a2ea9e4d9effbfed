"""The whole model, one number at a time, from the printed equations; and its gradients by finite differences.

TACL 2018, equations 2 to 6, 8 and 9; thesis 2018, equation 2.4. Nothing here is shared with the code but parameters;
the equations of adapters are in `oracles`.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from factorcell.config import OUTPUT_BIASES, Config, UserError
from factorcell.data.context import Context
from factorcell.data.corpus import Batch
from factorcell.data.schema import MISSING, UNKNOWN_VALUE, ContextSchema, Variable
from factorcell.data.vocabulary import END, START
from factorcell.model.language_model import LanguageModel
from factorcell.model.output import Proposal, Samples
from factorcell.option_fields import ADAPTERS
from tests.model import oracles
from tests.model.oracles import Array
from tests.small_runs import as_any, hash_bucket

V, SIZE = 6, {"embedding_size": 3, "hidden_size": 4, "context_size": 3, "variable_size": 2, "number_size": 3, "rank": 2}
SIZE |= {"hash_size": 11, "bloom_size": 300}  # so few buckets that pairs collide
SEEN = [(0, 1, 3), (0, 2, 3), (0, 2, 4), (0, 0, 5), (1, 0, 0), (1, 1, END)]  # pairs: variable, value, token
CITY = Variable("city", "category", values=(UNKNOWN_VALUE, "a", "b"), counts=(1, 3, 4))
STARS = Variable("stars", "category", values=(UNKNOWN_VALUE, "1"), counts=(2, 6))
LAT = Variable("lat", "number", mean=10.0, deviation=4.0)
SCHEMAS = {
    "nothing": ContextSchema(),
    "numbers": ContextSchema((LAT,)),
    "categories": ContextSchema((CITY, STARS)),
    "both": ContextSchema((CITY, LAT, STARS)),
}
TEXTS = ([3, 4, 0, END], [END], [5, 5, 3])  # the last one was cut: it has no end token
KINDS = [(), *((name,) for name in ADAPTERS), ("concat", "factor"), ADAPTERS]
LAYERS = (1, 2)
ACTIVATED: dict[str, Callable[[Array], Array]] = {  # by the name of a `context_layer`
    "tanh": np.tanh,
    "relu": lambda values: np.where(values > 0, values, 0.0),
    "linear": lambda values: values,
}
BIASES = [(), *((name,) for name in OUTPUT_BIASES), ("low_rank", "hash"), ("low_rank_each", "sparse"), OUTPUT_BIASES]


def make(
    schema: ContextSchema, adapt: tuple[str, ...], bias: tuple[str, ...], layers: int = 1, **switches: Any
) -> LanguageModel:
    """A model in double precision with random weights everywhere; `switches` are further options."""
    options: dict[str, Any] = {**SIZE, **switches}
    config = Config.of(adapt=adapt, output_bias=bias, layers=layers, **options)
    model = LanguageModel(config, V, schema).double()
    if as_any(model.head).hashed is not None:
        for column, value, token in SEEN:
            categories = np.full((1, len(schema.categories)), MISSING)
            categories[0, column] = value
            as_any(model.head).hashed.observe(np.array([token]), categories)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.6)
    return model.eval()


def batch(schema: ContextSchema) -> Batch:
    """`TEXTS` with their contexts, one city and one latitude missing; more padding than they need."""
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


class Slow:
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

    def standardised(self) -> Array:
        pairs = zip(self.numbers, self.schema.numbers, strict=True)
        return np.array([0.0 if math.isnan(x) else (x - own.mean) / own.deviation for x, own in pairs])

    def encode(self) -> Array:
        """Thesis, equation 2.4: c = tanh(sum_i M_i F_i f_i + b0), or another layer; the embeddings F_i f_i are kept."""
        parts = [self.pick(self.p[f"encoder.tables.{column}"], column) for column in range(len(self.rows))]
        if self.numbers:
            z = self.standardised()
            for layer in range(self.config.number_layers):
                name = f"encoder.network.{2 * layer}"
                z = np.tanh(self.p[f"{name}.weight"] @ z + self.p[f"{name}.bias"])
            parts.append(z)
        self.parts = np.concatenate(parts)
        if self.config.context_layer == "none":
            return self.parts
        joined = self.p["encoder.joint.weight"] @ self.parts + self.p["encoder.joint.bias"]
        return np.asarray(ACTIVATED[self.config.context_layer](joined))

    def codes(self) -> list[Array]:
        tables = [self.pick(table, column) for column, table in enumerate(self.tables("prefix.tables"))]
        if "prefix.linear.weight" in self.p:
            tables.append(self.p["prefix.linear.weight"] @ self.standardised() + self.p["prefix.linear.bias"])
        return tables

    def tables(self, name: str) -> list[Array]:
        """The parameters `name`.0, `name`.1, ..."""
        return [self.p[f"{name}.{column}"] for column in range(len(self.rows)) if f"{name}.{column}" in self.p]

    def recurrent(self, layer: str) -> tuple[Array, Array]:
        """W' and b' of a layer; `oracles` has the equation of each adapter."""
        adapters: dict[str, dict[str, Array]] = {}
        for name, value in self.p.items():
            if name.startswith(f"{layer}.linear.adapters."):
                adapter, parameter = name.split(".")[-2:]
                adapters.setdefault(adapter, {})[parameter] = value
        matrix, c = self.p[f"{layer}.linear.weight"], np.zeros(0) if self.context is None else self.context
        found = oracles.adapted(matrix, self.p[f"{layer}.linear.bias"], adapters, c)
        return found.matrix, found.bias

    def softmax_bias(self) -> Array:
        """TACL, equation 6, b + Q c; thesis, A.1; vectors for every value; hashed ones."""
        total = self.p["head.bias"].copy()
        if "head.adapters.low_rank.weight" in self.p:
            total += self.p["head.adapters.low_rank.weight"] @ self.context
        if "head.adapters.low_rank_each.weight" in self.p:
            total += self.p["head.adapters.low_rank_each.weight"] @ self.parts
        columns = np.cumsum([0, *(len(variable.values) for variable in self.schema.categories)])
        for column, (begin, end) in enumerate(itertools.pairwise(columns)):
            for name in ("one_hot", "sparse"):
                if f"head.adapters.{name}.weight" in self.p:
                    total += self.pick(self.p[f"head.adapters.{name}.weight"][:, begin:end].T, column)
            if "head.hashed.weight" in self.p:
                values = range(end - begin)
                total += self.pick(np.array([[self.hashed(column, f, w) for w in range(V)] for f in values]), column)
        return np.asarray(total)

    def hashed(self, column: int, value: int, token: int) -> float:
        """Thesis, equations 3.4 and 3.5, with a set in place of the Bloom filter."""
        buckets = self.p["head.hashed.weight"][:, 0]
        return (
            float(buckets[hash_bucket(column, value, token, len(buckets))]) if (column, value, token) in SEEN else 0.0
        )

    def read(self, x: Array, states: list[Array]) -> list[Array]:
        """TACL, equations 8 and 9: h and m (2, H) of each layer after one more input."""
        after = []
        for layer, ((matrix, bias), (h, m)) in enumerate(zip(self.layers, states, strict=True)):
            gates = (np.concatenate([x, h]) @ matrix + bias).reshape(3, -1)
            i, f, o = (self.normalised(layer, which, gate) for which, gate in enumerate(gates))
            f, o = 1 / (1 + np.exp(-(f + 1))), 1 / (1 + np.exp(-o))
            m = f * m + (1 - f) * np.tanh(i)
            x = np.tanh(self.normalised(layer, 3, m)) * o
            after.append(np.stack([x, m]))
        return after

    def normalised(self, layer: int, which: int, values: Array) -> Array:
        """Layer normalisation (Ba et al. 2016) of a gate by its number, or of m, number 3; where there is any."""
        if not self.options.layer_norm:
            return values
        gain, shift = (
            self.p[f"backbone.cells.{layer}.{name}"].reshape(-1, len(values))[which] for name in ("gain", "offset")
        )
        return np.asarray(gain * (values - values.mean()) / math.sqrt(values.var() + 1e-5) + shift)

    def logits(self, text: list[int]) -> list[dict[int, float]]:
        """TACL, equation 5: what is said of every token at each place of `text`."""
        shift, states, found = self.softmax_bias(), self.start, []
        for before in [START, *text[:-1]]:
            states = self.read(self.p["embedding"][before], states)
            h = states[-1][0]
            logits = {v: self.p["embedding"][v] @ (h @ self.p["head.projection"]) + shift[v] for v in range(len(shift))}
            del logits[START]
            found.append({v: float(logit) for v, logit in logits.items()})
        return found

    def nats(self, text: list[int]) -> list[float]:
        """-log p of each token of `text`."""
        return [
            math.log(sum(math.exp(logit) for logit in logits.values())) - logits[token]
            for logits, token in zip(self.logits(text), text, strict=True)
        ]

    def sampled(self, text: list[int], samples: list[int], inclusion: list[float]) -> list[float]:
        """The softmax over a token and the `samples`, each weight divided by how likely it was among them."""
        found = []
        for logits, token in zip(self.logits(text), text, strict=True):
            weights = {v: math.exp(logits[v]) / inclusion[v] for v in {token, *samples}}
            found.append(-math.log(weights[token] / sum(weights.values())))
        return found


def nats_by_hand(model: LanguageModel, schema: ContextSchema) -> Array:
    """What `Slow` says of the `batch` of the `schema` (3, 6), zero on padding."""
    context, found = batch(schema).context, np.zeros((3, 6))
    for row, text in enumerate(TEXTS):
        found[row, : len(text)] = Slow(model, schema, context, row).nats(list(text))
    return found


@pytest.mark.parametrize(("layers", "schema"), [*((1, name) for name in SCHEMAS), (2, "both")])
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("adapt", KINDS)
def test_every_combination_is_the_equations(
    layers: int, adapt: tuple[str, ...], bias: tuple[str, ...], schema: str
) -> None:
    model, given = make(SCHEMAS[schema], adapt, bias, layers), batch(SCHEMAS[schema])
    expected = nats_by_hand(model, SCHEMAS[schema])
    np.testing.assert_allclose(model(given).detach().numpy(), expected, atol=1e-9)
    with torch.no_grad():
        np.testing.assert_allclose(model(given).numpy(), expected, atol=1e-9)
    every = Samples(torch.tensor([token for token in range(V) if token != START]), torch.zeros(V, dtype=torch.double))
    np.testing.assert_allclose(model.sampled_nats(given, every).detach().numpy(), expected, atol=1e-9)


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("adapt", KINDS)
def test_the_sampled_loss_is_its_definition(adapt: tuple[str, ...], bias: tuple[str, ...]) -> None:
    model, given = make(SCHEMAS["both"], adapt, bias), batch(SCHEMAS["both"])
    chosen, inclusion = [0, 3, 5], [0.9, 1.0, 0.05, 0.4, 0.7, 0.2]
    expected = np.zeros((3, 6))
    for row, text in enumerate(TEXTS):
        slow = Slow(model, SCHEMAS["both"], given.context, row)
        expected[row, : len(text)] = slow.sampled(list(text), chosen, inclusion)
    samples = Samples(torch.tensor(chosen), torch.tensor(inclusion, dtype=torch.double).log())
    np.testing.assert_allclose(model.sampled_nats(given, samples).detach().numpy(), expected, atol=1e-9)


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("adapt", KINDS)
def test_prefixes_and_strings_share_all_mass(adapt: tuple[str, ...], bias: tuple[str, ...]) -> None:
    model, schema = make(SCHEMAS["both"], adapt, bias), SCHEMAS["both"]
    context = batch(schema).context.select(torch.tensor([1]))
    inner = [token for token in range(V) if token not in (START, END)]
    with torch.no_grad():
        once = model.condition(context)
        ended, going = 0.0, [(START, 0.0, None)]
        for _ in range(3):
            grown: list[Any] = []
            for token, log, state in going:
                logs, after = model.step(torch.tensor([token]), once, state)
                ended += math.exp(log + float(logs[0, END]))
                grown += [(v, log + float(logs[0, v]), after) for v in inner]
                assert float(logs[0, START]) == -math.inf
            going = grown
    assert 0 < ended < 1
    assert ended + sum(math.exp(log) for _, log, _ in going) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("schema", ["categories", "both"])
@pytest.mark.parametrize("loss", ["exact", "sampled"])
def test_gradients_of_all_parameters_by_finite_differences(loss: str, schema: str) -> None:
    smooth = tuple(name for name in OUTPUT_BIASES if name != "sparse")  # its gradient is not that of its value
    model, given = make(SCHEMAS[schema], ADAPTERS, smooth, layers=2), batch(SCHEMAS[schema])
    samples = Samples(torch.tensor([0, 3, 5]), torch.linspace(-2, 0, V, dtype=torch.double))
    names = [name for name, _ in model.named_parameters()]

    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self) -> Tensor:
            nats: Tensor = model(given) if loss == "exact" else model.sampled_nats(given, samples)
            return nats.sum(1)

    whole = Loss()

    def run(*values: Tensor) -> Any:
        return torch.func.functional_call(whole, {f"model.{n}": v for n, v in zip(names, values, strict=True)}, ())

    leaves = tuple(parameter.detach().clone().requires_grad_() for parameter in model.parameters())
    assert torch.autograd.gradcheck(run, leaves, fast_mode=True)  # along random directions
    gradients = torch.autograd.grad(run(*leaves).sum(), leaves)
    assert [name for name, gradient in zip(names, gradients, strict=True) if not gradient.any()] == []


def test_a_batch_that_samples_nothing_but_the_target_is_finite() -> None:
    model, given = make(SCHEMAS["both"], ADAPTERS, OUTPUT_BIASES), batch(SCHEMAS["both"])
    only = Batch(given.tokens[:1, :2], torch.tensor([1]), given.context.select(torch.tensor([0])), torch.tensor([0]))
    samples = Samples(only.tokens[0, 1:], torch.zeros(V, dtype=torch.double))
    nats = model.sampled_nats(only, samples)
    torch.autograd.backward(nats.sum())
    assert float(nats.detach()) == 0
    assert all(bool((p.grad == 0).all()) for p in model.parameters() if p.grad is not None)


def test_one_word_corpora_can_be_sampled() -> None:
    proposal = Proposal(torch.tensor([0, 0, 7]), 3)
    samples = proposal.draw()
    assert samples.tokens.tolist() == [2]
    assert float(samples.log_inclusion[2]) == 0


def test_an_override_is_a_table_row_for_the_cell_and_the_bias() -> None:
    schema = SCHEMAS["both"]
    model, given = make(schema, ("concat", "factor"), ("low_rank",)), batch(schema)
    assert model.encoder is not None
    categories = given.context.categories.clone()
    categories[:, 0] = 2
    own = model.encoder.tables[0][torch.tensor([2, 2, 2])]
    there = Batch(given.tokens, given.lengths, Context(categories, given.context.numbers), given.rows)
    torch.testing.assert_close(model(given, model.condition(given.context, {"city": own})), model(there))


def test_an_override_of_codes_is_refused() -> None:
    model, given = make(SCHEMAS["both"], ("prefix",), ()), batch(SCHEMAS["both"])
    with pytest.raises(UserError, match="embeddings of city are given, but a prefix has codes of its own"):
        model.condition(given.context, {"city": torch.zeros(3, 2)})


UNHASHED = tuple(name for name in OUTPUT_BIASES if name != "hash")
NUMBER_LAYERS = (0, 1, 2, 3)


def check(model: LanguageModel, schema: ContextSchema) -> None:
    np.testing.assert_allclose(model(batch(schema)).detach().numpy(), nats_by_hand(model, schema), atol=1e-9)


@pytest.mark.parametrize("schema", ["numbers", "categories", "both"])
@pytest.mark.parametrize("number_layers", NUMBER_LAYERS)
@pytest.mark.parametrize("context_layer", ACTIVATED)
def test_what_joins_variables_and_how_deep_numbers_are_read(
    context_layer: str, number_layers: int, schema: str
) -> None:
    layers: dict[str, Any] = {"context_layer": context_layer, "number_layers": number_layers}
    check(make(SCHEMAS[schema], ADAPTERS, UNHASHED, **layers), SCHEMAS[schema])


ALONE: dict[str, tuple[ContextSchema, dict[str, int]]] = {
    "category": (ContextSchema((CITY,)), {"variable_size": 3}),
    "number": (SCHEMAS["numbers"], {"number_layers": 0, "context_size": 1}),
    **{f"number of {layers}": (SCHEMAS["numbers"], {"number_layers": layers}) for layers in NUMBER_LAYERS[1:]},
}


@pytest.mark.parametrize("adapt", KINDS)
@pytest.mark.parametrize("alone", ALONE)
def test_one_variable_may_be_the_context_itself(alone: str, adapt: tuple[str, ...]) -> None:
    """Its embedding is c (thesis 2018, section 2.3.1), a missing value the mean of all; so may one number be."""
    schema, sizes = ALONE[alone]
    model = make(schema, adapt, UNHASHED, context_layer="none", **sizes)
    check(model, schema)
    assert model.encoder is not None
    assert bool(list(model.encoder.parameters())) == (alone != "number")


@pytest.mark.parametrize("adapt", KINDS)
@pytest.mark.parametrize("layers", LAYERS)
def test_gates_and_memory_may_be_normalised(layers: int, adapt: tuple[str, ...]) -> None:
    """Layer normalisation (Ba et al. 2016)."""
    model = make(SCHEMAS["both"], adapt, ("low_rank",), layers, layer_norm=True)
    check(model, SCHEMAS["both"])
