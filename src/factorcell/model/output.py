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
    """The distribution from which a sampled softmax draws tokens: their frequencies, from training counts (V,)."""

    def __init__(self, counts: Tensor, draws: int, device: torch.device | None = None) -> None:
        probability = counts.double().clamp(min=0) / counts.sum()
        inclusion = -torch.expm1(draws * torch.log1p(-probability))
        self.probability, self.draws = probability, draws
        self.log_inclusion = inclusion.clamp(min=1e-30).log().float().to(device)

    @classmethod
    def by_rank(cls, tokenizer: Tokenizer, draws: int, device: torch.device | None = None) -> "Proposal":
        """Estimate the proposal from the order of the vocabulary: token n has the weight log((n + 2) / (n + 1))."""
        ranks = torch.arange(len(tokenizer), dtype=torch.double)
        counts = torch.log1p(1 / (ranks + 1))
        counts[tokenizer.specials.start] = 0
        return cls(counts, draws, device)

    def draw(self) -> Samples:
        """Draw `draws` tokens with replacement from PyTorch's global CPU generator and remove duplicates.

        A token of unigram probability q is among the samples with probability 1 - (1 - q)^draws.
        """
        tokens = torch.unique(torch.multinomial(self.probability, self.draws, replacement=True))
        return Samples(tokens.to(self.log_inclusion.device), self.log_inclusion)


@dataclass(frozen=True)
class ContextBias:
    """The input from which the adapted softmax biases of B contexts are computed.

    Attributes:
        features: Features (B, F) of the biases in `output_bias.TABLES`.
        categories: Values of the categorical variables (B, C), for the hashed bias.
        bias: The whole softmax bias (B, V), if `SoftmaxHead.fold` has computed it.
    """

    features: Tensor
    categories: Tensor
    bias: Tensor | None = None

    def select(self, rows: Tensor) -> "ContextBias":
        """Return the input for the contexts `rows` (B',), which may repeat."""
        return ContextBias(self.features[rows], self.categories[rows], None if self.bias is None else self.bias[rows])


@dataclass(frozen=True)
class SampledRows:
    """The rows of parameter tables that a training step with a sampled loss reads.

    Attributes:
        used: The tokens (U,), ascending, whose rows the step reads in tables with a row per token.
        pairs: The pairs of a value and one of these tokens that have a hashed bias; None without a hashed bias.
    """

    used: Tensor
    pairs: Pairs | None

    @property
    def rows(self) -> list[Tensor]:
        """The rows to read in each group of `SoftmaxHead.row_tables`."""
        return [self.used] if self.pairs is None else [self.used, self.pairs.buckets]


# The values of `SampledRows`, in the groups of `SoftmaxHead.row_tables`: (U, width) for each table with a row per
# token, then (M, 1) for the hash table.
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
        self.projection = nn.Parameter(normal((sizes.vector_size, embedding_size), sizes.vector_size**-0.5))
        self.bias = nn.Parameter(torch.zeros(vocabulary_size))
        names = sizes.model.output_bias if sizes.schema.variables else ()
        self.adapters = nn.ModuleDict({name: TABLES[name](vocabulary_size, sizes) for name in names if name in TABLES})
        has_hash = "hash" in names and sizes.schema.categories
        self.hashed = HashBias(vocabulary_size, options, sizes.schema) if has_hash else None
        start_mask = torch.zeros(vocabulary_size)
        start_mask[sizes.specials.start] = -torch.inf  # the start token is never predicted
        self.register_buffer("start_mask", start_mask, persistent=False)

    def initialize(self, log_probs: Tensor) -> None:
        """Set the bias to the log probabilities (V,) of the tokens."""
        self.bias.copy_(log_probs)

    def condition(self, vector: Tensor, parts: Sequence[Tensor], context: Context) -> ContextBias:
        """Compute the input of the adapted biases from context vectors (B, K), embeddings of variables, and values."""
        features = [adapter(vector, parts, context) for adapter in self.adapters.values()]
        return ContextBias(torch.cat(features, dim=1) if features else vector[:, :0], context.categories)

    def fold(self, context_bias: ContextBias) -> ContextBias:
        """Compute the whole bias (B, V) of each context once, which saves time if many tokens share the context."""
        bias = (self.bias + self.start_mask).expand(len(context_bias.features), -1)
        for name, part, weight in self._parts(context_bias.features, self.tables()):
            if name in LOW_RANK_BIASES:
                bias = torch.addmm(bias, part, weight.T)
        separate = self._separate_bias(context_bias, self.tables(), self._pairs(context_bias))
        total = bias if separate is None else bias + separate
        return ContextBias(context_bias.features, context_bias.categories, total)

    def observe(self, tokens: NDArray[np.int64], categories: NDArray[np.int64]) -> None:
        """Add the pairs of targets (N,) and values (N, C) of their texts to the Bloom filter of the hashed bias."""
        if self.hashed is not None:
            self.hashed.observe(tokens, categories)

    def tables(self) -> list[Tensor]:
        """Return the tables with a row per token: (V, E), then (V, F) of each bias in the order of the features."""
        return [self.embedding, *(cast(nn.Parameter, adapter.weight) for adapter in self.adapters.values())]

    def row_tables(self) -> list[list[nn.Parameter]]:
        """Return the tables of which a sampled loss reads only some rows.

        The first group has tables with a row per token, the second, if there is a hashed bias, its hash table.
        """
        by_token = cast(list[nn.Parameter], self.tables())
        return [by_token] if self.hashed is None else [by_token, [self.hashed.weight]]

    def sampled_rows(self, tokens: Tensor, samples: Samples, categories: Tensor) -> SampledRows:
        """Return the rows that a training step on texts `tokens` (B, T + 1) with values `categories` (B, C) reads."""
        used = torch.unique(torch.cat([tokens.flatten(), samples.tokens]))
        return SampledRows(used, None if self.hashed is None else self.hashed.pairs(categories, used))

    def pack(self) -> PackedTable | None:
        """Pack the token embeddings for `drawing.next_tokens`; return None if there is no compiled code."""
        return PackedTable.of(self.embedding.detach()) if library.usable(self.embedding) else None

    def log_probabilities(self, hidden: Tensor, context_bias: ContextBias) -> Tensor:
        """Return log probabilities (B, V) of the next token after `hidden` (B, H) in B contexts."""
        bias = self.fold(context_bias).bias if context_bias.bias is None else context_bias.bias
        return F.log_softmax(torch.addmm(cast(Tensor, bias), hidden @ self.projection, self.embedding.T), dim=-1)

    def nats(self, hidden: Tensor, targets: Tensor, context_bias: ContextBias) -> Tensor:
        """Return exact nats (B, T) of `targets` (B, T) after `hidden` (B, T, H) in B contexts."""
        tables = self.tables()
        values, table = self._product(hidden, context_bias.features, tables)
        bias = self.bias + self.start_mask
        if self.hashed is None and all(name in LOW_RANK_BIASES for name in self.adapters):
            return softmax.nats(values.flatten(0, 1), table, bias, targets.flatten()).view(targets.shape)
        parts = []
        texts_at_once = max(1, MAX_BIASES // len(self.embedding))
        for texts in torch.split(torch.arange(len(hidden), device=hidden.device), texts_at_once):
            selected = context_bias.select(texts)
            text_bias = cast(Tensor, self._separate_bias(selected, tables, self._pairs(selected))).add_(bias)
            parts.append(softmax.nats(values[texts].flatten(0, 1), table, text_bias, targets[texts].flatten()))
        return torch.cat(parts).view(targets.shape)

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
            targets: Positions of the targets (B, T) in `sampled_rows.used`.
            context_bias: The input of the adapted biases.
            samples: The negative samples.
            sampled_rows: The rows of the tables that are read.
            row_values: The values of these rows.
        """
        values, table = self._product(hidden, context_bias.features, row_values[0])
        bias = self.bias.index_select(0, sampled_rows.used)
        separate = self._separate_bias(context_bias, row_values[0], sampled_rows.pairs, row_values[-1][0])
        columns = torch.searchsorted(sampled_rows.used, samples.tokens)
        inclusion = samples.log_inclusion[sampled_rows.used]
        bias = bias if separate is None else bias + separate
        nats = softmax.sampled_nats(values.flatten(0, 1), table, bias, targets.flatten(), columns, inclusion)
        return nats.view(targets.shape)

    def _parts(self, features: Tensor, tables: Sequence[Tensor]) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Yield the name, the features (B, F) and the coefficients (U, F) of each adapted bias in `tables`."""
        parts = torch.split(features, [table.shape[1] for table in tables[1:]], 1)
        return zip(self.adapters, parts, tables[1:], strict=True)

    def _product(self, hidden: Tensor, features: Tensor, tables: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return [P h, c] (B, T, E + F) and [E, Q] (U, E + F), whose product contains the low-rank biases."""
        low_rank = [(part, rows) for name, part, rows in self._parts(features, tables) if name in LOW_RANK_BIASES]
        if not low_rank:
            return hidden @ self.projection, tables[0]
        repeated = [part[:, None].expand(-1, hidden.shape[1], -1) for part, _ in low_rank]
        return torch.cat([hidden @ self.projection, *repeated], dim=2), torch.cat(
            [tables[0], *(rows for _, rows in low_rank)], 1
        )

    def _separate_bias(
        self,
        context_bias: ContextBias,
        tables: Sequence[Tensor],
        pairs: Pairs | None,
        bucket_values: Tensor | None = None,
    ) -> Tensor | None:
        """Sum the adapted biases (B, U) that `_product` does not contain; return None if there are no such biases.

        `bucket_values` are the values (M, 1) of the buckets of `pairs`, if the caller has read them.
        """
        parts = self._parts(context_bias.features, tables)
        terms = [part @ coefficients.T for name, part, coefficients in parts if name not in LOW_RANK_BIASES]
        if pairs is not None and self.hashed is not None:
            terms.append(
                pairs.biases(F.embedding(pairs.buckets, self.hashed.weight) if bucket_values is None else bucket_values)
            )
        return torch.stack(terms).sum(0) if len(terms) > 1 else terms[0] if terms else None

    def _pairs(self, context_bias: ContextBias) -> Pairs | None:
        """Return the pairs with a hashed bias for all tokens, or None without a hashed bias."""
        return None if self.hashed is None else self.hashed.pairs(context_bias.categories)
