"""The adaptive softmax (Grave et al. 2017): frequent tokens at full width, clusters of rarer ones at less.

    p(w) = p_head(w)                 of the S most frequent tokens, which stand before the first cutoff
    p(w) = p_head(i) p_i(w)          of the tokens in cluster i, from one cutoff to the next

    p_head = softmax([E, K] P h + Q f + b)
    p_i    = softmax(E_i (N_i P h + Q_i f) + b_i)

The embeddings stay tied to those of the input layer: E holds those of the head's tokens, E_i the first d_i numbers of
those of a cluster, d_i = E / shrink^i. K has a row for every cluster. f are the features of the context, which shifts
the logits of the head and, in d_i directions, those of a cluster.

Shapes: B texts, T steps, V vocabulary, S tokens of the head, C clusters, E embedding, H hidden, F features.
"""

import itertools
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from factorcell.config import ModelConfig, UserError
from factorcell.data.context import Context
from factorcell.data.schema import ContextSchema
from factorcell.data.vocabulary import END, START
from factorcell.model.initial import normal
from factorcell.model.kernels import softmax
from factorcell.model.output import ContextBias
from factorcell.model.output_bias import TABLES

SHARES = (16, 4)  # without cutoffs given: the head has a 16th of the vocabulary, the first cluster goes up to a quarter


def cutoffs(given: Sequence[str], size: int) -> list[int]:
    """Where the clusters of a vocabulary of `size` tokens begin; `UserError` where that is beyond it."""
    found = [int(item) for item in given] or [size // share for share in SHARES if size // share > END]
    if given and found[-1] >= size:
        raise UserError(f"cutoffs are {', '.join(given)}; they must lie below {size}, the size of the vocabulary")
    return found


def cluster_widths(width: int, shrink: float, clusters: int) -> list[int]:
    """The size of the embeddings in each of so many clusters, whose head has embeddings of `width`."""
    return [max(1, int(width / shrink**place)) for place in range(1, clusters + 1)]


class AdaptiveOutput(nn.Module):
    """A softmax layer like `output.Output`, a model of its own: its nats are exact, and its loss is never sampled."""

    hashed = None  # of the adapted biases only those of low rank: a cluster has no room for others
    never: Tensor
    starts: Tensor

    def __init__(
        self, embedding: nn.Parameter, config: ModelConfig, schema: ContextSchema, sizes: Sequence[int] | None
    ) -> None:
        """`sizes` are those of the embeddings of the context variables; None: nothing is adapted."""
        super().__init__()
        size, width = embedding.shape
        starts = cutoffs(config.cutoffs, size)
        self.counts = [end - begin for begin, end in itertools.pairwise((0, *starts, size))]
        self.widths = cluster_widths(width, config.shrink, len(starts))
        self.embedding = embedding
        self.projection = nn.Parameter(normal((config.hidden_size, width), config.hidden_size**-0.5))
        self.clusters = nn.Parameter(normal((len(starts), width), width**-0.5))
        self.narrow = nn.Parameter(normal((width, sum(self.widths)), width**-0.5))
        self.bias = nn.Parameter(torch.zeros(size + len(starts)))  # of all tokens, then of the clusters
        self.classes = self.counts[0] + len(starts)  # of the head
        rows = self.classes + sum(self.widths)  # what a context shifts
        names = () if sizes is None else config.output_bias
        self.adapters = nn.ModuleDict({name: TABLES[name](rows, config, schema, sizes or ()) for name in names})
        never = torch.zeros(self.classes)
        never[START] = -torch.inf  # a text starts once: the start token is never predicted
        self.register_buffer("never", never, persistent=False)
        self.register_buffer("starts", torch.tensor(starts, dtype=torch.long), persistent=False)

    def begin(self, logs: Tensor) -> None:
        """Start from the log probabilities (V,) of the tokens; that of a cluster is the sum of its own."""
        shares = [own.logsumexp(0, keepdim=True) for own in torch.split(logs, self.counts)[1:]]
        self.bias.copy_(torch.cat([logs, *shares]))

    def context_bias(self, vector: Tensor, parts: Sequence[Tensor], context: Context) -> ContextBias:
        """The features of B contexts: of vectors (B, K), `parts` of each variable, the values."""
        features = [adapter(vector, parts, context) for adapter in self.adapters.values()]
        return ContextBias(torch.cat([vector[:, :0], *features], dim=1), context.categories)

    def fold(self, context_bias: ContextBias) -> ContextBias:
        """The same: the features are a few columns of the products, and there is nothing to sum up before."""
        return context_bias

    def row_tables(self) -> list[list[nn.Parameter]]:
        """What has a row a token, a cluster or a direction of one, and a learning rate of its own."""
        return [[self.embedding, self.clusters, *self._adapted()]]

    def pack(self) -> None:
        """There is no compiled code for clusters."""

    def log_probabilities(self, hidden: Tensor, context_bias: ContextBias) -> Tensor:
        """`hidden` (B, H) and `context_bias` of B contexts -> log probabilities (B, V) of the next token."""
        layers = self._layers(hidden[:, None], context_bias)
        head, *within = [
            F.log_softmax(torch.addmm(bias, values[:, 0], table.T), dim=-1) for values, table, bias in layers
        ]
        tokens, clusters = torch.split(head, [self.counts[0], len(within)], dim=1)
        return torch.cat([tokens, *(logs + clusters[:, i, None] for i, logs in enumerate(within))], dim=1)

    def nats(self, hidden: Tensor, targets: Tensor, context_bias: ContextBias) -> Tensor:
        """`hidden` (B, T, H), `targets` (B, T), `context_bias` of B contexts -> exact nats (B, T)."""
        (values, table, bias), *clusters = self._layers(hidden, context_bias)
        wanted = targets.flatten()
        cluster = torch.bucketize(wanted, self.starts, right=True)  # 0: the head
        classes = torch.where(cluster == 0, wanted, self.counts[0] + cluster - 1)
        nats = softmax.nats(values.flatten(0, 1), table, bias, classes)
        for place, (values, table, bias) in enumerate(clusters):
            rows = (cluster == place + 1).nonzero()[:, 0]
            own = softmax.nats(
                values.flatten(0, 1).index_select(0, rows), table, bias, wanted[rows] - self.starts[place]
            )
            nats = nats.index_add(0, rows, own)
        return nats.view(targets.shape)

    def _layers(self, hidden: Tensor, context_bias: ContextBias) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Of the head and each cluster what comes in (B, T, .), its table and its bias, from `hidden` (B, T, H)."""
        words = torch.split(self.embedding, self.counts)  # all at once: each slice would have a gradient of all rows
        *biases, of_clusters = torch.split(self.bias, [*self.counts, len(self.clusters)])
        biases[0] = torch.cat([biases[0], of_clusters]) + self.never
        shifts = torch.cat([self.bias.new_zeros(self.classes + sum(self.widths), 0), *self._adapted()], dim=1)
        shift, narrow_shift = torch.split(shifts, [self.classes, sum(self.widths)])
        projected, features = hidden @ self.projection, context_bias.features[:, None].expand(*hidden.shape[:2], -1)
        narrow = projected @ self.narrow + features @ narrow_shift.T
        head = torch.cat([torch.cat([words[0], self.clusters]), shift], dim=1)
        tables = [head, *(rows[:, :width] for rows, width in zip(words[1:], self.widths, strict=True))]
        values = torch.cat([projected, features, narrow], dim=2)
        return list(zip(torch.split(values, [head.shape[1], *self.widths], 2), tables, biases, strict=True))

    def _adapted(self) -> list[nn.Parameter]:
        """The tables (S + C + all d_i, F) of the adapted biases."""
        return [cast(nn.Parameter, adapter.weight) for adapter in self.adapters.values()]
