"""The adapted cell against loops written from the equations, finite differences, and its own degenerate cases."""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from factorcell.adapters import ADAPTERS, Shift, Weights
from factorcell.cells import Cell, State
from factorcell.config import ADAPTERS as NAMES

E, H, K, R, B, T = 3, 4, 5, 2, 3, 6
COMBINATIONS = [names for count in range(len(ADAPTERS) + 1) for names in itertools.combinations(ADAPTERS, count)]


def make_cell(adapt: tuple[str, ...], dropout: float = 0.0) -> Cell:
    """A cell in double precision with random weights everywhere."""
    cell = Cell(E, H, K, R, adapt, dropout).double()
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.normal_(0, 0.5)
    return cell.eval()


def inputs() -> tuple[Tensor, Tensor]:
    """Inputs (B, T, E) and context vectors (B, K)."""
    return torch.randn(B, T, E, dtype=torch.double), torch.randn(B, K, dtype=torch.double)


def weight(cell: Cell, name: str) -> np.ndarray[Any, Any]:
    """A parameter of an adapter."""
    array: np.ndarray[Any, Any] = cell.get_parameter(f"adapters.{name}").detach().numpy()
    return array


def sigmoid(value: float) -> float:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + math.exp(-value))


def slow(cell: Cell, x: Tensor, c: Tensor, adapt: tuple[str, ...]) -> np.ndarray[Any, Any]:
    """Hidden states (B, T, H), one number at a time: TACL 2018, equations 3, 4, 8 and 9; thesis 2018, equation 3.2."""
    out = np.zeros((B, T, H))
    for b in range(B):
        matrix, bias = cell.matrix.detach().numpy().copy(), cell.bias.detach().numpy().copy()
        if "concat" in adapt:
            bias += c[b].numpy() @ weight(cell, "concat.weight")
        if "factor" in adapt:
            left, right = weight(cell, "factor.left"), weight(cell, "factor.right")
            matrix += np.einsum("k,kdr->dr", c[b], left) @ np.einsum("k,krg->rg", c[b], right)
        scale = np.ones((E + H, 3 * H))
        if "scale" in adapt:
            scale += c[b].numpy() @ weight(cell, "scale.weight")
        if "scale_split" in adapt:
            both = c[b].numpy() @ weight(cell, "scale_split.weight")
            scale[:E] += both[: 3 * H]
            scale[E:] += both[3 * H :]
        matrix *= scale
        h, m = np.zeros(H), np.zeros(H)
        for t in range(T):
            gates = np.concatenate([x[b, t].numpy(), h]) @ matrix + bias
            for j in range(H):
                f = sigmoid(gates[H + j] + 1)
                m[j] = m[j] * f + (1 - f) * math.tanh(gates[j])
                h[j] = math.tanh(m[j]) * sigmoid(gates[2 * H + j])
            out[b, t] = h
    return out


def test_names_are_those_of_the_config() -> None:
    """The command line offers what there is."""
    assert tuple(ADAPTERS) == NAMES


@pytest.mark.parametrize("adapt", COMBINATIONS)
def test_forward_is_the_equations(adapt: tuple[str, ...]) -> None:
    """Every combination of adapters, against the slow loop."""
    cell, (x, c) = make_cell(adapt), inputs()
    hidden, _ = cell(x, cell.adapt(c))
    np.testing.assert_allclose(hidden.detach().numpy(), slow(cell, x, c, adapt), atol=1e-12)


@pytest.mark.parametrize("adapt", COMBINATIONS)
def test_step_by_step_is_all_at_once(adapt: tuple[str, ...]) -> None:
    """Also from a state in the middle, and folded."""
    cell, (x, c) = make_cell(adapt), inputs()
    weights = cell.adapt(c)
    hidden, last = cell(x, weights)
    for chosen in (weights, cell.fold(weights)):
        state = cell.start(B)
        for t in range(T):
            state = cell.step(x[:, t], chosen, state)
            torch.testing.assert_close(state.hidden, hidden[:, t])
        torch.testing.assert_close(state.memory, last.memory)
        _, middle = cell(x[:, :2], chosen)
        rest, _ = cell(x[:, 2:], chosen, middle)
        torch.testing.assert_close(rest, hidden[:, 2:])


def test_folded_is_factored() -> None:
    """One matrix per context, nothing left to multiply."""
    cell, (x, c) = make_cell(("concat", "factor")), inputs()
    weights = cell.adapt(c)
    folded = cell.fold(weights)
    assert folded.left is None
    assert folded.matrix.shape == (B, E + H, 3 * H)
    torch.testing.assert_close(cell(x, folded)[0], cell(x, weights)[0])
    plain = make_cell(())
    assert plain.fold(plain.adapt(c)).matrix.shape == (E + H, 3 * H)


def test_concatcell_is_a_factorcell_with_zero_factors() -> None:
    """TACL 2018, section 2.2."""
    both, (x, c) = make_cell(("concat", "factor")), inputs()
    concat = make_cell(("concat",))
    concat.load_state_dict({k: v for k, v in both.state_dict().items() if "factor" not in k})
    with torch.no_grad():
        both.get_parameter("adapters.factor.right").zero_()
    assert torch.equal(both(x, both.adapt(c))[0], concat(x, concat.adapt(c))[0])


def test_concatcell_is_the_context_as_one_more_input() -> None:
    """TACL 2018, equation 2: an unadapted cell over [x, c, h] with the stacked matrix."""
    concat, (x, c) = make_cell(("concat",)), inputs()
    wide = Cell(E + K, H, K, R, (), 0.0).double()
    with torch.no_grad():
        stacked = [concat.matrix[:E], concat.get_parameter("adapters.concat.weight"), concat.matrix[E:]]
        wide.matrix.copy_(torch.cat(stacked))
        wide.bias.copy_(concat.bias)
    joined = torch.cat([x, c[:, None].expand(B, T, K)], dim=2)
    torch.testing.assert_close(wide(joined, wide.adapt(c))[0], concat(x, concat.adapt(c))[0])


def test_a_zero_context_changes_nothing() -> None:
    """All shifts are linear in c or in its products."""
    cell, (x, _) = make_cell(("concat", "factor")), inputs()
    plain = make_cell(())
    plain.load_state_dict({k: v for k, v in cell.state_dict().items() if "adapters" not in k})
    zero = torch.zeros(B, K, dtype=torch.double)
    torch.testing.assert_close(cell(x, cell.adapt(zero))[0], plain(x, plain.adapt(zero))[0])


@pytest.mark.parametrize("adapt", COMBINATIONS)
def test_gradients_by_finite_differences(adapt: tuple[str, ...]) -> None:
    """Of all parameters, the inputs and the context."""
    cell, (x, c) = make_cell(adapt), inputs()
    names = [name for name, _ in cell.named_parameters()]

    def run(x: Tensor, c: Tensor, *values: Tensor) -> Tensor:
        named = {f"cell.{name}": value for name, value in zip(names, values, strict=True)}
        hidden: Tensor = torch.func.functional_call(_Both(cell), named, (x, c))
        return hidden

    values = [parameter.detach().requires_grad_() for parameter in cell.parameters()]
    assert torch.autograd.gradcheck(run, (x.requires_grad_(), c.requires_grad_(), *values))


class _Both(torch.nn.Module):
    """Adapt and run in one call."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        """Hidden states (B, T, H)."""
        hidden: Tensor = self.cell(x, self.cell.adapt(c))[0]
        return hidden


def test_selected_contexts_are_those_contexts() -> None:
    """`select` repeats and reorders contexts, folded or not, and leaves shared weights shared."""
    cell, (x, c) = make_cell(("concat", "factor")), inputs()
    rows = torch.tensor([2, 0, 2])
    for weights in (cell.adapt(c), cell.fold(cell.adapt(c))):
        torch.testing.assert_close(cell(x, weights.select(rows))[0], cell(x, cell.adapt(c[rows]))[0])
    assert cell.adapt(c).select(rows).matrix is cell.matrix
    state = State(torch.arange(3.0)[:, None], torch.arange(3.0)[:, None])
    assert state.select(rows).memory[:, 0].tolist() == [2, 0, 2]


def test_dropout_drops_the_candidate_and_keeps_its_mean() -> None:
    """Only in training; the memory after one step is dropped at the rate, and on average what it was."""
    cell = make_cell((), dropout=0.3)
    x, weights = torch.randn(1, 1, E, dtype=torch.double).expand(20_000, 1, E), cell.adapt(torch.zeros(1, K))
    _, still = cell(x, weights)
    _, dropped = cell.train()(x, weights)
    share = float((dropped.memory == 0).double().mean())
    assert share == pytest.approx(0.3, abs=0.02)
    torch.testing.assert_close(dropped.memory.mean(0), still.memory[0], rtol=0.05, atol=1e-3)
    _, again = cell.eval()(x, weights)
    assert torch.equal(again.memory, still.memory)


def test_shifts_of_several_adapters_add_up() -> None:
    """Two adapters that change W: their ranks lie side by side."""
    cell, (x, c) = make_cell(("factor",)), inputs()
    once = cell.adapt(c)
    assert isinstance(once, Weights)
    twice = Cell(E, H, K, R, (), 0.0).double()
    twice.load_state_dict({k: v for k, v in cell.state_dict().items() if "adapters" not in k}, strict=False)
    twice.adapters["one"] = cell.adapters["factor"]
    twice.adapters["two"] = cell.adapters["factor"]
    doubled = twice.adapt(c)
    assert doubled.left is not None
    assert once.left is not None
    assert once.right is not None
    assert doubled.left.shape[2] == 2 * R
    expected = replace(once, left=once.left * 2)
    torch.testing.assert_close(twice(x, doubled)[0], cell(x, expected)[0])
    assert Shift() == Shift(None, None, None)
