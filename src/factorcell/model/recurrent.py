"""The recurrent backbone: layers of a `Cell`, each with adapters of its own.

Shapes: B contexts, N texts under way, T steps, E token embedding, H hidden, K context.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from factorcell.config import ModelConfig
from factorcell.model.adapters import AdaptedWeights
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


class RecurrentBackbone(nn.ModuleList):
    """`config.layers` cells; what one predicts with is what the next reads."""

    def __init__(self, config: ModelConfig, context_size: int, adapt: Sequence[str]) -> None:
        super().__init__(
            Cell(config.embedding_size if layer == 0 else config.hidden_size, context_size, config, adapt)
            for layer in range(config.layers)
        )
        self.size, self.context_size = config.hidden_size, context_size
        self.dropout, self.variational = config.dropout_output, config.variational

    @property
    def layers(self) -> Sequence[Cell]:
        """The cells, from the one that reads the tokens on."""
        return cast(Sequence[Cell], self)

    def condition(self, vector: Tensor, packed: Sequence[Packed | None] | None = None) -> RecurrentWeights:
        """See `Backbone`."""
        weights = RecurrentWeights(cell.adapt(vector) for cell in self.layers)
        if packed is None:
            return weights
        return RecurrentWeights(replace(own, packed=one) for own, one in zip(weights, packed, strict=True))

    def adapted_share(self) -> float:
        """See `Backbone` (thesis 2018, section 6.4)."""
        vector = self.layers[0].matrix.new_zeros(1, self.context_size)
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
        values, after = inputs, []
        rate = self.dropout if self.training else 0.0
        for cell, weights, before in zip(self.layers, conditions, state, strict=True):
            values, last = cell(values, weights, before, lengths)
            values = dropped(values, rate, self.variational)
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

    def pack(self) -> tuple[Packed | None, ...]:
        """See `Backbone`."""
        return tuple(cell.packed() for cell in self.layers)
