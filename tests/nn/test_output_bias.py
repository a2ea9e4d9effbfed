"""Tests of adapted softmax biases: the hashed bias, its Bloom filter, and counts of coefficients."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from factorcell.config import Config, ModelConfig, sparse_penalties
from factorcell.data.columns.context import Context
from factorcell.data.columns.schema import MISSING, UNKNOWN_VALUE, ContextSchema, Variable
from factorcell.data.tokenizers.tokenizer import SPECIAL_IDS
from factorcell.errors import UserError
from factorcell.nn import output_bias
from factorcell.nn.head import HeadSizes
from factorcell.nn.output_bias import HashBias, OneHotBias, _next_prime
from factorcell.runs.run import Run
from factorcell.training.trainer import train
from paper_kinds import SizedSoftmaxOptions
from tests.small_runs import ROWS, as_any, make_run

V = 30
CITY = Variable("city", "category", values=(UNKNOWN_VALUE, "a", "b", "c"), counts=(1, 3, 4, 2))
STARS = Variable("stars", "category", values=(UNKNOWN_VALUE, "1"), counts=(0, 8))
SCHEMA = ContextSchema((CITY, STARS))
SIZES = HeadSizes(4, ModelConfig(), SCHEMA, (), SPECIAL_IDS)


def make_hash_bias(hash_size: int = 50, bloom_size: int = 0, schema: ContextSchema = SCHEMA) -> HashBias:
    bias = HashBias(V, schema, hash_size, bloom_size)
    torch.nn.init.normal_(bias.weight)
    return bias


def values(bias: HashBias, categories: Tensor, tokens: Tensor | None = None) -> Tensor:
    """Compute the bias (B, U) of texts."""
    pairs = bias.pairs(categories, tokens)
    return pairs.biases(bias.weight[pairs.buckets])


def make_hash_bias_without_collisions(schema: ContextSchema) -> HashBias:
    bias = make_hash_bias(100_000, schema=schema)
    every = torch.cartesian_prod(*(torch.arange(len(v.values)) for v in schema.categories)).view(
        -1, len(schema.categories)
    )
    pairs = bias.pairs(every)
    assert len(pairs.buckets) == V * sum(len(variable.values) for variable in schema.categories)
    return bias


def test_hashed_bias_without_collisions_equals_a_one_hot_bias() -> None:
    bias = make_hash_bias_without_collisions(SCHEMA)
    one_hot = OneHotBias(V, SIZES)
    with torch.no_grad():
        for column, variable in enumerate(SCHEMA.categories):
            before = sum(len(other.values) for other in SCHEMA.categories[:column])
            for value in range(len(variable.values)):
                rows = torch.tensor([[0, 0]])
                rows[0, column] = value
                others = torch.tensor([[0, 0]])
                alone = values(bias, rows)[0] if column else values(bias, rows)[0] - values(bias, others)[0]
                one_hot.weight[:, before + value] = alone
    categories = torch.tensor([[1, 0], [3, 1], [MISSING, 1], [2, MISSING], [MISSING, MISSING]])
    difference = values(bias, categories) - one_hot(torch.zeros(5, 0), [], Context(categories, torch.zeros(5, 0))) @ (
        one_hot.weight.T
    )
    # The table of the first variable is relative to its value 0, so all texts differ by the same vector.
    torch.testing.assert_close(difference, difference[:1].expand_as(difference), atol=1e-5, rtol=0)


def test_missing_value_of_a_variable_with_one_value_is_that_value() -> None:
    only = ContextSchema((Variable("x", "category", values=(UNKNOWN_VALUE, "a"), counts=(0, 5)),))
    bias = make_hash_bias(17, schema=only)
    torch.testing.assert_close(values(bias, torch.tensor([[MISSING]])), values(bias, torch.tensor([[1]])))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 4000), st.integers(0, 60))
def test_filter_passes_the_pairs_of_training(seed: int, bits: int, count: int) -> None:
    random = np.random.default_rng(seed)
    tokens, categories = (
        random.integers(0, V, count),
        np.stack([random.integers(-1, 4, count), random.integers(0, 2, count)], 1),
    )
    bias = make_hash_bias(5, bits)
    bias.weight.data.fill_(1.0)
    for part in (slice(0, count // 2), slice(count // 2, None), slice(None)):  # in parts, then all again
        bias.observe(tokens[part], categories[part])
    training_pairs = {
        (c, int(f), int(w)) for row, w in zip(categories, tokens, strict=True) for c, f in enumerate(row) if f >= 0
    }
    every = torch.cartesian_prod(torch.arange(4), torch.arange(2))
    biases = values(bias, every).detach()
    for row, pair in enumerate(every.tolist()):
        for token in range(V):
            expected = sum((column, value, token) in training_pairs for column, value in enumerate(pair))
            assert float(biases[row, token]) >= expected
            if bits > 3500 and count <= 20:  # with at most 640 of 3,500 bits set, another pair passes once in 10^11
                assert float(biases[row, token]) == expected


def test_every_pair_has_a_bias_without_a_filter() -> None:
    every = torch.tensor([[1, 1], [2, 0]])
    assert bool((values(make_hash_bias(50, 0), every) != 0).all())
    assert not values(make_hash_bias(50, 1000), every).any()


def test_cached_result_of_the_filter_equals_the_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)

    def draw_pairs(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return random.integers(0, V, count), np.stack([random.integers(0, 4, count), random.integers(0, 2, count)], 1)

    def compare() -> None:
        for count in (1, 3, 9):
            categories = torch.from_numpy(np.stack([random.integers(-1, 4, count), random.integers(-1, 2, count)], 1))
            tokens = torch.from_numpy(np.unique(random.integers(0, V, 7)))
            for selected in (None, tokens):
                cached = values(bias, categories, selected)
                with monkeypatch.context() as patch:
                    patch.setattr(output_bias, "MAX_CACHED_PAIRS", 0)
                    assert torch.equal(cached, values(bias, categories, selected))
                assert bool(cached.any())

    bias, other = make_hash_bias(23, 300), make_hash_bias(23, 300)
    for hash_bias, count in ((bias, 20), (other, 60)):
        hash_bias.observe(*draw_pairs(count))
    with torch.inference_mode():
        compare()
    compare()
    bias.observe(*draw_pairs(20))
    compare()
    bias.load_state_dict(other.state_dict())
    compare()
    assert torch.equal(values(bias, torch.tensor([[1, 1]])), values(other, torch.tensor([[1, 1]])))


def test_biases_of_some_tokens_equal_columns_of_all_biases() -> None:
    bias = make_hash_bias(23, 2000)
    bias.observe(np.arange(V) % 11, np.stack([np.arange(V) % 4, np.arange(V) % 2], 1))
    categories, tokens = torch.tensor([[1, 0], [3, 1], [MISSING, 1], [1, 0]]), torch.tensor([0, 4, 5, 29])
    torch.testing.assert_close(values(bias, categories, tokens), values(bias, categories)[:, tokens])


def test_gradients_of_shared_buckets_equal_finite_differences() -> None:
    bias = make_hash_bias(7).double()
    categories = torch.tensor([[1, 0], [3, 1], [MISSING, 1]])
    pairs = bias.pairs(categories)
    assert len(pairs.buckets) == 7
    assert torch.autograd.gradcheck(pairs.biases, (bias.weight.detach()[pairs.buckets].requires_grad_(),))


@pytest.mark.parametrize("minimum", [0, 1, 2, 3, 4, 90, 1000, 1 << 22])
def test_next_prime_is_the_smallest_prime(minimum: int) -> None:
    prime = _next_prime(minimum)
    assert not any(prime % d == 0 for d in range(2, min(prime, 2000)))
    assert not any(all(n % d for d in range(2, math.isqrt(n) + 1)) for n in range(max(2, minimum), prime))


def test_count_nonzero_counts_coefficients() -> None:
    bias = OneHotBias(V, SIZES)
    torch.nn.init.normal_(bias.weight)
    with torch.no_grad():
        bias.weight[::2] = 0
    assert bias.count_nonzero() == [
        {"variable": "city", "coefficients": V * 4, "nonzero": V // 2 * 4},
        {"variable": "stars", "coefficients": V * 2, "nonzero": V // 2 * 2},
    ]


def test_penalties_are_parsed_per_variable() -> None:
    assert sparse_penalties(("0.5",), ["a", "b"]) == [0.5, 0.5]
    assert sparse_penalties(("0.5", "b=0.1"), ["a", "b"]) == [0.5, 0.1]
    assert sparse_penalties(("b=0.1",), ["a", "b"]) == [0.0, 0.1]
    with pytest.raises(UserError, match=r"unknown variable in sparse_l1 'ci' \(did you mean 'city'\?\)"):
        sparse_penalties(("ci=1",), ["city"])
    with pytest.raises(UserError, match="hash_size is 2000000000; it must be a whole number from"):
        Config.of(head=SizedSoftmaxOptions.kind, hash_size=2_000_000_000)


@pytest.mark.parametrize("samples", [0, 5])
def test_filter_is_filled_by_training_and_saved(samples: int, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", training={"samples": samples, "epochs": 6}, output_bias=["hash"], adapt=[])
    corpus = run.prepare(ROWS)
    hashed = as_any(run.model.head).hashed
    before, bits = hashed.weight.detach().clone(), hashed.bits.clone()
    assert bits.any()
    hashed.bits.zero_()
    for _ in train(run, corpus, corpus):
        pass
    assert torch.equal(hashed.bits, bits)
    assert not torch.equal(hashed.weight, before)
    opened = Run.open(tmp_path / "run")
    assert torch.equal(as_any(opened.model.head).hashed.bits, bits)
    np.testing.assert_array_equal(opened.nats(corpus), run.nats(corpus))
    nats = opened.score([{**ROWS[0], "city": city} for city in ("Oslo", "Nice")]).tolist()
    assert nats[0] != nats[1]
