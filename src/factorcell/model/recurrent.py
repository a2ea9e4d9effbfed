"""The recurrent backbone: layers of a `Cell`, each with adapters of its own.

Shapes: B contexts, N texts under way, T steps, E token embedding, H hidden, K context.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from factorcell.kinds import RecurrentOptions
from factorcell.model.adapters import AdaptedWeights
from factorcell.model.backbone import Backbone, BackboneSizes, Footprint
from factorcell.model.cells import Cell, State
from factorcell.model.dropout import dropped
from factorcell.model.kernels.recurrence import Packed


class RecurrentState(tuple[State, ...]):
    """The state of N texts in each layer."""

    def select(self, rows: Tensor) -> "RecurrentState":
        """See `backbone.State`."""
        return RecurrentState(state.select(rows) for state in self)

    def cat(self, others: Sequence["RecurrentState"]) -> "RecurrentState":
        """See `backbone.State`."""
        layers = zip(self, *others, strict=True)
        return RecurrentState(
            State(torch.cat([one.hidden for one in layer]), torch.cat([one.memory for one in layer]))
            for layer in layers
        )

    def reserve(self, rows: int) -> "RecurrentReserve":
        """See `backbone.State`."""
        return RecurrentReserve(
            State(*(part.new_empty(rows, part.shape[1]) for part in (state.hidden, state.memory))) for state in self
        )


class RecurrentReserve(RecurrentState):
    """States that are written one part after the other."""

    def put(self, first: int, state: RecurrentState) -> None:
        """See `backbone.Reserve`."""
        for kept, new in zip(self, state, strict=True):
            kept.hidden[first : first + len(new.hidden)] = new.hidden
            kept.memory[first : first + len(new.memory)] = new.memory


class RecurrentWeights(tuple[AdaptedWeights, ...]):
    """The adapted weights of each layer in B contexts."""

    def select(self, rows: Tensor) -> "RecurrentWeights":
        """See `backbone.Conditions`."""
        return RecurrentWeights(weights.select(rows) for weights in self)


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

    def condition(self, vector: Tensor, packed: Sequence[Packed | None] | None = None) -> RecurrentWeights:
        """See `Backbone`."""
        weights = RecurrentWeights(cell.adapt(vector) for cell in self.layers)
        if packed is None:
            return weights
        return RecurrentWeights(replace(own, packed=one) for own, one in zip(weights, packed, strict=True))

    def adapted_share(self) -> float:
        """See `Backbone` (thesis 2018, section 6.4)."""
        vector = self.layers[0].matrix.new_zeros(1, self.sizes.context)
        whole = sum(cell.matrix.numel() + cell.bias.numel() for cell in self.layers)
        return sum(weights.adapted for weights in self.condition(vector)) / whole

    def fold(self, conditions: RecurrentWeights, shared: bool = False) -> RecurrentWeights:
        """See `Backbone`; `shared`: one matrix without contexts is one product for all texts, not a product each."""
        folded = RecurrentWeights(own.fold() for own in conditions)
        return RecurrentWeights(weights.shared() for weights in folded) if shared else folded

    def start(self, conditions: RecurrentWeights, count: int) -> RecurrentState:
        """See `Backbone`: zeros."""
        return RecurrentState(cell.start(count) for cell in self.layers)

    def forward(
        self, inputs: Tensor, conditions: RecurrentWeights, state: RecurrentState, lengths: Tensor | None = None
    ) -> tuple[Tensor, RecurrentState]:
        """See `Backbone`."""
        values, after, options = inputs, [], self.options
        if self.training:
            values = dropped(values, options.dropout_token, False, whole=True)
            values = dropped(values, options.dropout_input, options.variational)
        rate = options.dropout_output if self.training else 0.0
        for cell, weights, before in zip(self.layers, conditions, state, strict=True):
            values, last = cell(values, weights, before, lengths)
            values = dropped(values, rate, options.variational)
            after.append(last)
        return values, RecurrentState(after)

    def step(
        self, inputs: Tensor, conditions: RecurrentWeights, state: RecurrentState
    ) -> tuple[Tensor, RecurrentState]:
        """See `Backbone`."""
        values, after = inputs, []
        for cell, weights, before in zip(self.layers, conditions, state, strict=True):
            after.append(cell.step(values, weights, before))
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

    def pack(self) -> tuple[Packed | None, ...]:
        """See `Backbone`."""
        return tuple(cell.packed() for cell in self.layers)
