"""Hidden states to logits: tied embeddings, a projection, and a softmax bias that the context shifts.

    logits = E P h + b + Q c + a(c)        (TACL 2018, equations 5 and 6; P is printed as L there)

Adapted biases of low rank are columns of one product, [P h, c] . [E, Q]; all others are summed up to a bias a (B, V) of
their own for every text.

Shapes: B texts, T steps, V vocabulary, E embedding, H hidden, F features, S samples, U tokens that a step reads.
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

BIASES_AT_ONCE = 1 << 21  # of texts and tokens


@dataclass(frozen=True)
class Samples:
    """Distinct negative `tokens` (S,); `log_inclusion` (V,) is how likely each token was among them."""

    tokens: Tensor
    log_inclusion: Tensor


class Proposal:
    """The unigram proposal of sampled softmax, from training counts (V,)."""

    def __init__(self, counts: Tensor, draws: int, device: torch.device | None = None) -> None:
        probability = counts.double().clamp(min=0) / counts.sum()
        inclusion = -torch.expm1(draws * torch.log1p(-probability))
        self.probability, self.draws = probability, draws
        self.log_inclusion = inclusion.clamp(min=1e-30).log().float().to(device)

    @classmethod
    def by_rank(cls, tokenizer: Tokenizer, draws: int, device: torch.device | None = None) -> "Proposal":
        """From the order of the vocabulary alone, as if the token of rank n were seen log((n + 2) / (n + 1)) times."""
        ranks = torch.arange(len(tokenizer), dtype=torch.double)
        counts = torch.log1p(1 / (ranks + 1))
        counts[tokenizer.specials.start] = 0
        return cls(counts, draws, device)

    def draw(self) -> Samples:
        """`draws` tokens with replacement, repeats dropped, from the processor's global random state.

        A token of unigram probability q is among them with probability 1 - (1 - q)^S.
        """
        tokens = torch.unique(torch.multinomial(self.probability, self.draws, replacement=True))
        return Samples(tokens.to(self.log_inclusion.device), self.log_inclusion)


@dataclass(frozen=True)
class ContextBias:
    """The input of the adapted biases in B contexts: `features` (B, F) and `categories` (B, C).

    `bias` (B, V), if it is there, is the whole softmax bias already.
    """

    features: Tensor
    categories: Tensor
    bias: Tensor | None = None

    def select(self, rows: Tensor) -> "ContextBias":
        """That of `rows` (B',), repeated where a row is named twice."""
        return ContextBias(self.features[rows], self.categories[rows], None if self.bias is None else self.bias[rows])


@dataclass(frozen=True)
class SampledRows:
    """The rows `used` (U,), ascending, of the token tables that a sampled step reads, and hashed `pairs` (B, U)."""

    used: Tensor
    pairs: Pairs | None

    @property
    def rows(self) -> list[Tensor]:
        """The rows of the token tables, and of the hash table if there is one: as `SoftmaxHead.row_tables`."""
        return [self.used] if self.pairs is None else [self.used, self.pairs.buckets]


# Values of the rows that a step reads: (U, .) of each token table, (M, 1) of the hash table.
RowValues = list[list[Tensor]]


class SoftmaxHead(Head):
    """A softmax over the token embeddings that the input layer uses too."""

    Options = SoftmaxOptions
    has_sampled_loss = True

    never: Tensor

    def __init__(self, options: SoftmaxOptions, embedding: nn.Parameter, sizes: HeadSizes) -> None:
        super().__init__(options, embedding, sizes)
        size, embedding_size = embedding.shape
        self.embedding = embedding
        self.projection = nn.Parameter(normal((sizes.vector_size, embedding_size), sizes.vector_size**-0.5))
        self.bias = nn.Parameter(torch.zeros(size))
        names = sizes.model.output_bias if sizes.schema.variables else ()
        self.adapters = nn.ModuleDict({name: TABLES[name](size, sizes) for name in names if name in TABLES})
        hashed = "hash" in names and sizes.schema.categories
        self.hashed = HashBias(size, options, sizes.schema) if hashed else None
        never = torch.zeros(size)
        never[sizes.specials.start] = -torch.inf  # a text starts once: the start token is never predicted
        self.register_buffer("never", never, persistent=False)

    def initialize(self, logs: Tensor) -> None:
        """Start from the log probabilities (V,) of the tokens."""
        self.bias.copy_(logs)

    def condition(self, vector: Tensor, parts: Sequence[Tensor], context: Context) -> ContextBias:
        """Compute the input of the adapted biases from context vectors (B, K), embeddings `parts` and the values."""
        features = [adapter(vector, parts, context) for adapter in self.adapters.values()]
        return ContextBias(torch.cat(features, dim=1) if features else vector[:, :0], context.categories)

    def fold(self, context_bias: ContextBias) -> ContextBias:
        """Sum all biases (B, V) of each context, which pays if many tokens share it."""
        bias = (self.bias + self.never).expand(len(context_bias.features), -1)
        for name, part, weight in self._parts(context_bias.features, self.tables()):
            if name in LOW_RANK_BIASES:
                bias = torch.addmm(bias, part, weight.T)
        apart = self._apart(context_bias, self.tables(), self._pairs(context_bias))
        return ContextBias(context_bias.features, context_bias.categories, bias if apart is None else bias + apart)

    def observe(self, tokens: NDArray[np.int64], categories: NDArray[np.int64]) -> None:
        """Add pairs of targets (N,) and the values (N, C) of their texts to the filter of the hashed bias."""
        if self.hashed is not None:
            self.hashed.observe(tokens, categories)

    def tables(self) -> list[Tensor]:
        """The tables with a row for every token, (V, E) and (V, F) in the order of the features."""
        return [self.embedding, *(cast(nn.Parameter, adapter.weight) for adapter in self.adapters.values())]

    def row_tables(self) -> list[list[nn.Parameter]]:
        """Tables of which a sampled step sees few rows, in groups that share them: by token, by bucket of the hash."""
        by_token = cast(list[nn.Parameter], self.tables())
        return [by_token] if self.hashed is None else [by_token, [self.hashed.weight]]

    def sampled_rows(self, tokens: Tensor, samples: Samples, categories: Tensor) -> SampledRows:
        """Return the rows that a step on texts `tokens` (B, T + 1) with `categories` (B, C) reads."""
        used = torch.unique(torch.cat([tokens.flatten(), samples.tokens]))
        return SampledRows(used, None if self.hashed is None else self.hashed.pairs(categories, used))

    def pack(self) -> PackedTable | None:
        """The token embeddings as `drawing.next_tokens` reads them; None where there is no compiled code."""
        return PackedTable.of(self.embedding.detach()) if library.usable(self.embedding) else None

    def log_probabilities(self, hidden: Tensor, context_bias: ContextBias) -> Tensor:
        """`hidden` (B, H) and `context_bias` of B contexts -> log probabilities (B, V) of the next token."""
        bias = self.fold(context_bias).bias if context_bias.bias is None else context_bias.bias
        return F.log_softmax(torch.addmm(cast(Tensor, bias), hidden @ self.projection, self.embedding.T), dim=-1)

    def nats(self, hidden: Tensor, targets: Tensor, context_bias: ContextBias) -> Tensor:
        """`hidden` (B, T, H), `targets` (B, T), `context_bias` of B contexts -> exact nats (B, T)."""
        tables = self.tables()
        values, table = self._product(hidden, context_bias.features, tables)
        bias = self.bias + self.never
        if self.hashed is None and all(name in LOW_RANK_BIASES for name in self.adapters):
            return softmax.nats(values.flatten(0, 1), table, bias, targets.flatten()).view(targets.shape)
        parts = []
        at_once = max(1, BIASES_AT_ONCE // len(self.embedding))
        for texts in torch.split(torch.arange(len(hidden), device=hidden.device), at_once):
            here = context_bias.select(texts)
            own = cast(Tensor, self._apart(here, tables, self._pairs(here))).add_(bias)
            parts.append(softmax.nats(values[texts].flatten(0, 1), table, own, targets[texts].flatten()))
        return torch.cat(parts).view(targets.shape)

    def sampled_nats(
        self,
        hidden: Tensor,
        targets: Tensor,
        context_bias: ContextBias,
        samples: Samples,
        reads: SampledRows,
        picked: RowValues,
    ) -> Tensor:
        """Nats (B, T) against `samples` only. `picked`: the rows that `reads` names; `targets` are places in `used`."""
        values, table = self._product(hidden, context_bias.features, picked[0])
        bias = self.bias.index_select(0, reads.used)
        apart = self._apart(context_bias, picked[0], reads.pairs, picked[-1][0])
        chosen, inclusion = torch.searchsorted(reads.used, samples.tokens), samples.log_inclusion[reads.used]
        bias = bias if apart is None else bias + apart
        nats = softmax.sampled_nats(values.flatten(0, 1), table, bias, targets.flatten(), chosen, inclusion)
        return nats.view(targets.shape)

    def _parts(self, features: Tensor, tables: Sequence[Tensor]) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Name, features (B, F) and coefficients (U, F) of each adapted bias, from its rows (U, F) of the `tables`."""
        parts = torch.split(features, [table.shape[1] for table in tables[1:]], 1)
        return zip(self.adapters, parts, tables[1:], strict=True)

    def _product(self, hidden: Tensor, features: Tensor, tables: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """[P h, f] (B, T, E + F) and [E, Q] (U, E + F), of the biases inside the product."""
        inside = [(part, rows) for name, part, rows in self._parts(features, tables) if name in LOW_RANK_BIASES]
        if not inside:
            return hidden @ self.projection, tables[0]
        wide = [part[:, None].expand(-1, hidden.shape[1], -1) for part, _ in inside]
        return torch.cat([hidden @ self.projection, *wide], dim=2), torch.cat([tables[0], *(q for _, q in inside)], 1)

    def _apart(
        self, context_bias: ContextBias, tables: Sequence[Tensor], pairs: Pairs | None, hashed: Tensor | None = None
    ) -> Tensor | None:
        """The sum (B, U) of the biases outside the product, None where there is none; `hashed`: values of `pairs`."""
        terms = [
            part @ rows.T
            for name, part, rows in self._parts(context_bias.features, tables)
            if name not in LOW_RANK_BIASES
        ]
        if pairs is not None and self.hashed is not None:
            terms.append(pairs.biases(F.embedding(pairs.buckets, self.hashed.weight) if hashed is None else hashed))
        return torch.stack(terms).sum(0) if len(terms) > 1 else terms[0] if terms else None

    def _pairs(self, context_bias: ContextBias) -> Pairs | None:
        return None if self.hashed is None else self.hashed.pairs(context_bias.categories)
