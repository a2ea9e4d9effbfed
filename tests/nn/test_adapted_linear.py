"""Tests of `AdaptedLinear`: its equation in numpy, folding, splitting, gradients and special cases.

Shapes: B contexts, T steps, D inputs, G outputs, K context, R rank.
"""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from factorcell.adapters.adapters import ADAPTERS, Shift
from factorcell.nn import AdaptedLinear
from tests.nn import oracles

D, G, K, R, B, T = 4, 5, 3, 2, 3, 6
COMBINATIONS = [names for count in range(len(ADAPTERS) + 1) for names in itertools.combinations(ADAPTERS, count)]
combinations = pytest.mark.parametrize("adapt", COMBINATIONS, ids="+".join)


def make(adapt: tuple[str, ...], bias: bool = True) -> AdaptedLinear:
    linear = AdaptedLinear(D, G, K, adapt=adapt, rank=R, bias=bias).double()
    with torch.no_grad():
        for parameter in linear.parameters():
            parameter.normal_(0, 0.5)
    return linear


def vectors(count: int = B) -> Tensor:
    """Draw context vectors (B, K)."""
    return torch.randn(count, K, dtype=torch.double)


@combinations
@pytest.mark.parametrize("shape", [(B, D), (B, T, D)])
@pytest.mark.parametrize("bias", [True, False])
def test_output_equals_the_equation_for_every_row(adapt: tuple[str, ...], shape: tuple[int, ...], bias: bool) -> None:
    linear, c, x = make(adapt, bias), vectors(), torch.randn(shape, dtype=torch.double)
    with torch.no_grad():
        y = linear(x, linear.condition(c)).numpy()
    b = np.zeros(G) if linear.bias is None else linear.bias.detach().numpy()
    parameters = {
        name: {key: value.detach().numpy() for key, value in linear.adapters[name].named_parameters()} for name in adapt
    }
    for row in range(B):
        expected = oracles.adapted(linear.weight.detach().numpy(), b, parameters, c[row].numpy())
        np.testing.assert_allclose(y[row], x[row].numpy() @ expected.matrix + expected.bias, atol=1e-12)


@combinations
def test_folding_does_not_change_outputs(adapt: tuple[str, ...]) -> None:
    linear, c, x = make(adapt), vectors(), torch.randn(B, T, D, dtype=torch.double)
    shift = linear.condition(c)
    folded = linear.fold(shift)
    assert folded.matrix is not None
    assert folded.left is folded.right is folded.scale is None
    torch.testing.assert_close(linear(x, folded), linear(x, shift))
    torch.testing.assert_close(linear(x, linear.fold(folded)), linear(x, shift))


@combinations
def test_outputs_of_the_parts_of_a_split_map_add_up(adapt: tuple[str, ...]) -> None:
    linear, c, x = make(adapt, bias=False), vectors(), torch.randn(B, D, dtype=torch.double)
    for shift in (linear.condition(c), linear.fold(linear.condition(c))):
        first, second = (replace(part, bias=None) for part in linear.split(shift, 1))
        bias = 0 if shift.bias is None else shift.bias
        torch.testing.assert_close(linear(x[:, :1], first) + linear(x[:, 1:], second) + bias, linear(x, shift))


@combinations
def test_select_returns_the_shifts_of_the_selected_contexts(adapt: tuple[str, ...]) -> None:
    linear, c, x, rows = make(adapt), vectors(), torch.randn(B, T, D, dtype=torch.double), torch.tensor([2, 0, 2])
    for shift in (linear.condition(c), linear.fold(linear.condition(c))):
        torch.testing.assert_close(linear(x, shift.select(rows)), linear(x, linear.condition(c[rows])))


@combinations
def test_context_of_zeros_gives_the_unadapted_map(adapt: tuple[str, ...]) -> None:
    linear, x = make(adapt), torch.randn(B, D, dtype=torch.double)
    plain = nn.functional.linear(x, linear.weight.T, linear.bias)
    torch.testing.assert_close(linear(x, linear.condition(torch.zeros(B, K, dtype=torch.double))), plain)
    torch.testing.assert_close(linear(x), plain)


@combinations
def test_gradients_equal_finite_differences(adapt: tuple[str, ...]) -> None:
    linear, c, x = make(adapt), vectors().requires_grad_(), torch.randn(B, T, D, dtype=torch.double).requires_grad_()
    names = [name for name, _ in linear.named_parameters()]

    class ConditionAndApply(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = linear

        def forward(self, x: Tensor, c: Tensor) -> Tensor:
            return self.linear(x, self.linear.condition(c))  # type: ignore[no-any-return]

    def run(x: Tensor, c: Tensor, *values: Tensor) -> Tensor:
        parameters = {f"linear.{name}": value for name, value in zip(names, values, strict=True)}
        return torch.func.functional_call(ConditionAndApply(), parameters, (x, c))  # type: ignore[no-any-return]

    assert torch.autograd.gradcheck(run, (x, c, *[p.detach().requires_grad_() for p in linear.parameters()]))


def test_sum_combines_the_shifts_of_several_adapters() -> None:
    linear, c, x = make(("concat", "factor", "scale"), bias=False), vectors(), torch.randn(B, D, dtype=torch.double)
    once = linear.condition(c)
    twice = Shift.sum([once, once])
    assert once.left is not None
    assert once.right is not None
    assert once.scale is not None
    assert once.bias is not None
    expected = Shift(2 * once.left, once.right, 2 * once.bias, once.scale**2)
    torch.testing.assert_close(linear(x, twice), linear(x, expected))
    assert twice.values_per_context() == R * (D + G) * 2 + G * 2


def test_weight_argument_is_the_initial_weight_and_adapters_without_their_rank_are_omitted() -> None:
    weight = torch.randn(D, G)
    linear = AdaptedLinear(D, G, K, adapt=("factor", "concat"), weight=weight)
    assert torch.equal(linear.weight, weight)
    assert list(linear.adapters) == ["concat"]


def test_initial_scales_are_close_to_one() -> None:
    scale = AdaptedLinear(20, 30, 8, adapt=("scale",)).condition(torch.tanh(torch.randn(50, 8))).scale
    assert scale is not None
    assert 0.02 < float((scale - 1).detach().std()) < 0.2
