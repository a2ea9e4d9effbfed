"""The language model p(text given context): a context encoder, token embeddings, a backbone and a head.

`condition` computes everything that depends only on the context. From its result, `forward` computes the nats of all
targets of a batch, and `step` the probabilities after one token of each text; both give the same probabilities.

Shapes: B texts, T steps, V vocabulary, k embedding of one variable.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from factorcell.adapters.adapters import normal, weight_adapters
from factorcell.adapters.encoder import FROZEN_BASE_STD, INITIAL_STD, ContextEncoder, Prefix
from factorcell.config import EXTENSIBLE, NAMES, PREFIX, Config, HuggingFaceOptions, check_kind
from factorcell.data.columns.context import Context, IdLists
from factorcell.data.columns.schema import ContextSchema, Variable
from factorcell.data.corpus import Batch
from factorcell.data.tokenizers.tokenizer import SPECIAL_IDS, Specials, Tokenizer
from factorcell.errors import UserError
from factorcell.io import pretrained
from factorcell.nn.backbones.backbone import Backbone, BackboneSizes, BackboneState, Conditions
from factorcell.nn.backbones.huggingface import HuggingFaceBackbone
from factorcell.nn.backbones.recurrent import RecurrentBackbone
from factorcell.nn.devices import FLOAT32, compute_on_one_thread_after_fork, find_device, find_precision
from factorcell.nn.output import ContextBias, Head, HeadSizes, RowValues, SampledRows, Samples, SoftmaxHead

MAX_STEPS = 20_000  # largest number of tokens of a text that are read at once if no gradient is needed
MAX_CONTEXT_VALUES = 2**28  # largest number of values of the contexts of the texts that are scored at once
MAX_NUMBER_TOKENS = 8  # of a number that is read as text

BACKBONES: dict[str, type[Backbone]] = {"recurrent": RecurrentBackbone, "huggingface": HuggingFaceBackbone}
HEADS: dict[str, type[Head]] = {"softmax": SoftmaxHead}


@dataclass(frozen=True)
class Conditioning:
    """Everything that B contexts determine in a model."""

    conditions: Conditions  # of the backbone
    start: BackboneState  # before the start token of the text, after control codes, names and prompts
    head: Conditions  # of the head

    def select(self, rows: Tensor) -> "Conditioning":
        return Conditioning(self.conditions.select(rows), self.start.select(rows), self.head.select(rows))


def with_identified_base(config: Config) -> Config:
    """Return `config` with the digest of the weights of a pretrained backbone, and the number type of its weights."""
    backbone = config.backbone
    if not (isinstance(backbone, HuggingFaceOptions) and backbone.is_pretrained):
        return config
    base, digest = pretrained.identify(backbone.base, backbone.base_digest)
    backbone = replace(backbone, base=base, base_digest=digest)
    if not backbone.base_precision:
        device = find_device(config.training.device)
        number_type = FLOAT32 if backbone.train_base else find_precision(config.training.precision, device, backbone)
        backbone = replace(backbone, base_precision=number_type)
    return replace(config, backbone=backbone)


def max_prompt_length(config: Config, schema: ContextSchema) -> int:
    """Return the largest number of tokens of all prompts of a text, each with a start token."""
    return (1 + config.data.max_prompt_tokens) * len(schema.prompts)


def head_class(kind: str) -> type[Head]:
    """Return the class of the head `kind`: built in, registered, or from an installed package."""
    cls: type[Head] = EXTENSIBLE["head"].find_class(kind, HEADS, check_kind)
    return cls


class ValueNames(nn.Module):
    """The values of categories and numbers as text that a language model reads before each text, like a prompt.

        s city: Oslo stars: 5 s text        s is the start token; a line feed follows each value

    Rare, unknown and missing values have an empty name, so that all texts begin alike: a model that never read a text
    without names would predict it badly.

    Attributes:
        max_length: The largest number of tokens of all names of a text, with the start token.
    """

    ids: Tensor
    offsets: Tensor
    first_rows: Tensor

    def __init__(
        self, schema: ContextSchema, tokenizer: Tokenizer, variables: Sequence[Variable], max_tokens: int
    ) -> None:
        """Tokenize the names of some variables of `schema`, of each at most the first `max_tokens` with its column."""
        super().__init__()
        self.schema, self.variables, self.tokenizer, self.max_tokens = schema, variables, tokenizer, max_tokens
        categories = [variable for variable in variables if variable.kind == "category"]
        self.numbers = [variable for variable in variables if variable.kind != "category"]
        self.number_ids: dict[str, list[int]] = {}  # of the lines of numbers
        lines: list[Sequence[int]] = [(tokenizer.specials.start,)]
        first_rows, self.max_length = [], 1  # for each category, the row of its unknown value
        for variable in categories:
            first_rows.append(len(lines))
            lines += self.encode([name_line(variable, value) for value in range(len(variable.values))])
            self.max_length += max(map(len, lines[first_rows[-1] :]))
        without_numbers = self.encode([name_line(variable, math.nan) for variable in self.numbers])
        self.max_length += sum(len(ids) + MAX_NUMBER_TOKENS for ids in without_numbers)
        sizes = torch.tensor(list(map(len, lines)))
        # The table follows from the schema and the tokenizer, so run folders do not store it.
        self.register_buffer("ids", torch.tensor([token for line in lines for token in line]), persistent=False)
        self.register_buffer("offsets", F.pad(sizes.cumsum(0), (1, 0)), persistent=False)
        self.register_buffer("first_rows", torch.tensor(first_rows, dtype=torch.int64), persistent=False)
        self.columns = [schema.categories.index(variable) for variable in categories]

    def encode(self, lines: Sequence[str]) -> list[Sequence[int]]:
        """Return the tokens of lines."""
        return [self.tokenizer.encode(tokens)[: self.max_tokens] for tokens in self.tokenizer.split_all(lines)]

    def forward(self, context: Context) -> IdLists:
        """Return the tokens of the names of B texts, after a start token."""
        values = context.categories[:, self.columns].clamp(min=0)  # a missing value is read as the unknown one
        rows = F.pad(values + self.first_rows, (1, 0), value=0)  # row 0 of the table of lines is the start token
        lists = IdLists(self.ids, self.offsets)[rows.flatten()]
        names = IdLists(lists.ids, lists.offsets[:: rows.shape[1]])
        return names.join(self.encode_numbers(context)) if self.numbers else names

    def encode_numbers(self, context: Context) -> IdLists:
        """Return the tokens of the numbers of B texts."""
        lines = [name_lines(self.schema, [variable], context) for variable in self.numbers]
        unread = list(dict.fromkeys(line for column in lines for line in column if line not in self.number_ids))
        self.number_ids |= dict(zip(unread, map(list, self.encode(unread)), strict=True))
        rows = [[token for line in row for token in self.number_ids[line]] for row in zip(*lines, strict=True)]
        ids = torch.tensor([token for row in rows for token in row], dtype=torch.int64)
        offsets = F.pad(torch.tensor([len(row) for row in rows]).cumsum(0), (1, 0))
        return IdLists(ids, offsets).to(self.ids.device)

    def describe(self) -> str:
        """Return a one-line description with an example."""
        values = [1 if variable.kind == "category" else variable.mean for variable in self.variables]
        example = json.dumps("".join(map(name_line, self.variables, values)), ensure_ascii=False)
        return f"names read before each text, such as {example}; rare and missing values have empty names"

    def texts(self, context: Context) -> list[str]:
        """Return the names of B texts as text."""
        return name_lines(self.schema, self.variables, context)


def name_lines(schema: ContextSchema, variables: Sequence[Variable], context: Context) -> list[str]:
    """Return the lines of some variables for each of B texts."""
    columns = [
        context.categories[:, schema.categories.index(variable)].clamp(min=0)  # a missing value is the unknown one
        if variable.kind == "category"
        else context.numbers[:, schema.numbers.index(variable)]
        for variable in variables
    ]
    rows = zip(*(column.tolist() for column in columns), strict=True) if columns else [()] * len(context)
    return ["".join(map(name_line, variables, values)) for values in rows]


def name_line(variable: Variable, value: float) -> str:
    """Return the line of a number, or of the value at an index of a category, without a name if it is unknown."""
    if variable.kind == "category":
        name = variable.values[int(value)] if value else ""
    else:
        value -= variable.period if variable.period and value > variable.period / 2 else 0.0  # 286 is longitude -74
        name = f"{float(f'{value:.4g}') + 0.0:.15g}" if math.isfinite(value) else ""
    return f"{variable.source_column}: {name}\n" if name else f"{variable.source_column}:\n"


def find_names(config: Config, schema: ContextSchema, tokenizer: Tokenizer) -> ValueNames | None:
    """Return the names that a model with this config and schema reads; None if it reads none.

    Names of users are not read, because a new user has none. If the config requires names, and no context column is a
    category with frequent values or a number, raise `UserError`.
    """
    if NAMES not in config.model.adapt or not schema.embedded.variables:
        return None
    if variables := schema.named_variables(config.data.user):
        return ValueNames(schema, tokenizer, variables, config.data.max_prompt_tokens)
    if categories := [variable for variable in schema.categories if variable.source_column != config.data.user]:
        names, count = ", ".join(variable.name for variable in categories), f"{categories[0].min_count:,}"
        raise UserError(f"adapt {NAMES}: each value of {names} has fewer than {count} texts; lower min_context_count")
    others = ", ".join(variable.describe() for variable in schema.variables)
    raise UserError(f"adapt {NAMES}: expected a category or a number as context, apart from users, got {others}")


class LanguageModel(nn.Module):
    """p(text given context): a context encoder, token embeddings, a backbone and a head.

    Attributes:
        max_tokens: The largest number of tokens of a text that the model can read, with its start token and prompts;
            None: there is no limit.

    Args:
        config: The config, which names the kinds of the backbone and the head.
        vocabulary_size: The number of tokens, V.
        schema: The context variables.
        specials: The ids of special tokens.
        names: The names of values that the model reads before each text; None if it reads none.
        known_count: The number of tokens that a pretrained backbone knows; by default all.
    """

    def __init__(
        self,
        config: Config,
        vocabulary_size: int,
        schema: ContextSchema,
        specials: Specials = SPECIAL_IDS,
        names: ValueNames | None = None,
        known_count: int | None = None,
    ) -> None:
        compute_on_one_thread_after_fork()
        super().__init__()
        model = config.model
        self.config, self.specials, self.names = model, specials, names
        embedded = schema.embedded
        adapt = weight_adapters(model) if embedded.variables else ()
        has_encoder = bool(embedded.variables and (adapt or model.output_bias))
        backbone_class = EXTENSIBLE["backbone"].find_class(config.backbone.kind, BACKBONES, check_kind)
        is_frozen = isinstance(config.backbone, HuggingFaceOptions) and config.backbone.is_frozen
        context_std = FROZEN_BASE_STD if is_frozen else INITIAL_STD
        self.encoder = ContextEncoder(model, embedded, context_std) if has_encoder else None
        embedding_size = backbone_class.embedding_size(config.backbone) or model.embedding_size
        self.prefix = Prefix(embedded, embedding_size) if embedded.variables and PREFIX in model.adapt else None
        self.is_adapted = has_encoder or self.prefix is not None or names is not None or bool(schema.prompts)
        self.embedding = nn.Parameter(normal((vocabulary_size, embedding_size), embedding_size**-0.5))
        context_size = model.context_size if self.encoder else 0
        sizes = BackboneSizes(embedding_size, context_size, adapt, model.rank)
        self.backbone: Backbone = backbone_class(config.backbone, sizes)
        self.max_tokens: int | None = self.backbone.max_tokens
        if self.max_tokens is not None:
            self.max_tokens -= len(embedded.variables) if self.prefix else 0
            self.max_tokens -= names.max_length if names else 0
            max_length, allowed = config.data.max_tokens, self.max_tokens - max_prompt_length(config, schema)
            if max_length > allowed:
                reason = f"the base reads at most {self.backbone.max_tokens:,} tokens with names, prompts and codes"
                problem = f"expected at most {allowed:,}, because {reason} of contexts, got {max_length:,}"
                raise UserError(f"max_tokens: {problem}; lower --max-tokens")
        output_table = self.embedding
        known_count = vocabulary_size if known_count is None else known_count
        if (tables := self.backbone.token_tables(vocabulary_size, known_count, specials.end)) is not None:
            self.embedding, output_table = tables
        head_sizes = HeadSizes(
            vector_size=self.backbone.size,
            model=model,
            schema=embedded if self.encoder else ContextSchema(),
            variable_sizes=tuple(self.encoder.variable_sizes) if self.encoder else (),
            specials=specials,
            is_pretrained=tables is not None,
            bias=self.backbone.output_bias(vocabulary_size, known_count),
        )
        self.head: Head = head_class(config.head.kind)(config.head, output_table, head_sizes)
        self._frozen_names = frozenset(name for name, value in self.named_parameters() if not value.requires_grad)

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return self.embedding.device

    @property
    def vocabulary_size(self) -> int:
        """The number of tokens, V."""
        return len(self.embedding)

    def condition(
        self,
        context: Context,
        override: Mapping[str, Tensor] | None = None,
        packed: Any = None,
        embed: Callable[[Tensor], Tensor] | None = None,
    ) -> Conditioning:
        """Compute everything that B contexts determine.

        Args:
            context: The values of the context variables of B texts.
            override: Embeddings (B, k) by names of variables, which replace the embeddings of these variables.
            packed: The result of `backbone.pack` for the current weights. It saves time if the same weights are used in
                many calls with few texts each.
            embed: Returns the embeddings of the tokens of names and prompts; by default those of `embedding`.

        Raises:
            UserError: `override` names an unknown variable, or the model has control codes.
        """
        if override and self.prefix is not None:
            raise UserError(f"override of {', '.join(override)}: a model with control codes does not support it")
        parts = [] if self.encoder is None else self.encoder.variable_embeddings(context, override)
        vector = context.categories[:, :0].to(self.embedding) if self.encoder is None else self.encoder.join(parts)
        conditions = self.backbone.condition(vector, packed)
        start = self.backbone.start(conditions, vector.shape[0])
        if self.prefix is not None:
            _, start = self.backbone(self.prefix(context), conditions, start)
        if (tokens := self.prompt_tokens(context)) is not None:
            ids = tokens.padded().clamp(min=0)
            inputs = F.embedding(ids, self.embedding) if embed is None else embed(ids)
            _, start = self.backbone(inputs, conditions, start, tokens.sizes)
        return Conditioning(conditions, start, self.head.condition(vector, parts, context))

    def prompt_tokens(self, context: Context) -> IdLists | None:
        """Return the tokens of names and prompts, which the model reads before B texts; None if there are none."""
        prompts = self._names_and_prompts(context)
        return reduce(IdLists.join, prompts) if any(len(prompt.ids) for prompt in prompts) else None

    def _names_and_prompts(self, context: Context) -> tuple[IdLists, ...]:
        """Return the names and prompts of B texts."""
        return context.prompts if self.names is None else (self.names(context), *context.prompts)

    def fold(self, conditioning: Conditioning, shared: bool = False) -> Conditioning:
        """Multiply the changes of weights into the weights, which saves time if a context has many tokens.

        `shared` says whether there is a single context, in which any number of texts are read.
        """
        return replace(self.fold_head(conditioning), conditions=self.backbone.fold(conditioning.conditions, shared))

    def fold_head(self, conditioning: Conditioning) -> Conditioning:
        """Add the changes of the softmax bias to the bias, which saves time if a context has many tokens."""
        return replace(conditioning, head=self.head.fold(conditioning.head))

    @property
    def texts_at_once(self) -> int:
        """The largest number of texts whose contexts take at most `MAX_CONTEXT_VALUES` values; at least 1.

        A context of a Transformer with context adapters takes millions of values.
        """
        footprint = self.backbone.footprint()
        name_tokens = 0 if self.names is None else self.names.max_length
        return max(1, MAX_CONTEXT_VALUES // max(1, footprint.conditions + name_tokens * footprint.state))

    def forward(self, batch: Batch, conditioning: Conditioning | None = None) -> Tensor:
        """Compute the exact nats of all targets.

        If no gradient is needed, texts are read in parts of `MAX_STEPS` tokens, which limits memory.

        Args:
            batch: B texts with their contexts.
            conditioning: The conditioning of these contexts, if the caller has computed it.

        Returns:
            Negative log-likelihoods (B, T) in nats, zero on padding.
        """
        conditioning = conditioning or self.condition(batch.context)
        steps = batch.tokens.shape[1] - 1
        steps_at_once = steps if torch.is_grad_enabled() else MAX_STEPS
        state, nats = conditioning.start, []
        for first in range(0, steps, steps_at_once):
            tokens = batch.tokens[:, first : first + steps_at_once + 1]
            lengths = (batch.lengths - first).clamp(0, steps_at_once)
            inputs = F.embedding(tokens[:, :-1], self.embedding)
            vectors, state = self.backbone(inputs, conditioning.conditions, state, lengths)
            nats.append(self.head.nats(vectors, tokens[:, 1:], conditioning.head))
        return torch.cat(nats, 1).masked_fill(~batch.mask(), 0.0)

    def sampled_rows(self, batch: Batch, samples: Samples) -> SampledRows:
        """Return the rows that a step with a sampled loss reads of the tables in `head.row_tables`.

        Raises:
            UserError: The head has no sampled loss.
        """
        if not isinstance(self.head, SoftmaxHead):
            kind = self.head.Options().kind
            raise UserError(f"samples: expected 0, because the head {kind!r} has no sampled loss")
        read_ids = [tokens.ids for tokens in self._names_and_prompts(batch.context)]
        tokens = torch.cat([batch.tokens.flatten(), *read_ids])
        return self.head.sampled_rows(tokens, samples, batch.context.categories)

    def sampled_nats(
        self,
        batch: Batch,
        samples: Samples,
        sampled_rows: SampledRows | None = None,
        row_values: RowValues | None = None,
        conditioning: Conditioning | None = None,
    ) -> Tensor:
        """Compute the sampled loss of all targets, for training.

        Args:
            batch: B texts with their contexts.
            samples: The negative samples.
            sampled_rows: The rows that this step reads of the tables in `head.row_tables`, if the caller has computed
                them.
            row_values: The values of these rows, if the caller has read them; gradients then exist only for these rows.
            conditioning: The conditioning of these contexts, if the caller has computed it.

        Returns:
            Nats (B, T) in a softmax over the target and `samples` only, zero on padding.
        """
        sampled_rows = sampled_rows or self.sampled_rows(batch, samples)
        # Without values from the caller, read them here: gradients then exist for whole tables.
        row_values = row_values or [
            [F.embedding(rows, table) for table in tables]
            for rows, tables in zip(sampled_rows.rows, self.head.row_tables(), strict=True)
        ]
        read_tokens: Tensor = sampled_rows.tokens
        positions = torch.searchsorted(read_tokens, batch.tokens)
        if self.head.row_tables()[0][0] is self.embedding:
            (embedding_rows, *_), *_ = row_values  # the embeddings are the first table of the first group

            def embed(ids: Tensor) -> Tensor:  # padding gets the embedding of any token
                return F.embedding(torch.searchsorted(read_tokens, ids).clamp(max=len(read_tokens) - 1), embedding_rows)

            conditioning = conditioning or self.condition(batch.context, embed=embed)
            inputs = F.embedding(positions[:, :-1], embedding_rows)
        else:
            conditioning = conditioning or self.condition(batch.context)
            inputs = F.embedding(batch.tokens[:, :-1], self.embedding)
        vectors, _ = self.backbone(inputs, conditioning.conditions, conditioning.start, batch.lengths)
        head, context_bias = cast(SoftmaxHead, self.head), cast(ContextBias, conditioning.head)
        nats = head.sampled_nats(vectors, positions[:, 1:], context_bias, samples, sampled_rows, row_values)
        return nats.masked_fill(~batch.mask(), 0.0)

    def step(
        self, token: Tensor, conditioning: Conditioning, state: BackboneState | None = None
    ) -> tuple[Tensor, BackboneState]:
        """Read one token of each text.

        Args:
            token: Token ids (B,).
            conditioning: The conditioning of B contexts.
            state: The state before the token; by default the state before the start token.

        Returns:
            Log probabilities (B, V) of the next token, and the state after `token`.
        """
        state = conditioning.start if state is None else state
        vectors, next_state = self.backbone.step(self.embedding[token], conditioning.conditions, state)
        return self.head.log_probabilities(vectors, conditioning.head), next_state

    def saved_tensors(self) -> dict[str, Tensor]:
        """Return the tensors that a run folder stores: parameters, and the Bloom filter of a hashed bias.

        The weights of a pretrained model are excluded unless they are trained.
        """
        persistent_names = self.state_dict().keys()
        buffers = {name: buffer for name, buffer in self.named_buffers() if name in persistent_names}
        return {**self.own_parameters(), **buffers}

    def own_parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters by name, without those of a pretrained model that is not trained."""
        return {name: value for name, value in self.named_parameters() if name not in self._frozen_names}

    def trained_count(self) -> int:
        """Return the number of values in the parameters that training can change."""
        return sum(parameter.numel() for parameter in self.own_parameters().values())

    def parameter_count(self) -> int:
        """Return the number of values in all parameters."""
        return sum(parameter.numel() for parameter in self.parameters())
