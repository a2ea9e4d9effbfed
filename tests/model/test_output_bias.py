"""Adapted softmax biases: their degenerate cases, the filter of seen pairs, what hashing costs in memory."""

import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from factorcell.assignments import numbers
from factorcell.config import ModelConfig, TrainingConfig, UserError
from factorcell.data.context import Context
from factorcell.data.schema import MISSING, RARE, ContextSchema, Variable
from factorcell.data.vocabulary import START
from factorcell.model import output_bias
from factorcell.model.output_bias import HashBias, OneHotBias, _prime
from factorcell.model.run import Run
from factorcell.training.loop import train
from factorcell.training.row_adam import RowAdam
from factorcell.training.trainer import Trainer
from tests.small import ROWS, make_run

V = 30
CITY = Variable("city", "category", values=(RARE, "a", "b", "c"), counts=(1, 3, 4, 2))
STARS = Variable("stars", "category", values=(RARE, "1"), counts=(0, 8))
SCHEMA = ContextSchema((CITY, STARS))


def hashed(hash_size: int = 50, bloom_size: int = 0, schema: ContextSchema = SCHEMA) -> HashBias:
    """A hashed bias with random buckets."""
    bias = HashBias(V, ModelConfig(hash_size=hash_size, bloom_size=bloom_size), schema)
    torch.nn.init.normal_(bias.weight)
    return bias


def values(bias: HashBias, categories: Tensor, tokens: Tensor | None = None) -> Tensor:
    """The bias (B, U) of texts."""
    pairs = bias.pairs(categories, tokens)
    return pairs.biases(bias.weight[pairs.buckets])


def free_of_collisions(schema: ContextSchema) -> HashBias:
    """A table in which no two pairs of a value and a token share a bucket."""
    bias = hashed(100_000, schema=schema)
    every = torch.cartesian_prod(*(torch.arange(len(v.values)) for v in schema.categories)).view(
        -1, len(schema.categories)
    )
    pairs = bias.pairs(every)
    assert len(pairs.buckets) == V * sum(len(variable.values) for variable in schema.categories)
    return bias


def test_a_table_large_enough_is_one_hot() -> None:
    """Each pair has a bucket: the same numbers as a table of all values, missing ones included."""
    bias = free_of_collisions(SCHEMA)
    one_hot = OneHotBias(V, ModelConfig(), SCHEMA, ())
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
    # what was put into the first variable's table is relative to its value 0, so texts differ by one constant vector
    torch.testing.assert_close(difference, difference[:1].expand_as(difference), atol=1e-5, rtol=0)


def test_a_missing_value_of_a_single_category_is_that_category() -> None:
    """The expected value of what can only be one thing."""
    only = ContextSchema((Variable("x", "category", values=(RARE, "a"), counts=(0, 5)),))
    bias = hashed(17, schema=only)
    torch.testing.assert_close(values(bias, torch.tensor([[MISSING]])), values(bias, torch.tensor([[1]])))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 4000), st.integers(0, 60))
def test_the_filter_lets_through_what_was_seen(seed: int, bits: int, count: int) -> None:
    """No pair that was shown is lost, at any size; with room enough, none that was not shown gets through."""
    random = np.random.default_rng(seed)
    tokens, categories = (
        random.integers(0, V, count),
        np.stack([random.integers(-1, 4, count), random.integers(0, 2, count)], 1),
    )
    bias = hashed(5, bits)
    bias.weight.data.fill_(1.0)
    for part in (slice(0, count // 2), slice(count // 2, None), slice(None)):  # in parts, and again
        bias.observe(tokens[part], categories[part])
    shown = {
        (c, int(f), int(w)) for row, w in zip(categories, tokens, strict=True) for c, f in enumerate(row) if f >= 0
    }
    every = torch.cartesian_prod(torch.arange(4), torch.arange(2))
    found = values(bias, every).detach()
    for row, pair in enumerate(every.tolist()):
        for token in range(V):
            expected = sum((column, value, token) in shown for column, value in enumerate(pair))
            assert float(found[row, token]) >= expected
            if bits > 3500 and count <= 20:  # at most 640 of 3,500 bits lit: a stranger passes once in 10^11
                assert float(found[row, token]) == expected


def test_without_a_filter_all_pairs_count() -> None:
    """And with one that saw nothing, none does."""
    every = torch.tensor([[1, 1], [2, 0]])
    assert bool((values(hashed(50, 0), every) != 0).all())
    assert not values(hashed(50, 1000), every).any()


def test_what_is_remembered_of_the_filter_is_the_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    """In any order, of some tokens or all, while scoring and then in training; and anew when the filter changes."""
    random = np.random.default_rng(0)

    def learned(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return random.integers(0, V, count), np.stack([random.integers(0, 4, count), random.integers(0, 2, count)], 1)

    def compared() -> None:
        for count in (1, 3, 9):
            categories = torch.from_numpy(np.stack([random.integers(-1, 4, count), random.integers(-1, 2, count)], 1))
            tokens = torch.from_numpy(np.unique(random.integers(0, V, 7)))
            for chosen in (None, tokens):
                got = values(bias, categories, chosen)
                with monkeypatch.context() as direct:
                    direct.setattr(output_bias, "KEPT", 0)
                    assert torch.equal(got, values(bias, categories, chosen))
                assert bool(got.any())

    bias, other = hashed(23, 300), hashed(23, 300)
    for one, count in ((bias, 20), (other, 60)):
        one.observe(*learned(count))
    with torch.inference_mode():
        compared()
    compared()
    bias.observe(*learned(20))
    compared()
    bias.load_state_dict(other.state_dict())
    compared()
    assert torch.equal(values(bias, torch.tensor([[1, 1]])), values(other, torch.tensor([[1, 1]])))


def test_the_filter_is_asked_once_for_each_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not for those that no text has."""
    bias, asked = hashed(23, 300), list[int]()
    bias.observe(np.arange(V), np.stack([np.arange(V) % 4, np.arange(V) % 2], 1))
    passing = bias._passing

    def counted(column: int, values: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        asked.extend(10 * column + value for value in values.tolist())
        return passing(column, values, tokens)

    monkeypatch.setattr(bias, "_passing", counted)
    for _ in range(2):
        values(bias, torch.tensor([[1, 0], [3, 0], [1, 0]]), torch.tensor([2, 5]))
        values(bias, torch.tensor([[3, 0], [0, 0]]))
    assert sorted(asked) == [0, 1, 3, 10]


def test_tokens_alone_are_columns_of_the_whole() -> None:
    """What a sampled step reads is what the exact softmax has."""
    bias = hashed(23, 2000)
    bias.observe(np.arange(V) % 11, np.stack([np.arange(V) % 4, np.arange(V) % 2], 1))
    categories, tokens = torch.tensor([[1, 0], [3, 1], [MISSING, 1], [1, 0]]), torch.tensor([0, 4, 5, 29])
    torch.testing.assert_close(values(bias, categories, tokens), values(bias, categories)[:, tokens])


def test_gradients_of_buckets_that_pairs_share() -> None:
    """By finite differences, in a table with many collisions."""
    bias = hashed(7).double()
    categories = torch.tensor([[1, 0], [3, 1], [MISSING, 1]])
    pairs = bias.pairs(categories)
    assert len(pairs.buckets) == 7
    assert torch.autograd.gradcheck(pairs.biases, (bias.weight.detach()[pairs.buckets].requires_grad_(),))


@pytest.mark.parametrize("least", [0, 1, 2, 3, 4, 90, 1000, 1 << 22])
def test_primes(least: int) -> None:
    """The first number from `least` on that nothing divides."""
    prime = _prime(least)
    assert not any(prime % d == 0 for d in range(2, min(prime, 2000)))
    assert not any(all(n % d for d in range(2, math.isqrt(n) + 1)) for n in range(max(2, least), prime))


def test_coefficients_that_are_not_zero_are_counted() -> None:
    """They are counted for each variable."""
    bias = OneHotBias(V, ModelConfig(), SCHEMA, ())
    torch.nn.init.normal_(bias.weight)
    with torch.no_grad():
        bias.weight[::2] = 0
    assert bias.counts() == [
        {"variable": "city", "coefficients": V * 4, "nonzero": V // 2 * 4},
        {"variable": "stars", "coefficients": V * 2, "nonzero": V // 2 * 2},
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("-1",), r"^sparse_l1 is '-1'; it must be NUMBER or NAME=NUMBER, of numbers from 0 on$"),
        (("city=x",), "it must be NUMBER or NAME=NUMBER"),
        (("inf",), "it must be NUMBER or NAME=NUMBER"),
    ],
)
def test_penalties_that_are_none(given: tuple[str, ...], message: str) -> None:
    """One line that says what they may be."""
    with pytest.raises(UserError, match=message):
        TrainingConfig(sparse_l1=given)


def test_penalties_of_variables() -> None:
    """One number for all, or one a name; a name that no variable has is a mistake."""
    assert numbers("l1", ("0.5",), ["a", "b"]) == [0.5, 0.5]
    assert numbers("l1", ("0.5", "b=0.1"), ["a", "b"]) == [0.5, 0.1]
    assert numbers("l1", ("b=0.1",), ["a", "b"]) == [0.0, 0.1]
    with pytest.raises(UserError, match=r"unknown variable in sparse_l1 'ci' \(did you mean 'city'\?\)"):
        numbers("sparse_l1", ("ci=1",), ["city"])
    with pytest.raises(UserError, match="hash_size is 2000000000; it must be at most 1073741824"):
        ModelConfig(hash_size=2_000_000_000)


@pytest.mark.parametrize("loss", ["full", "sampled"])
def test_training_and_opening(loss: str, tmp_path: Path) -> None:
    """The filter is made of the training targets and kept with the weights; the buckets learn, and the run opens."""
    run = make_run(tmp_path / "run", training={"loss": loss, "samples": 5, "epochs": 6}, output_bias=["hash"], adapt=[])
    corpus = run.prepare(ROWS)
    assert run.model.output.hashed is not None
    before = run.model.output.hashed.weight.detach().clone()
    bits = run.model.output.hashed.bits.clone()
    assert bits.any()
    run.model.output.hashed.bits.zero_()
    for _ in train(run, corpus, corpus):
        pass
    assert torch.equal(run.model.output.hashed.bits, bits)
    assert not torch.equal(run.model.output.hashed.weight, before)
    again = Run.open(tmp_path / "run")
    assert again.model.output.hashed is not None
    assert torch.equal(again.model.output.hashed.bits, bits)
    np.testing.assert_array_equal(again.nats(corpus), run.nats(corpus))
    nats = [row["nats"] for row in again.score([{**ROWS[0], "city": city} for city in ("Oslo", "Nice")])]
    assert nats[0] != nats[1]


def test_a_step_moves_the_buckets_as_dense_adam_does(tmp_path: Path) -> None:
    """Row-wise Adam of buckets against Adam on the whole table, over some steps of the sampled loss."""
    found: list[dict[str, Tensor]] = []
    for name, dense in (("rows", False), ("dense", True)):
        torch.manual_seed(3)
        how: dict[str, Any] = {"loss": "sampled", "samples": 6, "batch_tokens": 20, "epochs": 4, "clip": 0.0}
        how |= {"token_rate": 2.0, "sparse_l1": ["0"]}  # under a penalty all rows move
        run = make_run(tmp_path / name, training=how, output_bias=["low_rank", "hash", "sparse"])
        corpus = run.prepare(ROWS)
        trainer = Trainer(run, corpus, corpus)
        if dense:
            trainer.rows = [Dense(adam.tables, adam.rates) for adam in trainer.rows]
        for batch in trainer.batches():
            trainer.step(batch)
        trainer.catch_up()
        found.append({key: value.detach().clone() for key, value in trainer.parameters.items()})
    for key, value in found[0].items():
        torch.testing.assert_close(value, found[1][key], atol=2e-5, rtol=1e-4)


class Dense(RowAdam):
    """The same interface, and all of every table moved at every step."""

    def __init__(self, tables: Sequence[torch.nn.Parameter], rates: Any) -> None:
        super().__init__(tables, rates, 0.0)
        self.adam = torch.optim.AdamW(tables, weight_decay=0.0)

    def catch_up(self, step: int, rows: Tensor | None = None) -> None:
        """Nothing was left out."""

    def step(self, step: int, rows: Tensor, gradients: Sequence[Tensor]) -> None:
        """One step with gradients that are zero but in `rows`."""
        for table, gradient in zip(self.tables, gradients, strict=True):
            table.grad = torch.zeros_like(table).index_copy_(0, rows, gradient)
        self.adam.param_groups[0]["lr"] = float(self.rates[step - 1])
        self.adam.step()


MEMORY = """
import torch
from factorcell.model.output_bias import HashBias
from factorcell.config import ModelConfig
from factorcell.model.output import ContextBias, Output
from factorcell.data.schema import ContextSchema, Variable
import numpy as np
torch.set_num_threads(1)
V, C, E = 68_000, 5_800, 8
schema = ContextSchema((Variable("r", "category", values=tuple(map(str, range(C))), counts=(1,) * C),))
sizes = {"embedding_size": E, "hidden_size": E}
config = ModelConfig(**sizes, output_bias=("hash",), hash_size=4_000_000, bloom_size=100_000_000)
random = np.random.default_rng(0)
def peak(): return next(int(line.split()[1]) for line in open("/proc/self/status") if line[:6] == "VmHWM:") / 1024
output = Output(torch.nn.Parameter(torch.randn(V, E)), config, schema, [16])
hidden, targets = torch.randn(300, 4, E), torch.randint(3, V, (300, 4))
categories = torch.randint(0, C, (300, 1))
plain = Output(output.embedding, ModelConfig(**sizes), ContextSchema(), None)
with torch.inference_mode():
    plain.nats(hidden, targets, ContextBias(torch.zeros(300, 0), categories))
    before = peak()
    for _ in range(4):
        output.hashed.observe(random.integers(0, V, 500_000), random.integers(0, C, (500_000, 1)))
    output.nats(hidden, targets, ContextBias(torch.zeros(300, 0), categories))
print(peak() - before)
"""


@pytest.mark.slow
def test_hashing_costs_its_table() -> None:
    """68,000 words in 5,800 contexts, exact nats of 300 texts: within 100 MB beyond table and filter."""
    if sys.platform != "linux":
        pytest.skip("the peak is read from /proc")
    done = subprocess.run(
        [sys.executable, "-c", MEMORY],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 100, done.stdout


def test_start_is_never_predicted_though_hashed() -> None:
    """Whatever the buckets hold."""
    from factorcell.model.output import Output

    config = ModelConfig(hidden_size=2, output_bias=("hash",), hash_size=5, bloom_size=0)
    output = Output(torch.nn.Parameter(torch.zeros(V, 2)), config, SCHEMA, [1, 1])
    with torch.no_grad():
        output.hashed.weight.fill_(50.0)  # type: ignore[union-attr]
        context_bias = output.context_bias(torch.zeros(1, 3), [], Context(torch.tensor([[1, 1]]), torch.zeros(1, 0)))
        assert float(output.log_probabilities(torch.zeros(1, 2), context_bias)[0, START]) == -torch.inf
