"""The recurrent step.

The coupled-gate LSTM (TACL 2018, appendix A, equations 8 and 9), its W' and b' adapted by a context (`adapters`):

    [i, f, o] = W'[x, h] + b'
    f <- sigmoid(f + 1)       m <- f m + (1 - f) tanh(i)       h <- tanh(m) sigmoid(o)

With layer normalisation (Ba et al. 2016), i, f, o and, inside its tanh, m are normalised over the hidden units.

Shapes: B texts, T steps, E embedding, H hidden, D = E + H, G = 3 H gate columns, K context, R rank.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from factorcell import gpu_recurrence, kernels
from factorcell.adapters import ADAPTERS, Weights, shifted
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
        return shifted(self.matrix, self.bias, [adapter(vector) for adapter in self.adapters.values()])

    def fold(self, weights: Weights) -> Weights:
        """The same weights with all that changes W multiplied into one matrix (B, D, G) per context."""
        return weights.fold(self.embedding_size)

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
        given, reduced, recurrent = self._given(inputs, weights)  # all that does not wait for h, at once
        factors = recurrent.matrix, recurrent.left, recurrent.right
        bias = weights.bias.expand(len(inputs), -1)
        scale = None if recurrent.scale is None else recurrent.scale[:, 0]
        after = state.hidden, state.memory, lengths
        arrays = Inputs(given, bias, reduced, *factors, keep, self._norm(), scale, None, *after)
        if usable(arrays):
            outputs, hidden, memory = run(arrays)
            return outputs, State(hidden, memory)
        if arrays.norm is None and scale is None and gpu_recurrence.usable(given, recurrent.matrix.to(given.dtype)):
            return self._launch(arrays)
        return self._loop(arrays, recurrent, state)

    @staticmethod
    def _launch(arrays: Inputs) -> tuple[Tensor, State]:
        """As `recurrence.run`, on a GPU."""
        kind = torch.bfloat16 if kernels.halved(arrays.given.device) else torch.float32
        given, bias, *taken, norm, scale, feed, hidden, memory, lengths = (
            a if a is None or a.dtype == torch.long else a.to(kind) for a in arrays.arrays()
        )
        assert given is not None
        assert bias is not None
        assert norm is scale is feed is None
        assert hidden is not None
        outputs, last = gpu_recurrence.run(given + bias[:, None], *taken, hidden, memory, lengths)  # type: ignore[call-arg, arg-type]
        if lengths is None:
            return outputs, State(outputs[:, -1], last)
        rows = torch.arange(len(outputs), device=outputs.device)
        ended = outputs[rows, (lengths - 1).clamp(min=0)]
        return outputs, State(torch.where((lengths > 0)[:, None], ended, hidden), last)

    def step(self, inputs: Tensor, weights: Weights, state: State) -> State:
        """One step: `inputs` (B, E) and a state -> the next state. Never dropped."""
        given, reduced, recurrent = self._given(inputs[:, None], weights)
        return self._advance(
            given[:, 0] + weights.bias, None if reduced is None else reduced[:, 0], recurrent, state, None
        )

    def _given(self, inputs: Tensor, weights: Weights) -> tuple[Tensor, Tensor | None, Weights]:
        """What the inputs (B, T, E) decide: their share of the gates (B, T, G), and of x L + h L (B, T, R); W' of h.

        R of the latter is already scaled: what is left to scale is the product of W.
        """
        ours, recurrent = weights.parts(self.embedding_size)
        given, reduced = inputs @ ours.matrix, None if ours.left is None else inputs @ ours.left
        if weights.scale is None or ours.scale is None or recurrent.scale is None:
            return given, reduced, recurrent
        if reduced is not None and weights.right is not None and weights.scale.shape[1] == 2:
            given, reduced = given + reduced @ weights.right, None  # its factor is not that of h
        right = None if weights.right is None else weights.right * recurrent.scale
        return given * ours.scale, reduced, replace(recurrent, right=right)

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
        product = hidden @ recurrent.matrix
        gates = given + (product if recurrent.scale is None else product * recurrent.scale)[:, 0]
        if recurrent.left is not None and recurrent.right is not None:
            both = hidden @ recurrent.left if reduced is None else reduced[:, None] + hidden @ recurrent.left
            gates = gates + (both @ recurrent.right)[:, 0]
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
