"""Choice of the next tokens: the most probable or sampled ones among those that constraints allow.

    p(w) ~ q(w) ** (1 / temperature)    over the allowed tokens, restricted to the `top_k` most probable tokens and then
                                        to the smallest set of most probable tokens that holds the share `top_p`

q is the distribution of the model. Log probabilities that are returned are those of the model without constraints.
`kernels.drawing` does the same in compiled code.

Shapes: N unfinished texts, t tokens of a text, S chosen tokens per text, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from factorcell import limits
from factorcell.config import UserError
from factorcell.data.vocabulary import Specials
from factorcell.model.kernels.drawing import ForbiddenTokens, SampleRequest, TokenRequest, TopRequest


@dataclass(frozen=True)
class Constraints:
    """Constraints on a text.

    Attributes:
        max_tokens: Maximum number of tokens, without the prompt.
        min_tokens: Minimum number of tokens, without the prompt.
        banned: Tokens that are never written.
        no_repeat_ngram: No n-gram of this size occurs twice, the prompt included; 0 permits repetitions.
        stops: Token sequences that finish a text.
        end: The end token.

    Raises:
        UserError: A number is out of range.
    """

    max_tokens: int = 100
    min_tokens: int = 0
    banned: tuple[int, ...] = (Specials().unknown,)
    no_repeat_ngram: int = 0
    stops: tuple[tuple[int, ...], ...] = ()
    end: int = Specials().end

    def __post_init__(self) -> None:
        limits.check(max_tokens=self.max_tokens, min_tokens=self.min_tokens, no_repeat_ngram=self.no_repeat_ngram)
        if self.min_tokens > self.max_tokens:
            numbers = f"min_tokens is {self.min_tokens}, max_tokens is {self.max_tokens}"
            raise UserError(f"{numbers}; min_tokens must be at most max_tokens")

    def forbid(self, logs: Tensor, tokens: Tensor, length: int) -> Tensor:
        """Set the log probabilities of forbidden tokens to -inf; if all tokens are forbidden, the text may end.

        Args:
            logs: Log probabilities (N, V), which are changed in place.
            tokens: The texts so far (N, t).
            length: Number of tokens after the prompt.
        """
        if self.banned:
            logs.index_fill_(1, tokens.new_tensor(self.banned), -torch.inf)
        if self.no_repeat_ngram:
            texts, repetitions = repeated_ngrams(tokens, self.no_repeat_ngram)
            logs[texts, repetitions] = -torch.inf
        end_logs = logs[:, self.end].clone()
        if length < self.min_tokens:
            logs[:, self.end] = -torch.inf
        is_stuck = torch.isneginf(logs.amax(1))
        logs[is_stuck, self.end] = end_logs[is_stuck].clamp(min=torch.finfo(logs.dtype).min)
        return logs

    def forbidden_tokens(self, tokens: Tensor, length: int) -> ForbiddenTokens:
        """Return the tokens that `forbid` forbids, for the compiled code."""
        none = tokens.new_zeros(0)
        texts, repetitions = repeated_ngrams(tokens, self.no_repeat_ngram) if self.no_repeat_ngram else (none, none)
        return ForbiddenTokens((*self.banned, *[self.end] * (length < self.min_tokens)), texts, repetitions, self.end)

    def ends_with_stop(self, tokens: Tensor, length: int) -> Tensor:
        """Return which texts `tokens` (N, t) end with a stop (N,) that is part of the last `length` tokens."""
        has_stop = torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
        for stop in self.stops:
            if 0 < len(stop) <= length:
                has_stop |= (tokens[:, -len(stop) :] == tokens.new_tensor(stop)).all(1)
        return has_stop


def repeated_ngrams(tokens: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Return texts and next tokens that would repeat an n-gram of `tokens` (N, t), without the start token."""
    tokens = tokens[:, 1:]
    ngrams = tokens.shape[1] - n + 1
    if ngrams < 1:
        return tokens.new_zeros(0), tokens.new_zeros(0)
    last = tokens[:, tokens.shape[1] - n + 1 :]
    is_same = torch.ones_like(tokens[:, :ngrams], dtype=torch.bool)
    for offset in range(n - 1):
        is_same &= tokens[:, offset : offset + ngrams] == last[:, offset, None]
    texts, ngram = is_same.nonzero(as_tuple=True)
    return texts, tokens[texts, ngram + n - 1]


@dataclass(frozen=True)
class Sampler:
    """How tokens are sampled.

    Attributes:
        temperature: Low temperatures prefer probable tokens.
        top_k: Sample among this number of most probable tokens; 0 means all.
        top_p: Sample among the most probable tokens that together hold this share; 1 means all.

    Raises:
        UserError: A number is out of range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        limits.check(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)

    def draws(self, places: Tensor) -> SampleRequest:
        """Return the request for the tokens at `places` (N, S) in [0, 1) of the cumulative distribution."""
        return SampleRequest(places, self.temperature, self.top_k, self.top_p)


def choose_tokens(request: TokenRequest, logs: Tensor) -> Tensor:
    """Return the requested tokens (N, S) for log probabilities (N, V), which are -inf for forbidden tokens."""
    if isinstance(request, TopRequest):
        return logs.topk(min(request.count, logs.shape[1]), dim=1).indices
    return draw_tokens(drawing_weights(request, logs), request.places)


def drawing_weights(request: SampleRequest, logs: Tensor) -> Tensor:
    """Return the sampling weights (N, V) for log probabilities (N, V): 0 for excluded tokens."""
    if request.temperature != 1:
        tiny = torch.finfo(logs.dtype).tiny  # smaller temperatures could underflow to 0
        logs = (logs - logs.amax(1, keepdim=True)) / max(request.temperature, tiny)
    if request.top_k and request.top_k < logs.shape[1]:
        min_log_prob = logs.topk(request.top_k, dim=1).values[:, -1:]
        logs = logs.masked_fill(logs < min_log_prob, -torch.inf)
    weights = logs.exp()
    if request.top_p == 1:
        return weights
    largest = weights.sort(dim=1, descending=True).values
    sum_before = largest.cumsum(1, dtype=torch.double) - largest
    min_sum = request.top_p * weights.sum(1, keepdim=True, dtype=torch.double)
    count = (sum_before < min_sum).sum(1, keepdim=True)
    return weights.masked_fill(weights < largest.gather(1, (count - 1).clamp(min=0)), 0.0)


def draw_tokens(weights: Tensor, places: Tensor) -> Tensor:
    """Return the tokens (N, S) at `places` (N, S) in [0, 1) of the cumulative sum of `weights` (N, V)."""
    sums = weights.cumsum(1, dtype=torch.double)
    last = (sums < sums[:, -1:]).sum(1, keepdim=True)  # the last token with a weight, in spite of rounding
    return torch.minimum(torch.searchsorted(sums, places * sums[:, -1:], right=True), last)
