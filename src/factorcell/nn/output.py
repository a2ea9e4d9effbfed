"""Heads, which turn vectors of a backbone into nats of targets and log probabilities of tokens; the softmax head.

    logits = E P h + b + a(c)                                  (TACL 2018, equations 5 and 6, where P is called L)

    low_rank        Q c                                        (TACL 2018, equation 6; thesis 2018, 2.6)
    low_rank_each   sum_i Q_i c_i                              (thesis, A.1)
    one_hot         sum_i A_i o_i                              (TACL 2018, section 2.3)
    sparse          sum_i A_i o_i, most of A_i zero            (thesis, A.2)
    hash            sum_i H[h_i(w, f_i)] bloom(w, f_i)         (thesis, 3.4 to 3.6; `hash_bias`)

E are the token embeddings of the input layer, P is a projection, b a bias per token and c the context vector. a(c) is
the sum of all biases that depend on the context: c_i is the embedding of variable i, and o_i its value as a unit
vector; Q, Q_i and A_i have a row of coefficients per token. The proximal steps of training (`training.proximal`) set
coefficients of a sparse bias to zero. The bias b + a(c) (B, V) is computed once for all tokens of a text. The product
[P h, c] . [E, Q] would compute Q c too, but it copies E, which takes longer.

Shapes: B texts, T steps, V vocabulary, E embedding, H hidden, K context, F features of a bias, C categorical variables,
S samples, N targets of training. A step of training with a sampled loss reads only U tokens and M buckets of the hash
table.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from factorcell.adapters.adapters import normal
from factorcell.config import EXTENSIBLE, KindOptions, ModelConfig, SoftmaxOptions, check_kind
from factorcell.data.columns.context import Context
from factorcell.data.columns.schema import MISSING, ContextSchema
from factorcell.data.tokenizers.tokenizer import Specials, Tokenizer
from factorcell.nn.hash_bias import BLOOM_SIZE, HASH_SIZE, HashBias, Pairs
from factorcell.nn.kernels import library, softmax
from factorcell.nn.kernels.drawing import PackedTable

MAX_BIASES = 1 << 25  # largest number of biases, one for each text and token, that are computed at once


@dataclass(frozen=True)
class HeadSizes:
    """Sizes, variables and special tokens that the rest of a model determines for its head.

    Attributes:
        vector_size: Size of the vectors of the backbone, H.
        model: The section `model` of the config, whose `output_bias` names the biases that depend on the context.
        schema: The context variables; empty if the head is not adapted.
        variable_sizes: Sizes of the embeddings of the context variables, in the order of the encoder.
        specials: The ids of special tokens. The start token is never predicted.
        is_pretrained: Whether the token embeddings are the output layer of a pretrained model, so that the logits are
            their products with the vectors.
        bias: The bias (V,) of that layer; None if it has none.
    """

    vector_size: int
    model: ModelConfig
    schema: ContextSchema
    variable_sizes: tuple[int, ...]
    specials: Specials
    is_pretrained: bool = False
    bias: Tensor | None = None


class Head(nn.Module):
    """Base class of heads.

    Args:
        options: An instance of `Options`, the options of this kind.
        embedding: The token embeddings (V, E) of the input layer, which a head may share; of a pretrained backbone,
            those of its output layer.
        sizes: Sizes, variables and special tokens that the rest of the model determines.
    """

    Options: ClassVar[type[KindOptions]] = KindOptions

    def __init__(self, options: Any, embedding: nn.Parameter, sizes: HeadSizes) -> None:
        super().__init__()

    def initialize(self, log_probs: Tensor) -> None:
        """Initialize the head from the log probabilities (V,) of the tokens; by default do nothing."""

    def observe(self, tokens: Any, categories: Any) -> None:
        """Receive the targets (N,) of training and the values (N, C) of their texts; by default do nothing."""

    def condition(self, vector: Tensor, parts: Sequence[Tensor], context: Context) -> Any:
        """Compute everything that B contexts determine in the head.

        Args:
            vector: Context vectors (B, K).
            parts: The embedding (B, size) of each variable.
            context: The values of the variables.

        Returns:
            `Conditions` of the head.
        """
        raise NotImplementedError

    def fold(self, conditions: Any) -> Any:
        """Return equivalent conditions with which scoring many tokens is faster; by default return `conditions`."""
        return conditions

    def nats(self, vectors: Tensor, targets: Tensor, conditions: Any) -> Tensor:
        """Return the exact nats (B, T) of `targets` (B, T), predicted by `vectors` (B, T, H)."""
        raise NotImplementedError

    def log_probabilities(self, vectors: Tensor, conditions: Any) -> Tensor:
        """Return log probabilities (B, V) of the next token, predicted by `vectors` (B, H)."""
        raise NotImplementedError

    def row_tables(self) -> list[list[nn.Parameter]]:
        """Return groups of tables of which a sampled loss reads some rows, the same in a group; by default none."""
        return []

    def pack(self) -> Any:
        """Return the weights in the form that compiled sampling reads; None if it does not support the head."""
        return None


def register_head(name: str, head: type[Head]) -> None:
    """Make a kind of head available to the option `head` in this process.

    Args:
        name: Kind of the head: lower-case letters, digits and underscores.
        head: Class that extends `Head` and has `Options` of this kind.

    Raises:
        UserError: The name is taken, or the class has no `Options` of this kind.
    """
    EXTENSIBLE["head"].register(name, head, check_kind)


class LowRankBias(nn.Module):
    """Q c: a low-rank approximation of one bias vector per context."""

    def __init__(self, vocabulary_size: int, sizes: HeadSizes) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(vocabulary_size, sizes.model.context_size))

    def forward(self, vector: Tensor, parts: Sequence[Tensor], context: Context) -> Tensor:
        """Return the features (B, K): the context vectors."""
        return vector


class LowRankEachBias(nn.Module):
    """The sum of Q_i c_i: each variable shifts the bias by its own embedding c_i, without the context vector."""

    def __init__(self, vocabulary_size: int, sizes: HeadSizes) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(vocabulary_size, sum(sizes.variable_sizes)))

    def forward(self, vector: Tensor, parts: Sequence[Tensor], context: Context) -> Tensor:
        """Return the features (B, F): the embeddings of all variables."""
        return torch.cat(list(parts), dim=1)


class OneHotBias(nn.Module):
    """The sum of A_i o_i: a coefficient for every pair of a token and a value of a categorical variable."""

    def __init__(self, vocabulary_size: int, sizes: HeadSizes) -> None:
        super().__init__()
        self.schema = sizes.schema
        column_count = sum(len(variable.values) for variable in self.schema.categories)
        self.weight = nn.Parameter(torch.zeros(vocabulary_size, column_count))

    def per_column(self, numbers: Sequence[float]) -> Tensor:
        """Return the number of each column (F,) of `weight`, given the `numbers` (C,) of the categorical variables."""
        counts = torch.tensor([len(variable.values) for variable in self.schema.categories])
        return torch.tensor(list(numbers)).repeat_interleave(counts)

    def count_nonzero(self) -> list[dict[str, Any]]:
        """Return a row for each categorical `variable`: how many `coefficients` it has, and how many are `nonzero`."""
        counts = [len(variable.values) for variable in self.schema.categories]
        nonzero = torch.split((self.weight.detach() != 0).sum(0), counts)
        return [
            {"variable": variable.name, "coefficients": len(self.weight) * count, "nonzero": int(column_counts.sum())}
            for variable, count, column_counts in zip(self.schema.categories, counts, nonzero, strict=True)
        ]

    def forward(self, vector: Tensor, parts: Sequence[Tensor], context: Context) -> Tensor:
        """Return the features (B, F): the unit vector of each value, or the value frequencies for a missing value."""
        features = [vector[:, :0]]  # no column: without categorical variables, the features are (B, 0)
        for column, variable in enumerate(self.schema.categories):
            value_ids = context.categories[:, column, None]
            unit_vectors = (value_ids == torch.arange(len(variable.values), device=vector.device)).to(vector.dtype)
            frequencies = vector.new_tensor(variable.frequencies())
            features.append(torch.where(value_ids == MISSING, frequencies, unit_vectors))
        return torch.cat(features, dim=1)


TABLES: dict[str, Callable[[int, HeadSizes], nn.Module]] = {
    "low_rank": LowRankBias,
    "low_rank_each": LowRankEachBias,
    "one_hot": OneHotBias,
    "sparse": OneHotBias,
}


class Samples(NamedTuple):
    """Negative samples of a sampled softmax."""

    tokens: Tensor  # distinct tokens (S,)
    log_inclusion: Tensor  # log probability (V,) that a token is among the samples


class Proposal:
    """The distribution from which a sampled softmax draws tokens, proportional to their `counts` (V,) in training."""

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
        """Draw `draws` tokens with replacement from the CPU generator of PyTorch; return the distinct ones."""
        tokens = torch.unique(torch.multinomial(self.probabilities, self.draws, replacement=True))
        return Samples(tokens.to(self.log_inclusion.device), self.log_inclusion)


@dataclass(frozen=True)
class ContextBias:
    """The inputs from which `SoftmaxHead` computes the adapted softmax biases of B contexts."""

    features: Tensor  # features (B, F) of the biases in `TABLES`
    categories: Tensor  # values of the categorical variables (B, C), for the hashed bias
    bias: Tensor | None = None  # the whole softmax bias (B, V), if `SoftmaxHead.fold` has computed it

    def select(self, rows: Tensor) -> "ContextBias":
        return ContextBias(self.features[rows], self.categories[rows], None if self.bias is None else self.bias[rows])


class SampledRows(NamedTuple):
    """The rows of parameter tables that a training step with a sampled loss reads."""

    tokens: Tensor  # the tokens (U,), ascending, whose rows the step reads in tables with a row per token
    pairs: Pairs | None  # the pairs of a value and one of these tokens that have a hashed bias, if there is such a bias

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

    start_mask: Tensor

    def __init__(self, options: SoftmaxOptions, embedding: nn.Parameter, sizes: HeadSizes) -> None:
        super().__init__(options, embedding, sizes)
        vocabulary_size, embedding_size = embedding.shape
        self.embedding, self.is_pretrained, self.projection = embedding, sizes.is_pretrained, None
        if not self.is_pretrained:
            self.projection = nn.Parameter(normal((sizes.vector_size, embedding_size), sizes.vector_size**-0.5))
        self.bias = nn.Parameter(torch.zeros(vocabulary_size) if sizes.bias is None else sizes.bias.clone())
        names = sizes.model.output_bias if sizes.schema.variables else ()  # of the adapted biases
        # Without adapted biases, a frozen base keeps its own, so that other programs can read the run as a plain LoRA.
        self.bias.requires_grad_(embedding.requires_grad or bool(names))
        self.adapters = nn.ModuleDict({name: TABLES[name](vocabulary_size, sizes) for name in names if name in TABLES})
        has_hash = "hash" in names and bool(sizes.schema.categories)
        self.hashed = HashBias(vocabulary_size, sizes.schema, *self.hash_sizes(options)) if has_hash else None
        start_mask = torch.zeros(vocabulary_size)
        start_mask[sizes.specials.start] = -torch.inf  # the start token is never predicted
        self.register_buffer("start_mask", start_mask, persistent=False)

    @classmethod
    def hash_sizes(cls, options: SoftmaxOptions) -> tuple[int, int]:
        """Return the least number of buckets of the bias `hash`, and of bits of its filter; heads may override it."""
        return HASH_SIZE, BLOOM_SIZE

    def initialize(self, log_probs: Tensor) -> None:
        """Set the bias to the log probabilities (V,) of the tokens, unless the head is pretrained."""
        if not self.is_pretrained:
            self.bias.copy_(log_probs)

    def project(self, hidden: Tensor) -> Tensor:
        """Return P h (..., E) of hidden states (..., H); a pretrained head has no projection."""
        return hidden if self.projection is None else hidden @ self.projection

    def condition(self, vector: Tensor, parts: Sequence[Tensor], context: Context) -> ContextBias:
        features = [adapter(vector, parts, context) for adapter in self.adapters.values()]
        return ContextBias(torch.cat(features, dim=1) if features else vector[:, :0], context.categories)

    def fold(self, context_bias: ContextBias) -> ContextBias:
        """Compute the whole bias (B, V) of each context once, which saves time if many tokens share the context."""
        bias = self._bias(context_bias, self.tables(), self.bias + self.start_mask)
        return replace(context_bias, bias=bias.expand(context_bias.features.shape[0], -1))

    def observe(self, tokens: NDArray[np.int64], categories: NDArray[np.int64]) -> None:
        if self.hashed is not None:
            self.hashed.observe(tokens, categories)

    def tables(self) -> list[Tensor]:
        """Return the tables with a row per token: (V, E), then (V, F) of each bias in the order of the features."""
        return [self.embedding, *(cast(nn.Parameter, adapter.weight) for adapter in self.adapters.values())]

    def row_tables(self) -> list[list[nn.Parameter]]:
        """Return the tables with a row per token, then the hash table if there is a hashed bias."""
        by_token = cast(list[nn.Parameter], self.tables())
        return [by_token] if self.hashed is None else [by_token, [self.hashed.weight]]

    def sampled_rows(self, tokens: Tensor, samples: Samples, categories: Tensor) -> SampledRows:
        """Return the rows that a training step on `tokens` in contexts with `categories` (B, C) reads."""
        read_tokens = torch.unique(torch.cat([tokens.flatten(), samples.tokens]))
        return SampledRows(read_tokens, None if self.hashed is None else self.hashed.pairs(categories, read_tokens))

    def pack(self) -> PackedTable | None:
        return PackedTable.of(self.embedding.detach()) if library.supports(self.embedding) else None

    def log_probabilities(self, hidden: Tensor, context_bias: ContextBias) -> Tensor:
        bias = self.fold(context_bias).bias if context_bias.bias is None else context_bias.bias
        return F.log_softmax(torch.addmm(cast(Tensor, bias), self.project(hidden), self.embedding.T), dim=-1)

    def nats(self, hidden: Tensor, targets: Tensor, context_bias: ContextBias) -> Tensor:
        tables, shared_bias = self.tables(), self.bias + self.start_mask
        arrays = torch.arange(len(hidden), device=hidden.device), self.project(hidden), targets
        parts = (torch.split(array, max(1, MAX_BIASES // len(self.embedding))) for array in arrays)
        nats = []
        for texts, vectors, part_targets in zip(*parts, strict=True):
            bias = self._bias(context_bias.select(texts), tables, shared_bias)
            nats.append(softmax.nats(vectors.flatten(0, 1), self.embedding, bias, part_targets.flatten()))
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
        """Return the nats (B, T) of targets in a softmax over the target and `samples` only, a loss for training."""
        token_tables, *bucket_tables = row_values
        shared_bias = self.bias.index_select(0, sampled_rows.tokens)
        hashed = None if sampled_rows.pairs is None else sampled_rows.pairs.biases(bucket_tables[0][0])
        bias = self._bias(context_bias, token_tables, shared_bias, hashed)
        sample_columns = torch.searchsorted(sampled_rows.tokens, samples.tokens)
        log_inclusion = samples.log_inclusion[sampled_rows.tokens]
        nats = softmax.sampled_nats(
            self.project(hidden).flatten(0, 1), token_tables[0], bias, targets.flatten(), sample_columns, log_inclusion
        )
        return nats.view(targets.shape)

    def _bias(
        self, context_bias: ContextBias, tables: Sequence[Tensor], shared_bias: Tensor, hashed: Tensor | None = None
    ) -> Tensor:
        """Return the bias (U,) of U tokens, or its sum with the adapted biases (B, U).

        `tables` are those of the method for these tokens, and `hashed` their hashed biases (B, U), by default those of
        all tokens.
        """
        _, *coefficient_tables = tables
        features_by_bias = torch.split(context_bias.features, [table.shape[1] for table in coefficient_tables], 1)
        bias = shared_bias
        for features, coefficients in zip(features_by_bias, coefficient_tables, strict=True):
            bias = bias + features @ coefficients.T
        if self.hashed is None:
            return bias
        return bias + (self.hashed(context_bias.categories) if hashed is None else hashed)
