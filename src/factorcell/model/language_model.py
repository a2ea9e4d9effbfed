"""The language model: a context once, then tokens.

`condition` does all that depends on the context alone and returns a value; `forward` (all targets of a batch) and
`step` (one token at a time) take it from there and agree with each other.

Shapes: B texts, T steps, V vocabulary, E embedding, H hidden, K context.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from factorcell.config import Config, UserError
from factorcell.data.context import Context
from factorcell.data.corpus import Batch
from factorcell.data.schema import ContextSchema
from factorcell.data.vocabulary import SPECIAL_IDS, Specials
from factorcell.model.adapters import weight_adapters
from factorcell.model.backbone import Backbone, BackboneSizes, BackboneState, Conditions
from factorcell.model.devices import compute_on_one_thread_after_fork
from factorcell.model.encoder import ContextEncoder, Prefix
from factorcell.model.head import Head, HeadSizes
from factorcell.model.initial import normal
from factorcell.model.output import RowValues, SampledRows, Samples, SoftmaxHead
from factorcell.model.recurrent import RecurrentBackbone
from factorcell.option_fields import EXTENSIBLE, PREFIX, check_kind

STEPS = 20_000  # tokens of a text that are read at once where no gradient is kept

BACKBONES: dict[str, type[Backbone]] = {"recurrent": RecurrentBackbone}
HEADS: dict[str, type[Head]] = {"softmax": SoftmaxHead}


@dataclass(frozen=True)
class Conditioning:
    """Everything that B contexts determine.

    Attributes:
        conditions: Of the backbone.
        start: The state of the backbone before the start token.
        head: The conditions of the head.
    """

    conditions: Conditions
    start: BackboneState
    head: Conditions

    def select(self, rows: Tensor) -> "Conditioning":
        """The conditions of `rows` (B',), repeated where a row is named twice."""
        return Conditioning(self.conditions.select(rows), self.start.select(rows), self.head.select(rows))


def head_class(kind: str) -> type[Head]:
    """Return the head of a kind: a built-in one, a registered one, or one of an installed package."""
    found: type[Head] = EXTENSIBLE["head"].find_class(kind, HEADS, check_kind)
    return found


class LanguageModel(nn.Module):
    """p(text given context): a context encoder, token embeddings, a backbone and a head.

    Args:
        config: The config, which names the kinds of the backbone and the head.
        vocabulary_size: The number of tokens, V.
        schema: The context variables.
        specials: The ids of special tokens.
    """

    def __init__(
        self, config: Config, vocabulary_size: int, schema: ContextSchema, specials: Specials = SPECIAL_IDS
    ) -> None:
        compute_on_one_thread_after_fork()
        super().__init__()
        model = config.model
        self.config, self.specials = model, specials
        shifts = weight_adapters(model) if schema.variables else ()
        encoded = bool(schema.variables and (shifts or model.output_bias))
        self.encoder = ContextEncoder(model, schema) if encoded else None
        self.prefix = Prefix(schema, model.embedding_size) if schema.variables and PREFIX in model.adapt else None
        self.adapted = encoded or self.prefix is not None
        self.embedding = nn.Parameter(normal((vocabulary_size, model.embedding_size), model.embedding_size**-0.5))
        context_size = model.context_size if self.encoder else 0
        sizes = BackboneSizes(model.embedding_size, context_size, shifts, model.rank)
        made = EXTENSIBLE["backbone"].find_class(config.backbone.kind, BACKBONES, check_kind)
        self.backbone: Backbone = made(config.backbone, sizes)
        biased = schema if self.encoder else ContextSchema()
        parts = tuple(self.encoder.sizes) if self.encoder else ()
        self.head: Head = head_class(config.head.kind)(
            config.head, self.embedding, HeadSizes(self.backbone.size, model, biased, parts, specials)
        )

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.embedding.device

    @property
    def vocabulary_size(self) -> int:
        """The number of tokens, V."""
        return len(self.embedding)

    def condition(
        self, context: Context, override: Mapping[str, Tensor] | None = None, packed: Any = None
    ) -> Conditioning:
        """The `Conditioning` of B contexts; `override` gives embeddings (B, k) of categorical variables by name.

        `packed`: what `backbone.pack` made of the weights as they are now, to read few texts many times.
        """
        if override and self.prefix is not None:
            raise UserError(f"embeddings of {', '.join(override)} are given, but a prefix has codes of its own")
        parts = [] if self.encoder is None else self.encoder.parts(context, override)
        vector = self.embedding.new_zeros(len(context), 0) if self.encoder is None else self.encoder.join(parts)
        conditions = self.backbone.condition(vector, packed)
        start = self.backbone.start(conditions, len(context))
        if self.prefix is not None:
            _, start = self.backbone(self.prefix(context), conditions, start)
        return Conditioning(conditions, start, self.head.condition(vector, parts, context))

    def fold(self, conditioning: Conditioning, shared: bool = False) -> Conditioning:
        """Return the same conditions with every change of a weight multiplied out, for many tokens per context.

        If `shared` there is one context, in which any number of texts are read.
        """
        conditions = self.backbone.fold(conditioning.conditions, shared)
        return Conditioning(conditions, conditioning.start, self.head.fold(conditioning.head))

    def forward(self, batch: Batch, conditioning: Conditioning | None = None) -> Tensor:
        """Exact nats (B, T) of all targets of `batch`, zero on padding.

        Without a gradient, the memory that this takes does not grow with T beyond `STEPS`.
        """
        conditioning = conditioning or self.condition(batch.context)
        steps = batch.tokens.shape[1] - 1
        size = steps if torch.is_grad_enabled() else STEPS
        state, parts = conditioning.start, []
        for begin in range(0, steps, size):
            tokens, lengths = batch.tokens[:, begin : begin + size + 1], (batch.lengths - begin).clamp(0, size)
            inputs = F.embedding(tokens[:, :-1], self.embedding)
            vectors, state = self.backbone(inputs, conditioning.conditions, state, lengths)
            parts.append(self.head.nats(vectors, tokens[:, 1:], conditioning.head))
        return torch.cat(parts, 1).masked_fill(~batch.mask(), 0.0)

    def sampled_nats(
        self,
        batch: Batch,
        samples: Samples,
        reads: SampledRows | None = None,
        picked: RowValues | None = None,
        conditioning: Conditioning | None = None,
    ) -> Tensor:
        """Nats (B, T) against `samples` only, zero on padding: a loss for training, not a measure.

        Only the rows in `reads` of tables with a row per token (or bucket) are read, once. `picked` are the values of
        these rows, if the caller has read them; gradients then have their size.
        """
        conditioning = conditioning or self.condition(batch.context)
        reads = reads or self.head.sampled_rows(batch.tokens, samples, batch.context.categories)
        picked = picked or [
            [F.embedding(rows, table) for table in tables]
            for rows, tables in zip(reads.rows, self.head.row_tables(), strict=True)
        ]
        rows = torch.searchsorted(reads.used, batch.tokens)
        inputs = F.embedding(rows[:, :-1], picked[0][0])
        vectors, _ = self.backbone(inputs, conditioning.conditions, conditioning.start, batch.lengths)
        nats = self.head.sampled_nats(vectors, rows[:, 1:], conditioning.head, samples, reads, picked)
        return nats.masked_fill(~batch.mask(), 0.0)

    def step(
        self, token: Tensor, conditioning: Conditioning, state: BackboneState | None = None
    ) -> tuple[Tensor, BackboneState]:
        """`token` (B,) and a state (none: before the start token) -> log probabilities (B, V) of the next, state."""
        before = conditioning.start if state is None else state
        vectors, after = self.backbone.step(self.embedding[token], conditioning.conditions, before)
        return self.head.log_probabilities(vectors, conditioning.head), after

    def saved_tensors(self) -> dict[str, Tensor]:
        """What a run folder keeps: parameters, and what a hashed bias has seen in training."""
        state = self.state_dict()
        return {**dict(self.named_parameters()), **{name: b for name, b in self.named_buffers() if name in state}}

    def parameter_count(self) -> int:
        """The number of learned values."""
        return sum(parameter.numel() for parameter in self.parameters())
