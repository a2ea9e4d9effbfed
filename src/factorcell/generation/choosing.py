"""Choice of the next tokens of generated texts: the most probable ones, or sampled ones.

    p(w) = q(w) ** (1 / temperature) / Z

q(w) is the probability of the token w under the model. A token is sampled with the probability p(w), and Z makes these
probabilities sum to 1. A sampled token is one of the tokens that the constraints allow, among the `top_k` most probable
of them, and in the smallest set of most probable tokens whose probabilities p(w) sum to at least `top_p`.
`kernels.drawing` does the same in compiled code.

Shapes: N unfinished texts, t tokens of a text, S chosen tokens per text, V vocabulary, M forbidden pairs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from factorcell.data.tokenizers.vocabulary import Specials
from factorcell.nn.kernels.drawing import ForbiddenTokens, SampleRequest, TokenRequest, TopRequest


@dataclass(frozen=True)
class Constraints:
    """Constraints on the length and the tokens of a generated text.

    Attributes:
        max_tokens: Maximum number of tokens, without the prompt.
        min_tokens: Minimum number of tokens, without the prompt.
        banned: Tokens that no generated text contains.
        no_repeat_ngram: No sequence of this many tokens occurs twice in the prompt and the text; 0 permits repetitions.
        stops: Token sequences after which a text ends.
        end: The end token.
    """

    max_tokens: int = 100
    min_tokens: int = 0
    banned: tuple[int, ...] = (Specials().unknown,)
    no_repeat_ngram: int = 0
    stops: tuple[tuple[int, ...], ...] = ()
    end: int = Specials().end

    def forbid(self, log_probs: Tensor, tokens: Tensor, length: int) -> Tensor:
        """Set the log probabilities of forbidden tokens to -inf; if all tokens are forbidden, allow the end token.

        Args:
            log_probs: Log probabilities of the next token (N, V); they are changed in place.
            tokens: The texts so far (N, t).
            length: Number of tokens of each text after the prompt.
        """
        forbidden = self.forbidden_tokens(tokens, length)
        if self.banned:
            log_probs.index_fill_(1, tokens.new_tensor(self.banned), -torch.inf)
        log_probs[forbidden.rows, forbidden.tokens] = -torch.inf
        end_log_probs = log_probs[:, self.end].clone()
        if length < self.min_tokens:
            log_probs[:, self.end] = -torch.inf
        must_end = torch.isneginf(log_probs.amax(1))  # all tokens are forbidden
        # The end token needs a finite log probability to be chosen.
        log_probs[must_end, self.end] = end_log_probs[must_end].clamp(min=torch.finfo(log_probs.dtype).min)
        return log_probs

    def forbidden_tokens(self, tokens: Tensor, length: int) -> ForbiddenTokens:
        """Return the tokens that are forbidden after the texts `tokens` (N, t), `length` of them after the prompt."""
        rows = next_tokens = tokens.new_zeros(0)
        if self.no_repeat_ngram:
            rows, next_tokens = repeating_tokens(tokens, self.no_repeat_ngram)
        banned = (*self.banned, self.end) if length < self.min_tokens else self.banned
        return ForbiddenTokens(banned, rows, next_tokens, self.end)

    def is_finished(self, tokens: Tensor, length: int) -> Tensor:
        """Return whether each of the texts (N, t) has ended (N,), `length` tokens after the prompt."""
        is_finished: Tensor = tokens[:, -1] == self.end
        for stop in self.stops:
            if 0 < len(stop) <= length:
                is_finished = is_finished | (tokens[:, -len(stop) :] == tokens.new_tensor(stop)).all(1)
        return is_finished


def repeating_tokens(tokens: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Return the next tokens that would repeat an n-gram of their text.

    Args:
        tokens: The texts with the start token (N, t), which is not part of any n-gram.
        n: The length of n-grams.

    Returns:
        For each forbidden pair, the row of its text in `tokens` (M,) and the next token (M,).
    """
    tokens = tokens[:, 1:]
    ngram_count = tokens.shape[1] - n + 1
    if ngram_count < 1:
        return tokens.new_zeros(0), tokens.new_zeros(0)
    last_tokens = tokens[:, tokens.shape[1] - n + 1 :]  # the n - 1 tokens that begin the next n-gram
    # For each n-gram, whether its first n - 1 tokens are the same as `last_tokens`.
    has_same_start = torch.ones_like(tokens[:, :ngram_count], dtype=torch.bool)
    for offset in range(n - 1):
        has_same_start &= tokens[:, offset : offset + ngram_count] == last_tokens[:, offset, None]
    rows, ngram_starts = has_same_start.nonzero(as_tuple=True)
    return rows, tokens[rows, ngram_starts + n - 1]


def choose_tokens(request: TokenRequest, log_probs: Tensor) -> Tensor:
    """Return the requested tokens (N, S) for log probabilities (N, V), which are -inf for forbidden tokens."""
    if isinstance(request, TopRequest):
        return log_probs.topk(min(request.count, log_probs.shape[1]), dim=1).indices
    return draw_tokens(drawing_weights(request, log_probs), request.places)


def drawing_weights(request: SampleRequest, log_probs: Tensor) -> Tensor:
    """Return the sampling weights (N, V) for `log_probs` (N, V); weights of excluded tokens are 0."""
    if request.temperature != 1:
        tiny = torch.finfo(log_probs.dtype).tiny  # smaller temperatures could underflow to 0
        log_probs = (log_probs - log_probs.amax(1, keepdim=True)) / max(request.temperature, tiny)
    if request.top_k and request.top_k < log_probs.shape[1]:
        min_log_prob = log_probs.topk(request.top_k, dim=1).values[:, -1:]
        log_probs = log_probs.masked_fill(log_probs < min_log_prob, -torch.inf)
    weights = log_probs.exp()
    if request.top_p == 1:
        return weights
    sorted_weights = weights.sort(dim=1, descending=True).values
    sum_before = sorted_weights.cumsum(1, dtype=torch.double) - sorted_weights  # the sum of all larger weights
    min_sum = request.top_p * weights.sum(1, keepdim=True, dtype=torch.double)
    retained_count = (sum_before < min_sum).sum(1, keepdim=True)
    min_weight = sorted_weights.gather(1, (retained_count - 1).clamp(min=0))
    return weights.masked_fill(weights < min_weight, 0.0)


def draw_tokens(weights: Tensor, places: Tensor) -> Tensor:
    """Return the tokens (N, S) that the random numbers `places` (N, S) in [0, 1) select with the `weights` (N, V).

    A place selects the token at this share of the cumulative sum of the weights.
    """
    sums = weights.cumsum(1, dtype=torch.double)
    totals = sums[:, -1:]
    tokens = torch.searchsorted(sums, places * totals, right=True)
    last_token = (sums < totals).sum(1, keepdim=True)  # the last token with a weight; rounding must not exceed it
    return torch.minimum(tokens, last_token)
