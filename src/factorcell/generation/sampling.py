"""Texts out of a model, ids only: greedy and drawn, many contexts at once, a token at a time.

    p(w) ~ q(w) ** (1 / temperature)  over the allowed tokens, of these the top k, of these the least that hold top p

q is what the model says. What is allowed follows from `Constraints`; the log probabilities that come back are those of
the model, whatever was forbidden and however it was drawn.

Shapes: N texts under way, B contexts, t tokens written, V vocabulary.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from factorcell import limits
from factorcell.config import UserError
from factorcell.data.vocabulary import Specials
from factorcell.model.backbone import State
from factorcell.model.language_model import Conditioned

ROWS = 64  # texts whose log probabilities exist at one time, so that they stay in a processor's cache
LIKELY = 256  # tokens that mostly hold enough of the probability to draw among
TRIES = 4  # draws until it is looked for what holds enough: of nine tenths one in ten thousand needs as many
BLOCK = 128  # tokens that a draw skips at once


class Steps(Protocol):
    """What texts are written from: a `LanguageModel`, or whatever else has its `step`."""

    specials: Specials

    def step(self, token: Tensor, conditioned: Conditioned, state: State | None = None) -> tuple[Tensor, State]:
        """`token` (N,) -> log probabilities (N, V) of the next, and the state after it."""
        ...


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

    def draw(self, logs: Tensor, places: Tensor) -> Tensor:
        """A token (N,) of log probabilities (N, V), -inf where forbidden, for each line of random `places` (N, TRIES).

        One that is not of the top p is drawn again: as `weights` would have it, without looking for the largest.
        """
        weights = self._of_top_k(logs)
        tokens = drawn(weights, places[:, :1])[:, 0]
        if self.top_p == 1:
            return tokens
        out = torch.arange(len(tokens), device=tokens.device)
        for number in range(1, TRIES):
            out = out[~_among(self.top_p, weights[out], tokens[out])]
            if not len(out):
                return tokens
            again = weights[out]
            if number == TRIES - 1:  # of a small share most are outside
                again = self._of_top_p(again)
            tokens[out] = drawn(again, places[out, number, None])[:, 0]
        return tokens

    def weights(self, logs: Tensor) -> Tensor:
        """Log probabilities (N, V), -inf where forbidden -> the weights (N, V) to draw by, 0 where excluded."""
        return self._of_top_p(self._of_top_k(logs))

    def _of_top_k(self, logs: Tensor) -> Tensor:
        if self.temperature != 1:
            smallest = torch.finfo(logs.dtype).tiny  # what is smaller might be 0, and 0 / 0 is no number
            logs = (logs - logs.amax(1, keepdim=True)) / max(self.temperature, smallest)
        if self.top_k and self.top_k < logs.shape[1]:
            least = logs.topk(self.top_k, dim=1).values[:, -1:]
            logs = logs.masked_fill(logs < least, -torch.inf)
        return logs.exp()

    def _of_top_p(self, weights: Tensor) -> Tensor:
        if self.top_p == 1:
            return weights
        return weights.masked_fill(weights < _least_of(self.top_p, weights), 0.0)


def _among(share: float, weights: Tensor, tokens: Tensor) -> Tensor:
    """Which of `tokens` (N,) are among the fewest of `weights` (N, V) that hold the `share`: what is above is less."""
    above = (weights * (weights > weights.gather(1, tokens[:, None]))).sum(1, dtype=torch.double)
    found: Tensor = above < share * weights.sum(1, dtype=torch.double)
    return found


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


@dataclass(frozen=True)
class Hypotheses:
    """N texts under way: all `tokens` (N, t) from the start token on, the `state` before the last, and their contexts.

    `contexts` (N,) are rows of a `Conditioned`; without a `state` it is that before the start token.
    """

    tokens: Tensor
    contexts: Tensor
    state: State | None = None

    def select(self, rows: Tensor) -> "Hypotheses":
        """The texts of `rows` (N',), repeated where a row is named twice."""
        state = None if self.state is None else self.state.select(rows)
        return Hypotheses(self.tokens[rows], self.contexts[rows], state)

    def grown(self, tokens: Tensor, state: State, parents: Tensor | None = None) -> "Hypotheses":
        """The texts of `parents` (N',), else all, a token (N',) longer, with the `state` after what was their last."""
        front = Hypotheses(self.tokens, self.contexts, state)
        front = front if parents is None else front.select(parents)
        return Hypotheses(torch.cat([front.tokens, tokens[:, None]], 1), front.contexts, front.state)

    def children(self, tokens: Tensor, kept: Tensor, state: State) -> "Hypotheses":
        """As `grown`, for B groups of as many texts each, whose texts may grow by `tokens` (N, L).

        Of each group the children at the places `kept` (B, K) among all of its own.
        """
        firsts = torch.arange(len(kept), device=kept.device)[:, None] * (len(tokens) // max(1, len(kept)))
        parents = (firsts + kept // tokens.shape[1]).flatten()
        return self.grown(tokens.view(len(kept), -1).gather(1, kept).flatten(), state, parents)


Pick = Callable[[Tensor, Tensor], tuple[Tensor, ...]]  # rows (n,), log probabilities (n, V) -> values (n, ...)


@dataclass(frozen=True)
class WritingTask:
    """What is to be written: by `model` a text for each of `contexts` (N,), rows of `conditioned`, under `rules`.

    All begin with `prompt`. After `seconds` what is written so far will do.
    """

    model: Steps
    conditioned: Conditioned
    contexts: Tensor
    rules: Constraints
    prompt: Sequence[int] = ()
    seconds: float | None = None

    def begin(self) -> Hypotheses:
        """The texts with nothing but the prompt."""
        start = self.model.specials.start
        front = Hypotheses(torch.full_like(self.contexts[:, None], start), self.contexts)
        for token in self.prompt:
            state, _ = self.look(front, lambda _rows, logs: (logs[:, 0],))
            front = front.grown(torch.full_like(self.contexts, token), state)
        return front

    def look(self, front: Hypotheses, pick: Pick) -> tuple[State, tuple[Tensor, ...]]:
        """Read the last tokens: the state after, and what `pick` makes of log probabilities, `ROWS` texts at a time."""
        states, picked = [], []
        with torch.inference_mode():
            for rows in torch.split(torch.arange(len(front.tokens), device=front.tokens.device), ROWS):
                here = front.select(rows)
                logs, after = self.model.step(here.tokens[:, -1], self.conditioned.select(here.contexts), here.state)
                states.append(after)
                picked.append(pick(rows, logs))
        return states[0].cat(states[1:]), tuple(torch.cat(values) for values in zip(*picked, strict=True))


@dataclass(frozen=True)
class Step:
    """A step of a decoder: for each of the `texts` (n,) that go on, its next token and the log probability of that."""

    texts: NDArray[np.int64]
    tokens: NDArray[np.int64]
    logs: NDArray[np.float64]


@dataclass(frozen=True)
class GeneratedText:
    """A text: its `tokens` after the prompt, without the end token.

    `log_probability` is of its `targets`: the tokens, and the end token where there was one. `ended`: by that or by a
    stop, not for want of room or time.
    """

    tokens: tuple[int, ...]
    log_probability: float
    targets: int
    ended: bool


class Clock:
    """Whether `seconds` are over; None: never."""

    def __init__(self, seconds: float | None) -> None:
        self.end = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float | None:
        """The seconds that are left."""
        return None if self.end is None else max(0.0, self.end - time.monotonic())

    def late(self) -> bool:
        """Whether no further step is to be begun."""
        return self.end is not None and time.monotonic() >= self.end


Choice = Callable[[Tensor, int, Tensor], Tensor]  # texts (n,), which step, log probabilities (n, V) -> tokens (n,)


def greedy(texts: Tensor, step: int, logs: Tensor) -> Tensor:
    """The most probable token of each text: a `Choice`."""
    return logs.argmax(1)


def drawing(draw: Sampler, count: int, max_tokens: int, seed: int = 0, first: int = 0) -> Choice:
    """A `Choice` that draws the tokens of `count` texts, numbered from `first` on.

    What a text draws follows from `seed` and its own number, not from the texts beside it.
    """
    tries = 1 if draw.top_p == 1 else TRIES
    own = [generator(seed, first + text).random((tries, max_tokens)) for text in range(count)]
    places = torch.from_numpy(np.stack(own)) if own else torch.zeros(0, tries, max_tokens, dtype=torch.double)

    def choose(texts: Tensor, step: int, logs: Tensor) -> Tensor:
        return draw.draw(logs, places[texts.cpu(), :, step].to(logs.device))

    return choose


def generator(seed: int, text: int) -> np.random.Generator:
    """The random numbers of one text."""
    return np.random.Generator(np.random.Philox(key=[seed, text]))


def steps(task: WritingTask, choice: Choice) -> Iterator[Step]:
    """Write the texts of `task`, a token of all that go on at a time.

    The end token is chosen as any other; whoever is done is not in the next step.
    """
    rules, clock, front = task.rules, Clock(task.seconds), task.begin()
    going = torch.arange(len(task.contexts), device=task.contexts.device)
    for step in range(rules.max_tokens):
        if clock.late() or not len(going):
            return
        pick = partial(_chosen, choice, rules, step, going, front.tokens)
        state, (tokens, logs) = task.look(front, pick)
        yield Step(going.cpu().numpy(), tokens.cpu().numpy(), logs.double().cpu().numpy())
        front = front.grown(tokens, state)
        keep = ((tokens != rules.end) & ~rules.stopped(front.tokens, step + 1)).nonzero()[:, 0]
        front, going = front.select(keep), going[keep]


def _chosen(
    choice: Choice, rules: Constraints, step: int, going: Tensor, tokens: Tensor, rows: Tensor, logs: Tensor
) -> tuple[Tensor, Tensor]:
    """What `choice` takes for `rows` of the texts that are `going` on, and its log probabilities."""
    token = choice(going[rows], step, rules.forbid(logs, tokens[rows], step))
    return token, logs.gather(1, token[:, None])[:, 0]


def write(count: int, chosen: Iterator[Step], rules: Constraints) -> list[GeneratedText]:
    """The `count` texts that were `chosen` a step at a time."""
    texts: list[list[int]] = [[] for _ in range(count)]
    logs = np.zeros(count)
    for step in chosen:
        logs[step.texts] += step.logs
        for text, token in zip(step.texts.tolist(), step.tokens.tolist(), strict=True):
            texts[text].append(token)
    return [written(text, float(log), rules) for text, log in zip(texts, logs, strict=True)]


def written(tokens: Sequence[int], log_probability: float, rules: Constraints) -> GeneratedText:
    """A text of `tokens` after the prompt, of which the last may be the end token."""
    ended = rules.end in tokens[-1:]
    stopped = any(tuple(tokens[-len(stop) :]) == tuple(stop) for stop in rules.stops if stop)
    return GeneratedText(tuple(tokens[: len(tokens) - ended]), log_probability, len(tokens), ended or stopped)
