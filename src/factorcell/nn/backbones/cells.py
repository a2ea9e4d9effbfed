"""Recurrent layers. A context changes their weights W and their bias b to W' and b' (`adapters`).

    coupled     [i, f, o] = W'[x, h] + b'       f <- sigmoid(f + 1)       m <- f m + (1 - f) tanh(i)
                h <- tanh(m) sigmoid(o)
    lstm        [i, f, g, o] = W'[x, h] + b'    f <- sigmoid(f + 1)       m <- f m + sigmoid(i) tanh(g)
                h <- tanh(m) sigmoid(o)
    gru         [r, z] = sigmoid(W'[x, h] + b')   n = tanh(W' x + b' + r W' h)    h <- z h + (1 - z) n
    tanh, relu  h <- tanh or relu(W'[x, h] + b')

x is the input, h the hidden state and m the memory; i, f, o, g, r and z are gates, n the candidate of the GRU. The
coupled cell is the cell of the papers (TACL 2018, appendix A, equations 8 and 9). Layer normalization (Ba et al. 2016)
normalizes the argument of every sigmoid, tanh and relu over the hidden units; the 1 is added to f after normalization.

Shapes: B texts, T steps, E inputs, H hidden, G columns of all gates, R rank.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from factorcell.adapters.adapted_linear import AdaptedLinear
from factorcell.adapters.adapters import Shift
from factorcell.adapters.dropout import dropout_mask
from factorcell.adapters.initial import uniform
from factorcell.config import EXTENSIBLE
from factorcell.errors import UserError
from factorcell.nn.backbones.backbone import BackboneSizes
from factorcell.nn.backbones.loop_graphs import LoopGraphs
from factorcell.nn.backbones.recurrent_loop import (
    ONE_KERNEL,
    SEPARATE,
    CellState,
    Drop,
    Norm,
    RecurrentStep,
    run_loop,
    run_step,
)
from factorcell.nn.kernels import gpu_recurrence, library
from factorcell.nn.kernels.recurrence import PackedWeight, RecurrenceInputs, run, supports
from factorcell.options.option_fields import RecurrentOptions


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


class Cell(nn.Module):
    """One recurrent layer: a `RecurrentStep` with an adapted linear map from [x, h] to its gates.

    Dropout applies to the candidate, with a new mask at every step (Semeniuta et al. 2016). With the option
    `variational`, it applies instead to the h that the next step reads, with one mask per text (Gal and Ghahramani
    2016).
    """

    def __init__(self, options: RecurrentOptions, sizes: BackboneSizes) -> None:
        """Create a layer whose inputs, context vectors and adapters have these `sizes`."""
        super().__init__()
        self.recurrent_step = find_cell(options.cell)()
        self.dropout, self.variational = options.dropout_recurrent, options.variational
        self.input_size, self.hidden_size = sizes.inputs, options.hidden_size
        rows, columns = sizes.inputs + options.hidden_size, self.recurrent_step.gates * options.hidden_size
        weight = uniform((rows, columns), (6 / (rows + options.hidden_size)) ** 0.5)
        self.linear = AdaptedLinear(rows, columns, sizes.context, adapt=sizes.adapt, rank=sizes.rank, weight=weight)
        # The number of normalized values: those of the gates, and of m if there is a memory.
        norm_size = columns + (options.hidden_size if self.recurrent_step.memory else 0)
        self.gain = nn.Parameter(torch.ones(norm_size)) if options.layer_norm else None
        self.offset = nn.Parameter(torch.zeros(norm_size)) if options.layer_norm else None
        # The compiled code and the GPU kernel support only this class, not its subclasses.
        self.is_coupled = type(self.recurrent_step) is Coupled
        self.graphs = LoopGraphs(self.recurrent_step, ONE_KERNEL if self.is_coupled else SEPARATE)

    def pack_weight(self) -> PackedWeight | None:
        """Pack the rows of W for h; return None if the compiled recurrence does not support this layer."""
        if not (self.is_coupled and library.supports(self.linear.weight)):
            return None
        return PackedWeight.of(self.linear.weight[self.input_size :])

    def start(self, batch: int) -> CellState:
        """Return the state of `batch` texts before the first step: zeros."""
        zeros = self.linear.weight.new_zeros(batch, self.hidden_size)
        return CellState(zeros, zeros if self.recurrent_step.memory else zeros[:, :0])

    def forward(
        self,
        inputs: Tensor,
        shift: Shift,
        state: CellState | None = None,
        lengths: Tensor | None = None,
        packed: PackedWeight | None = None,
    ) -> tuple[Tensor, CellState]:
        """Read `inputs` (B, T, E); return hidden states (B, T, H) and the last state. In training mode, apply dropout.

        A text ends after `lengths` (B,) steps: from then on its hidden states are zero and its state does not change.
        """
        keep, feed = self._draw_masks(inputs)
        arguments = self._recurrence_inputs(inputs, shift, state or self.start(len(inputs)))
        arguments = replace(arguments, keep=keep, feed=feed, lengths=lengths, packed=packed)
        if self.is_coupled:
            if supports(arguments):
                outputs, last_hidden, last_memory = run(arguments)
                return outputs, CellState(last_hidden, last_memory)
            is_plain = arguments.norm is None and arguments.scale is None and feed is None
            gates = arguments.input_gates
            if is_plain and gpu_recurrence.supports(gates, arguments.weight.to(gates.dtype)):
                return self._run_on_gpu(arguments)
        gates = arguments.input_gates + arguments.bias[:, None]
        if self.graphs.supports(gates):
            return self.graphs.run(gates, arguments)
        return run_loop(self.recurrent_step, gates, arguments)

    @staticmethod
    def _run_on_gpu(arguments: RecurrenceInputs) -> tuple[Tensor, CellState]:
        """Run the recurrence in the GPU kernel."""
        is_bfloat16 = library.autocasts_to_bfloat16(arguments.input_gates.device)
        arguments = arguments.to(torch.bfloat16 if is_bfloat16 else torch.float32)
        lengths = arguments.lengths
        outputs, last_memory = gpu_recurrence.run(
            input_gates=arguments.input_gates + arguments.bias[:, None],
            input_reduced=arguments.input_reduced,
            weight=arguments.weight,
            left=arguments.left,
            right=arguments.right,
            keep=arguments.keep,
            hidden=arguments.hidden,
            memory=arguments.memory,
            lengths=lengths,
        )
        if lengths is None:
            return outputs, CellState(outputs[:, -1], last_memory)
        rows = torch.arange(len(outputs), device=outputs.device)
        last_hidden = outputs[rows, (lengths - 1).clamp(min=0)]
        return outputs, CellState(torch.where((lengths > 0)[:, None], last_hidden, arguments.hidden), last_memory)

    def step(self, inputs: Tensor, shift: Shift, state: CellState) -> CellState:
        """Read one input (B, E) without dropout; return the next state."""
        return run_step(self.recurrent_step, self._recurrence_inputs(inputs[:, None], shift, state), state)

    def _recurrence_inputs(self, inputs: Tensor, shift: Shift, state: CellState) -> RecurrenceInputs:
        """Return the arguments of the recurrence over `inputs` (B, T, E) that starts in `state`, without dropout."""
        # The products of the inputs do not depend on h, so they are computed for all steps at once.
        from_input, reduced, hidden_shift = self._input_products(inputs, shift)
        return RecurrenceInputs(
            input_gates=from_input,
            bias=cast(Tensor, self.linear.shifted_bias(shift)).expand(len(inputs), -1),
            input_reduced=reduced,
            weight=cast(Tensor, hidden_shift.matrix),
            left=hidden_shift.left,
            right=hidden_shift.right,
            keep=None,
            norm=self._norm_parameters(),
            scale=hidden_shift.scale,
            feed=None,
            hidden=state.hidden,
            memory=state.memory,
            lengths=None,
        )

    def _input_products(self, inputs: Tensor, shift: Shift) -> tuple[Tensor, Tensor | None, Shift]:
        """Compute the products of `inputs` (B, T, E) with the rows of W and L that belong to the inputs.

        Returns:
            The contribution of the inputs to the gates (B, T, G), their contribution to [x, h] L (B, T, R), and the
            shift of the rows of W for h. The matrix R of this shift is already multiplied by s: the caller multiplies
            only the product of h with W by s.
        """
        input_shift, hidden_shift = self.linear.split(shift, self.input_size)
        from_input, right = inputs @ cast(Tensor, input_shift.matrix), hidden_shift.right
        reduced = None if input_shift.left is None else inputs @ input_shift.left
        if reduced is not None and right is not None and self.recurrent_step.separate_products:
            from_input, reduced = from_input + reduced @ right, None
        if input_shift.scale is None or hidden_shift.scale is None:
            return from_input, reduced, hidden_shift
        scaled_right = None if right is None else right * hidden_shift.scale[:, None]
        return from_input * input_shift.scale[:, None], reduced, replace(hidden_shift, right=scaled_right)

    def _norm_parameters(self) -> Tensor | None:
        """Return the gains and offsets of layer normalization, one row (H,) per index of `Norm`; None without them."""
        if self.gain is None or self.offset is None:
            return None
        return torch.cat([self.gain, self.offset]).view(-1, self.hidden_size)

    def _draw_masks(self, inputs: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Draw the dropout masks of the candidate (T, B, H) and of the h that the next step reads (B, H).

        The mask that the options do not request is None; both are None outside training mode.
        """
        if not self.training or self.dropout == 0:
            return None, None
        batch, steps, _ = inputs.shape
        if self.variational:
            return None, dropout_mask((batch, self.hidden_size), self.dropout, inputs)
        return dropout_mask((steps, batch, self.hidden_size), self.dropout, inputs), None


def _check_step_class(name: str, cell: type[RecurrentStep]) -> None:
    """Raise `UserError` unless the class `cell`, called `name`, has the attributes of a `RecurrentStep`."""
    if not isinstance(cell, type) or issubclass(cell, nn.Module):
        raise UserError(f"cell {name!r}: expected a class without parameters (no nn.Module), got {cell!r:.60}")
    for attribute, expected in {"gates": int, "memory": bool, "separate_products": bool}.items():
        if type(value := getattr(cell, attribute, None)) is not expected:
            raise UserError(f"cell {name!r}: expected {attribute} of type {expected.__name__}, got {value!r}")
