"""The backbone that is a causal language model of the Hugging Face library `transformers`.

The linear maps of its attention and feed-forward networks become adapted maps (`adapted_modules`), whose weights the
context changes.

Shapes: B contexts, N texts, T steps, E token embedding (also the size of the vectors), K context, P prefix vectors.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from factorcell.adapters.adapters import Shift
from factorcell.adapters.dropout import apply_dropout
from factorcell.adapters.encoder import FROZEN_BASE_STD, INITIAL_STD
from factorcell.adapters.initial import normal
from factorcell.errors import UserError
from factorcell.io import pretrained
from factorcell.nn.backbones import base_models
from factorcell.nn.backbones.adapted_modules import Adaptation, AdaptedModules, applied, with_constant
from factorcell.nn.backbones.attention_cache import CacheState
from factorcell.nn.backbones.backbone import Backbone, BackboneSizes, Footprint
from factorcell.options.option_fields import HuggingFaceOptions

UNUSED_BIAS = -20.0  # bias of tokens that a pretrained model does not have; they are practically never predicted
PREFIX_STD = 0.02  # initial standard deviation of prefix vectors, as of token embeddings in `transformers`


@dataclass(frozen=True)
class TransformerConditions:
    """Everything that B contexts determine in the backbone.

    Attributes:
        shifts: The shift of each projection.
        are_shifts_shared: Whether each shift has one context, which stands for all B.
        offset: A change (B, E) of the last vectors, or None.
        prefix: Vectors (B, P, E) that are read before each text, or None.
        dtype: The number type of the vectors.
    """

    shifts: tuple[Shift, ...]
    are_shifts_shared: bool = False
    offset: Tensor | None = None
    prefix: Tensor | None = None
    dtype: torch.dtype = torch.float32

    def select(self, rows: Tensor) -> "TransformerConditions":
        return replace(
            self,
            shifts=self.shifts if self.are_shifts_shared else tuple(shift.select(rows) for shift in self.shifts),
            offset=None if self.offset is None else self.offset[rows],
            prefix=None if self.prefix is None else self.prefix[rows],
        )


class HuggingFaceBackbone(Backbone):
    """A causal language model of `transformers` without its output layer."""

    Options = HuggingFaceOptions

    def __init__(self, options: HuggingFaceOptions, sizes: BackboneSizes) -> None:
        super().__init__(options, sizes)
        model = base_models.new_base(options)
        config = model.config.get_text_config(decoder=True)
        self.options, self.size = options, int(config.hidden_size)
        table_size = model.get_input_embeddings().weight.shape[1]
        if table_size != self.size:
            raise UserError(f"{options}: expected embeddings of the size of the vectors, {self.size}, got {table_size}")
        self.max_positions = base_models.max_positions(config)
        self.max_tokens = None if self.max_positions is None else self.max_positions - options.prefix_vectors
        self._tables = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        self._output_bias: Tensor | None = getattr(model.get_output_embeddings(), "bias", None)
        self.input_scale = base_models.input_scale(model.get_input_embeddings())
        self.base = model.base_model
        if not self._tables[0].is_meta:
            base_models.check_computation(model, str(options))
        try:
            self.base.set_input_embeddings(nn.Identity())
        except NotImplementedError:
            raise UserError(f"{options}: this architecture is not supported") from None
        self.is_frozen = options.is_frozen
        self.base.requires_grad_(not self.is_frozen)
        self.context_size = sizes.context
        sizes = replace(sizes, context=sizes.context + 1)  # the context vector is followed by a constant 1
        prefix = "" if self.base is model else model.base_model_prefix
        shared_rank = options.shared_rank if self.is_frozen else 0
        self.maps = AdaptedModules(
            self.base, sizes, targets=options.target_modules, prefix=prefix, shared_rank=shared_rank
        ).attach()
        self.has_changes = bool(sizes.adapt) or shared_rank > 0 or options.prefix_vectors > 0
        self.offset = nn.Parameter(torch.zeros(sizes.context, self.size)) if "concat" in sizes.adapt else None
        count = options.prefix_vectors
        self.prefix = nn.Parameter(normal((sizes.context, count, self.size), PREFIX_STD)) if count else None

    @classmethod
    def context_std(cls, options: HuggingFaceOptions) -> float:
        """Return larger embeddings for a frozen base."""
        return FROZEN_BASE_STD if options.is_frozen else INITIAL_STD

    @classmethod
    def embedding_size(cls, options: HuggingFaceOptions) -> int:
        """Return the size of the vectors of the base."""
        if not options.is_pretrained:
            return options.hidden_size
        config = pretrained.read_config(pretrained.find_source(options.base))
        return int(config.get_text_config(decoder=True).hidden_size)

    def token_tables(
        self, vocabulary_size: int, known_count: int, end: int
    ) -> tuple[nn.Parameter, nn.Parameter] | None:
        """Return the embeddings of tokens (V, E) in the input and in the output layer of a pretrained model.

        They are of float32 also if the other weights are of bfloat16, so that log probabilities are exact.
        Ids that the model does not have, such as a start token of its own, get the embedding of the end token; if it
        does not have an end token either, that of the end token of its config.
        """
        if not self.options.is_pretrained:
            return None
        is_tied = self._tables[0] is self._tables[1]
        configured = self.base.config.get_text_config(decoder=True).eos_token_id
        candidates = end, *(configured if isinstance(configured, list) else [configured]), 0
        count = min(known_count, *map(len, self._tables))
        known_end = next(row for row in candidates if row is not None and row < count)
        counts = vocabulary_size, known_count, known_end
        inputs = self._complete_table(self._tables[0], *counts)
        return inputs, inputs if is_tied else self._complete_table(self._tables[1], *counts)

    def _complete_table(self, table: Tensor, vocabulary_size: int, known_count: int, end: int) -> nn.Parameter:
        """Return the rows of the `vocabulary_size` tokens in float32, because the head computes in float32.

        The table of the base may have more rows than its tokenizer has tokens, which are not trained. Tokens that it
        lacks have the row of the token `end`.
        """
        rows = table.detach().float()[:known_count]
        rows = torch.cat([rows, rows[[end] * (vocabulary_size - len(rows))]])
        return nn.Parameter(rows, requires_grad=not self.is_frozen)

    def output_bias(self, vocabulary_size: int, known_count: int) -> Tensor | None:
        """Return the bias (V,) of the output layer of a pretrained model.

        Ids that the model does not have, whose rows are those of the end of a text, have the bias `UNUSED_BIAS`.
        """
        if not self.options.is_pretrained:
            return None
        table = self._tables[1]
        bias = torch.zeros_like(table[:, 0]) if self._output_bias is None else self._output_bias
        bias = bias.detach().float()[:known_count]
        return torch.cat([bias, bias.new_full((vocabulary_size - len(bias),), UNUSED_BIAS)])

    def condition(self, vector: Tensor, packed: Any = None) -> TransformerConditions:
        if not self.has_changes:
            return TransformerConditions((), dtype=vector.dtype)
        dtype, vector = vector.dtype, with_constant(vector)
        are_shifts_shared = not self.context_size  # without contexts, the changes are a LoRA
        shifts = self.maps.condition(vector[:1] if are_shifts_shared else vector)
        offset = None if self.offset is None else vector @ self.offset
        prefix = None if self.prefix is None else torch.einsum("bk,kpe->bpe", vector, self.prefix)
        return TransformerConditions(shifts, are_shifts_shared, offset, prefix, dtype)

    def fold(self, conditions: TransformerConditions, shared: bool = False) -> TransformerConditions:
        """Return `conditions`: folded weights of each context, of which a service stores many, would be too large."""
        return conditions

    def start(self, conditions: TransformerConditions, count: int) -> CacheState:
        state = CacheState(torch.zeros(count, dtype=torch.int64, device=self.maps.projections[0].weight.device))
        if conditions.prefix is None:
            return state
        prefix = conditions.prefix.expand(count, -1, -1)
        _, state = self._read(prefix, conditions, state, None)
        return state

    def forward(
        self, inputs: Tensor, conditions: TransformerConditions, state: CacheState, lengths: Tensor | None = None
    ) -> tuple[Tensor, CacheState]:
        if self.training:
            inputs = apply_dropout(inputs, self.options.dropout_input, False)
        vectors, next_state = self._read(inputs, conditions, state, lengths)
        if self.training:
            vectors = apply_dropout(vectors, self.options.dropout_output, False)
        return vectors, next_state

    def step(self, inputs: Tensor, conditions: TransformerConditions, state: CacheState) -> tuple[Tensor, CacheState]:
        vectors, next_state = self._read(inputs[:, None], conditions, state, None)
        return vectors[:, 0], next_state

    def _read(
        self, inputs: Tensor, conditions: TransformerConditions, state: CacheState, lengths: Tensor | None
    ) -> tuple[Tensor, CacheState]:
        from transformers import DynamicCache

        count, steps, _ = inputs.shape
        positions = state.lengths[:, None] + torch.arange(steps, device=inputs.device)
        if self.max_positions is not None and state.width + steps > self.max_positions:  # with the padding of the batch
            longest = int((state.lengths + (steps if lengths is None else lengths)).max())
            if longest > self.max_positions:
                raise UserError(
                    f"a text has more tokens than the base can read: expected at most {self.max_positions:,} with the "
                    f"start token and prefixes, got {longest:,}; shorten it"
                )
            positions = positions.clamp(max=self.max_positions - 1)  # later positions are padding
        if not inputs.numel():
            return inputs, state
        is_stored = state.is_stored()
        mask = None
        if is_stored is not None:
            mask = torch.cat([is_stored, is_stored.new_ones(count, steps)], dim=1).long()
        cache = DynamicCache(state.layers or None)
        with applied(Adaptation.of_shifts(self.maps, conditions.shifts)):
            outputs = self.base(
                inputs_embeds=(inputs * self.input_scale).to(self.maps.projections[0].weight.dtype),
                attention_mask=mask,
                position_ids=positions,
                cache=cache,
                use_cache=True,
            )
        vectors = outputs.last_hidden_state.to(conditions.dtype)
        if conditions.offset is not None:
            vectors = vectors + conditions.offset[:, None]
        layers = [(layer.keys, layer.values) for layer in cache.layers]
        return vectors, state.after(layers, lengths)

    def footprint(self) -> Footprint:
        """Estimate the stored values from the sizes of the projections and the keys and values of a token."""
        config = self.base.config.get_text_config(decoder=True)
        outputs = sum(projection.matrix().shape[1] for projection in self.maps.projections)
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        conditions = self._values_per_context
        return Footprint(
            token=3 * outputs + 12 * self.size * config.num_hidden_layers,
            text=2 * conditions,
            state=2 * config.num_hidden_layers * heads * head_size,
            conditions=conditions,
        )

    def adapted_share(self) -> float:
        return self._values_per_context / sum(projection.weight.numel() for projection in self.maps.projections)

    @cached_property
    def _values_per_context(self) -> int:
        """The number of values of the shifts of all projections in one context."""
        zero = torch.zeros(1, self.context_size, device=self.maps.projections[0].weight.device)
        with torch.no_grad():
            return sum(shift.values_per_context() for shift in self.condition(zero).shifts)
