"""Hidden states to logits: tied embeddings, a projection, and a softmax bias that the context shifts.

    logits = E P h + b + Q c        (TACL 2018, equations 5 and 6; P is printed as L there)

Every adapted bias is linear in features f of the context (c itself, or one unit vector a category), so that all logits
are one product, [P h, f] . [E, Q].

Shapes: B texts, T steps, V vocabulary, E embedding, H hidden, K context, F features, S samples.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from factorcell import softmax
from factorcell.context import Context, ContextSchema
from factorcell.vocabulary import START


class LowRankBias(nn.Module):
    """Q c: a low-rank stand-in for one bias vector per context (TACL 2018, equation 6)."""

    def __init__(self, vocabulary_size: int, context_size: int, schema: ContextSchema) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(vocabulary_size, context_size))

    def forward(self, vector: Tensor, context: Context) -> Tensor:
        """Features (B, K): the context vector."""
        return vector


class OneHotBias(nn.Module):
    """A bias vector of its own for every value of every categorical variable (TACL 2018, section 2.3)."""

    def __init__(self, vocabulary_size: int, context_size: int, schema: ContextSchema) -> None:
        super().__init__()
        self.schema = schema
        values = sum(len(variable.values) for variable in schema.categories)
        self.weight = nn.Parameter(torch.zeros(vocabulary_size, values))

    def forward(self, vector: Tensor, context: Context) -> Tensor:
        """Features (B, F): 1 for the value of each variable; its frequencies where it is missing."""
        parts = [vector[:, :0]]
        for column, variable in enumerate(self.schema.categories):
            rows = context.categories[:, column, None]
            known = vector.new_zeros(len(vector), len(variable.values)).scatter_(1, rows.clamp(min=0), 1.0)
            parts.append(torch.where(rows < 0, vector.new_tensor(variable.frequencies()), known))
        return torch.cat(parts, dim=1)


BIASES: dict[str, Callable[[int, int, ContextSchema], nn.Module]] = {
    "low_rank": LowRankBias,
    "one_hot": OneHotBias,
}


@dataclass(frozen=True)
class Samples:
    """Distinct negative `tokens` (S,) of a batch, and `log_inclusion` (V,), how likely each token was among them."""

    tokens: Tensor
    log_inclusion: Tensor

    def used(self, texts: Tensor) -> Tensor:
        """The tokens (U,), ascending, that a step on `texts` (B, T + 1) needs: theirs and the samples."""
        used: Tensor = torch.unique(torch.cat([texts.flatten(), self.tokens]))
        return used


class Proposal:
    """The unigram proposal of sampled softmax, from training counts (V,)."""

    def __init__(self, counts: Tensor, draws: int, device: torch.device | None = None) -> None:
        probability = counts.double().clamp(min=0) / counts.sum()
        inclusion = -torch.expm1(draws * torch.log1p(-probability))
        self.probability, self.draws = probability, draws
        self.log_inclusion = inclusion.clamp(min=1e-30).log().float().to(device)

    def draw(self) -> Samples:
        """`draws` tokens with replacement, repeats dropped, from the processor's global random state.

        A token of unigram probability q is among them with probability 1 - (1 - q)^S.
        """
        tokens = torch.unique(torch.multinomial(self.probability, self.draws, replacement=True))
        return Samples(tokens.to(self.log_inclusion.device), self.log_inclusion)


class Output(nn.Module):
    """The softmax layer over the token embeddings that the input layer uses too."""

    never: Tensor

    def __init__(
        self,
        embedding: nn.Parameter,
        hidden_size: int,
        context_size: int,
        schema: ContextSchema,
        output_bias: tuple[str, ...],
    ) -> None:
        super().__init__()
        size, embedding_size = embedding.shape
        self.embedding = embedding
        self.projection = nn.Parameter(torch.randn(hidden_size, embedding_size) * hidden_size**-0.5)
        self.bias = nn.Parameter(torch.zeros(size))
        self.adapters = nn.ModuleDict({name: BIASES[name](size, context_size, schema) for name in output_bias})
        never = torch.zeros(size)
        never[START] = -torch.inf  # a text starts once: the start token is never predicted
        self.register_buffer("never", never, persistent=False)

    def features(self, vector: Tensor, context: Context) -> Tensor:
        """What of B contexts the adapted biases are linear in (B, F); F is 0 without any."""
        parts = [adapter(vector, context) for adapter in self.adapters.values()]
        return torch.cat(parts, dim=1) if parts else vector[:, :0]

    def tables(self) -> list[nn.Parameter]:
        """The tables with a row for every token, (V, E) and (V, F) in the order of the features."""
        return [self.embedding, *(cast(nn.Parameter, adapter.weight) for adapter in self.adapters.values())]

    def log_probabilities(self, hidden: Tensor, features: Tensor) -> Tensor:
        """`hidden` (B, H) and `features` (B, F) -> log probabilities (B, V) of the next token."""
        logits = torch.addmm(self.bias + self.never, hidden @ self.projection, self.embedding.T)
        weights = self.tables()[1:]
        sizes = [weight.shape[1] for weight in weights]
        for part, weight in zip(torch.split(features, sizes, 1), weights, strict=True):
            logits = torch.addmm(logits, part, weight.T)
        return F.log_softmax(logits, dim=-1)

    def nats(self, hidden: Tensor, targets: Tensor, features: Tensor) -> Tensor:
        """`hidden` (B, T, H), `targets` (B, T), `features` (B, F) -> exact nats (B, T)."""
        values = self._values(hidden, features).flatten(0, 1)
        return softmax.nats(values, self._table(), self.bias + self.never, targets.flatten()).view(targets.shape)

    def sampled_nats(
        self, hidden: Tensor, targets: Tensor, features: Tensor, samples: Samples, used: Tensor, tables: list[Tensor]
    ) -> Tensor:
        """Nats (B, T) against `samples` only. `tables`: rows `used` (U,) of `self.tables()`, of which are `targets`."""
        values, chosen = self._values(hidden, features).flatten(0, 1), torch.searchsorted(used, samples.tokens)
        bias, inclusion = self.bias.index_select(0, used), samples.log_inclusion[used]
        nats = softmax.sampled_nats(values, torch.cat(tables, dim=1), bias, targets.flatten(), chosen, inclusion)
        return nats.view(targets.shape)

    def _table(self) -> Tensor:
        return torch.cat([*self.tables()], dim=1) if self.adapters else self.embedding

    def _values(self, hidden: Tensor, features: Tensor) -> Tensor:
        """[P h, f] (B, T, E + F)."""
        wide = features[:, None].expand(-1, hidden.shape[1], -1)
        return torch.cat([hidden @ self.projection, wide], dim=2)
