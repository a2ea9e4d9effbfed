"""Choose next tokens: the likeliest or drawn ones among those that are allowed.

    p(w) ~ q(w) ** (1 / temperature)  over the allowed tokens, of these the top k, of these the least that hold top p

q is what the model says. What is allowed follows from `Constraints`; the log probabilities that come back are those of
the model, whatever was forbidden and however it was drawn. `kernels.drawing` does the same in compiled code.

Shapes: N texts under way, t tokens written, S tokens for each text, V vocabulary.
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
    """Rules for a text: `min_tokens` to `max_tokens` tokens, none `banned`, no `no_repeat_ngram`-gram twice.

    A text that ends with one of `stops`, sequences of tokens, is finished; so is one that ends with `end`. A prompt
    counts for repetition, not for length.
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
            got = f"min_tokens is {self.min_tokens}, max_tokens {self.max_tokens}"
            raise UserError(f"{got}; it must be min_tokens <= max_tokens")

    def forbid(self, logs: Tensor, tokens: Tensor, written: int) -> Tensor:
        """Set `logs` (N, V) after `tokens` (N, t) to -inf for forbidden tokens; `written` tokens follow the prompt.

        Where all are forbidden, the text may end.
        """
        if self.banned:
            logs.index_fill_(1, tokens.new_tensor(self.banned), -torch.inf)
        if self.no_repeat_ngram:
            texts, again = repeated_ngrams(tokens, self.no_repeat_ngram)
            logs[texts, again] = -torch.inf
        ends = logs[:, self.end].clone()
        if written < self.min_tokens:
            logs[:, self.end] = -torch.inf
        stuck = torch.isneginf(logs.amax(1))
        logs[stuck, self.end] = ends[stuck].clamp(min=torch.finfo(logs.dtype).min)
        return logs

    def barred(self, tokens: Tensor, written: int) -> ForbiddenTokens:
        """Return what `forbid` forbids, as the compiled code takes it."""
        none = tokens.new_zeros(0)
        texts, again = repeated_ngrams(tokens, self.no_repeat_ngram) if self.no_repeat_ngram else (none, none)
        return ForbiddenTokens((*self.banned, *[self.end] * (written < self.min_tokens)), texts, again, self.end)

    def ends_with_stop(self, tokens: Tensor, written: int) -> Tensor:
        """Return which of `tokens` (N, t) end with a stop (N,) that is not part of the prompt."""
        found = torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
        for stop in self.stops:
            if 0 < len(stop) <= written:
                found |= (tokens[:, -len(stop) :] == tokens.new_tensor(stop)).all(1)
        return found


def repeated_ngrams(tokens: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Return texts and tokens that would repeat an n-gram of `tokens` (N, t), the start token excluded."""
    tokens = tokens[:, 1:]
    places = tokens.shape[1] - n + 1
    if places < 1:
        return tokens.new_zeros(0), tokens.new_zeros(0)
    last = tokens[:, tokens.shape[1] - n + 1 :]
    same = torch.ones_like(tokens[:, :places], dtype=torch.bool)
    for offset in range(n - 1):
        same &= tokens[:, offset : offset + places] == last[:, offset, None]
    texts, place = same.nonzero(as_tuple=True)
    return texts, tokens[texts, place + n - 1]


@dataclass(frozen=True)
class Sampler:
    """How a token is drawn: `top_k` 0 and `top_p` 1 leave all tokens in; a low `temperature` prefers what is likely."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        limits.check(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)

    def draws(self, places: Tensor) -> SampleRequest:
        return SampleRequest(places, self.temperature, self.top_k, self.top_p)


def choose_tokens(wanted: TokenRequest, logs: Tensor) -> Tensor:
    """Return the tokens (N, S) that are wanted by log probabilities (N, V), -inf where forbidden."""
    if isinstance(wanted, TopRequest):
        return logs.topk(min(wanted.count, logs.shape[1]), dim=1).indices
    return draw_tokens(drawing_weights(wanted, logs), wanted.places)


def drawing_weights(draws: SampleRequest, logs: Tensor) -> Tensor:
    """Return the weights (N, V) to draw by for log probabilities (N, V): 0 for excluded tokens."""
    if draws.temperature != 1:
        smallest = torch.finfo(logs.dtype).tiny  # what is smaller might be 0, and 0 / 0 is not a number
        logs = (logs - logs.amax(1, keepdim=True)) / max(draws.temperature, smallest)
    if draws.top_k and draws.top_k < logs.shape[1]:
        least = logs.topk(draws.top_k, dim=1).values[:, -1:]
        logs = logs.masked_fill(logs < least, -torch.inf)
    found = logs.exp()
    if draws.top_p == 1:
        return found
    largest = found.sort(dim=1, descending=True).values
    before = largest.cumsum(1, dtype=torch.double) - largest
    count = (before < draws.top_p * found.sum(1, keepdim=True, dtype=torch.double)).sum(1, keepdim=True)
    return found.masked_fill(found < largest.gather(1, (count - 1).clamp(min=0)), 0.0)


def draw_tokens(weights: Tensor, places: Tensor) -> Tensor:
    """Return the tokens (N, S) at the `places` (N, S) in [0, 1) of the running sum of `weights` (N, V)."""
    sums = weights.cumsum(1, dtype=torch.double)
    last = (sums < sums[:, -1:]).sum(1, keepdim=True)  # the last token with a weight: sums are rounded
    return torch.minimum(torch.searchsorted(sums, places * sums[:, -1:], right=True), last)
