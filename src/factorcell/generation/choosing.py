"""Which tokens come next: what is forbidden, and of what is left the likeliest or those that are drawn.

    p(w) ~ q(w) ** (1 / temperature)  over the allowed tokens, of these the top k, of these the least that hold top p

q is what the model says. What is allowed follows from `Constraints`; the log probabilities that come back are those of
the model, whatever was forbidden and however it was drawn. `kernels.drawing` does the same in compiled code.

Shapes: N texts under way, t tokens written, S tokens for each text, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from factorcell import limits
from factorcell.config import UserError
from factorcell.data.vocabulary import Specials
from factorcell.model.kernels.drawing import Barred, Draws, Likeliest, Wanted

LIKELY = 256  # tokens that mostly hold enough of the probability to draw among
BLOCK = 128  # tokens that a draw skips at once


@dataclass(frozen=True)
class Constraints:
    """What may be written: `min_tokens` to `max_tokens` tokens, none that is `banned`.

    No n-gram of `no_repeat_ngram` tokens comes twice. A text that ends with one of `stops`,
    sequences of tokens, is done. A prompt counts for repetition, not for length.
    `end` is the token that ends a text.
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
        """`logs` (N, V) after `tokens` (N, t), -inf at what may not follow, in place; `written` tokens are no prompt.

        Where nothing else is left, the text may end.
        """
        if self.banned:
            logs.index_fill_(1, tokens.new_tensor(self.banned), -torch.inf)
        if self.no_repeat_ngram:
            texts, again = repeated(tokens, self.no_repeat_ngram)
            logs[texts, again] = -torch.inf
        ends = logs[:, self.end].clone()
        if written < self.min_tokens:
            logs[:, self.end] = -torch.inf
        stuck = torch.isneginf(logs.amax(1))
        logs[stuck, self.end] = ends[stuck].clamp(min=torch.finfo(logs.dtype).min)
        return logs

    def barred(self, tokens: Tensor, written: int) -> Barred:
        """What `forbid` forbids, as the compiled code takes it."""
        none = tokens.new_zeros(0)
        texts, again = repeated(tokens, self.no_repeat_ngram) if self.no_repeat_ngram else (none, none)
        return Barred((*self.banned, *[self.end] * (written < self.min_tokens)), texts, again, self.end)

    def stopped(self, tokens: Tensor, written: int) -> Tensor:
        """Which of `tokens` (N, t) end with a stop that was `written`, not prompted (N,)."""
        found = torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
        for stop in self.stops:
            if 0 < len(stop) <= written:
                found |= (tokens[:, -len(stop) :] == tokens.new_tensor(stop)).all(1)
        return found


def repeated(tokens: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Texts and tokens that would write an n-gram of `tokens` (N, t) a second time. The start token is part of none."""
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

    def at(self, places: Tensor) -> Draws:
        """Tokens to be drawn at `places` (N, S) in [0, 1) of the running sum of weights."""
        return Draws(places, self.temperature, self.top_k, self.top_p)


def chosen(wanted: Wanted, logs: Tensor) -> Tensor:
    """The tokens (N, S) that are wanted by log probabilities (N, V), -inf where forbidden."""
    if isinstance(wanted, Likeliest):
        return logs.topk(min(wanted.count, logs.shape[1]), dim=1).indices
    return drawn(weights(wanted, logs), wanted.places)


def weights(draws: Draws, logs: Tensor) -> Tensor:
    """Log probabilities (N, V), -inf where forbidden -> the weights (N, V) to draw by, 0 where excluded."""
    if draws.temperature != 1:
        smallest = torch.finfo(logs.dtype).tiny  # what is smaller might be 0, and 0 / 0 is no number
        logs = (logs - logs.amax(1, keepdim=True)) / max(draws.temperature, smallest)
    if draws.top_k and draws.top_k < logs.shape[1]:
        least = logs.topk(draws.top_k, dim=1).values[:, -1:]
        logs = logs.masked_fill(logs < least, -torch.inf)
    found = logs.exp()
    return found if draws.top_p == 1 else found.masked_fill(found < _least_of(draws.top_p, found), 0.0)


def _least_of(share: float, weights: Tensor) -> Tensor:
    """The smallest weight (N, 1) among the fewest of `weights` (N, V) that hold the `share` of them."""
    wanted, count = share * weights.sum(1, keepdim=True, dtype=torch.double), LIKELY
    while True:
        largest = weights.topk(min(count, weights.shape[1]), dim=1).values
        sums = largest.cumsum(1, dtype=torch.double)
        if count >= weights.shape[1] or bool((sums[:, -1:] >= wanted).all()):
            break
        count *= 4
    last = (((sums - largest) < wanted).sum(1, keepdim=True) - 1).clamp(min=0)  # a share may be too small for a number
    return largest.gather(1, last)


def drawn(weights: Tensor, places: Tensor) -> Tensor:
    """The tokens (N, S) at the `places` (N, S) in [0, 1) of the running sum of `weights` (N, V)."""
    count, size = weights.shape
    blocks = F.pad(weights, (0, -size % BLOCK)).view(count, -1, BLOCK)
    ends = blocks.sum(2).double().cumsum(1)
    wanted = places * ends[:, -1:]
    block = torch.searchsorted(ends, wanted, right=True).clamp(max=ends.shape[1] - 1)
    rest = wanted - F.pad(ends, (1, 0)).gather(1, block)
    rows = torch.arange(count, device=weights.device)[:, None].expand_as(block)
    inner = blocks[rows, block].cumsum(2, dtype=torch.double)
    inside = (inner <= rest[..., None]).sum(2)
    last = (inner < inner[..., -1:]).sum(2)  # the last token of the block with a weight: sums are rounded
    token: Tensor = block * BLOCK + torch.minimum(inside, last)
    return token
