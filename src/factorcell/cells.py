"""The recurrent step, and what a context does to it.

The coupled-gate LSTM (TACL 2018, appendix A, equations 8 and 9), adapted by a context vector c (equations 3 and 4):

    W' = W + L(c) R(c)        b' = b + V c
    [i, f, o] = W'[x, h] + b'
    f <- sigmoid(f + 1)       m <- f m + (1 - f) tanh(i)       h <- tanh(m) sigmoid(o)

With layer normalisation (Ba et al. 2016), i, f, o and, inside its tanh, m are normalised over the hidden units.

Shapes: B texts, T steps, E embedding, H hidden, D = E + H, G = 3 H gate columns, K context, R rank.
An adapter maps c to a `Shift`; the cell sums the shifts into `Weights`. Both are values: nothing is kept in the cell.
"""

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from factorcell import gpu_recurrence, kernels
from factorcell.dropout import mask
from factorcell.recurrence import Inputs, run, usable


@dataclass(frozen=True)
class State:
    """What a step hands to the next: `hidden` and `memory`, both (B, H)."""

    hidden: Tensor
    memory: Tensor

    def select(self, rows: Tensor) -> "State":
        """The states of `rows` (B',), repeated where a row is named twice."""
        return State(self.hidden[rows], self.memory[rows])


@dataclass(frozen=True)
class Shift:
    """What one adapter changes: `left` (B, D, R) times `right` (B, R, G) is added to W, `bias` (B, G) to b."""

    left: Tensor | None = None
    right: Tensor | None = None
    bias: Tensor | None = None


@dataclass(frozen=True)
class Weights:
    """The recurrent weights of B contexts: `matrix` (D, G), shared, or (B, D, G), folded; `bias` (G,) or (B, G)."""

    matrix: Tensor
    bias: Tensor
    left: Tensor | None = None
    right: Tensor | None = None

    def select(self, rows: Tensor) -> "Weights":
        """The weights of `rows` (B',) of the contexts; what all contexts share stays shared."""
        return Weights(
            self.matrix if self.matrix.dim() == 2 else self.matrix[rows],
            self.bias if self.bias.dim() == 1 else self.bias[rows],
            None if self.left is None else self.left[rows],
            None if self.right is None else self.right[rows],
        )

    def part(self, begin: int, end: int) -> "Weights":
        """Rows `begin:end` of W'. Taken once, not at every step: the gradient of a slice is as large as the whole."""
        left = None if self.left is None else self.left[:, begin:end]
        return replace(self, matrix=self.matrix[..., begin:end, :], left=left)


class Adapter(Protocol):
    """An adapter turns context vectors (B, K) into a `Shift`."""

    def __call__(self, vector: Tensor) -> Shift: ...


class Concat(nn.Module):
    """ConcatCell: the context as one more input, which is a shifted bias (TACL 2018, equation 2)."""

    def __init__(self, context_size: int, inputs: int, gates: int, rank: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(context_size, gates) * context_size**-0.5)

    def forward(self, vector: Tensor) -> Shift:
        """`vector` (B, K) -> a shifted bias (B, G)."""
        return Shift(bias=vector @ self.weight)


class Factor(nn.Module):
    """FactorCell: a rank-r change of W by two basis tensors, (K, D, R) and (K, R, G) (TACL 2018, equation 3)."""

    def __init__(self, context_size: int, inputs: int, gates: int, rank: int) -> None:
        super().__init__()
        # Left rows have unit expected norm; right starts small, so that training begins near the unadapted cell.
        self.left = nn.Parameter(torch.randn(context_size, inputs, rank) * inputs**-0.5)
        self.right = nn.Parameter(torch.randn(context_size, rank, gates) * 0.1 * rank**-0.5)

    def forward(self, vector: Tensor) -> Shift:
        """`vector` (B, K) -> left (B, D, R) and right (B, R, G)."""
        left = vector @ self.left.flatten(1)
        right = vector @ self.right.flatten(1)
        return Shift(left.view(-1, *self.left.shape[1:]), right.view(-1, *self.right.shape[1:]))


ADAPTERS: dict[str, type[nn.Module]] = {"concat": Concat, "factor": Factor}


class Cell(nn.Module):
    """The coupled-gate LSTM with adapters in its slots."""

    def __init__(
        self,
        embedding_size: int,
        hidden_size: int,
        context_size: int,
        rank: int,
        adapt: tuple[str, ...],
        dropout: float,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        inputs, gates = embedding_size + hidden_size, 3 * hidden_size
        self.embedding_size, self.hidden_size, self.dropout = embedding_size, hidden_size, dropout
        self.matrix = nn.Parameter((torch.rand(inputs, gates) * 2 - 1) * (6 / (inputs + hidden_size)) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(gates))
        self.gain = nn.Parameter(torch.ones(4 * hidden_size)) if layer_norm else None  # of i, f, o, m
        self.shift = nn.Parameter(torch.zeros(4 * hidden_size)) if layer_norm else None
        self.adapters = nn.ModuleDict({name: ADAPTERS[name](context_size, inputs, gates, rank) for name in adapt})

    def adapt(self, vector: Tensor) -> Weights:
        """The weights of B contexts `vector` (B, K): W and b with the shifts of all adapters, W' still factored."""
        shifts: list[Shift] = [adapter(vector) for adapter in self.adapters.values()]
        left = [shift.left for shift in shifts if shift.left is not None]
        right = [shift.right for shift in shifts if shift.right is not None]
        bias = [shift.bias for shift in shifts if shift.bias is not None]
        return Weights(
            self.matrix,
            torch.stack(bias).sum(0) + self.bias if bias else self.bias,
            torch.cat(left, dim=2) if left else None,
            torch.cat(right, dim=1) if right else None,
        )

    @staticmethod
    def fold(weights: Weights) -> Weights:
        """The same weights with left and right multiplied into one matrix (B, D, G) per context."""
        if weights.left is None or weights.right is None:
            return weights
        return replace(weights, matrix=weights.matrix + weights.left @ weights.right, left=None, right=None)

    def start(self, batch: int) -> State:
        """The state before the first token: zeros (B, H)."""
        zeros = self.matrix.new_zeros(batch, self.hidden_size)
        return State(zeros, zeros)

    def forward(
        self, inputs: Tensor, weights: Weights, state: State | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """`inputs` (B, T, E) -> hidden states (B, T, H) and the last state; in training mode with dropout.

        A text ends after `lengths` (B,) steps: its hidden states are zero from there on, and its state stands still.
        """
        state = state or self.start(len(inputs))
        keep = self._keep(inputs)
        given, reduced = self._given(inputs, weights)  # all that does not wait for h, at once
        recurrent = weights.part(self.embedding_size, self.matrix.shape[0])
        factors = recurrent.matrix, recurrent.left, recurrent.right
        bias = weights.bias.expand(len(inputs), -1)
        arrays = Inputs(given, bias, reduced, *factors, keep, self._norm(), state.hidden, state.memory, lengths)
        if usable(arrays):
            outputs, hidden, memory = run(arrays)
            return outputs, State(hidden, memory)
        if arrays.norm is None and gpu_recurrence.usable(given, recurrent.matrix.to(given.dtype)):
            return self._launch(arrays)
        return self._loop(arrays, recurrent, state)

    @staticmethod
    def _launch(arrays: Inputs) -> tuple[Tensor, State]:
        """As `recurrence.run`, on a GPU."""
        kind = torch.bfloat16 if kernels.halved(arrays.given.device) else torch.float32
        given, bias, *taken, norm, hidden, memory, lengths = (
            a if a is None or a.dtype == torch.long else a.to(kind) for a in arrays.arrays()
        )
        assert given is not None
        assert bias is not None
        assert norm is None
        assert hidden is not None
        outputs, last = gpu_recurrence.run(given + bias[:, None], *taken, hidden, memory, lengths)  # type: ignore[call-arg, arg-type]
        if lengths is None:
            return outputs, State(outputs[:, -1], last)
        rows = torch.arange(len(outputs), device=outputs.device)
        ended = outputs[rows, (lengths - 1).clamp(min=0)]
        return outputs, State(torch.where((lengths > 0)[:, None], ended, hidden), last)

    def step(self, inputs: Tensor, weights: Weights, state: State) -> State:
        """One step: `inputs` (B, E) and a state -> the next state. Never dropped."""
        recurrent = weights.part(self.embedding_size, self.matrix.shape[0])
        given, reduced = self._given(inputs[:, None], weights)
        return self._advance(
            given[:, 0] + weights.bias, None if reduced is None else reduced[:, 0], recurrent, state, None
        )

    def _given(self, inputs: Tensor, weights: Weights) -> tuple[Tensor, Tensor | None]:
        """What the inputs (B, T, E) decide: their share of the gates (B, T, G), and of x L + h L (B, T, R)."""
        part = weights.part(0, self.embedding_size)
        return inputs @ part.matrix, None if part.left is None else inputs @ part.left

    def _loop(self, arrays: Inputs, recurrent: Weights, state: State) -> tuple[Tensor, State]:
        """What `recurrence.run` does, a step at a time."""
        hidden = []
        for step, now in enumerate((arrays.given + arrays.bias[:, None]).unbind(1)):
            reduced = None if arrays.given_reduced is None else arrays.given_reduced[:, step]
            after = self._advance(now, reduced, recurrent, state, None if arrays.keep is None else arrays.keep[step])
            if arrays.lengths is None:
                state = after
                hidden.append(state.hidden)
            else:
                goes_on = (step < arrays.lengths)[:, None]
                hidden.append(torch.where(goes_on, after.hidden, 0.0))
                memory = torch.where(goes_on, after.memory, state.memory)
                state = State(torch.where(goes_on, after.hidden, state.hidden), memory)
        return torch.stack(hidden, dim=1) if hidden else state.hidden[:, None][:, :0], state

    def _advance(
        self, given: Tensor, reduced: Tensor | None, recurrent: Weights, state: State, keep: Tensor | None
    ) -> State:
        hidden = state.hidden[:, None]
        gates = given + (hidden @ recurrent.matrix)[:, 0]
        if reduced is not None and recurrent.left is not None and recurrent.right is not None:
            gates = gates + ((reduced[:, None] + hidden @ recurrent.left) @ recurrent.right)[:, 0]
        candidate, forget, output = (self._normalised(j, gate) for j, gate in enumerate(gates.chunk(3, dim=-1)))
        candidate = torch.tanh(candidate)
        if keep is not None:
            candidate = candidate * keep
        forget = torch.sigmoid(forget + 1)
        memory = forget * state.memory + (1 - forget) * candidate
        return State(torch.tanh(self._normalised(3, memory)) * torch.sigmoid(output), memory)

    def _norm(self) -> Tensor | None:
        """Gains of i, f, o, m, then their shifts (8, H)."""
        if self.gain is None or self.shift is None:
            return None
        return torch.cat([self.gain, self.shift]).view(8, self.hidden_size)

    def _normalised(self, which: int, values: Tensor) -> Tensor:
        """`values` (B, H) of i, f, o or m with the layer normalisation of that one, if there is any."""
        if self.gain is None or self.shift is None:
            return values
        own = slice(which * self.hidden_size, (which + 1) * self.hidden_size)
        return F.layer_norm(values, (self.hidden_size,), self.gain[own], self.shift[own])

    def _keep(self, inputs: Tensor) -> Tensor | None:
        """One dropout mask (T, B, H) a step, scaled to keep the mean (Semeniuta et al. 2016), or none."""
        if not self.training or self.dropout == 0:
            return None
        batch, steps, _ = inputs.shape
        return mask((steps, batch, self.hidden_size), self.dropout, inputs)
