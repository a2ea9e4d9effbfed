"""The recurrent backbone: one or more layers, each with its own adapters.

Shapes: B texts, T steps, E inputs, H hidden, G columns of all gates, R rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn

from factorcell.adapters.adapters import AdaptedLinear, Shift, uniform
from factorcell.config import RecurrentOptions
from factorcell.nn.backbones.backbone import Backbone, BackboneSizes, Footprint, apply_dropout, dropout_mask
from factorcell.nn.backbones.cells import CellState, Coupled, find_cell, run_loop, run_step
from factorcell.nn.backbones.loop_graphs import LoopGraphs
from factorcell.nn.kernels import gpu_recurrence, library
from factorcell.nn.kernels.recurrence import PackedWeight, RecurrenceInputs, run, supports


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
        self.graphs = LoopGraphs(self.recurrent_step, in_one_kernel=self.is_coupled)

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
        batch, steps, _ = inputs.shape
        keep = feed = None  # dropout masks of the candidate (T, B, H), and of the h that the next step reads (B, H)
        if self.training and self.dropout:
            if self.variational:
                feed = dropout_mask((batch, self.hidden_size), self.dropout, inputs)
            else:
                keep = dropout_mask((steps, batch, self.hidden_size), self.dropout, inputs)
        arguments = self._recurrence_inputs(inputs, shift, state or self.start(batch))
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
        outputs, last_memory = gpu_recurrence.run(arguments)
        if (lengths := arguments.lengths) is None:
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
        input_shift, hidden_shift = self.linear.split(shift, self.input_size)
        input_gates, right = inputs @ cast(Tensor, input_shift.matrix), hidden_shift.right
        reduced = None if input_shift.left is None else inputs @ input_shift.left
        if reduced is not None and right is not None and self.recurrent_step.separate_products:
            input_gates, reduced = input_gates + reduced @ right, None
        if input_shift.scale is not None and hidden_shift.scale is not None:
            # Each step multiplies only its product of h with W by s.
            input_gates = input_gates * input_shift.scale[:, None]
            right = None if right is None else right * hidden_shift.scale[:, None]
        norm = None  # a row (H,) per index of `Norm`
        if self.gain is not None and self.offset is not None:
            norm = torch.cat([self.gain, self.offset]).view(-1, self.hidden_size)
        return RecurrenceInputs(
            input_gates=input_gates,
            bias=cast(Tensor, self.linear.shifted_bias(shift)).expand(inputs.shape[0], -1),
            input_reduced=reduced,
            weight=cast(Tensor, hidden_shift.matrix),
            left=hidden_shift.left,
            right=right,
            norm=norm,
            scale=hidden_shift.scale,
            hidden=state.hidden,
            memory=state.memory,
        )


class RecurrentState(tuple[CellState, ...]):
    """The state of N texts in each layer."""

    def select(self, rows: Tensor) -> "RecurrentState":
        return RecurrentState(state.select(rows) for state in self)

    def cat(self, others: Sequence["RecurrentState"]) -> "RecurrentState":
        layers = zip(self, *others, strict=True)
        return RecurrentState(CellState(*map(torch.cat, zip(*layer, strict=True))) for layer in layers)

    def reserve(self, rows: int) -> "RecurrentState":
        return RecurrentState(CellState(*(part.new_empty(rows, part.shape[1]) for part in layer)) for layer in self)

    def put(self, first: int, state: "RecurrentState") -> None:
        for layer_buffer, layer in zip(self, state, strict=True):
            for buffer, part in zip(layer_buffer, layer, strict=True):
                buffer[first : first + len(part)] = part


@dataclass(frozen=True)
class RecurrentConditions:
    """For each layer, its shift in B contexts, and its packed rows of W for h, or None if the caller passed none."""

    shifts: tuple[Shift, ...]
    packed: tuple[PackedWeight | None, ...]

    def select(self, rows: Tensor) -> "RecurrentConditions":
        return RecurrentConditions(tuple(shift.select(rows) for shift in self.shifts), self.packed)


class RecurrentBackbone(Backbone):
    """A stack of `options.layers` cells: each cell reads the hidden states of the previous one."""

    Options = RecurrentOptions

    def __init__(self, options: RecurrentOptions, sizes: BackboneSizes) -> None:
        super().__init__(options, sizes)
        self.options, self.sizes, self.size = options, sizes, options.hidden_size
        input_sizes = [sizes.inputs] + [options.hidden_size] * (options.layers - 1)
        self.cells = nn.ModuleList(Cell(options, replace(sizes, inputs=size)) for size in input_sizes)

    @property
    def layers(self) -> Sequence[Cell]:
        """The cells, starting with the one that reads the token embeddings."""
        return cast(Sequence[Cell], self.cells)

    def condition(self, vector: Tensor, packed: tuple[PackedWeight | None, ...] | None = None) -> RecurrentConditions:
        shifts = tuple(cell.linear.condition(vector) for cell in self.layers)
        return RecurrentConditions(shifts, packed or (None,) * len(shifts))

    def fold(self, conditions: RecurrentConditions, shared: bool = False) -> RecurrentConditions:
        layers = zip(self.layers, conditions.shifts, strict=True)
        shifts = tuple(cell.linear.fold(shift, shared) for cell, shift in layers)
        return RecurrentConditions(shifts, (None,) * len(shifts))  # the packed rows are those of the unfolded W

    def start(self, conditions: RecurrentConditions, count: int) -> RecurrentState:
        return RecurrentState(cell.start(count) for cell in self.layers)

    def forward(
        self, inputs: Tensor, conditions: RecurrentConditions, state: RecurrentState, lengths: Tensor | None = None
    ) -> tuple[Tensor, RecurrentState]:
        values, next_states, options = inputs, [], self.options
        if self.training:
            values = apply_dropout(values, options.dropout_input, options.variational)
        output_rate = options.dropout_output if self.training else 0.0
        layers = zip(self.layers, conditions.shifts, state, conditions.packed, strict=True)
        for cell, shift, layer_state, packed in layers:
            values, next_state = cell(values, shift, layer_state, lengths, packed)
            values = apply_dropout(values, output_rate, options.variational)
            next_states.append(next_state)
        return values, RecurrentState(next_states)

    def step(
        self, inputs: Tensor, conditions: RecurrentConditions, state: RecurrentState
    ) -> tuple[Tensor, RecurrentState]:
        values, next_states = inputs, []
        for cell, shift, layer_state in zip(self.layers, conditions.shifts, state, strict=True):
            next_state = cell.step(values, shift, layer_state)
            next_states.append(next_state)
            values = next_state.hidden
        return values, RecurrentState(next_states)

    def footprint(self) -> Footprint:
        """Estimate the stored values from the numbers of gates and the sizes of the factors L and R."""
        options, sizes = self.options, self.sizes
        gate_columns = self.layers[0].recurrent_step.gates * options.hidden_size
        total_rank = options.layers * sizes.rank if sizes.adapt else 0  # of all layers together
        return Footprint(
            token=4 * options.layers * (gate_columns + options.hidden_size),
            state=2 * options.layers * options.hidden_size,
            conditions=total_rank * (sizes.inputs + options.hidden_size + gate_columns),
        )

    def pack(self) -> tuple[PackedWeight | None, ...]:
        """Pack the rows of W for h of each layer; None for layers that the compiled recurrence does not support."""
        weights = [(cell.linear.weight, cell) for cell in self.layers]
        return tuple(
            PackedWeight.of(weight[cell.input_size :]) if cell.is_coupled and library.supports(weight) else None
            for weight, cell in weights
        )
