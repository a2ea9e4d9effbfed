"""Hidden states to logits: tied embeddings, a projection, and a softmax bias that the context shifts.

    logits = E P h + b + Q c        (TACL 2018, equations 5 and 6; P is printed as L there)

Shapes: B texts, T steps, V vocabulary, E embedding, H hidden, K context, S samples.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from factorcell.context import Context, ContextSchema
from factorcell.vocabulary import START

CHUNK = 4_000_000  # logits made at once where no gradient is needed


class LowRankBias(nn.Module):
    """Q c: a low-rank stand-in for one bias vector per context (TACL 2018, equation 6)."""

    def __init__(self, vocabulary_size: int, context_size: int, schema: ContextSchema) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(vocabulary_size, context_size))

    def forward(self, vector: Tensor, context: Context, tokens: Tensor | None = None) -> Tensor:
        """The bias of all tokens (B, V), of `tokens` (S,) as (B, S), or of each text's own `tokens` (B, T)."""
        if tokens is None:
            return vector @ self.weight.T
        if tokens.dim() == 1:
            return vector @ self.weight[tokens].T
        return (self.weight[tokens] @ vector[:, :, None])[:, :, 0]


class OneHotBias(nn.Module):
    """A bias vector of its own for every value of every categorical variable (TACL 2018, section 2.3)."""

    def __init__(self, vocabulary_size: int, context_size: int, schema: ContextSchema) -> None:
        super().__init__()
        sizes = [len(variable.values) for variable in schema.categories]
        self.tables = nn.ParameterList([torch.zeros(size, vocabulary_size) for size in sizes])
        self.schema, self.size = schema, vocabulary_size

    def forward(self, vector: Tensor, context: Context, tokens: Tensor | None = None) -> Tensor:
        """As `LowRankBias.forward`; a missing value has the expected bias of its variable."""
        size = self.size if tokens is None else tokens.shape[-1]
        total = vector.new_zeros(len(vector), size)  # all there is, where every variable is a number
        for column, table in enumerate(self.tables):
            rows = context.categories[:, column]
            expected = table.new_tensor(self.schema.categories[column].frequencies())
            if tokens is not None and tokens.dim() == 2:
                known = table[rows.clamp(min=0)[:, None], tokens]
                missing = (expected @ table)[tokens] if bool((rows < 0).any()) else known
            else:
                part = table if tokens is None else table[:, tokens]
                known = part[rows.clamp(min=0)]
                missing = expected @ part if bool((rows < 0).any()) else known
            total = total + torch.where(rows[:, None] < 0, missing, known)
        return total


BIASES: dict[str, Callable[[int, int, ContextSchema], nn.Module]] = {
    "low_rank": LowRankBias,
    "one_hot": OneHotBias,
}


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

    def context_bias(self, vector: Tensor, context: Context, tokens: Tensor | None = None) -> Tensor | None:
        """The sum of all adapted biases: (B, V), (B, S) or (B, T) as `LowRankBias.forward`; None without any."""
        parts = [adapter(vector, context, tokens) for adapter in self.adapters.values()]
        return torch.stack(parts).sum(0) if parts else None

    def log_probabilities(self, hidden: Tensor, context_bias: Tensor | None) -> Tensor:
        """`hidden` (B, H) and a bias (B, V) -> log probabilities (B, V) of the next token."""
        logits = torch.addmm(self.bias + self.never, hidden @ self.projection, self.embedding.T)
        return F.log_softmax(logits if context_bias is None else logits + context_bias, dim=-1)

    def nats(self, hidden: Tensor, targets: Tensor, context_bias: Tensor | None) -> Tensor:
        """`hidden` (B, T, H), `targets` (B, T), bias (B, V) -> exact nats (B, T)."""
        bias = (self.bias + self.never).expand(len(hidden), -1) if context_bias is None else context_bias + self.bias
        if torch.is_grad_enabled():
            return self._nats(hidden, targets, bias)
        rows = max(1, CHUNK // (targets.shape[1] * len(self.bias)))  # so many logits stay in the processor's cache
        parts = zip(torch.split(hidden, rows), torch.split(targets, rows), torch.split(bias, rows), strict=True)
        return torch.cat([self._nats(*part) for part in parts])

    def _nats(self, hidden: Tensor, targets: Tensor, bias: Tensor) -> Tensor:
        logits = hidden @ self.projection @ self.embedding.T
        logits += (bias + self.never)[:, None]
        chosen = logits.gather(-1, targets[..., None])[..., 0]
        return torch.logsumexp(logits, dim=-1) - chosen

    def sampled_nats(
        self, hidden: Tensor, targets: Tensor, samples: "Samples", vector: Tensor, context: Context
    ) -> Tensor:
        """Nats (B, T) against shared `samples` only, logits corrected by their log inclusion probabilities.

        Sampled softmax (Jean et al. 2015) with distinct samples: a token of unigram probability q is among them with
        probability 1 - (1 - q)^S, and log of that is subtracted from its logit, the target's own included.
        """
        projected = hidden @ self.projection
        negative = projected @ self.embedding[samples.tokens].T
        negative = negative + (self.bias[samples.tokens] - samples.log_inclusion[samples.tokens])
        positive = (projected * self.embedding[targets]).sum(-1)
        positive = positive + self.bias[targets] - samples.log_inclusion[targets]
        if self.adapters:
            negative = negative + self._bias(vector, context, samples.tokens)[:, None]
            positive = positive + self._bias(vector, context, targets)
        negative = negative.masked_fill(samples.tokens == targets[..., None], -torch.inf)
        return torch.logaddexp(torch.logsumexp(negative, dim=-1), positive) - positive

    def _bias(self, vector: Tensor, context: Context, tokens: Tensor) -> Tensor:
        bias = self.context_bias(vector, context, tokens)
        assert bias is not None
        return bias


class Samples:
    """Distinct negative `tokens` (S',) of a batch, and `log_inclusion` (V,), how likely each token was among them."""

    def __init__(self, tokens: Tensor, log_inclusion: Tensor) -> None:
        self.tokens, self.log_inclusion = tokens, log_inclusion


class Proposal:
    """The unigram proposal of sampled softmax, from training counts (V,)."""

    def __init__(self, counts: Tensor, draws: int, device: torch.device | None = None) -> None:
        probability = counts.double().clamp(min=0) / counts.sum()
        inclusion = -torch.expm1(draws * torch.log1p(-probability))
        self.probability, self.draws = probability, draws
        self.log_inclusion = inclusion.clamp(min=1e-30).log().float().to(device)

    def draw(self) -> Samples:
        """`draws` tokens with replacement, repeats dropped, from the processor's global random state."""
        tokens = torch.unique(torch.multinomial(self.probability, self.draws, replacement=True))
        return Samples(tokens.to(self.log_inclusion.device), self.log_inclusion)
