"""The language model: a context once, then tokens.

`condition` does all that depends on the context alone and returns a value; `forward` (all targets of a batch) and
`step` (one token at a time) take it from there and agree with each other.

Shapes: B texts, T steps, V vocabulary, E embedding, H hidden, K context.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from factorcell.cells import Cell, State, Weights
from factorcell.config import ModelConfig
from factorcell.context import Context, ContextEncoder, ContextSchema
from factorcell.data import Batch
from factorcell.dropout import mask
from factorcell.output import Output, Samples

RANKED = 4_000_000  # log probabilities that exist at one time, to rank targets among them


@dataclass(frozen=True)
class Conditioned:
    """All that B contexts decide: recurrent `weights`, and `features` (B, F) that shift the softmax bias."""

    weights: Weights
    features: Tensor

    def select(self, rows: Tensor) -> "Conditioned":
        """The conditions of `rows` (B',), repeated where a row is named twice."""
        return Conditioned(self.weights.select(rows), self.features[rows])


Picked = tuple[Tensor, list[Tensor]]  # which rows (U,) of the token tables, and (U, .) for each of them


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
        self.output = Output(
            self.embedding,
            config.hidden_size,
            context_size,
            schema,
            config.output_bias if self.encoder else (),
        )

    def condition(self, context: Context, override: Mapping[str, Tensor] | None = None) -> Conditioned:
        """The `Conditioned` of B contexts; `override` gives embeddings (B, k) of categorical variables by name."""
        vector = self._vector(context, override)
        return Conditioned(self.cell.adapt(vector), self.output.features(vector, context))

    def fold(self, conditioned: Conditioned) -> Conditioned:
        """The same condition with one recurrent matrix per context: worth it where many tokens share a context."""
        return replace(conditioned, weights=self.cell.fold(conditioned.weights))

    def forward(self, batch: Batch, conditioned: Conditioned | None = None) -> Tensor:
        """Exact nats (B, T) of all targets of `batch`, zero on padding."""
        conditioned = conditioned or self.condition(batch.context)
        hidden = self._hidden(F.embedding(batch.tokens[:, :-1], self.embedding), conditioned.weights, batch.lengths)
        nats = self.output.nats(hidden, batch.tokens[:, 1:], conditioned.features)
        return nats.masked_fill(~batch.mask(), 0.0)

    def ranks(self, batch: Batch) -> Tensor:
        """The rank (B, T) of each target among all tokens, 1 the most probable, ties against it; zero on padding."""
        conditioned, inside = self.condition(batch.context), batch.mask()
        inputs = F.embedding(batch.tokens[:, :-1], self.embedding)
        hidden = self._hidden(inputs, conditioned.weights, batch.lengths)[inside]
        text, wanted = inside.nonzero()[:, 0], batch.tokens[:, 1:][inside]
        ranks, size = torch.zeros_like(batch.tokens[:, 1:]), max(1, RANKED // len(self.embedding))
        parts = [torch.split(part, size) for part in (hidden, conditioned.features[text], wanted)]
        found = []
        for states, features, targets in zip(*parts, strict=True):
            logs = self.output.log_probabilities(states, features)
            found.append((logs >= logs.gather(1, targets[:, None])).sum(1))
        ranks[inside] = torch.cat(found)
        return ranks

    def sampled(self, batch: Batch, samples: Samples, picked: Picked | None = None) -> Tensor:
        """Nats (B, T) against `samples` only, zero on padding: a loss for training, not a measure.

        Of the tables with a row a token only the rows `samples.used` are read, once. Who has `picked` them already gets
        gradients of their size.
        """
        used, tables = picked or self.pick(samples.used(batch.tokens))
        conditioned = self.condition(batch.context)
        rows = torch.searchsorted(used, batch.tokens)
        hidden = self._hidden(F.embedding(rows[:, :-1], tables[0]), conditioned.weights, batch.lengths)
        nats = self.output.sampled_nats(hidden, rows[:, 1:], conditioned.features, samples, used, tables)
        return nats.masked_fill(~batch.mask(), 0.0)

    def pick(self, used: Tensor) -> Picked:
        """The rows `used` (U,) of the tables with a row a token."""
        return used, [F.embedding(used, table) for table in self.output.tables()]

    def step(self, token: Tensor, conditioned: Conditioned, state: State | None = None) -> tuple[Tensor, State]:
        """`token` (B,) and a state (none: before the start token) -> log probabilities (B, V) of the next, state."""
        state = state or self.cell.start(len(token))
        state = self.cell.step(self.embedding[token], conditioned.weights, state)
        return self.output.log_probabilities(state.hidden, conditioned.features), state

    def token_parameters(self) -> list[nn.Parameter]:
        """The tables with a row for every token: embeddings and adapted softmax biases."""
        return self.output.tables()

    def parameter_count(self) -> int:
        """The number of learned values."""
        return sum(parameter.numel() for parameter in self.parameters())

    def _vector(self, context: Context, override: Mapping[str, Tensor] | None) -> Tensor:
        if self.encoder is None:
            return self.embedding.new_zeros(len(context), 0)
        vector: Tensor = self.encoder(context, override)
        return vector

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
