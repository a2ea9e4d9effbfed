"""The backbone that is a causal language model of `transformers`, whose linear maps the context changes.

A base is pretrained (`factorcell.io.pretrained`), or a new model of a named architecture with random weights.

Shapes: B contexts, N texts, T steps, E token embedding (also the size of the vectors), K context, P prefix vectors.
"""

import copy
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Self

import torch
from torch import Tensor, nn

from factorcell.adapters.adapters import Shift, normal
from factorcell.config import HuggingFaceOptions
from factorcell.errors import UserError, nearest_hint
from factorcell.io import pretrained
from factorcell.io.extras import missing_package_error
from factorcell.io.pretrained import Source, find_source, first_line, quiet, read_config, transformers
from factorcell.nn.backbones.adapted_modules import Adaptation, AdaptedModules, applied, input_scale, with_constant
from factorcell.nn.backbones.attention_cache import CacheState
from factorcell.nn.backbones.backbone import Backbone, BackboneSizes, Footprint, apply_dropout

UNUSED_BIAS = -20.0  # bias of tokens that a pretrained model does not have; they are practically never predicted
HEAD_SIZE = 64  # numbers per attention head of a new model
FEED_FORWARD_FACTOR = 8 / 3  # size of the layer inside the feed-forward network, divided by the size of the vectors
PREFIX_STD = 0.02  # initial standard deviation of prefix vectors, as of token embeddings in `transformers`


@dataclass(frozen=True)
class TransformerConditions:
    """Everything that B contexts determine in the backbone."""

    shifts: tuple[Shift, ...]  # of each projection
    are_shifts_shared: bool = False  # whether each shift has one context, which stands for all B
    offset: Tensor | None = None  # a change (B, E) of the last vectors
    prefix: Tensor | None = None  # vectors (B, P, E) that are read before each text
    dtype: torch.dtype = torch.float32  # of the vectors

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
        model = new_base(options)
        config = model.config.get_text_config(decoder=True)
        self.options, self.size = options, int(config.hidden_size)
        table_size = model.get_input_embeddings().weight.shape[1]
        if table_size != self.size:
            raise UserError(f"{options}: expected embeddings of the size of the vectors, {self.size}, got {table_size}")
        self.max_positions = max_positions(config)
        self.max_tokens = None if self.max_positions is None else self.max_positions - options.prefix_vectors
        self._tables = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        self._output_bias: Tensor | None = getattr(model.get_output_embeddings(), "bias", None)
        self.input_scale = input_scale(model.get_input_embeddings())
        self.base = model.base_model
        if not self._tables[0].is_meta:
            check_computation(model, str(options))
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
        if any(projection.is_quantized for projection in self.maps.projections):
            raise UserError(f"{options}: expected weights of floating-point numbers, got quantized weights")
        self.has_changes = bool(sizes.adapt) or shared_rank > 0 or options.prefix_vectors > 0
        self.offset = nn.Parameter(torch.zeros(sizes.context, self.size)) if "concat" in sizes.adapt else None
        count = options.prefix_vectors
        self.prefix = nn.Parameter(normal((sizes.context, count, self.size), PREFIX_STD)) if count else None

    @classmethod
    def embedding_size(cls, options: HuggingFaceOptions) -> int:
        """Return the size of the vectors of the base."""
        if not options.is_pretrained:
            return options.hidden_size
        config = read_config(find_source(options.base))
        return int(config.get_text_config(decoder=True).hidden_size)

    def train(self, mode: bool = True) -> Self:
        """Set the mode of training; the base has no other dropout than that of the options."""
        super().train(mode)
        self.base.eval()
        return self

    def token_tables(
        self, vocabulary_size: int, known_count: int, end: int
    ) -> tuple[nn.Parameter, nn.Parameter] | None:
        """Return the embeddings of tokens (V, E) in the input and in the output layer of a pretrained model.

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
        """Return the rows of `vocabulary_size` tokens in float32; a base may have further, untrained rows."""
        rows = table.detach().float()[:known_count]
        rows = torch.cat([rows, rows[[end] * (vocabulary_size - len(rows))]])
        return nn.Parameter(rows, requires_grad=not self.is_frozen)

    def output_bias(self, vocabulary_size: int, known_count: int) -> Tensor | None:
        """Return the bias (V,) of the output layer; ids that the model does not have get `UNUSED_BIAS`."""
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
        from factorcell.nn.backbones.growing_cache import growing_cache

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
        cache = state.take_cache() or growing_cache(zip(state.arrays[::2], state.arrays[1::2], strict=True))
        with applied(Adaptation(self.maps, conditions.shifts)):
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
        return vectors, state.after(cache, lengths)

    def footprint(self) -> Footprint:
        """Estimate the stored values from the sizes of the projections and the keys and values of a token."""
        config = self.base.config.get_text_config(decoder=True)
        outputs = sum(projection.matrix().shape[1] for projection in self.maps.projections)
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return Footprint(
            token=3 * outputs + 12 * self.size * config.num_hidden_layers,
            state=2 * config.num_hidden_layers * heads * head_size,
            conditions=self._values_per_context,
        )

    @cached_property
    def _values_per_context(self) -> int:
        """The number of values of the shifts of all projections in one context."""
        zero = torch.zeros(1, self.context_size, device=self.maps.projections[0].weight.device)
        with torch.no_grad():
            return sum(shift.values_per_context() for shift in self.condition(zero).shifts)


def new_base(options: HuggingFaceOptions) -> Any:
    """Return a causal language model of `transformers` with the weights of its base, or with random weights.

    If PyTorch's default device is "meta", the model has no weights. Raise `UserError` if the base is missing, is not a
    causal language model, or has other weights than training recorded.
    """
    source = find_source(options.base) if options.is_pretrained else None
    library = transformers()
    if source is None or torch.get_default_device().type == "meta":
        where = str(source or options)
        try:
            config = new_config(options) if source is None else read_config(source)
            pretrained.check_supported(config, where)
            with quiet():
                return library.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
        except UserError:
            raise
        except Exception as error:  # architectures refuse sizes with errors of many kinds
            problem = "created" if source is None else "loaded"
            raise UserError(f"{where}: cannot be {problem} ({first_line(error)})") from None
    precision = torch.bfloat16 if options.is_frozen_in_bfloat16 else torch.float32
    model = _load(source, source.version(), options.base_digest, precision)
    # All models of this process share the memory of frozen weights.
    shared = () if options.train_base else model.parameters()
    memo = {id(parameter): nn.Parameter(parameter.data, requires_grad=False) for parameter in shared}
    return copy.deepcopy(model, memo)


@lru_cache(maxsize=1)
def _load(source: Source, version: tuple[int, ...], digest: str, precision: torch.dtype) -> Any:
    """Return the pretrained model with these files, whose digest must be `digest` if it is not empty."""
    library = transformers()
    if digest:
        source.digest(expected=digest)
    try:
        with quiet():
            return library.AutoModelForCausalLM.from_pretrained(
                source.folder,
                gguf_file=source.gguf_file,
                config=read_config(source),
                dtype=precision,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True if source.gguf_file is None else None,
                attn_implementation="sdpa",
            )
    except ImportError as error:
        raise missing_package_error(str(source), error.name, "transformers") from None
    except Exception as error:  # damaged files raise errors of many kinds
        raise UserError(f"{source}: cannot be loaded ({first_line(error)})") from None


def forget_base() -> None:
    """Release the weights that the models of this process share, and that no model uses."""
    _load.cache_clear()


def new_config(options: HuggingFaceOptions) -> Any:
    """Return the `transformers` config of a new model; raise `UserError` if its architecture or sizes are invalid."""
    library = transformers()
    if options.architecture not in (known := pretrained.architectures()):
        raise UserError(
            f"unknown {options}{nearest_hint(options.architecture, known)}; expected a causal language model of "
            "transformers, such as llama, gpt2 or qwen2, or, for a pretrained model, the option base"
        )
    if options.hidden_size % 2:
        raise UserError(f"hidden_size: expected an even number for a new Transformer, got {options.hidden_size}")
    most_heads = max(1, options.hidden_size // HEAD_SIZE)
    heads = next(count for count in range(most_heads, 0, -1) if options.hidden_size % (2 * count) == 0)
    sizes = {
        "vocab_size": 1,  # the language model has its own embeddings of tokens
        "hidden_size": options.hidden_size,
        "num_hidden_layers": options.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": options.hidden_size // heads,
        "intermediate_size": 16 * round(options.hidden_size * FEED_FORWARD_FACTOR / 16) or 16,
    }
    config_class = library.AutoConfig.for_model(options.architecture).__class__
    config = config_class()
    names = {name: config_class.attribute_map.get(name, name) for name in sizes}
    known_sizes = {names[name]: value for name, value in sizes.items() if hasattr(config, names[name])}
    return config_class(
        **known_sizes, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None, pad_token_id=None
    )


def max_positions(config: Any) -> int | None:
    """Return the largest number of tokens that a model with this config can read; None: any number."""
    rope = getattr(config, "rope_parameters", None) or {}
    # With LongRoPE, one text above the original length changes the rotations of all texts of its batch.
    name = "original_max_position_embeddings" if rope.get("rope_type") == "longrope" else "max_position_embeddings"
    return int(rope.get(name) or getattr(config, name, None) or 0) or None


def check_computation(model: Any, where: str) -> None:
    """Raise `UserError` unless the language model `where` computes vectors and logits as models of factorcell do.

    A vector must not depend on later tokens, the cache must have all tokens, and the logits must be those of an output
    layer after the last vectors.
    """
    base, was_training = model.base_model, model.training
    inputs = torch.ones(1, 3, base.get_input_embeddings().weight.shape[1], dtype=next(base.parameters()).dtype)
    changed = inputs.clone()
    changed[:, 2, 0] = 2.0
    cache = transformers().DynamicCache()
    try:
        with torch.no_grad():
            model.eval()
            first, second = (base(inputs_embeds=values).last_hidden_state for values in (inputs, changed))
            base(inputs_embeds=inputs, cache=cache, use_cache=True)
            logits, expected_logits = model(inputs_embeds=changed).logits, model.get_output_embeddings()(second)
    except Exception as error:  # architectures without embeddings as inputs or without a cache fail in many ways
        raise UserError(f"{where}: this architecture is not supported ({first_line(error)})") from None
    model.train(was_training)
    if not torch.equal(first[:, :2], second[:, :2]):
        raise UserError(f"{where}: expected a causal language model, got one that reads later tokens")
    if not torch.allclose(logits.float(), expected_logits.float(), rtol=0, atol=0.01 * float(logits.abs().max())):
        raise UserError(f"{where}: expected logits that the output layer computes from the last vectors")
    if any(getattr(layer, "keys", None) is None or layer.keys.shape[2] != 3 for layer in cache.layers):
        raise UserError(f"{where}: expected a model with attention to all tokens in each layer")
