"""Contexts to vectors against equation 2.4 of the thesis, written out."""

import math

import numpy as np
import pytest
import torch

from factorcell.config import ModelConfig, UserError
from factorcell.context import MISSING, RARE, Context, ContextEncoder, ContextSchema, Variable

CONFIG = ModelConfig(variable_size=3, number_size=4, context_size=5)
CITY = Variable("city", "category", values=(RARE, "a", "b"), counts=(2, 3, 5), rare=2)
STARS = Variable("stars", "category", values=(RARE, "1"), counts=(0, 10))
LAT = Variable("lat", "number", mean=10.0, deviation=4.0, low=0.0, high=20.0)
YEAR = Variable("year", "number", mean=2000.0, deviation=5.0)
SCHEMA = ContextSchema((CITY, LAT, STARS, YEAR))


def encoder(schema: ContextSchema = SCHEMA) -> ContextEncoder:
    """An encoder with random weights everywhere."""
    made = ContextEncoder(CONFIG, schema)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_()
    return made


def slow(
    made: ContextEncoder, categories: list[int], numbers: list[float]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """tanh(M [F_city city, F_stars stars, network(standardised numbers)] + b0) of one text."""
    parameters = {name: value.detach().double().numpy() for name, value in made.named_parameters()}
    parts = []
    for column, variable in enumerate((CITY, STARS)):
        table, row = parameters[f"tables.{column}"], categories[column]
        shares = np.array(variable.counts) / sum(variable.counts)
        parts.append(shares @ table if row == MISSING else table[row])
    values = np.array(
        [
            0.0 if math.isnan(number) else (number - variable.mean) / variable.deviation
            for number, variable in zip(numbers, (LAT, YEAR), strict=True)
        ]
    )
    hidden = np.tanh(parameters["network.0.weight"] @ values + parameters["network.0.bias"])
    parts.append(np.tanh(parameters["network.2.weight"] @ hidden + parameters["network.2.bias"]))
    vector: np.ndarray[tuple[int], np.dtype[np.float64]] = np.tanh(
        parameters["joint.weight"] @ np.concatenate(parts) + parameters["joint.bias"]
    )
    return vector


def test_vectors_are_the_equation() -> None:
    """Several texts, with a missing category and a missing number among them."""
    made = encoder()
    categories = [[1, 1], [2, 0], [MISSING, 1], [0, MISSING]]
    numbers = [[10.0, 2001.0], [3.0, 1990.0], [math.nan, 2000.0], [20.0, math.nan]]
    vectors = made(Context(torch.tensor(categories), torch.tensor(numbers)))
    assert vectors.shape == (4, 5)
    for vector, category, number in zip(vectors.detach().numpy(), categories, numbers, strict=True):
        np.testing.assert_allclose(vector, slow(made, category, number), atol=1e-5)


def test_a_missing_value_of_one_category_is_that_category() -> None:
    """Where all texts have one value, the expected value is that value."""
    only = ContextSchema((STARS,))
    made = encoder(only)
    known, missing = (Context(torch.tensor([[row]]), torch.zeros(1, 0)) for row in (1, MISSING))
    torch.testing.assert_close(made(known), made(missing))


def test_an_override_takes_the_place_of_a_table_row() -> None:
    """A personal vector equal to a row gives the vector of that row; other names are refused."""
    made = encoder()
    context = Context(torch.tensor([[1, 1], [MISSING, 1]]), torch.tensor([[1.0, 2000.0]] * 2))
    own = made.tables[0][torch.tensor([2, 2])]
    expected = made(Context(torch.tensor([[2, 1], [2, 1]]), context.numbers))
    torch.testing.assert_close(made(context, {"city": own}), expected)
    with pytest.raises(UserError, match="unknown context variable 'lat'; choose from city, stars"):
        made(context, {"lat": own})


def test_unknown_values_start_neutral() -> None:
    """Row 0 begins as zeros, so that an untrained unknown value is no noise."""
    assert not ContextEncoder(CONFIG, SCHEMA).tables[0][0].any()


def test_distinct_contexts() -> None:
    """Each context once, and who has it; missing numbers are equal to each other."""
    categories = torch.tensor([[1], [2], [1], [1], [1]])
    numbers = torch.tensor([[0.5], [0.5], [0.5], [math.nan], [math.nan]])
    context = Context(categories, numbers)
    some, which = context.distinct()
    assert len(some) == 3
    assert torch.equal(some.select(which).categories, categories)
    assert torch.equal(some.select(which).numbers.isnan(), numbers.isnan())
    nothing, which = Context(torch.zeros(4, 0, dtype=torch.long), torch.zeros(4, 0)).distinct()
    assert (len(nothing), which.tolist()) == (1, [0, 0, 0, 0])


def test_schemas_survive_json() -> None:
    """`to_dict` and back; what is none is refused."""
    assert ContextSchema.from_dict(SCHEMA.to_dict()) == SCHEMA
    for content in ({}, {"variables": [{"name": "x"}]}, {"variables": [{"name": "x", "kind": "number", "y": 1}]}):
        with pytest.raises(UserError, match="not a context schema"):
            ContextSchema.from_dict(content)


def test_schemas_describe_themselves() -> None:
    """What a user reads when a table was opened."""
    assert CITY.describe(50) == "city: category, 2 values, and 2 rare ones (under 50 texts) grouped"
    assert STARS.describe(50) == "stars: category, 1 values, none rare"
    assert LAT.describe(50) == "lat: number, mean 10, from 0 to 20"
    with pytest.raises(UserError, match="unknown context variable 'town'; choose from city, lat, stars, year"):
        SCHEMA.variable("town")
