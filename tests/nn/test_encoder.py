"""Tests of the context encoder against equation 2.4 of the thesis."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from factorcell.adapters.encoder import ContextEncoder, NumberInputs, WordBag
from factorcell.config import DataConfig, ModelConfig
from factorcell.data.columns.context import Context, IdLists
from factorcell.data.columns.readers import NumberReader, TextReader
from factorcell.data.columns.schema import HARMONICS, MISSING, UNKNOWN_VALUE, ContextSchema, Variable
from factorcell.data.tables.tables import open_table
from factorcell.errors import UserError

CONFIG = ModelConfig(variable_size=3, context_size=5)
CITY = Variable("city", "category", values=(UNKNOWN_VALUE, "a", "b"), counts=(2, 3, 5), rare_count=2, min_count=50)
STARS = Variable("stars", "category", values=(UNKNOWN_VALUE, "1"), counts=(0, 10))
LAT = Variable("lat", "number", mean=10.0, deviation=4.0, low=0.0, high=20.0)
YEAR = Variable("year", "number", mean=2000.0, deviation=5.0)
SCHEMA = ContextSchema((CITY, LAT, STARS, YEAR))


@pytest.fixture(autouse=True)
def small_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the network over numbers small."""
    monkeypatch.setattr("factorcell.adapters.encoder.NUMBER_SIZE", 4)


def make_encoder(schema: ContextSchema = SCHEMA) -> ContextEncoder:
    result = ContextEncoder(CONFIG, schema)
    with torch.no_grad():
        for parameter in result.parameters():
            parameter.normal_()
    return result


@pytest.mark.parametrize("variables", [(CITY, STARS), (CITY, LAT), (CITY,)])
def test_context_layer_none_rejects_variables_of_other_sizes(variables: tuple[Variable, ...]) -> None:
    with pytest.raises(UserError, match=r"none expects one variable whose embedding has context_size \(5\)"):
        ContextEncoder(replace(CONFIG, context_layer="none"), ContextSchema(variables))


def test_missing_value_of_a_variable_with_one_value_is_that_value() -> None:
    only = ContextSchema((STARS,))
    encoder = make_encoder(only)
    known, missing = (Context(torch.tensor([[row]]), torch.zeros(1, 0)) for row in (1, MISSING))
    torch.testing.assert_close(encoder(known), encoder(missing))


def test_override_replaces_a_table_row() -> None:
    encoder = make_encoder()
    context = Context(torch.tensor([[1, 1], [MISSING, 1]]), torch.tensor([[1.0, 2000.0]] * 2))
    embedding = encoder.tables[0][torch.tensor([2, 2])]
    expected = encoder(Context(torch.tensor([[2, 1], [2, 1]]), context.numbers))
    torch.testing.assert_close(encoder(context, {"city": embedding}), expected)
    with pytest.raises(UserError, match="unknown context variable 'lat'; choose from city, stars"):
        encoder(context, {"lat": embedding})


def test_unknown_values_start_at_zero() -> None:
    assert not ContextEncoder(CONFIG, SCHEMA).tables[0][0].any()


def test_variables_are_described() -> None:
    assert CITY.describe() == "city (2 values, 2 rare (fewer than 50 texts))"
    assert STARS.describe() == "stars (1 values)"
    assert LAT.describe() == "lat (number from 0 to 20, mean 10)"
    with pytest.raises(UserError, match="unknown context variable 'town'; choose from city, lat, stars, year"):
        SCHEMA.variable("town")


MEANS = tuple(0.1 * n for n in range(2 * HARMONICS))
DEVIATIONS = tuple(0.5 + 0.1 * n for n in range(2 * HARMONICS))
HOUR = Variable("at.hour", "hour", mean=3.0, column="at", period=24.0, means=MEANS, deviations=DEVIATIONS)
TITLE = Variable("title", "text", values=("sea", "sun", "moon"), shares=(0.5, 0.9, 0.1))
TOPIC = Variable("topic", "vector", means=(1.0, 2.0), deviations=(0.5, 3.0))
EVERY = ContextSchema((TITLE, LAT, CITY, HOUR, TOPIC, YEAR, STARS))

Row = dict[str, Any]
ROWS: list[Row] = [
    {"city": 1, "stars": 1, "lat": 10.0, "hour": 23.5, "year": 2001.0, "title": [0, 1, 1], "topic": [1.5, 1.0]},
    {"city": MISSING, "stars": 0, "lat": math.nan, "hour": 0.0, "year": 1999.0, "title": [], "topic": [2.5, -4.0]},
    {"city": 2, "stars": MISSING, "lat": 3.0, "hour": math.nan, "year": 2000.0, "title": [2], "topic": [math.nan] * 2},
    {"city": 2, "stars": 1, "lat": 3.0, "hour": 7.0, "year": math.nan, "title": [2, 0], "topic": [0.0, 0.0]},
]


def bags_of(lists: list[list[int]]) -> IdLists:
    offsets = np.concatenate([[0], np.cumsum([len(words) for words in lists])]).astype(np.int64)
    return IdLists(torch.tensor([w for words in lists for w in words], dtype=torch.long), torch.from_numpy(offsets))


def context_of(rows: list[Row]) -> Context:
    return Context(
        torch.tensor([[row["city"], row["stars"]] for row in rows]),
        torch.tensor([[row["lat"], row["hour"], row["year"]] for row in rows], dtype=torch.double),
        (torch.tensor([row["topic"] for row in rows], dtype=torch.double),),
        (bags_of([row["title"] for row in rows]),),
    )


def embeddings_by_equation(encoder: ContextEncoder, row: Row) -> list[Any]:
    p = {name: value.detach().numpy() for name, value in encoder.named_parameters()}
    parts = []
    for column, variable in enumerate((CITY, STARS)):
        shares = np.array(variable.counts) / sum(variable.counts)
        table, index = p[f"tables.{column}"], row[variable.name]
        parts.append(shares @ table if index == MISSING else table[index])
    words = p["texts.0.table"]
    if row["title"]:
        parts.append(sum(words[word] for word in row["title"]) / math.sqrt(len(row["title"])))
    else:
        parts.append(sum(share * word for share, word in zip(TITLE.shares, words, strict=True)))
    moments = zip(row["topic"], TOPIC.means, TOPIC.deviations, strict=True)
    topic = [0 if math.isnan(x) else (x - mean) / deviation for x, mean, deviation in moments]
    parts.append(p["vectors.0.weight"] @ np.array(topic))
    inputs = [(row["lat"] - 10) / 4]
    for harmonic in range(1, HARMONICS + 1):
        inputs += [wave(2 * math.pi * harmonic * row["hour"] / 24) for wave in (math.sin, math.cos)]
    inputs[1:] = [(x - m) / d for x, m, d in zip(inputs[1:], MEANS, DEVIATIONS, strict=True)]
    inputs.append((row["year"] - 2000) / 5)
    hidden = np.tanh(p["network.0.weight"] @ np.nan_to_num(inputs) + p["network.0.bias"])
    parts.append(np.tanh(p["network.2.weight"] @ hidden + p["network.2.bias"]))
    return parts


def test_every_kind_of_variable_equals_its_equation() -> None:
    encoder = make_encoder(EVERY).double()
    parts, vectors = encoder.variable_embeddings(context_of(ROWS)), encoder(context_of(ROWS)).detach().numpy()
    assert [tuple(part.shape) for part in parts] == [(4, 3)] * 4 + [(4, 4)]
    assert encoder.joint is not None
    weight, bias = encoder.joint.weight.detach().numpy(), encoder.joint.bias.detach().numpy()
    for number, row in enumerate(ROWS):
        expected_parts = embeddings_by_equation(encoder, row)
        for part, expected in zip(parts, expected_parts, strict=True):
            np.testing.assert_allclose(part[number].detach().numpy(), expected, atol=1e-6)
        np.testing.assert_allclose(vectors[number], np.tanh(weight @ np.concatenate(expected_parts) + bias), atol=1e-6)


def test_gradients_equal_finite_differences() -> None:
    encoder, context = make_encoder(EVERY).double(), context_of(ROWS)
    parameters = list(encoder.parameters())

    def vectors(*values: torch.Tensor) -> Any:
        parameters_by_name = dict(zip(dict(encoder.named_parameters()), values, strict=True))
        return torch.func.functional_call(encoder, parameters_by_name, (context,))

    assert torch.autograd.gradcheck(vectors, tuple(parameters))


def test_periodic_numbers_are_continuous_over_the_period() -> None:
    inputs = NumberInputs((HOUR,)).double()
    a, b, near, noon = inputs(torch.tensor([[0.0], [24.0], [23.999], [12.0]], dtype=torch.double))
    torch.testing.assert_close(a, b, rtol=0, atol=1e-5)
    assert float((a - near).norm()) < 0.01 < float((a - noon).norm())


def test_waves_are_standardized_and_start_with_the_weight_of_one_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("factorcell.adapters.encoder.NUMBER_SIZE", 4000)
    reader = NumberReader(Variable("lon", "longitude", period=360.0), open_table([{"lon": 1}]))
    reader.add(np.random.default_rng(0).normal(10, 30, 500).tolist(), range(1, 501))
    variable = reader.build_variable(DataConfig())
    features = NumberInputs((variable,))(torch.from_numpy(reader.encode(variable))[:, None].float())
    torch.testing.assert_close(features.mean(0), torch.zeros(2 * HARMONICS), atol=1e-4, rtol=0)
    torch.testing.assert_close(features.std(0, correction=0), torch.ones(2 * HARMONICS), atol=1e-4, rtol=0)
    encoder = ContextEncoder(ModelConfig(), ContextSchema((LAT, variable)))
    assert encoder.network is not None
    first = encoder.network.get_parameter("0.weight").detach()
    assert float(first[:, 0].pow(2).mean()) == pytest.approx(4, rel=0.1)
    assert float(first[:, 1:].pow(2).sum(1).mean()) == pytest.approx(4, rel=0.1)


def test_expected_text_is_the_mean_of_all_texts() -> None:
    reader = TextReader(Variable("t", "text"), open_table([{"t": "sea"}]))
    reader.add(["sun sea sun", "sea", "", None, "moon sea sun sand"], range(1, 6))
    variable = reader.build_variable(DataConfig(min_context_count=1))
    bags = reader.encode(variable)
    words = IdLists(torch.from_numpy(bags.values).long(), torch.from_numpy(bags.offsets))
    embedded = WordBag(variable, 3, 1.0).double()(words)
    torch.testing.assert_close(embedded[2], embedded[[0, 1, 4]].mean(0), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(embedded[2], embedded[3])


def test_override_replaces_texts_and_vectors() -> None:
    encoder = make_encoder(EVERY)
    context = context_of(ROWS)
    context = Context(context.categories, context.numbers.float(), (context.vectors[0].float(),), context.words)
    embedding = torch.randn(4, 3)
    parts = encoder.variable_embeddings(context, {"title": embedding, "topic": embedding + 1})
    assert torch.equal(parts[2], embedding)
    assert torch.equal(parts[3], embedding + 1)
    assert torch.equal(parts[0], encoder.variable_embeddings(context)[0])
    with pytest.raises(UserError, match=r"unknown context variable 'at.hour'; choose from city, stars, title, topic"):
        encoder(context, {"at.hour": embedding})


words = st.lists(st.integers(0, 2), max_size=3)
values = st.sampled_from([0.0, 1.0, math.nan])


@given(st.lists(st.tuples(words, words, values, st.integers(-1, 1)), min_size=1, max_size=12))
def test_distinct_finds_equal_contexts_of_every_kind(rows: list[tuple[list[int], list[int], float, int]]) -> None:
    context = Context(
        torch.tensor([[category] for *_, category in rows]),
        torch.zeros(len(rows), 0),
        (torch.tensor([[x, 1.0] for _, _, x, _ in rows]),),
        (bags_of([row[0] for row in rows]), bags_of([row[1] for row in rows])),
    )
    distinct, row_of_text = context.distinct()
    assert len(distinct) == len({repr(row) for row in rows})
    assert [repr(row) for row in rows_of(distinct.select(row_of_text))] == [repr(row) for row in rows]


def rows_of(context: Context) -> list[tuple[list[int], list[int], float, int]]:
    rows = []
    for row in range(len(context)):
        bags = [b.ids[b.offsets[row] : b.offsets[row + 1]].tolist() for b in context.words]
        rows.append((bags[0], bags[1], float(context.vectors[0][row, 0]), int(context.categories[row, 0])))
    return rows


def test_schemas_with_every_kind_round_trip_through_json() -> None:
    assert ContextSchema.from_dict(json.loads(json.dumps(EVERY.to_dict()))) == EVERY
    with pytest.raises(UserError, match="unknown kind of context variable 'txt' \\(did you mean 'text'"):
        ContextSchema.from_dict({"variables": [{"name": "x", "kind": "txt"}]})
    assert [v.source_column for v in EVERY.variables] == ["title", "lat", "city", "at", "topic", "year", "stars"]
    assert HOUR.describe() == "at.hour (hour, period 24, mean 3)"
    assert TITLE.describe() == "title (text, 3 words)"
    assert TOPIC.describe() == "topic (vector of 2 numbers)"
