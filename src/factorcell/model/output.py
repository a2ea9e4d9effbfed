"""The softmax head, which computes logits from hidden states h.

    logits = E P h + b + Q c + a(c)        (TACL 2018, equations 5 and 6, where P is called L)

E are the token embeddings of the input layer, P is a projection, b a bias per token and c the context vector. Low-rank
biases Q c are computed together with E P h, as one product [P h, c] . [E, Q]. a(c) (B, V) is the sum of all other
biases that depend on the context (`output_bias`).

Shapes: B texts, T steps, V vocabulary, E embedding, H hidden, F features, C categorical variables, S samples. A step of
training with a sampled loss reads only U tokens and M buckets of the hash table.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from factorcell.config import LOW_RANK_BIASES
from factorcell.data.context import Context
from factorcell.data.tokenizer import Tokenizer
from factorcell.model.head import Head, HeadSizes
from factorcell.model.initial import normal
from factorcell.model.kernels import library, softmax
from factorcell.model.kernels.drawing import PackedTable
from factorcell.model.output_bias import TABLES, HashBias, Pairs
from factorcell.option_fields import SoftmaxOptions

MAX_BIASES = 1 << 21  # largest number of biases, one for each text and token, that are computed at once


@dataclass(frozen=True)
class Samples:
    """Negative samples of a sampled softmax.

    Attributes:
        tokens: Distinct tokens (S,).
        log_inclusion: Log probability (V,) that a token is among the samples.
    """

    tokens: Tensor
    log_inclusion: Tensor


class Proposal:
    """The distribution from which a sampled softmax draws tokens.

    The probability of a token is proportional to its entry in `counts` (V,), how often it was a target of training.
    """

    def __init__(self, counts: Tensor, draws: int, device: torch.device | None = None) -> None:
        probabilities = counts.double().clamp(min=0) / counts.sum()
        # 1 - (1 - q)^draws: the probability that at least one draw gives the token.
        inclusion = -torch.expm1(draws * torch.log1p(-probabilities))
        self.probabilities, self.draws = probabilities, draws
        self.log_inclusion = inclusion.clamp(min=1e-30).log().float().to(device)

    @classmethod
    def by_rank(cls, tokenizer: Tokenizer, draws: int, device: torch.device | None = None) -> "Proposal":
        """Estimate the proposal from the order of the vocabulary: token n has the weight log((n + 2) / (n + 1))."""
        ids = torch.arange(len(tokenizer), dtype=torch.double)
        weights = torch.log1p(1 / (ids + 1))
        weights[tokenizer.specials.start] = 0
        return cls(weights, draws, device)

    def draw(self) -> Samples:
        """Draw `draws` tokens with replacement from PyTorch's global CPU generator and remove duplicates.

        A token of unigram probability q is among the samples with probability 1 - (1 - q)^draws.
        """
        tokens = torch.unique(torch.multinomial(self.probabilities, self.draws, replacement=True))
        return Samples(tokens.to(self.log_inclusion.device), self.log_inclusion)


@dataclass(frozen=True)
class ContextBias:
    """The inputs from which `SoftmaxHead` computes the adapted softmax biases of B contexts.

    Attributes:
        features: Features (B, F) of the biases in `output_bias.TABLES`.
        categories: Values of the categorical variables (B, C), for the hashed bias.
        bias: The whole softmax bias (B, V), if `SoftmaxHead.fold` has computed it.
    """

    features: Tensor
    categories: Tensor
    bias: Tensor | None = None

    def select(self, rows: Tensor) -> "ContextBias":
        """Return the inputs of the contexts `rows` (B',), which may repeat."""
        return ContextBias(self.features[rows], self.categories[rows], None if self.bias is None else self.bias[rows])


@dataclass(frozen=True)
class SampledRows:
    """The rows of parameter tables that a training step with a sampled loss reads.

    Attributes:
        tokens: The tokens (U,), ascending, whose rows the step reads in tables with a row per token.
        pairs: The pairs of a value and one of these tokens that have a hashed bias; None without a hashed bias.
    """

    tokens: Tensor
    pairs: Pairs | None

    @property
    def rows(self) -> list[Tensor]:
        """The rows to read in each group of `SoftmaxHead.row_tables`."""
        return [self.tokens] if self.pairs is None else [self.tokens, self.pairs.buckets]


# The values of the rows in `SampledRows`, in the groups of `SoftmaxHead.row_tables`. The first group has (U, width)
# values for each table with a row per token; the second has the (M, 1) values of the hash table.
RowValues = list[list[Tensor]]


class SoftmaxHead(Head):
    """A softmax over the token embeddings of the input layer."""

    Options = SoftmaxOptions
    has_sampled_loss = True

    start_mask: Tensor

    def __init__(self, options: SoftmaxOptions, embedding: nn.Parameter, sizes: HeadSizes) -> None:
        super().__init__(options, embedding, sizes)
        vocabulary_size, embedding_size = embedding.shape
        self.embedding = embedding
        self.is_pretrained = sizes.is_pretrained
        self.projection = (
            None
            if self.is_pretrained
            else nn.Parameter(normal((sizes.vector_size, embedding_size), sizes.vector_size**-0.5))
        )
        self.bias = nn.Parameter(torch.zeros(vocabulary_size) if sizes.bias is None else sizes.bias.clone())
        names = sizes.model.output_bias if sizes.schema.variables else ()  # of the adapted biases
        self.adapters = nn.ModuleDict({name: TABLES[name](vocabulary_size, sizes) for name in names if name in TABLES})
        has_hash = "hash" in names and bool(sizes.schema.categories)
        self.hashed = HashBias(vocabulary_size, options, sizes.schema) if has_hash else None
        start_mask = torch.zeros(vocabulary_size)
        start_mask[sizes.specials.start] = -torch.inf  # the start token is never predicted
        self.register_buffer("start_mask", start_mask, persistent=False)

    def initialize(self, log_probs: Tensor) -> None:
        """Set the bias to the log probabilities (V,) of the tokens, unless the head is pretrained."""
        if not self.is_pretrained:
            self.bias.copy_(log_probs)

    def project(self, hidden: Tensor) -> Tensor:
        """Return P h (..., E) of hidden states (..., H); a pretrained head has no projection."""
        return hidden if self.projection is None else hidden @ self.projection

    def condition(self, vector: Tensor, parts: Sequence[Tensor], context: Context) -> ContextBias:
        """Compute the inputs of the adapted biases of B contexts.

        Args:
            vector: Context vectors (B, K).
            parts: The embedding (B, size) of each variable.
            context: The values of the variables.
        """
        features = [adapter(vector, parts, context) for adapter in self.adapters.values()]
        return ContextBias(torch.cat(features, dim=1) if features else vector[:, :0], context.categories)

    def fold(self, context_bias: ContextBias) -> ContextBias:
        """Compute the whole bias (B, V) of each context once, which saves time if many tokens share the context."""
        bias = (self.bias + self.start_mask).expand(len(context_bias.features), -1)
        for name, features, coefficients in self._bias_factors(context_bias.features, self.tables()):
            if name in LOW_RANK_BIASES:
                bias = torch.addmm(bias, features, coefficients.T)
        separate_bias = self._separate_bias(context_bias, self.tables(), self._all_pairs(context_bias))
        if separate_bias is not None:
            bias = bias + separate_bias
        return ContextBias(context_bias.features, context_bias.categories, bias)

    def observe(self, tokens: NDArray[np.int64], categories: NDArray[np.int64]) -> None:
        """Add the pairs of targets (N,) and values (N, C) of their texts to the Bloom filter of the hashed bias."""
        if self.hashed is not None:
            self.hashed.observe(tokens, categories)

    def tables(self) -> list[Tensor]:
        """Return the tables with a row per token: (V, E), then (V, F) of each bias in the order of the features."""
        return [self.embedding, *(cast(nn.Parameter, adapter.weight) for adapter in self.adapters.values())]

    def row_tables(self) -> list[list[nn.Parameter]]:
        """Return the tables of which a sampled loss reads only some rows.

        The first group has the tables with a row per token. If there is a hashed bias, the second group has its hash
        table.
        """
        by_token = cast(list[nn.Parameter], self.tables())
        return [by_token] if self.hashed is None else [by_token, [self.hashed.weight]]

    def sampled_rows(self, tokens: Tensor, samples: Samples, categories: Tensor) -> SampledRows:
        """Return the rows that a training step on `tokens` in contexts with `categories` (B, C) reads."""
        read_tokens = torch.unique(torch.cat([tokens.flatten(), samples.tokens]))
        return SampledRows(read_tokens, None if self.hashed is None else self.hashed.pairs(categories, read_tokens))

    def pack(self) -> PackedTable | None:
        """Pack the token embeddings for `drawing.next_tokens`; return None if the compiled code cannot read them."""
        return PackedTable.of(self.embedding.detach()) if library.supports(self.embedding) else None

    def log_probabilities(self, hidden: Tensor, context_bias: ContextBias) -> Tensor:
        """Return log probabilities (B, V) of the next token after `hidden` (B, H) in B contexts."""
        bias = self.fold(context_bias).bias if context_bias.bias is None else context_bias.bias
        return F.log_softmax(torch.addmm(cast(Tensor, bias), self.project(hidden), self.embedding.T), dim=-1)

    def nats(self, hidden: Tensor, targets: Tensor, context_bias: ContextBias) -> Tensor:
        """Return exact nats (B, T) of `targets` (B, T) after `hidden` (B, T, H) in B contexts."""
        tables = self.tables()
        vectors, table = self._logit_factors(hidden, context_bias.features, tables)
        shared_bias = self.bias + self.start_mask
        if self.hashed is None and all(name in LOW_RANK_BIASES for name in self.adapters):
            return softmax.nats(vectors.flatten(0, 1), table, shared_bias, targets.flatten()).view(targets.shape)
        nats = []
        texts_at_once = max(1, MAX_BIASES // len(self.embedding))
        for texts in torch.split(torch.arange(len(hidden), device=hidden.device), texts_at_once):
            selected = context_bias.select(texts)
            separate_bias = self._separate_bias(selected, tables, self._all_pairs(selected))
            bias = cast(Tensor, separate_bias).add_(shared_bias)
            nats.append(softmax.nats(vectors[texts].flatten(0, 1), table, bias, targets[texts].flatten()))
        return torch.cat(nats).view(targets.shape)

    def sampled_nats(
        self,
        hidden: Tensor,
        targets: Tensor,
        context_bias: ContextBias,
        samples: Samples,
        sampled_rows: SampledRows,
        row_values: RowValues,
    ) -> Tensor:
        """Return the nats (B, T) of targets in a softmax over the target and `samples` only, a loss for training.

        Args:
            hidden: Hidden states (B, T, H).
            targets: Positions of the targets (B, T) in `sampled_rows.tokens`.
            context_bias: The inputs of the adapted biases.
            samples: The negative samples.
            sampled_rows: The rows that the training step reads of the tables in `row_tables`.
            row_values: The values of these rows.
        """
        if self.hashed is None:
            (token_tables,) = row_values
            bucket_values = None
        else:
            token_tables, (bucket_values,) = row_values
        vectors, table = self._logit_factors(hidden, context_bias.features, token_tables)
        bias = self.bias.index_select(0, sampled_rows.tokens)
        separate_bias = self._separate_bias(context_bias, token_tables, sampled_rows.pairs, bucket_values)
        if separate_bias is not None:
            bias = bias + separate_bias
        sample_columns = torch.searchsorted(sampled_rows.tokens, samples.tokens)
        log_inclusion = samples.log_inclusion[sampled_rows.tokens]
        nats = softmax.sampled_nats(
            vectors.flatten(0, 1), table, bias, targets.flatten(), sample_columns, log_inclusion
        )
        return nats.view(targets.shape)

    def _bias_factors(self, features: Tensor, tables: Sequence[Tensor]) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Yield the name, the features (B, F) and the coefficients (U, F) of each adapted bias in `tables`."""
        _, *coefficient_tables = tables
        features_by_bias = torch.split(features, [table.shape[1] for table in coefficient_tables], 1)
        return zip(self.adapters, features_by_bias, coefficient_tables, strict=True)

    def _logit_factors(self, hidden: Tensor, features: Tensor, tables: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return [P h, c] (B, T, E + F) and [E, Q] (U, E + F), whose product is the logits with low-rank biases."""
        projected, (embedding, *_) = self.project(hidden), tables
        low_rank = [
            (bias_features[:, None].expand(-1, hidden.shape[1], -1), coefficients)
            for name, bias_features, coefficients in self._bias_factors(features, tables)
            if name in LOW_RANK_BIASES
        ]
        if not low_rank:
            return projected, embedding
        repeated_features, coefficient_tables = zip(*low_rank, strict=True)
        return torch.cat([projected, *repeated_features], dim=2), torch.cat([embedding, *coefficient_tables], dim=1)

    def _separate_bias(
        self,
        context_bias: ContextBias,
        tables: Sequence[Tensor],
        pairs: Pairs | None,
        bucket_values: Tensor | None = None,
    ) -> Tensor | None:
        """Sum the adapted biases (B, U) except those of low rank; return None if there are no such biases.

        `bucket_values` are the values (M, 1) of the buckets of `pairs`, if the caller has read them.
        """
        biases = [
            features @ coefficients.T
            for name, features, coefficients in self._bias_factors(context_bias.features, tables)
            if name not in LOW_RANK_BIASES
        ]
        if pairs is not None and self.hashed is not None:
            if bucket_values is None:
                bucket_values = F.embedding(pairs.buckets, self.hashed.weight)
            biases.append(pairs.biases(bucket_values))
        if len(biases) > 1:
            return torch.stack(biases).sum(0)
        return biases[0] if biases else None

    def _all_pairs(self, context_bias: ContextBias) -> Pairs | None:
        """Return the pairs with a hashed bias for all tokens, or None without a hashed bias."""
        return None if self.hashed is None else self.hashed.pairs(context_bias.categories)
