"""Recurrent cells, and their recurrence in PyTorch, step by step: for every cell, on every device.

    coupled     [i, f, o] = W'[x, h] + b'       f <- sigmoid(f + 1)       m <- f m + (1 - f) tanh(i)
                h <- tanh(m) sigmoid(o)
    lstm        [i, f, g, o] = W'[x, h] + b'    f <- sigmoid(f + 1)       m <- f m + sigmoid(i) tanh(g)
                h <- tanh(m) sigmoid(o)
    gru         [r, z] = sigmoid(W'[x, h] + b')   n = tanh(W' x + b' + r W' h)    h <- z h + (1 - z) n
    tanh, relu  h <- tanh or relu(W'[x, h] + b')

x is the input, h the hidden state and m the memory; i, f, o, g, r and z are gates, n the candidate of the GRU; W' and
b' are the weights in the context (`adapters`). The coupled cell is the cell of the papers (TACL 2018, appendix A,
equations 8 and 9). Layer normalization (Ba et al. 2016) normalizes the argument of every sigmoid, tanh and relu over
the hidden units; the 1 is added to f after normalization.

    z = reduced[t] + g L      p = s (g W) + z R      h, m <- cell(gates[t], p, h, m)      g = h feed

gates and reduced are the products of W and L with the inputs, which the caller computes for all steps at once. Compiled
code runs the coupled cell faster (`kernels.recurrence`), and CUDA graphs run these steps faster on a GPU
(`loop_graphs`).

Shapes: B texts, T steps, H hidden, G columns of all gates, R rank.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from factorcell.config import EXTENSIBLE
from factorcell.errors import UserError
from factorcell.nn.kernels import gpu_step
from factorcell.nn.kernels.recurrence import RecurrenceInputs


class CellState(NamedTuple):
    """The state of a recurrent layer after a step: h (B, H), and m (B, H), or (B, 0) if the cell has no memory."""

    hidden: Tensor
    memory: Tensor

    def select(self, rows: Tensor) -> "CellState":
        return CellState(*(part[rows] for part in self))


# Applies layer normalization to the values (B, H) of one gate or of m, given an index: the gates count from 0, and the
# index of m follows that of the last gate.
Norm = Callable[[int, Tensor], Tensor]
# Applies dropout to the candidate (B, H), the new content of m or h.
Drop = Callable[[Tensor], Tensor]


class RecurrentStep(Protocol):
    """A recurrent step, a class without arguments or parameters: W and b belong to the layer.

    Attributes:
        gates: The number of gates.
        memory: Whether the step has a memory m in addition to h.
        separate_products: Whether the step needs the products of W with x and with h separately, rather than their sum.
    """

    gates: int
    memory: bool
    separate_products: bool

    def __call__(
        self, from_input: Tensor, from_hidden: Tensor, state: CellState, norm: Norm, drop: Drop, /
    ) -> CellState:
        """Compute the next state.

        Args:
            from_input: The product of W' with x, plus b' (B, G).
            from_hidden: The product of W' with h (B, G).
            state: The state before the step.
            norm: Applies layer normalization to a gate or to m.
            drop: Applies dropout to the candidate, the new content of m or h.
        """
        ...


class Coupled:
    """The LSTM with one gate for forgetting and writing, as in the papers."""

    gates, memory, separate_products = 3, True, False

    def __call__(self, from_input: Tensor, from_hidden: Tensor, state: CellState, norm: Norm, drop: Drop) -> CellState:
        i, f, o = (norm(j, gate) for j, gate in enumerate((from_input + from_hidden).chunk(3, dim=-1)))
        f = torch.sigmoid(f + 1)
        memory = f * state.memory + (1 - f) * drop(torch.tanh(i))
        return CellState(torch.tanh(norm(3, memory)) * torch.sigmoid(o), memory)


class LSTM:
    """The LSTM with separate gates for forgetting and writing (Hochreiter and Schmidhuber 1997; Gers et al. 2000)."""

    gates, memory, separate_products = 4, True, False

    def __call__(self, from_input: Tensor, from_hidden: Tensor, state: CellState, norm: Norm, drop: Drop) -> CellState:
        i, f, g, o = (norm(j, gate) for j, gate in enumerate((from_input + from_hidden).chunk(4, dim=-1)))
        memory = torch.sigmoid(f + 1) * state.memory + torch.sigmoid(i) * drop(torch.tanh(g))
        return CellState(torch.tanh(norm(4, memory)) * torch.sigmoid(o), memory)


class GRU:
    """The gated recurrent unit, with the reset gate after the product with h (Cho et al. 2014)."""

    gates, memory, separate_products = 3, False, True

    def __call__(self, from_input: Tensor, from_hidden: Tensor, state: CellState, norm: Norm, drop: Drop) -> CellState:
        gate_columns = 2 * state.hidden.shape[1]  # the columns of r and z; those of n follow
        gates = from_input[:, :gate_columns] + from_hidden[:, :gate_columns]
        r, z = (torch.sigmoid(norm(j, gate)) for j, gate in enumerate(gates.chunk(2, dim=-1)))
        n = torch.tanh(norm(2, from_input[:, gate_columns:] + r * from_hidden[:, gate_columns:]))
        return CellState(z * state.hidden + (1 - z) * drop(n), state.memory)


class Tanh:
    """The plain recurrent layer with tanh (Elman 1990)."""

    gates, memory, separate_products = 1, False, False
    activation: Callable[[Tensor], Tensor] = staticmethod(torch.tanh)

    def __call__(self, from_input: Tensor, from_hidden: Tensor, state: CellState, norm: Norm, drop: Drop) -> CellState:
        return CellState(drop(self.activation(norm(0, from_input + from_hidden))), state.memory)


class Relu(Tanh):
    """The plain recurrent layer with rectified linear units."""

    activation = staticmethod(torch.relu)


CELLS: dict[str, type[RecurrentStep]] = {"coupled": Coupled, "lstm": LSTM, "gru": GRU, "tanh": Tanh, "relu": Relu}


def register_cell(name: str, cell: type[RecurrentStep]) -> None:
    """Make a recurrent step available to the option `cell` in this process.

    Args:
        name: Lower-case letters, digits and underscores.
        cell: Class that implements `RecurrentStep`.

    Raises:
        UserError: The name is taken, or the class lacks an attribute of `RecurrentStep`.
    """
    EXTENSIBLE["cell"].register(name, cell, _check_step_class)


def find_cell(name: str) -> type[RecurrentStep]:
    """Return the class of the recurrent step `name`: built in, registered, or from an installed package."""
    cell: type[RecurrentStep] = EXTENSIBLE["cell"].find_class(name, CELLS, _check_step_class)
    return cell


def _check_step_class(name: str, cell: type[RecurrentStep]) -> None:
    """Raise `UserError` unless the class `cell`, called `name`, has the attributes of a `RecurrentStep`."""
    if not isinstance(cell, type) or issubclass(cell, nn.Module):
        raise UserError(f"cell {name!r}: expected a class without parameters (no nn.Module), got {cell!r:.60}")
    for attribute, expected in {"gates": int, "memory": bool, "separate_products": bool}.items():
        if type(value := getattr(cell, attribute, None)) is not expected:
            raise UserError(f"cell {name!r}: expected {attribute} of type {expected.__name__}, got {value!r}")


def update_state(
    step: RecurrentStep,
    gates: Tensor,
    product: Tensor,
    state: CellState,
    norm: Tensor | None,
    keep: Tensor | None,
    is_inside: Tensor | None,
) -> CellState:
    """Compute all of a step except its matrix products.

    `gates` and `product` are those of the module header (B, G). `norm` has the gains, then the offsets of layer
    normalization, a row (H,) per index of `Norm`; `keep` (B, H) are dropout factors on the candidate. The state of a
    text without this step (`is_inside`, (B,)) does not change.
    """
    norm_rows = () if norm is None else norm.unbind(0)

    def normalize(index: int, values: Tensor) -> Tensor:
        if not norm_rows:
            return values
        gain, offset = norm_rows[index], norm_rows[len(norm_rows) // 2 + index]
        return F.layer_norm(values, values.shape[-1:], gain, offset)

    def drop(candidate: Tensor) -> Tensor:
        return candidate if keep is None else candidate * keep

    next_state = step(gates, product, state, normalize, drop)
    if is_inside is None:
        return next_state
    hidden = torch.where(is_inside[:, None], next_state.hidden, state.hidden)
    return CellState(hidden, torch.where(is_inside[:, None], next_state.memory, state.memory))


def update_state_in_one_kernel(
    step: RecurrentStep, gates: Tensor, product: Tensor, state: CellState, /, *others: Tensor | None
) -> CellState:
    """Compute `update_state` for the coupled cell in one Triton kernel."""
    return CellState(*gpu_step.run(gates, product, *state, *others))


def multiply_hidden(inputs: RecurrenceInputs, hidden: Tensor, reduced: Tensor | None) -> Tensor:
    """Return p (B, G), the product of `hidden` (B, H) with W and L R; `reduced` (B, R) is a part of z, or None."""
    fed = (hidden if inputs.feed is None else hidden * inputs.feed)[:, None].to(inputs.weight.dtype)
    product = fed @ inputs.weight
    product = product if inputs.scale is None else product * inputs.scale[:, None]
    if inputs.left is not None and inputs.right is not None:
        hidden_reduced = fed @ inputs.left
        total_reduced = hidden_reduced if reduced is None else reduced[:, None] + hidden_reduced
        product = product + total_reduced @ inputs.right
    return product.squeeze(1)


def run_step(step: RecurrentStep, inputs: RecurrenceInputs, state: CellState) -> CellState:
    """Read the first input of each text without dropout; return the next state."""
    reduced = None if inputs.input_reduced is None else inputs.input_reduced[:, 0]
    gates = inputs.input_gates[:, 0] + inputs.bias
    product = multiply_hidden(inputs, state.hidden, reduced)
    return update_state(step, gates, product, state, inputs.norm, None, None)


def run_loop(
    step: RecurrentStep,
    gates: Tensor,
    inputs: RecurrenceInputs,
    *,
    zeros: Tensor | None = None,
    update: Callable[..., CellState] = update_state,
) -> tuple[Tensor, CellState]:
    """Run all steps; return hidden states (B, T, H), which are zero after the end of a text, and the last state.

    `gates` (B, T, G) are those of `inputs` plus the bias. `zeros` (B, T, G) are added to the products p, so that their
    gradients are those of p. `update` is `update_state`, or a function that computes the same.
    """
    state, steps = CellState(inputs.hidden, inputs.memory), gates.shape[1]
    if steps == 0:
        return state.hidden[:, None][:, :0], state
    # Views of all steps are created at once, because their gradients are then joined once, after the last step.
    norm = None if inputs.norm is None else inputs.norm.expand(steps, *inputs.norm.shape)
    is_inside = None if inputs.lengths is None else torch.arange(steps, device=gates.device) < inputs.lengths[:, None]
    all_reduced, all_zeros, all_keep, all_norm, all_inside = (
        [None] * steps if array is None else array.unbind(axis)
        for array, axis in ((inputs.input_reduced, 1), (zeros, 1), (inputs.keep, 0), (norm, 0), (is_inside, 1))
    )
    hidden_states = []
    for number, step_gates in enumerate(gates.unbind(1)):
        product = multiply_hidden(inputs, state.hidden, all_reduced[number])
        if (step_zeros := all_zeros[number]) is not None:
            product = product + step_zeros
        state = update(step, step_gates, product, state, all_norm[number], all_keep[number], all_inside[number])
        hidden_states.append(state.hidden)
    outputs = torch.stack(hidden_states, dim=1)
    return outputs if is_inside is None else torch.where(is_inside[:, :, None], outputs, 0.0), state
