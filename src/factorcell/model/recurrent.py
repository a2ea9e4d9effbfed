"""The recurrent backbone: one or more layers, each a `Cell` with its own adapters."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn

from factorcell.model.adapters import Shift
from factorcell.model.backbone import Backbone, BackboneSizes, Footprint
from factorcell.model.cells import Cell, CellState
from factorcell.model.dropout import apply_dropout
from factorcell.model.kernels.recurrence import PackedWeight
from factorcell.option_fields import RecurrentOptions


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
    """Preallocated states of many texts; `put` stores those of a few texts."""

    def put(self, first: int, state: RecurrentState) -> None:
        for buffer, new in zip(self, state, strict=True):
            buffer.hidden[first : first + len(new.hidden)] = new.hidden
            buffer.memory[first : first + len(new.memory)] = new.memory


@dataclass(frozen=True)
class RecurrentConditions:
    """The shift of each layer in B contexts, and its packed weights of the hidden state if the caller passed them."""

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
        inputs = [sizes.inputs] + [options.hidden_size] * (options.layers - 1)
        self.cells = nn.ModuleList(Cell(options, replace(sizes, inputs=size)) for size in inputs)

    @property
    def layers(self) -> Sequence[Cell]:
        """The cells, starting with the one that reads the token embeddings."""
        return cast(Sequence[Cell], self.cells)

    def condition(self, vector: Tensor, packed: tuple[PackedWeight | None, ...] | None = None) -> RecurrentConditions:
        shifts = tuple(cell.linear.condition(vector) for cell in self.layers)
        return RecurrentConditions(shifts, packed or (None,) * len(shifts))

    def adapted_share(self) -> float:
        vector = self.layers[0].linear.weight.new_zeros(1, self.sizes.context)
        parameters = sum(cell.linear.weight.numel() + cell.linear.weight.shape[1] for cell in self.layers)
        return sum(shift.values_per_context() for shift in self.condition(vector).shifts) / parameters

    def fold(self, conditions: RecurrentConditions, shared: bool = False) -> RecurrentConditions:
        layers = zip(self.layers, conditions.shifts, strict=True)
        return replace(conditions, shifts=tuple(cell.linear.fold(shift, shared) for cell, shift in layers))

    def start(self, conditions: RecurrentConditions, count: int) -> RecurrentState:
        return RecurrentState(cell.start(count) for cell in self.layers)

    def forward(
        self, inputs: Tensor, conditions: RecurrentConditions, state: RecurrentState, lengths: Tensor | None = None
    ) -> tuple[Tensor, RecurrentState]:
        values, after, options = inputs, [], self.options
        if self.training:
            values = apply_dropout(values, options.dropout_token, False, whole_vectors=True)
            values = apply_dropout(values, options.dropout_input, options.variational)
        rate = options.dropout_output if self.training else 0.0
        layers = zip(self.layers, conditions.shifts, state, conditions.packed, strict=True)
        for cell, shift, before, packed in layers:
            values, last = cell(values, shift, before, lengths, packed)
            values = apply_dropout(values, rate, options.variational)
            after.append(last)
        return values, RecurrentState(after)

    def step(
        self, inputs: Tensor, conditions: RecurrentConditions, state: RecurrentState
    ) -> tuple[Tensor, RecurrentState]:
        values, after = inputs, []
        for cell, shift, before in zip(self.layers, conditions.shifts, state, strict=True):
            after.append(cell.step(values, shift, before))
            values = after[-1].hidden
        return values, RecurrentState(after)

    def footprint(self) -> Footprint:
        """Estimate the stored values from the numbers of gates and the sizes of the factors L and R."""
        options, sizes = self.options, self.sizes
        gates = self.layers[0].kind.gates * options.hidden_size
        factors = options.layers * sizes.rank * bool(sizes.adapt)
        return Footprint(
            token=4 * options.layers * (gates + options.hidden_size),
            text=2 * factors * (sizes.inputs + options.hidden_size + gates),
            state=2 * options.layers * options.hidden_size,
            conditions=factors * (sizes.inputs + 4 * options.hidden_size),
        )

    def pack(self) -> tuple[PackedWeight | None, ...]:
        return tuple(cell.packed() for cell in self.layers)
