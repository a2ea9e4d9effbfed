"""The recurrence of a layer in PyTorch, step by step: for every cell, on every device.

    z = reduced[t] + g L      p = s (g W) + z R      h, m <- step(gates[t], p, h, m)      g = h feed

gates and reduced are the products of W and L with the inputs, which the caller computes for all steps at once; `step`
has the equations of the cell. Compiled code runs the most common cell faster (`kernels.recurrence`), and CUDA graphs
run these steps faster on a GPU (`loop_graphs`).

Shapes: B texts, T steps, H hidden, G columns of all gates, R rank.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from factorcell.nn.kernels import gpu_step
from factorcell.nn.kernels.recurrence import RecurrenceInputs


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


class Update(Protocol):
    """Computes all of a step except its matrix products."""

    def __call__(
        self,
        step: RecurrentStep,
        gates: Tensor,
        product: Tensor,
        state: CellState,
        norm: Tensor | None,
        keep: Tensor | None,
        is_inside: Tensor | None,
        /,
    ) -> CellState:
        """Compute the next state.

        Args:
            step: The equations of the cell.
            gates: What the inputs contribute to the gates, plus the bias (B, G).
            product: The product p (B, G).
            state: The state before the step.
            norm: Gains, then offsets of layer normalization, a row (H,) per index of `Norm`; None without it.
            keep: Dropout factors (B, H) on the candidate; None without dropout.
            is_inside: Whether each text (B,) has this step; otherwise its state does not change.
        """
        ...


def update_state(
    step: RecurrentStep,
    gates: Tensor,
    product: Tensor,
    state: CellState,
    norm: Tensor | None,
    keep: Tensor | None,
    is_inside: Tensor | None,
) -> CellState:
    """Compute the next state in PyTorch (see `Update` for the arguments)."""
    norm_rows = () if norm is None else norm.unbind(0)
    norm_count = len(norm_rows) // 2

    def normalize(index: int, values: Tensor) -> Tensor:
        if not norm_rows:
            return values
        return F.layer_norm(values, values.shape[-1:], norm_rows[index], norm_rows[norm_count + index])

    def drop(candidate: Tensor) -> Tensor:
        return candidate if keep is None else candidate * keep

    next_state = step(gates, product, state, normalize, drop)
    if is_inside is None:
        return next_state
    hidden = torch.where(is_inside[:, None], next_state.hidden, state.hidden)
    return CellState(hidden, torch.where(is_inside[:, None], next_state.memory, state.memory))


def _update_in_one_kernel(
    step: RecurrentStep, gates: Tensor, product: Tensor, state: CellState, /, *others: Tensor | None
) -> CellState:
    """Compute the next state of the coupled cell in a Triton kernel (see `Update` for the arguments)."""
    return CellState(*gpu_step.run(gates, product, state.hidden, state.memory, *others))


# How a step is computed after its products: by separate kernels of PyTorch, or by one Triton kernel (coupled cell).
SEPARATE, ONE_KERNEL = "separate", "one"
UPDATES: dict[str, Update] = {SEPARATE: update_state, ONE_KERNEL: _update_in_one_kernel}


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
