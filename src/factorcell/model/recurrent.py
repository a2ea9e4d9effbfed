"""The recurrent backbone: layers of a `Cell`, each with adapters of its own.

Shapes: B contexts, N texts under way, T steps, E token embedding, H hidden, K context.
"""

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
            CellState(torch.cat([one.hidden for one in layer]), torch.cat([one.memory for one in layer]))
            for layer in layers
        )

    def reserve(self, rows: int) -> "RecurrentReserve":
        return RecurrentReserve(
            CellState(*(part.new_empty(rows, part.shape[1]) for part in (state.hidden, state.memory))) for state in self
        )


class RecurrentReserve(RecurrentState):
    """States that are written one part after the other."""

    def put(self, first: int, state: RecurrentState) -> None:
        for kept, new in zip(self, state, strict=True):
            kept.hidden[first : first + len(new.hidden)] = new.hidden
            kept.memory[first : first + len(new.memory)] = new.memory


@dataclass(frozen=True)
class RecurrentConditions:
    """The shifts of each layer in B contexts, and its `packed` hidden weights, if the caller has them."""

    shifts: tuple[Shift, ...]
    packed: tuple[PackedWeight | None, ...]

    def select(self, rows: Tensor) -> "RecurrentConditions":
        return RecurrentConditions(tuple(shift.select(rows) for shift in self.shifts), self.packed)


class RecurrentBackbone(Backbone):
    """`options.layers` cells; each reads the hidden states of the one before."""

    Options = RecurrentOptions

    def __init__(self, options: RecurrentOptions, sizes: BackboneSizes) -> None:
        super().__init__(options, sizes)
        self.options, self.sizes, self.size = options, sizes, options.hidden_size
        inputs = [sizes.inputs] + [options.hidden_size] * (options.layers - 1)
        self.cells = nn.ModuleList(Cell(options, replace(sizes, inputs=size)) for size in inputs)

    @property
    def layers(self) -> Sequence[Cell]:
        """The cells, from the one that reads the tokens on."""
        return cast(Sequence[Cell], self.cells)

    def condition(self, vector: Tensor, packed: tuple[PackedWeight | None, ...] | None = None) -> RecurrentConditions:
        shifts = tuple(cell.linear.condition(vector) for cell in self.layers)
        return RecurrentConditions(shifts, packed or (None,) * len(shifts))

    def adapted_share(self) -> float:
        vector = self.layers[0].linear.weight.new_zeros(1, self.sizes.context)
        whole = sum(cell.linear.weight.numel() + cell.linear.weight.shape[1] for cell in self.layers)
        return sum(shift.values_per_context() for shift in self.condition(vector).shifts) / whole

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
            values = apply_dropout(values, options.dropout_token, False, whole=True)
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
        """See `Backbone`."""
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
