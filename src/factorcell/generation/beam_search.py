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

import numpy as np
import torch
from torch import Tensor

from factorcell import limits
from factorcell.generation.choosing import Constraints, Sampler
from factorcell.generation.sampling import GeneratedText, WritingTask, generator, written
from factorcell.model.kernels.drawing import Likeliest, Wanted

Grow = Callable[[Sequence[int], int], Wanted]  # texts that go on, beginnings of each -> tokens to grow each by


@dataclass(frozen=True)
class Beam:
    """A beam of `width` beginnings, of whose texts the `best` are returned, compared as the head of this file says."""

    width: int = 8
    length_penalty: float = 0.0
    best: int = 1

    def __post_init__(self) -> None:
        limits.check(width=self.width, number=self.best, length_penalty=self.length_penalty)


@dataclass
class _Finished:
    """The `best` finished texts of one context with their scores, best first."""

    best: int
    texts: list[tuple[float, GeneratedText]] = field(default_factory=list)

    @property
    def worst(self) -> float:
        """The score that a text must exceed to be kept."""
        return self.texts[-1][0] if len(self.texts) == self.best else -float("inf")

    def add(self, score: float, text: GeneratedText) -> None:
        """Keep `text` if its score is among the best."""
        if score > self.worst:
            self.texts.append((score, text))
            self.texts.sort(key=lambda kept: -kept[0])
            del self.texts[self.best :]


def beam(task: WritingTask, beam: Beam) -> list[list[GeneratedText]]:
    """Return the best texts of each context of `task` (B,), best first, by the likeliest beginnings."""
    return _search(task, beam, lambda texts, across: Likeliest(beam.width + 1))  # one more: the end leaves the beam


def stochastic(
    task: WritingTask, beam: Beam, sampler: Sampler, *, grow: int = 8, seed: int = 0, first: int = 0
) -> list[list[GeneratedText]]:
    """Search as `beam`, but grow each beginning by `grow` tokens that are drawn; of equal ones one counts.

    The draws of a text depend on `seed` and its number, counted from `first`.
    """
    limits.check(grow=grow, seed=seed)
    generators = [generator(seed, first + text) for text in range(len(task.contexts))]

    def grown(texts: Sequence[int], across: int) -> Wanted:
        places = [generators[text].random((beam.width, grow))[:across] for text in texts]  # as many in every step
        return sampler.at(torch.from_numpy(np.concatenate(places)).to(task.contexts.device))

    return _search(task, beam, grown)


def _search(task: WritingTask, beam: Beam, grow: Grow) -> list[list[GeneratedText]]:
    rules, contexts = task.rules, task.contexts
    finished = [_Finished(beam.best) for _ in contexts]

    def hand_over(texts: Sequence[int], tokens: Tensor, scores: Tensor) -> None:
        """Finish the texts `tokens` (B, K, t) whose score (B, K) is finite."""
        for place, k in (~torch.isneginf(scores)).nonzero().tolist():
            text = written(tokens[place, k].tolist(), float(scores[place, k]), rules)
            finished[texts[place]].add(text.log_probability / max(1, text.targets) ** beam.length_penalty, text)

    front, texts = task.begin(), list(range(len(contexts)))
    scores = torch.zeros(len(contexts), 1, dtype=torch.double, device=contexts.device)  # log p (B, K)
    for step in range(rules.max_tokens):
        if task.late or not texts:
            break
        states, tokens, logs = task.choose(front, grow(texts, scores.shape[1]), step)
        total = (scores.view(-1, 1) + _once(tokens, logs.double())).view(len(scores), -1)
        flat = tokens.view(len(scores), -1)
        kept = total.masked_fill(flat == rules.end, -torch.inf).topk(min(beam.width, total.shape[1]), dim=1)
        ends = total.masked_fill(flat != rules.end, -torch.inf).topk(min(beam.best, total.shape[1]), dim=1)
        before = front
        for scored in (ends, kept):
            front = before.children(tokens, scored.indices, states)
            done = (front.tokens[:, -1] == rules.end) | rules.stopped(front.tokens, step + 1)
            done = done.view(scored.values.shape)
            hand_over(texts, _apart(front.tokens[:, -step - 1 :], done), scored.values.masked_fill(~done, -torch.inf))
        scores = kept.values.masked_fill(done, -torch.inf)
        # A context goes on while it may find a better text: log p falls, and a text has at most max_tokens + 1 targets.
        reachable = scores.amax(1) / (rules.max_tokens + 1) ** beam.length_penalty
        on = (reachable > scores.new_tensor([finished[text].worst for text in texts])).nonzero()[:, 0]
        front = front.select(_rows(on, scores.shape[1]))
        texts, scores = [texts[place] for place in on.tolist()], scores[on]
    hand_over(texts, _apart(front.tokens[:, len(task.prompt) + 1 :], scores), scores)  # no room or no time left
    return [[text for _, text in found.texts] for found in finished]


def distinct(task: WritingTask, count: int, *, seed: int = 0, first: int = 0) -> list[list[GeneratedText]]:
    """Return `count` different texts of each context of `task` (B,), as they are drawn without replacement.

    Each beginning has a Gumbel number: its log probability and noise, the largest of the numbers of all texts that
    begin so. The `count` beginnings of the largest numbers hold the texts of the largest numbers. Probabilities are
    those of the model over what the rules allow.
    """
    limits.check(number=count, seed=seed)
    contexts, rules, front = task.contexts, task.rules, task.begin()
    zeros = torch.zeros(len(contexts), 1, dtype=torch.double, device=contexts.device)
    leaves = _Leaves(zeros, zeros, zeros, torch.zeros_like(zeros, dtype=torch.bool))
    for step in range(rules.max_tokens):
        if task.late or bool((leaves.closed | torch.isneginf(leaves.numbers)).all()):
            break
        texts = front.tokens

        def pick(
            rows: Tensor, logs: Tensor, leaves: _Leaves = leaves, texts: Tensor = texts, step: int = step
        ) -> tuple[Tensor, ...]:
            allowed = rules.forbid(logs.clone(), texts[rows], step)
            places = [divmod(row, leaves.numbers.shape[1]) for row in rows.tolist()]
            noise = _noise(seed, step, [(first + text, k) for text, k in places], logs)
            return leaves.children(rows, logs.double(), allowed.double().log_softmax(1), noise, count)

        states, (tokens, *values) = task.look(front, pick)
        parents, tokens, leaves = leaves.grown(count, rules.end, tokens, *values)
        front = front.grown(tokens, states, parents)
        stopped = rules.stopped(front.tokens, step + 1).view(leaves.closed.shape)
        leaves = replace(leaves, closed=leaves.closed | stopped)
    tokens = _apart(front.tokens[:, 1 + len(task.prompt) :], leaves.numbers)
    return [
        [
            _unpadded(tokens[text, k].tolist(), float(leaves.logs[text, k]), rules)
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

    def children(
        self, rows: Tensor, logs: Tensor, allowed: Tensor, noise: Tensor, count: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return tokens, numbers, chances and logs (n, L) of the children of `rows` (n,) with the largest numbers."""
        parent, closed = self.numbers.view(-1, 1)[rows], self.closed.view(-1, 1)[rows]
        chances = self.chances.view(-1, 1)[rows] + allowed
        free = chances + noise
        # Noise given that the largest of all is the parent's (Kool et al. 2019, appendix B.3).
        over = parent - free + _log1mexp(free - free.amax(1, keepdim=True))
        numbers = parent - over.clamp(min=0) - torch.log1p(torch.exp(-over.abs()))
        best = numbers.masked_fill(closed | torch.isneginf(parent), -torch.inf).topk(min(count, logs.shape[1]), dim=1)
        whole = self.logs.view(-1, 1)[rows] + logs
        return best.indices, best.values, chances.gather(1, best.indices), whole.gather(1, best.indices)

    def grown(
        self, count: int, end: int, tokens: Tensor, numbers: Tensor, chances: Tensor, logs: Tensor
    ) -> tuple[Tensor, Tensor, "_Leaves"]:
        """Return parents (N',), tokens (N',) and leaves of the `count` largest children (N, L) and whole texts.

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
        closed = (token == end) | self.closed.gather(1, parent)
        leaves = _Leaves(kept.values, take(chances, self.chances), take(logs, self.logs), closed)
        return _rows(torch.arange(size, device=tokens.device), across, parent), token.flatten(), leaves


def _noise(seed: int, step: int, keys: Sequence[tuple[int, int]], like: Tensor) -> Tensor:
    """Return Gumbel noise (n, V) for beginnings by text and place: the same however many are read at once."""
    draws = (np.random.Philox(key=[seed, text], counter=[0, 0, k, step]) for text, k in keys)
    noise = [np.random.Generator(bits).gumbel(size=like.shape[1]) for bits in draws]
    return torch.from_numpy(np.stack(noise)).to(like.device)


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


def _rows(texts: Tensor, across: int, places: Tensor | None = None) -> Tensor:
    """Return the rows of the beginnings of `texts`: all `across` of each, or those at `places`."""
    places = torch.arange(across, device=texts.device) if places is None else places
    return (texts[:, None] * across + places).flatten()


def _once(tokens: Tensor, logs: Tensor) -> Tensor:
    """`logs` (N, L) of `tokens` (N, L), -inf where an earlier token of the row is the same."""
    same = (tokens[:, :, None] == tokens[:, None, :]).tril(-1).any(2)
    return logs.masked_fill(same, -torch.inf)
