"""The language model: a context once, then tokens.

`condition` does all that depends on the context alone and returns a value; `forward` (all targets of a batch) and
`step` (one token at a time) take it from there and agree with each other.

Shapes: B texts, T steps, V vocabulary, E embedding, H hidden, K context.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from factorcell.config import ModelConfig, UserError
from factorcell.data.context import Context
from factorcell.data.corpus import Batch
from factorcell.data.schema import ContextSchema
from factorcell.model.adapters import AdaptedWeights
from factorcell.model.adaptive_softmax import AdaptiveOutput
from factorcell.model.cells import Cell, State
from factorcell.model.control_codes import Prefix
from factorcell.model.dropout import mask
from factorcell.model.encoder import ContextEncoder
from factorcell.model.kernels.recurrence import Packed
from factorcell.model.output import ContextBias, Output, Picked, Reads, Samples

SOFTMAXES: dict[str, type[Output] | type[AdaptiveOutput]] = {"full": Output, "adaptive": AdaptiveOutput}

States = tuple[State, ...]  # of each layer

RANKED = 4_000_000  # log probabilities that exist at one time, to rank targets among them


@dataclass(frozen=True)
class Conditioned:
    """All that B contexts decide.

    `weights` of each recurrent layer, their states before the `start` token, and what tilts the softmax bias.
    """

    weights: tuple[AdaptedWeights, ...]
    start: States
    context_bias: ContextBias

    def select(self, rows: Tensor) -> "Conditioned":
        """The conditions of `rows` (B',), repeated where a row is named twice."""
        weights = tuple(weights.select(rows) for weights in self.weights)
        return Conditioned(weights, tuple(state.select(rows) for state in self.start), self.context_bias.select(rows))

    def with_packed(self, packed: Sequence[Packed | None]) -> "Conditioned":
        """The same, and W of each layer as the compiled recurrence reads it, to read few texts many times."""
        weights = tuple(replace(own, packed=one) for own, one in zip(self.weights, packed, strict=True))
        return replace(self, weights=weights)


class LanguageModel(nn.Module):
    """p(text given context), for words or characters."""

    def __init__(self, config: ModelConfig, vocabulary_size: int, schema: ContextSchema) -> None:
        super().__init__()
        self.config = config
        adapt = config.adapt if schema.variables else ()
        adapt = tuple(name for name in adapt if name != "factor" or config.rank > 0)
        shifts = tuple(name for name in adapt if name != "prefix")
        embedding, hidden = config.embedding_size, config.hidden_size
        self.adapted = bool(schema.variables and (adapt or config.output_bias))
        self.encoder = ContextEncoder(config, schema) if schema.variables and (shifts or config.output_bias) else None
        self.prefix = Prefix(schema, embedding) if "prefix" in adapt else None
        context_size = config.context_size if self.encoder else 0
        self.embedding = nn.Parameter(torch.randn(vocabulary_size, embedding) * embedding**-0.5)
        self.cells = nn.ModuleList(
            Cell(
                embedding if layer == 0 else hidden,
                hidden,
                context_size,
                config.rank,
                shifts,
                config.dropout_recurrent,
                config.layer_norm,
                config.cell,
                config.variational,
            )
            for layer in range(config.layers)
        )
        sizes = self.encoder.sizes if self.encoder else None
        self.output = SOFTMAXES[config.softmax](self.embedding, config, schema, sizes)

    def condition(self, context: Context, override: Mapping[str, Tensor] | None = None) -> Conditioned:
        """The `Conditioned` of B contexts; `override` gives embeddings (B, k) of categorical variables by name."""
        if override and self.prefix is not None:
            raise UserError(f"embeddings of {', '.join(override)} are given, but a prefix has codes of its own")
        parts = [] if self.encoder is None else self.encoder.parts(context, override)
        vector = self.embedding.new_zeros(len(context), 0) if self.encoder is None else self.encoder.join(parts)
        weights = tuple(cell.adapt(vector) for cell in self._layers())
        start = tuple(cell.start(len(context)) for cell in self._layers())
        if self.prefix is not None:
            _, start = self._hidden(self.prefix(context), weights, start)
        return Conditioned(weights, start, self.output.context_bias(vector, parts, context))

    def packed(self) -> tuple[Packed | None, ...]:
        """What `Conditioned.with_packed` takes, from the weights as they are now."""
        return tuple(cell.packed() for cell in self._layers())

    def fold(self, conditioned: Conditioned) -> Conditioned:
        """The same with one recurrent matrix and one softmax bias a context: for many tokens that share a context."""
        both = zip(self._layers(), conditioned.weights, strict=True)
        weights = tuple(cell.fold(weights) for cell, weights in both)
        return Conditioned(weights, conditioned.start, self.output.fold(conditioned.context_bias))

    def forward(self, batch: Batch, conditioned: Conditioned | None = None) -> Tensor:
        """Exact nats (B, T) of all targets of `batch`, zero on padding."""
        conditioned = conditioned or self.condition(batch.context)
        nats = self.output.nats(self.hidden(batch, conditioned), batch.tokens[:, 1:], conditioned.context_bias)
        return nats.masked_fill(~batch.mask(), 0.0)

    def hidden(self, batch: Batch, conditioned: Conditioned) -> Tensor:
        """Hidden states (B, T, H) of the last layer that predict the targets: after the start token and all but one."""
        return self._read(F.embedding(batch.tokens[:, :-1], self.embedding), conditioned, batch.lengths)

    def ranks(self, batch: Batch) -> Tensor:
        """The rank (B, T) of each target among all tokens, 1 the most probable, ties against it; zero on padding."""
        conditioned, inside = self.condition(batch.context), batch.mask()
        hidden = self.hidden(batch, conditioned)[inside]
        text, wanted = inside.nonzero()[:, 0], batch.tokens[:, 1:][inside]
        ranks, size = torch.zeros_like(batch.tokens[:, 1:]), max(1, RANKED // len(self.embedding))
        found = []
        for states, texts, targets in zip(*(torch.split(part, size) for part in (hidden, text, wanted)), strict=True):
            own, place = torch.unique(texts, return_inverse=True)  # biases of all texts at once would not fit
            logs = self.output.log_probabilities(
                states, self.output.fold(conditioned.context_bias.select(own)).select(place)
            )
            found.append((logs >= logs.gather(1, targets[:, None])).sum(1))
        ranks[inside] = torch.cat(found)
        return ranks

    def sampled(
        self,
        batch: Batch,
        samples: Samples,
        reads: Reads | None = None,
        picked: Picked | None = None,
        conditioned: Conditioned | None = None,
    ) -> Tensor:
        """Nats (B, T) against `samples` only, zero on padding: a loss for training, not a measure.

        Of the tables with a row a token (or a bucket) only the rows that it `reads` are read, once. Who has `picked`
        them already gets gradients of their size.
        """
        conditioned, output = conditioned or self.condition(batch.context), cast(Output, self.output)
        reads = reads or output.reads(batch.tokens, samples, conditioned.context_bias.categories)
        picked = picked or [
            [F.embedding(rows, table) for table in tables]
            for rows, tables in zip(reads.rows, self.row_tables(), strict=True)
        ]
        rows = torch.searchsorted(reads.used, batch.tokens)
        hidden = self._read(F.embedding(rows[:, :-1], picked[0][0]), conditioned, batch.lengths)
        nats = output.sampled_nats(hidden, rows[:, 1:], conditioned.context_bias, samples, reads, picked)
        return nats.masked_fill(~batch.mask(), 0.0)

    def reads(self, batch: Batch, samples: Samples) -> Reads:
        """What `sampled` reads of the tables with a row a token or a bucket."""
        return cast(Output, self.output).reads(batch.tokens, samples, batch.context.categories)

    def step(self, token: Tensor, conditioned: Conditioned, states: States | None = None) -> tuple[Tensor, States]:
        """`token` (B,) and states (none: before the start token) -> log probabilities (B, V) of the next, states."""
        values, after = self.embedding[token], []
        for cell, weights, state in zip(self._layers(), conditioned.weights, states or conditioned.start, strict=True):
            after.append(cell.step(values, weights, state))
            values = after[-1].hidden
        return self.output.log_probabilities(values, conditioned.context_bias), tuple(after)

    def row_tables(self) -> list[list[nn.Parameter]]:
        """Tables of which a sampled step reads few rows: embeddings and adapted softmax biases, as `Reads.rows`."""
        return self.output.row_tables()

    def kept(self) -> dict[str, Tensor]:
        """What a run folder keeps: parameters, and what a hashed bias has seen in training."""
        state = self.state_dict()
        return {**dict(self.named_parameters()), **{name: b for name, b in self.named_buffers() if name in state}}

    def parameter_count(self) -> int:
        """The number of learned values."""
        return sum(parameter.numel() for parameter in self.parameters())

    def _layers(self) -> Sequence[Cell]:
        return cast(Sequence[Cell], self.cells)

    def _read(self, inputs: Tensor, conditioned: Conditioned, lengths: Tensor) -> Tensor:
        """Embedded `inputs` (B, T, E) of texts -> hidden states (B, T, H) of the last layer after each."""
        return self._hidden(inputs, conditioned.weights, conditioned.start, lengths)[0]

    def _hidden(
        self, inputs: Tensor, weights: Sequence[AdaptedWeights], states: States, lengths: Tensor | None = None
    ) -> tuple[Tensor, States]:
        """`inputs` (B, T, E) -> hidden states (B, T, H) of the last layer, last states; with dropout in training."""
        rates, after = self.config, []
        inputs = self._drop(inputs, rates.dropout_token, (*inputs.shape[:2], 1), scaled=False)
        values = self._drop(inputs, rates.dropout_input, self._mask_shape(inputs))
        for cell, own, state in zip(self._layers(), weights, states, strict=True):
            values, last = cell(values, own, state, lengths)
            values = self._drop(values, rates.dropout_output, self._mask_shape(values))
            after.append(last)
        return values, tuple(after)

    def _mask_shape(self, values: Tensor) -> tuple[int, ...]:
        """Of `values` (B, T, .) each is dropped by itself, or the same at all steps of a text."""
        batch, steps, width = values.shape
        return (batch, 1 if self.config.variational else steps, width)

    def _drop(self, values: Tensor, rate: float, shape: tuple[int, ...], scaled: bool = True) -> Tensor:
        """In training mode, `values` times a dropout mask of `shape`."""
        if not (self.training and rate):
            return values
        return values * mask(shape, rate, values) * (1.0 if scaled else 1 - rate)
