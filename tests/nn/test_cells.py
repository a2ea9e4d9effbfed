"""Tests of `Cell`: loops written from the equations, PyTorch's cells, finite differences and special cases."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from factorcell.adapters.adapters import ADAPTERS
from factorcell.config import ADAPTERS as ADAPTER_NAMES
from factorcell.config import CELLS as CELL_NAMES
from factorcell.config import RecurrentOptions
from factorcell.nn.backbones.backbone import BackboneSizes
from factorcell.nn.backbones.cells import CELLS, CellState
from factorcell.nn.backbones.recurrent import Cell
from tests.nn import oracles
from tests.nn.oracles import Array

E, H, K, R, B, T = 3, 4, 5, 2, 3, 6
COMBINATIONS = [names for count in range(len(ADAPTERS) + 1) for names in itertools.combinations(ADAPTERS, count)]


def make_cell(
    adapt: tuple[str, ...],
    dropout: float = 0.0,
    kind: str = "coupled",
    layer_norm: bool = False,
    **options: Any,
) -> Cell:
    cell_options = RecurrentOptions(
        hidden_size=H, dropout_recurrent=dropout, cell=kind, layer_norm=layer_norm, **options
    )
    cell = Cell(cell_options, BackboneSizes(E, K, adapt, R)).double()
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.normal_(0, 0.5)
    return cell.eval()


def inputs() -> tuple[Tensor, Tensor]:
    """Draw inputs (B, T, E) and context vectors (B, K)."""
    return torch.randn(B, T, E, dtype=torch.double), torch.randn(B, K, dtype=torch.double)


def weight(cell: Cell, name: str) -> Array:
    array: Array = cell.get_parameter(f"linear.adapters.{name}").detach().numpy()
    return array


def bias_of(cell: Cell) -> nn.Parameter:
    assert cell.linear.bias is not None
    return cell.linear.bias


def matrices(cell: Cell, c: Tensor, adapt: tuple[str, ...]) -> tuple[Array, Array]:
    """Return W' (D, G) and b' (G,) of one context."""
    parameters = {
        name: {key: p.detach().numpy() for key, p in cell.linear.adapters[name].named_parameters()} for name in adapt
    }
    weight, bias = cell.linear.weight.detach().numpy(), bias_of(cell).detach().numpy()
    adapted = oracles.adapted(weight, bias, parameters, c.numpy())
    return adapted.matrix, adapted.bias


def hidden_states(
    cell: Cell, x: Tensor, c: Tensor, adapt: tuple[str, ...], kind: str, feed: Array | None = None
) -> Array:
    """Compute hidden states (B, T, H) one number at a time; `feed` (B, H) multiplies the h that is fed back."""
    out = np.zeros((B, T, H))
    for b in range(B):
        matrix, bias = matrices(cell, c[b], adapt)
        h, m = np.zeros(H), np.zeros(H)
        for t in range(T):
            from_input = x[b, t].numpy() @ matrix[:E] + bias
            from_hidden = (h if feed is None else h * feed[b]) @ matrix[E:]
            h, m = step(cell, kind, from_input.reshape(-1, H), from_hidden.reshape(-1, H), h, m)
            out[b, t] = h
    return out


def step(cell: Cell, kind: str, from_input: Array, from_hidden: Array, h: Array, m: Array) -> tuple[Array, Array]:
    """Return h and m after a step, computed by the oracle."""
    after: tuple[Array, Array] = oracles.oracle(oracles.CELLS, kind)(
        from_input, from_hidden, h, m, lambda index, values: normalize(cell, index, values)
    )
    return after


def normalize(cell: Cell, index: int, values: Array) -> Array:
    if cell.gain is None or cell.offset is None or index == len(cell.gain) // H:
        return values
    gain, shift = (p.detach().numpy().reshape(-1, H)[index] for p in (cell.gain, cell.offset))
    result: Array = gain * (values - values.mean()) / math.sqrt(values.var() + 1e-5) + shift
    return result


def test_names_equal_those_of_the_config() -> None:
    assert (*ADAPTERS, "prefix", "names") == ADAPTER_NAMES
    assert tuple(CELLS) == CELL_NAMES


def test_adapter_or_cell_without_oracle_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(oracles.ADAPTERS) == list(ADAPTERS)
    assert list(oracles.CELLS) == list(CELLS)
    for table, name, kind in ((oracles.ADAPTERS, "factor", "adapter 'factor'"), (oracles.CELLS, "gru", "cell 'gru'")):
        monkeypatch.delitem(table, name)
        with pytest.raises(AssertionError, match=f"no oracle of the {kind}: add its equation to .* of tests/nn/o"):
            test_forward_equals_the_equations(name if kind.startswith("cell") else "coupled", False)


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("kind", CELL_NAMES)
def test_forward_equals_the_equations(kind: str, layer_norm: bool) -> None:
    for adapt in COMBINATIONS:
        cell, (x, c) = make_cell(adapt, kind=kind, layer_norm=layer_norm), inputs()
        hidden, _ = cell(x, cell.linear.condition(c))
        np.testing.assert_allclose(hidden.detach().numpy(), hidden_states(cell, x, c, adapt, kind), atol=1e-11)


PYTORCH_CELLS = {
    "lstm": torch.nn.LSTM(E, H, batch_first=True),
    "gru": torch.nn.GRU(E, H, batch_first=True),
    "tanh": torch.nn.RNN(E, H, batch_first=True),
    "relu": torch.nn.RNN(E, H, batch_first=True, nonlinearity="relu"),
}


@pytest.mark.parametrize("kind", PYTORCH_CELLS)
def test_cells_equal_those_of_pytorch(kind: str) -> None:
    cell, expected_cell, (x, _) = make_cell((), kind=kind), PYTORCH_CELLS[kind].double(), inputs()
    parameters = dict(expected_cell.named_parameters())
    with torch.no_grad():
        parameters["weight_ih_l0"].copy_(cell.linear.weight[:E].T)
        parameters["weight_hh_l0"].copy_(cell.linear.weight[E:].T)
        parameters["bias_hh_l0"].zero_()
        parameters["bias_ih_l0"].copy_(bias_of(cell))
        if kind == "lstm":
            parameters["bias_hh_l0"][H : 2 * H] = 1.0
    h = torch.linspace(-1, 1, B * H, dtype=torch.double).view(B, H)
    m = torch.cos(h) if kind == "lstm" else h[:, :0]
    hidden, last = cell(x, cell.linear.condition(torch.zeros(B, K)), CellState(h, m))
    if kind == "lstm":
        expected, (_, after) = expected_cell(x, (h[None], m[None]))
        torch.testing.assert_close(last.memory, after[0])
    else:
        expected, _ = expected_cell(x, h[None])
    torch.testing.assert_close(hidden, expected)


def test_variational_dropout_multiplies_the_fed_back_state_by_one_mask_per_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    feed = torch.tensor(np.random.default_rng(0).integers(0, 2, (B, H)) * 2.0)
    monkeypatch.setattr("factorcell.nn.backbones.recurrent.dropout_mask", lambda shape, rate, like: feed.reshape(shape))
    for kind, adapt in itertools.product(CELL_NAMES, COMBINATIONS):
        cell, (x, c) = make_cell(adapt, 0.5, kind, variational=True), inputs()
        expected = hidden_states(cell, x, c, adapt, kind, feed.numpy())
        np.testing.assert_allclose(cell.train()(x, cell.linear.condition(c))[0].detach().numpy(), expected, atol=1e-11)
        np.testing.assert_allclose(
            cell.eval()(x, cell.linear.condition(c))[0].detach().numpy(),
            hidden_states(cell, x, c, adapt, kind),
            atol=1e-11,
        )


@pytest.mark.parametrize("kind", CELL_NAMES)
@pytest.mark.parametrize("adapt", COMBINATIONS)
def test_steps_equal_forward(adapt: tuple[str, ...], kind: str) -> None:
    cell, (x, c) = make_cell(adapt, kind=kind), inputs()
    weights = cell.linear.condition(c)
    hidden, last = cell(x, weights)
    for shift in (weights, cell.linear.fold(weights)):
        state = cell.start(B)
        for t in range(T):
            state = cell.step(x[:, t], shift, state)
            torch.testing.assert_close(state.hidden, hidden[:, t])
        torch.testing.assert_close(state.memory, last.memory)
        _, middle = cell(x[:, :2], shift)
        rest, _ = cell(x[:, 2:], shift, middle)
        torch.testing.assert_close(rest, hidden[:, 2:])


def test_concatcell_equals_an_unadapted_cell_with_the_context_as_input() -> None:
    """TACL 2018, equation 2: an unadapted cell over [x, c, h] with the stacked matrix."""
    concat, (x, c) = make_cell(("concat",)), inputs()
    wide = Cell(RecurrentOptions(hidden_size=H), BackboneSizes(E + K, K)).double()
    with torch.no_grad():
        stacked = [
            concat.linear.weight[:E],
            concat.get_parameter("linear.adapters.concat.weight"),
            concat.linear.weight[E:],
        ]
        wide.linear.weight.copy_(torch.cat(stacked))
        bias_of(wide).copy_(bias_of(concat))
    joined = torch.cat([x, c[:, None].expand(B, T, K)], dim=2)
    torch.testing.assert_close(wide(joined, wide.linear.condition(c))[0], concat(x, concat.linear.condition(c))[0])


@pytest.mark.parametrize("kind", CELL_NAMES)
@pytest.mark.parametrize("adapt", [(), ("concat", "factor"), ("scale", "factor"), tuple(ADAPTERS)])
def test_gradients_equal_finite_differences(adapt: tuple[str, ...], kind: str) -> None:
    cell, (x, c) = make_cell(adapt, kind=kind, layer_norm=True), inputs()
    names = [name for name, _ in cell.named_parameters()]

    def run(x: Tensor, c: Tensor, *values: Tensor) -> Tensor:
        parameters = {f"cell.{name}": value for name, value in zip(names, values, strict=True)}
        hidden: Tensor = torch.func.functional_call(_ConditionAndRun(cell), parameters, (x, c))
        return hidden

    values = [parameter.detach().requires_grad_() for parameter in cell.parameters()]
    assert torch.autograd.gradcheck(run, (x.requires_grad_(), c.requires_grad_(), *values), fast_mode=True)


class _ConditionAndRun(nn.Module):
    """Computes the shift and runs the cell in one call."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        """Return hidden states (B, T, H)."""
        hidden: Tensor = self.cell(x, self.cell.linear.condition(c))[0]
        return hidden


def test_dropout_drops_the_candidate_and_preserves_its_mean() -> None:
    cell = make_cell((), dropout=0.3)
    x, weights = torch.randn(1, 1, E, dtype=torch.double).expand(20_000, 1, E), cell.linear.condition(torch.zeros(1, K))
    _, without = cell(x, weights)
    _, dropped = cell.train()(x, weights)
    share = float((dropped.memory == 0).double().mean())
    assert share == pytest.approx(0.3, abs=0.02)
    torch.testing.assert_close(dropped.memory.mean(0), without.memory[0], rtol=0.05, atol=1e-3)
    _, again = cell.eval()(x, weights)
    assert torch.equal(again.memory, without.memory)
