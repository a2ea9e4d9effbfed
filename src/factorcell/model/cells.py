"""The recurrent step, its W' and b' adapted by a context (`adapters`).

    coupled     [i, f, o] = W'[x, h] + b'       f <- sigmoid(f + 1)       m <- f m + (1 - f) tanh(i)
                h <- tanh(m) sigmoid(o)
    lstm        [i, f, g, o] = W'[x, h] + b'    f <- sigmoid(f + 1)       m <- f m + sigmoid(i) tanh(g)
                h <- tanh(m) sigmoid(o)
    gru         [r, z] = sigmoid(W'[x, h] + b')   n = tanh(W' x + b' + r W' h)    h <- z h + (1 - z) n
    tanh, relu  h <- tanh or relu(W'[x, h] + b')

The coupled one is that of the papers (TACL 2018, appendix A, equations 8 and 9). With layer normalisation (Ba et al.
2016) whatever a sigmoid, tanh or relu is taken of is normalised over the hidden units first (f before its + 1).

Shapes: B texts, T steps, E inputs, H hidden, D = E + H, G gate columns, K context, R rank.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from factorcell.config import EXTENSIBLE, UserError
from factorcell.model.adapted_linear import AdaptedLinear
from factorcell.model.adapters import Shift
from factorcell.model.backbone import BackboneSizes
from factorcell.model.dropout import dropout_mask
from factorcell.model.initial import uniform
from factorcell.model.kernels import gpu_recurrence, library
from factorcell.model.kernels.recurrence import PackedWeight, RecurrenceInputs, run, usable
from factorcell.option_fields import RecurrentOptions


@dataclass(frozen=True)
class CellState:
    """The state after a step: `hidden` (B, H) and `memory` (B, H), or (B, 0) if the cell has no memory."""

    hidden: Tensor
    memory: Tensor

    def select(self, rows: Tensor) -> "CellState":
        """The states of `rows` (B',), repeated where a row is named twice."""
        return CellState(self.hidden[rows], self.memory[rows])


Norm = Callable[[int, Tensor], Tensor]  # normalises (B, H) of the gate of that number, or of m, which is the last
Drop = Callable[[Tensor], Tensor]  # drops some of a candidate (B, H)


class RecurrentStep(Protocol):
    """A recurrent step, constructed without arguments; it has no parameters, which belong to the layer.

    Attributes:
        gates: The number of gates.
        memory: Whether it has a memory m in addition to h.
        apart: Whether it needs the shares of x and of h in the gates separately, rather than their sum.
    """

    gates: int
    memory: bool
    separate_products: bool

    def __call__(self, given: Tensor, product: Tensor, state: CellState, norm: Norm, drop: Drop) -> CellState:
        """From the shares of x and b `given` (B, G) and of h `product` (B, G) to the next state."""
        ...


class Coupled:
    """The LSTM with one gate for forgetting and writing, as the papers have it."""

    gates, memory, separate_products = 3, True, False

    def __call__(self, given: Tensor, product: Tensor, state: CellState, norm: Norm, drop: Drop) -> CellState:
        i, f, o = (norm(j, gate) for j, gate in enumerate((given + product).chunk(3, dim=-1)))
        f = torch.sigmoid(f + 1)
        memory = f * state.memory + (1 - f) * drop(torch.tanh(i))
        return CellState(torch.tanh(norm(3, memory)) * torch.sigmoid(o), memory)


class LSTM:
    """The LSTM with a gate for each (Hochreiter and Schmidhuber 1997; Gers et al. 2000)."""

    gates, memory, separate_products = 4, True, False

    def __call__(self, given: Tensor, product: Tensor, state: CellState, norm: Norm, drop: Drop) -> CellState:
        i, f, g, o = (norm(j, gate) for j, gate in enumerate((given + product).chunk(4, dim=-1)))
        memory = torch.sigmoid(f + 1) * state.memory + torch.sigmoid(i) * drop(torch.tanh(g))
        return CellState(torch.tanh(norm(4, memory)) * torch.sigmoid(o), memory)


class GRU:
    """The gated recurrent unit, its reset gate after the product with h (Cho et al. 2014)."""

    gates, memory, separate_products = 3, False, True

    def __call__(self, given: Tensor, product: Tensor, state: CellState, norm: Norm, drop: Drop) -> CellState:
        size = state.hidden.shape[1]
        both = given[:, : 2 * size] + product[:, : 2 * size]
        r, z = (torch.sigmoid(norm(j, gate)) for j, gate in enumerate(both.chunk(2, dim=-1)))
        n = torch.tanh(norm(2, given[:, 2 * size :] + r * product[:, 2 * size :]))
        return CellState(z * state.hidden + (1 - z) * drop(n), state.memory)


class Tanh:
    """The plain recurrent layer: h is its own candidate (Elman 1990)."""

    gates, memory, separate_products = 1, False, False
    activation: Callable[[Tensor], Tensor] = staticmethod(torch.tanh)

    def __call__(self, given: Tensor, product: Tensor, state: CellState, norm: Norm, drop: Drop) -> CellState:
        return CellState(drop(self.activation(norm(0, given + product))), state.memory)


class Relu(Tanh):
    """The plain recurrent layer with rectified linear units."""

    activation = staticmethod(torch.relu)


CELLS: dict[str, type[RecurrentStep]] = {"coupled": Coupled, "lstm": LSTM, "gru": GRU, "tanh": Tanh, "relu": Relu}


def register_cell(name: str, cell: type[RecurrentStep]) -> None:
    """Make a recurrent step available as `cell` option in this process.

    Args:
        name: Lower-case letters, digits and underscores.
        cell: Class that implements `RecurrentStep`.

    Raises:
        UserError: The name is taken, or the class lacks an attribute of `RecurrentStep`.
    """
    EXTENSIBLE["cell"].register(name, cell, _check)


def find_cell(name: str) -> type[RecurrentStep]:
    """Return the built-in or registered step called `name`, or that of an installed package."""
    found: type[RecurrentStep] = EXTENSIBLE["cell"].find_class(name, CELLS, _check)
    return found


class Cell(nn.Module):
    """One recurrent layer with adapters in its slots.

    `dropout` drops the candidate, at every step anew (Semeniuta et al. 2016); if `variational`, the h that is fed back
    instead, with one mask a text (Gal and Ghahramani 2016).
    """

    def __init__(self, config: RecurrentOptions, sizes: BackboneSizes) -> None:
        """Create a layer whose inputs, context vectors and adapters have these `sizes`."""
        super().__init__()
        self.kind, self.dropout, self.variational = (
            find_cell(config.cell)(),
            config.dropout_recurrent,
            config.variational,
        )
        self.embedding_size, self.hidden_size = sizes.inputs, config.hidden_size
        inputs, gates = sizes.inputs + config.hidden_size, self.kind.gates * config.hidden_size
        weight = uniform((inputs, gates), (6 / (inputs + config.hidden_size)) ** 0.5)
        self.linear = AdaptedLinear(inputs, gates, sizes.context, adapt=sizes.adapt, rank=sizes.rank, weight=weight)
        normed = gates + config.hidden_size if self.kind.memory else gates  # of the gates, and of m
        self.gain = nn.Parameter(torch.ones(normed)) if config.layer_norm else None
        self.offset = nn.Parameter(torch.zeros(normed)) if config.layer_norm else None
        self.compiled = type(self.kind) is Coupled  # compiled code knows one layer, the papers' LSTM itself

    def packed(self) -> PackedWeight | None:
        """Return the hidden part of W as the compiled recurrence reads it, if it runs this layer."""
        if not (self.compiled and library.usable(self.linear.weight)):
            return None
        return PackedWeight.of(self.linear.weight[self.embedding_size :])

    def start(self, batch: int) -> CellState:
        """The state before the first step: zeros."""
        zeros = self.linear.weight.new_zeros(batch, self.hidden_size)
        return CellState(zeros, zeros if self.kind.memory else zeros[:, :0])

    def forward(
        self,
        inputs: Tensor,
        shift: Shift,
        state: CellState | None = None,
        lengths: Tensor | None = None,
        packed: PackedWeight | None = None,
    ) -> tuple[Tensor, CellState]:
        """`inputs` (B, T, E) -> hidden states (B, T, H) and the last state; in training mode with dropout.

        A text ends after `lengths` (B,) steps: from there its hidden states are zero and its state stays the same.
        """
        state = state or self.start(len(inputs))
        keep, feed = self._masks(inputs)
        given, reduced, hidden = self._input_share(inputs, shift)  # everything that does not depend on h, at once
        bias = cast(Tensor, self.linear.shifted_bias(shift)).expand(len(inputs), -1)
        factors, after = (cast(Tensor, hidden.matrix), hidden.left, hidden.right), (state.hidden, state.memory, lengths)
        arrays = RecurrenceInputs(
            given, bias, reduced, *factors, keep, self._norm(), hidden.scale, feed, *after, packed
        )
        if self.compiled:
            if usable(arrays):
                outputs, last_hidden, memory = run(arrays)
                return outputs, CellState(last_hidden, memory)
            plain = arrays.norm is arrays.scale is feed is None
            if plain and gpu_recurrence.usable(given, arrays.weight.to(given.dtype)):
                return self._launch(arrays)
        return self._loop(arrays, hidden, state)

    @staticmethod
    def _launch(arrays: RecurrenceInputs) -> tuple[Tensor, CellState]:
        now = arrays.to(torch.bfloat16 if library.autocasts_to_bfloat16(arrays.given.device) else torch.float32)
        hidden, lengths, given = now.hidden, now.lengths, now.given + now.bias[:, None]
        factors = now.weight, now.left, now.right, now.keep
        outputs, last = gpu_recurrence.run(given, now.given_reduced, *factors, hidden, now.memory, lengths)
        if lengths is None:
            return outputs, CellState(outputs[:, -1], last)
        rows = torch.arange(len(outputs), device=outputs.device)
        ended = outputs[rows, (lengths - 1).clamp(min=0)]
        return outputs, CellState(torch.where((lengths > 0)[:, None], ended, hidden), last)

    def step(self, inputs: Tensor, shift: Shift, state: CellState) -> CellState:
        """One step without dropout: `inputs` (B, E) and a state -> the next state."""
        given, reduced, hidden = self._input_share(inputs[:, None], shift)
        now = None if reduced is None else reduced[:, 0]
        return self._advance(
            given[:, 0] + cast(Tensor, self.linear.shifted_bias(shift)), now, hidden, state, None, None
        )

    def _input_share(self, inputs: Tensor, shift: Shift) -> tuple[Tensor, Tensor | None, Shift]:
        """Compute the share of inputs (B, T, E) in the gates (B, T, G) and in x L + h L (B, T, R).

        Also return the shift of the rows of h; its R is already scaled, so that s remains for the product with W alone.
        """
        ours, hidden = self.linear.split(shift, self.embedding_size)
        given, right = inputs @ cast(Tensor, ours.matrix), hidden.right
        reduced = None if ours.left is None else inputs @ ours.left
        if reduced is not None and right is not None and self.kind.separate_products:
            given, reduced = given + reduced @ right, None
        if ours.scale is None or hidden.scale is None:
            return given, reduced, hidden
        scaled = None if right is None else right * hidden.scale[:, None]
        return given * ours.scale[:, None], reduced, replace(hidden, right=scaled)

    def _loop(self, arrays: RecurrenceInputs, rows: Shift, state: CellState) -> tuple[Tensor, CellState]:
        hidden = []
        for step, now in enumerate((arrays.given + arrays.bias[:, None]).unbind(1)):
            reduced = None if arrays.given_reduced is None else arrays.given_reduced[:, step]
            keep = None if arrays.keep is None else arrays.keep[step]
            after = self._advance(now, reduced, rows, state, keep, arrays.feed)
            if arrays.lengths is None:
                state = after
                hidden.append(state.hidden)
            else:
                goes_on = (step < arrays.lengths)[:, None]
                hidden.append(torch.where(goes_on, after.hidden, 0.0))
                memory = torch.where(goes_on, after.memory, state.memory)
                state = CellState(torch.where(goes_on, after.hidden, state.hidden), memory)
        return torch.stack(hidden, dim=1) if hidden else state.hidden[:, None][:, :0], state

    def _advance(
        self,
        given: Tensor,
        reduced: Tensor | None,
        rows: Shift,
        state: CellState,
        keep: Tensor | None,
        feed: Tensor | None,
    ) -> CellState:
        hidden = (state.hidden if feed is None else state.hidden * feed)[:, None]
        product = hidden @ cast(Tensor, rows.matrix)
        product = product if rows.scale is None else product * rows.scale[:, None]
        if rows.left is not None and rows.right is not None:
            both = hidden @ rows.left if reduced is None else reduced[:, None] + hidden @ rows.left
            product = product + both @ rows.right
        drop = (lambda candidate: candidate) if keep is None else keep.mul
        return self.kind(given, product[:, 0], state, self._normalised, drop)

    def _norm(self) -> Tensor | None:
        if self.gain is None or self.offset is None:
            return None
        return torch.cat([self.gain, self.offset]).view(-1, self.hidden_size)

    def _normalised(self, which: int, values: Tensor) -> Tensor:
        """`values` (B, H) of a gate or of m with the layer normalisation of that one, if it has any."""
        if self.gain is None or self.offset is None:
            return values
        own = slice(which * self.hidden_size, (which + 1) * self.hidden_size)
        return F.layer_norm(values, (self.hidden_size,), self.gain[own], self.offset[own])

    def _masks(self, inputs: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Draw the dropout mask of the candidate (T, B, H), or of the h fed back (B, H), if there is dropout."""
        if not self.training or self.dropout == 0:
            return None, None
        batch, steps, _ = inputs.shape
        if self.variational:
            return None, dropout_mask((batch, self.hidden_size), self.dropout, inputs)
        return dropout_mask((steps, batch, self.hidden_size), self.dropout, inputs), None


def _check(name: str, made: type[RecurrentStep]) -> None:
    """Raise `UserError` unless the attributes of a class are those of a `RecurrentStep`."""
    if not isinstance(made, type) or issubclass(made, nn.Module):
        raise UserError(f"cell {name!r}: it must be a class, and have no parameters of its own")
    for own, right in {"gates": int, "memory": bool, "separate_products": bool}.items():
        if type(found := getattr(made, own, None)) is not right:
            raise UserError(f"cell {name!r}: its {own} is {found!r}; it must be of type {right.__name__}")
