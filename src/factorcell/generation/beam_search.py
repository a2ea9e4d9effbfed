"""Texts by search: the most probable ones, probable ones by chance, and different ones drawn in one go.

    beam         the K likeliest beginnings, each grown by its likeliest tokens
    stochastic   the same, each grown by tokens that are drawn (thesis 2018, section 6.1)
    distinct     K texts drawn without replacement (Kool et al. 2019, algorithm 1: Gumbel-top-k over a tree)

Of texts of different length that is best whose log p(text) / targets ** length_penalty is largest: with 0 the most
probable one, which is short, with 1 the one of the lowest perplexity.

Shapes: B contexts, K beginnings of each, L tokens that each is grown by, t tokens written, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from factorcell import limits
from factorcell.generation.choosing import Constraints, Sampler
from factorcell.generation.sampling import Clock, GeneratedText, Hypotheses, WritingTask, generator, written
from factorcell.model.kernels.drawing import Likeliest, Wanted

Grow = Callable[[Sequence[int], int], Wanted]  # texts that go on, beginnings of each -> tokens to grow each by


@dataclass(frozen=True)
class Beam:
    """A beam of `width` beginnings, and how many of its texts are wanted: the `best`, by the head of this file."""

    width: int = 8
    length_penalty: float = 0.0
    best: int = 1

    def __post_init__(self) -> None:
        limits.check(width=self.width, number=self.best, length_penalty=self.length_penalty)


@dataclass
class Finished:
    """The `best` finished texts of one context, best first, with their scores."""

    best: int
    length_penalty: float
    texts: list[tuple[float, GeneratedText]] = field(default_factory=list)

    @property
    def worst(self) -> float:
        """The score that a text has to surpass."""
        return self.texts[-1][0] if len(self.texts) == self.best else -float("inf")

    def add(self, text: GeneratedText) -> None:
        """Keep `text`, if it is good enough."""
        score = text.log_probability / max(1, text.targets) ** self.length_penalty
        if score > self.worst:
            self.texts.append((score, text))
            self.texts.sort(key=lambda kept: -kept[0])
            del self.texts[self.best :]


def beam(task: WritingTask, beam: Beam) -> list[list[GeneratedText]]:
    """The best texts of each context of `task` (B,), best first, by the likeliest beginnings."""
    return _Search(task, beam).run(lambda texts, across: Likeliest(beam.width + 1))  # one more: the end leaves the beam


def stochastic(
    task: WritingTask, beam: Beam, sampler: Sampler, *, grow: int = 8, seed: int = 0, first: int = 0
) -> list[list[GeneratedText]]:
    """As `beam`, but each beginning is grown by `grow` tokens that are drawn; of equal ones one counts.

    What a text draws follows from `seed` and its number, counted from `first`.
    """
    limits.check(grow=grow, seed=seed)
    generators = [generator(seed, first + text) for text in range(len(task.contexts))]

    def grown(texts: Sequence[int], across: int) -> Wanted:
        own = [generators[text].random((beam.width, grow))[:across] for text in texts]  # as many whatever is asked
        return sampler.at(torch.from_numpy(np.concatenate(own)).to(task.contexts.device))

    return _Search(task, beam).run(grown)


@dataclass(frozen=True)
class _Search:
    """A beam search over many contexts; how beginnings are grown is given step by step."""

    task: WritingTask
    beam: Beam

    @property
    def rules(self) -> Constraints:
        """Those of the task."""
        return self.task.rules

    def run(self, grow: Grow) -> list[list[GeneratedText]]:
        """Scores: log p (B, K)."""
        contexts, clock = self.task.contexts, Clock(self.task.seconds)
        finished = [Finished(self.beam.best, self.beam.length_penalty) for _ in contexts]
        front, going = self.task.begin(), list(finished)
        scores = torch.zeros(len(contexts), 1, dtype=torch.double, device=contexts.device)
        texts = list(range(len(contexts)))
        for step in range(self.rules.max_tokens):
            if clock.late() or not texts:
                break
            front, scores = self._step(front, scores, grow(texts, scores.shape[1]), step, going)
            on = self._undecided(scores, going)
            front = front.select(_rows(on, scores.shape[1]))
            texts, going, scores = [texts[i] for i in on.tolist()], [going[i] for i in on.tolist()], scores[on]
        prompted = len(self.task.prompt) + 1
        self._hand_over(_apart(front.tokens[:, prompted:], scores), scores, going)  # no room, no time
        return [[kept for _, kept in own.texts] for own in finished]

    def _step(
        self, front: Hypotheses, scores: Tensor, wanted: Wanted, step: int, finished: Sequence[Finished]
    ) -> tuple[Hypotheses, Tensor]:
        """The best K of all beginnings, one token longer, and their scores; what ends is handed over."""
        states, tokens, found = self.task.choose(front, wanted, step)
        logs = _once(tokens, found.double())
        total, flat = (scores.view(-1, 1) + logs).view(len(scores), -1), tokens.view(len(scores), -1)
        kept = total.masked_fill(flat == self.rules.end, -torch.inf).topk(min(self.beam.width, total.shape[1]), dim=1)
        ends = total.masked_fill(flat != self.rules.end, -torch.inf).topk(min(self.beam.best, total.shape[1]), dim=1)
        for scored in (ends, kept):
            grown = front.children(tokens, scored.indices, states)
            done = (grown.tokens[:, -1] == self.rules.end) | self.rules.stopped(grown.tokens, step + 1)
            done = done.view(scored.values.shape)
            written_now = _apart(grown.tokens[:, -step - 1 :], done)
            self._hand_over(written_now, scored.values.masked_fill(~done, -torch.inf), finished)
        return grown, kept.values.masked_fill(done, -torch.inf)

    def _hand_over(self, tokens: Tensor, scores: Tensor, finished: Sequence[Finished]) -> None:
        """Texts `tokens` (B, K, t) with a score (B, K) that is a number are finished."""
        for text, k in (~torch.isneginf(scores)).nonzero().tolist():
            finished[text].add(written(tokens[text, k].tolist(), float(scores[text, k]), self.rules))

    def _undecided(self, scores: Tensor, finished: Sequence[Finished]) -> Tensor:
        """Which contexts may still find a better text: log p falls, and no text has more than `most` + 1 targets."""
        reachable = scores.amax(1) / (self.rules.max_tokens + 1) ** self.beam.length_penalty
        worst = scores.new_tensor([own.worst for own in finished])
        places: Tensor = (reachable > worst).nonzero()[:, 0]
        return places


def distinct(task: WritingTask, count: int, *, seed: int = 0, first: int = 0) -> list[list[GeneratedText]]:
    """`count` different texts of each context of `task` (B,), in the order in which they are drawn without replacement.

    Every beginning has a Gumbel number: its log probability and noise, which is the largest of those of all texts that
    begin so. The `count` beginnings of the largest numbers hold the texts of the largest numbers. Probabilities are
    those of the model over what the rules allow.
    """
    limits.check(number=count, seed=seed)
    contexts, rules = task.contexts, task.rules
    clock, front = Clock(task.seconds), task.begin()
    leaves = _Leaves.root(len(contexts), contexts.device)
    for step in range(rules.max_tokens):
        if clock.late() or bool((leaves.closed | torch.isneginf(leaves.numbers)).all()):
            break
        across = leaves.numbers.shape[1]
        keys = [(first + text, k) for text in range(len(contexts)) for k in range(across)]
        noise = _Noise(seed, step, keys)
        pick = partial(_children, leaves, noise, count, rules, front.tokens)
        states, (tokens, *values) = task.look(front, pick)
        parents, tokens, leaves = leaves.grown(count, rules.end, tokens, *values)
        front = front.grown(tokens, states, parents)
        stopped = rules.stopped(front.tokens, step + 1).view(leaves.closed.shape)
        leaves = replace(leaves, closed=leaves.closed | stopped)
    texts = _apart(front.tokens[:, 1 + len(task.prompt) :], leaves.numbers)
    return [
        [
            _unpadded(texts[text, k].tolist(), float(leaves.logs[text, k]), rules)
            for k in range(leaves.numbers.shape[1])
            if not torch.isneginf(leaves.numbers[text, k])
        ]
        for text in range(len(contexts))
    ]


@dataclass(frozen=True)
class _Leaves:
    """The beginnings of B contexts, the largest `numbers` (B, K) first.

    `chances` are their log probabilities under the rules, `logs` those of the model; whole texts are `closed`.
    """

    numbers: Tensor
    chances: Tensor
    logs: Tensor
    closed: Tensor

    @classmethod
    def root(cls, size: int, device: torch.device) -> "_Leaves":
        """The empty beginnings."""
        zeros = torch.zeros(size, 1, dtype=torch.double, device=device)
        return cls(zeros, zeros, zeros, torch.zeros_like(zeros, dtype=torch.bool))

    def grown(
        self, count: int, end: int, tokens: Tensor, numbers: Tensor, chances: Tensor, logs: Tensor
    ) -> tuple[Tensor, Tensor, "_Leaves"]:
        """The `count` largest of the children (N, L) and of the whole texts: parents (N',), tokens (N',), leaves.

        A whole text stays as it is, with one more token `end`.
        """
        size, across = self.numbers.shape
        whole = self.numbers.masked_fill(~self.closed, -torch.inf)
        either = torch.cat([numbers.view(size, -1), whole], 1)
        kept = either.topk(min(count, either.shape[1]), dim=1)

        def take(children: Tensor, own: Tensor) -> Tensor:
            return torch.cat([children.view(size, -1), own], 1).gather(1, kept.indices)

        place = torch.arange(across, device=tokens.device)
        parent = take(place.repeat_interleave(tokens.shape[1]).repeat(size, 1), place.repeat(size, 1))
        token = take(tokens, torch.full_like(self.closed, end, dtype=torch.long))
        leaves = _Leaves(kept.values, take(chances, self.chances), take(logs, self.logs), token == end)
        closed = leaves.closed | self.closed.gather(1, parent)
        rows = torch.arange(size, device=tokens.device)[:, None] * across + parent
        return rows.flatten(), token.flatten(), replace(leaves, closed=closed)


@dataclass(frozen=True)
class _Noise:
    """Gumbel noise of a step for each beginning, by its text and place: the same however many are read at once."""

    seed: int
    step: int
    keys: Sequence[tuple[int, int]]

    def __call__(self, rows: Tensor, size: int) -> Tensor:
        """(n, V)."""
        drawn_ones = []
        for row in rows.tolist():
            text, k = self.keys[row]
            bits = np.random.Philox(key=[self.seed, text], counter=[0, 0, k, self.step])
            drawn_ones.append(np.random.Generator(bits).gumbel(size=size))
        return torch.from_numpy(np.stack(drawn_ones)).to(rows.device)


def _children(
    leaves: _Leaves,
    noise: _Noise,
    count: int,
    rules: Constraints,
    tokens: Tensor,
    rows: Tensor,
    logs: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of the children of `rows` (n,) those with the largest numbers: tokens, numbers, chances and logs (n, L)."""
    allowed = rules.forbid(logs.clone(), tokens[rows], noise.step).double().log_softmax(1)
    parent, closed = leaves.numbers.view(-1, 1)[rows], leaves.closed.view(-1, 1)[rows]
    chances = leaves.chances.view(-1, 1)[rows] + allowed
    free = chances + noise(rows, logs.shape[1])
    # Noise given that the largest of all is the parent's (Kool et al. 2019, appendix B.3).
    over = parent - free + _log1mexp(free - free.amax(1, keepdim=True))
    numbers = parent - over.clamp(min=0) - torch.log1p(torch.exp(-over.abs()))
    best = numbers.masked_fill(closed | torch.isneginf(parent), -torch.inf).topk(min(count, logs.shape[1]), dim=1)
    own = leaves.logs.view(-1, 1)[rows] + logs.double()
    return best.indices, best.values, chances.gather(1, best.indices), own.gather(1, best.indices)


def _log1mexp(values: Tensor) -> Tensor:
    """log(1 - exp(x)) of x <= 0, exact at both ends."""
    return torch.where(values > -0.69, torch.log(-torch.expm1(values)), torch.log1p(-torch.exp(values)))


def _unpadded(tokens: Sequence[int], log_probability: float, rules: Constraints) -> GeneratedText:
    """A text up to its first end token."""
    whole = list(tokens[: tokens.index(rules.end) + 1]) if rules.end in tokens else list(tokens)
    return written(whole, log_probability, rules)


def _apart(tokens: Tensor, like: Tensor) -> Tensor:
    """Tokens (B K, t) -> (B, K, t), with B and K those of `like`."""
    return tokens.reshape(*like.shape, tokens.shape[1])


def _rows(texts: Tensor, across: int) -> Tensor:
    return (texts[:, None] * across + torch.arange(across, device=texts.device)).flatten()


def _once(tokens: Tensor, logs: Tensor) -> Tensor:
    """`logs` (N, L) of `tokens` (N, L), -inf where an earlier token of the row is the same."""
    same = (tokens[:, :, None] == tokens[:, None, :]).tril(-1).any(2)
    return logs.masked_fill(same, -torch.inf)
