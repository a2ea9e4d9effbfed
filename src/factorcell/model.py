"""The language model: a context once, then tokens.

`condition` does all that depends on the context alone and returns a value; `forward` (all targets of a batch) and
`step` (one token at a time) take it from there and agree with each other.

Shapes: B texts, T steps, V vocabulary, E embedding, H hidden, K context.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from factorcell.adapters import Weights
from factorcell.cells import Cell, State
from factorcell.config import ModelConfig
from factorcell.context import Context, ContextEncoder, ContextSchema
from factorcell.data import Batch
from factorcell.dropout import mask
from factorcell.output import Output, Picked, Reads, Samples, Tilt


@dataclass(frozen=True)
class Conditioned:
    """All that B contexts decide: recurrent `weights`, and what tilts the softmax bias."""

    weights: Weights
    tilt: Tilt

    def select(self, rows: Tensor) -> "Conditioned":
        """The conditions of `rows` (B',), repeated where a row is named twice."""
        return Conditioned(self.weights.select(rows), self.tilt.select(rows))


class LanguageModel(nn.Module):
    """p(text given context), for words or characters."""

    def __init__(self, config: ModelConfig, vocabulary_size: int, schema: ContextSchema) -> None:
        super().__init__()
        self.config = config
        adapted = bool(config.adapt or config.output_bias)
        self.encoder = ContextEncoder(config, schema) if adapted and schema.variables else None
        context_size = config.context_size if self.encoder else 0
        self.embedding = nn.Parameter(torch.randn(vocabulary_size, config.embedding_size) * config.embedding_size**-0.5)
        self.cell = Cell(
            config.embedding_size,
            config.hidden_size,
            context_size,
            config.rank,
            config.adapt if self.encoder else (),
            config.dropout_recurrent,
            config.layer_norm,
        )
        self.output = Output(self.embedding, config, schema, self.encoder.sizes if self.encoder else None)

    def condition(self, context: Context, override: Mapping[str, Tensor] | None = None) -> Conditioned:
        """The `Conditioned` of B contexts; `override` gives embeddings (B, k) of categorical variables by name."""
        parts = [] if self.encoder is None else self.encoder.parts(context, override)
        vector = self.embedding.new_zeros(len(context), 0) if self.encoder is None else self.encoder.join(parts)
        return Conditioned(self.cell.adapt(vector), self.output.tilt(vector, parts, context))

    def fold(self, conditioned: Conditioned) -> Conditioned:
        """The same with one recurrent matrix and one softmax bias a context: for many tokens that share a context."""
        return Conditioned(self.cell.fold(conditioned.weights), self.output.fold(conditioned.tilt))

    def forward(self, batch: Batch, conditioned: Conditioned | None = None) -> Tensor:
        """Exact nats (B, T) of all targets of `batch`, zero on padding."""
        conditioned = conditioned or self.condition(batch.context)
        hidden = self._hidden(F.embedding(batch.tokens[:, :-1], self.embedding), conditioned.weights, batch.lengths)
        nats = self.output.nats(hidden, batch.tokens[:, 1:], conditioned.tilt)
        return nats.masked_fill(~batch.mask(), 0.0)

    def sampled(
        self, batch: Batch, samples: Samples, reads: Reads | None = None, picked: Picked | None = None
    ) -> Tensor:
        """Nats (B, T) against `samples` only, zero on padding: a loss for training, not a measure.

        Of the tables with a row a token (or a bucket) only the rows that it `reads` are read, once. Who has `picked`
        them already gets gradients of their size.
        """
        reads = reads or self.reads(batch, samples)
        picked = picked or [
            [F.embedding(rows, table) for table in tables]
            for rows, tables in zip(reads.rows, self.row_tables(), strict=True)
        ]
        conditioned = self.condition(batch.context)
        rows = torch.searchsorted(reads.used, batch.tokens)
        hidden = self._hidden(F.embedding(rows[:, :-1], picked[0][0]), conditioned.weights, batch.lengths)
        nats = self.output.sampled_nats(hidden, rows[:, 1:], conditioned.tilt, samples, reads, picked)
        return nats.masked_fill(~batch.mask(), 0.0)

    def reads(self, batch: Batch, samples: Samples) -> Reads:
        """What `sampled` reads of the tables with a row a token or a bucket."""
        return self.output.reads(batch.tokens, samples, batch.context.categories)

    def step(self, token: Tensor, conditioned: Conditioned, state: State | None = None) -> tuple[Tensor, State]:
        """`token` (B,) and a state (none: before the start token) -> log probabilities (B, V) of the next, state."""
        state = state or self.cell.start(len(token))
        state = self.cell.step(self.embedding[token], conditioned.weights, state)
        return self.output.log_probabilities(state.hidden, conditioned.tilt), state

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

    def _hidden(self, inputs: Tensor, weights: Weights, lengths: Tensor) -> Tensor:
        """Embedded `inputs` (B, T, E) -> hidden states (B, T, H) after each, with dropout in training mode."""
        rates = self.config
        inputs = self._drop(inputs, rates.dropout_token, (*inputs.shape[:2], 1), scaled=False)
        inputs = self._drop(inputs, rates.dropout_input, inputs.shape)
        hidden, _ = self.cell(inputs, weights, lengths=lengths)
        return self._drop(hidden, rates.dropout_output, hidden.shape)

    def _drop(self, values: Tensor, rate: float, shape: tuple[int, ...], scaled: bool = True) -> Tensor:
        """In training mode, `values` times a dropout mask of `shape`."""
        if not (self.training and rate):
            return values
        return values * mask(shape, rate, values) * (1.0 if scaled else 1 - rate)
