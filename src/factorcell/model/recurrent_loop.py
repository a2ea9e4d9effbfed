"""The recurrence of a layer in PyTorch, step by step: for every cell, on every device.

    z = reduced[t] + g L      p = s (g W) + z R      h, m <- step(gates[t], p, h, m)      g = h feed

gates and reduced are the products of W and L with the inputs, which the caller computes for all steps at once; `step`
has the equations of the cell. Compiled code runs the most common cell faster (`kernels.recurrence`), and CUDA graphs
run these steps faster on a GPU (`loop_graphs`).

Shapes: B texts, T steps, H hidden, G columns of all gates, R rank.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from factorcell.model.kernels.recurrence import RecurrenceInputs


@dataclass(frozen=True)
class CellState:
    """The state of a recurrent layer after a step.

    Attributes:
        hidden: h (B, H).
        memory: m (B, H), or (B, 0) if the cell has no memory.
    """

    hidden: Tensor
    memory: Tensor

    def select(self, rows: Tensor) -> "CellState":
        """Return the states of the texts `rows` (B',), which may repeat."""
        return CellState(self.hidden[rows], self.memory[rows])


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


# Computes the next state with a step, from the gates (B, G), the product p (B, G), the state, the rows (H,) of layer
# normalization (gains, then offsets; none without layer normalization) and the dropout factors (B, H) or None.
Update = Callable[[RecurrentStep, Tensor, Tensor, CellState, Sequence[Tensor], Tensor | None], CellState]


def update_state(
    step: RecurrentStep,
    gates: Tensor,
    product: Tensor,
    state: CellState,
    norm_rows: Sequence[Tensor],
    keep: Tensor | None,
) -> CellState:
    """Compute the next state: all of a step except its matrix products (see `Update` for the arguments)."""
    norm_count = len(norm_rows) // 2

    def normalize(index: int, values: Tensor) -> Tensor:
        if not norm_rows:
            return values
        return F.layer_norm(values, values.shape[-1:], norm_rows[index], norm_rows[norm_count + index])

    def drop(candidate: Tensor) -> Tensor:
        return candidate if keep is None else candidate * keep

    return step(gates, product, state, normalize, drop)


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
    norm_rows = () if inputs.norm is None else inputs.norm.unbind(0)
    return update_state(step, gates, multiply_hidden(inputs, state.hidden, reduced), state, norm_rows, None)


def run_loop(
    step: RecurrentStep,
    gates: Tensor,
    inputs: RecurrenceInputs,
    *,
    zeros: Tensor | None = None,
    update: Update = update_state,
) -> tuple[Tensor, CellState]:
    """Run all steps.

    Args:
        step: The equations of the cell.
        gates: What the inputs contribute to the gates, plus the bias (B, T, G).
        inputs: All other arguments. After the `lengths` of a text its outputs are zero and its state does not change.
        zeros: Zeros (B, T, G) that are added to the products p, so that their gradients are those of p.
        update: The function that computes the next state from the products.

    Returns:
        Hidden states (B, T, H) and the last state.
    """
    state, steps = CellState(inputs.hidden, inputs.memory), gates.shape[1]
    if steps == 0:
        return state.hidden[:, None][:, :0], state
    # Views of all steps are created at once, because their gradients are then joined once, after the last step.
    norm = None if inputs.norm is None else inputs.norm.expand(steps, *inputs.norm.shape)
    all_reduced, all_zeros, all_keep, all_norm = (
        [None] * steps if array is None else array.unbind(axis)
        for array, axis in ((inputs.input_reduced, 1), (zeros, 1), (inputs.keep, 0), (norm, 0))
    )
    hidden_states = []
    for number, step_gates in enumerate(gates.unbind(1)):
        product = multiply_hidden(inputs, state.hidden, all_reduced[number])
        if (step_zeros := all_zeros[number]) is not None:
            product = product + step_zeros
        norm_rows = () if (step_norm := all_norm[number]) is None else step_norm.unbind(0)
        next_state = update(step, step_gates, product, state, norm_rows, all_keep[number])
        if inputs.lengths is not None:
            is_inside = (number < inputs.lengths)[:, None]
            memory = torch.where(is_inside, next_state.memory, state.memory)
            next_state = CellState(torch.where(is_inside, next_state.hidden, state.hidden), memory)
        state = next_state
        hidden_states.append(state.hidden)
    outputs = torch.stack(hidden_states, dim=1)
    if inputs.lengths is not None:
        is_target = torch.arange(steps, device=outputs.device) < inputs.lengths[:, None]
        outputs = torch.where(is_target[:, :, None], outputs, 0.0)
    return outputs, state
