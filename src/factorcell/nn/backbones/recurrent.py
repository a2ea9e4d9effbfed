"""The recurrent backbone: one or more layers, each a `Cell` with its own adapters."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn

from factorcell.adapters.adapters import Shift
from factorcell.adapters.dropout import apply_dropout
from factorcell.nn.backbones.backbone import Backbone, BackboneSizes, Footprint
from factorcell.nn.backbones.cells import Cell
from factorcell.nn.backbones.recurrent_loop import CellState
from factorcell.nn.kernels.recurrence import PackedWeight
from factorcell.options.option_fields import RecurrentOptions


class RecurrentState(tuple[CellState, ...]):
    """The state of N texts in each layer."""

    def select(self, rows: Tensor) -> "RecurrentState":
        return RecurrentState(state.select(rows) for state in self)

    def cat(self, others: Sequence["RecurrentState"]) -> "RecurrentState":
        layers = zip(self, *others, strict=True)
        return RecurrentState(
            CellState(torch.cat([state.hidden for state in layer]), torch.cat([state.memory for state in layer]))
            for layer in layers
        )

    def reserve(self, rows: int) -> "RecurrentStateBuffer":
        return RecurrentStateBuffer(
            CellState(*(part.new_empty(rows, part.shape[1]) for part in (state.hidden, state.memory))) for state in self
        )


class RecurrentStateBuffer(RecurrentState):
    """Preallocated states of many texts; `put` stores the states of a few texts."""

    def put(self, first: int, state: RecurrentState) -> None:
        for layer_buffer, layer_state in zip(self, state, strict=True):
            rows = slice(first, first + len(layer_state.hidden))
            layer_buffer.hidden[rows] = layer_state.hidden
            layer_buffer.memory[rows] = layer_state.memory


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

    def adapted_share(self) -> float:
        vector = self.layers[0].linear.weight.new_zeros(1, self.sizes.context)
        # W and b of each layer; b has a value per column of W.
        parameter_count = sum(cell.linear.weight.numel() + cell.linear.weight.shape[1] for cell in self.layers)
        return sum(shift.values_per_context() for shift in self.condition(vector).shifts) / parameter_count

    def fold(self, conditions: RecurrentConditions, shared: bool = False) -> RecurrentConditions:
        layers = zip(self.layers, conditions.shifts, strict=True)
        return replace(conditions, shifts=tuple(cell.linear.fold(shift, shared) for cell, shift in layers))

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
            text=2 * total_rank * (sizes.inputs + options.hidden_size + gate_columns),
            state=2 * options.layers * options.hidden_size,
            conditions=total_rank * (sizes.inputs + 4 * options.hidden_size),
        )

    def pack(self) -> tuple[PackedWeight | None, ...]:
        return tuple(cell.pack_weight() for cell in self.layers)
