"""Texts by search: the most probable ones, and probable ones by chance.

    beam         the K likeliest beginnings, each grown by its likeliest tokens
    stochastic   the same, each grown by tokens that are drawn (thesis 2018, section 6.1)

Of texts of different length that is best whose log p(text) / targets ** length_penalty is largest: with 0 the most
probable one, which is short, with 1 the one of the lowest perplexity.

Shapes: B contexts, K beginnings of each, L tokens that each is grown by, t tokens written, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from factorcell import limits
from factorcell.generation.choosing import Sampler
from factorcell.generation.sampling import GeneratedText, WritingTask, finished_text, random_generator
from factorcell.model.kernels.drawing import TokenRequest, TopRequest

Grow = Callable[[Sequence[int], int], TokenRequest]  # texts that go on, beginnings of each -> tokens to grow each by


@dataclass(frozen=True)
class Beam:
    """A beam of `width` beginnings, of whose texts the `best` are returned, compared as the head of this file says."""

    width: int = 8
    length_penalty: float = 0.0
    num_texts: int = 1

    def __post_init__(self) -> None:
        limits.check(width=self.width, number=self.num_texts, length_penalty=self.length_penalty)


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


def search_beam(task: WritingTask, beam: Beam) -> list[list[GeneratedText]]:
    """Return the best texts of each context of `task` (B,), best first, by the likeliest beginnings."""
    return _search(task, beam, lambda texts, across: TopRequest(beam.width + 1))  # one more: the end leaves the beam


def search_stochastic_beam(
    task: WritingTask, beam: Beam, sampler: Sampler, *, grow: int = 8, seed: int = 0, first: int = 0
) -> list[list[GeneratedText]]:
    """Search as `beam`, but grow each beginning by `grow` tokens that are drawn; of equal ones one counts.

    The draws of a text depend on `seed` and its number, counted from `first`.
    """
    limits.check(grow=grow, seed=seed)
    generators = [random_generator(seed, first + text) for text in range(len(task.contexts))]

    def grown(texts: Sequence[int], across: int) -> TokenRequest:
        places = [generators[text].random((beam.width, grow))[:across] for text in texts]  # as many in every step
        return sampler.draws(torch.from_numpy(np.concatenate(places)).to(task.contexts.device))

    return _search(task, beam, grown)


def _search(task: WritingTask, beam: Beam, grow: Grow) -> list[list[GeneratedText]]:
    rules, contexts = task.rules, task.contexts
    finished = [_Finished(beam.num_texts) for _ in contexts]

    def hand_over(texts: Sequence[int], tokens: Tensor, scores: Tensor) -> None:
        """Finish the texts `tokens` (B, K, t) whose score (B, K) is finite."""
        for place, k in (~torch.isneginf(scores)).nonzero().tolist():
            text = finished_text(tokens[place, k].tolist(), float(scores[place, k]), rules)
            finished[texts[place]].add(text.log_probability / max(1, text.targets) ** beam.length_penalty, text)

    front, texts = task.begin(), list(range(len(contexts)))
    scores = torch.zeros(len(contexts), 1, dtype=torch.double, device=contexts.device)  # log p (B, K)
    for step in range(rules.max_tokens):
        if task.is_late or not texts:
            break
        states, tokens, logs = task.choose(front, grow(texts, scores.shape[1]), step)
        total = (scores.view(-1, 1) + _once(tokens, logs.double())).view(len(scores), -1)
        flat = tokens.view(len(scores), -1)
        kept = total.masked_fill(flat == rules.end, -torch.inf).topk(min(beam.width, total.shape[1]), dim=1)
        ends = total.masked_fill(flat != rules.end, -torch.inf).topk(min(beam.num_texts, total.shape[1]), dim=1)
        before = front
        for scored in (ends, kept):
            front = before.children(tokens, scored.indices, states)
            done = (front.tokens[:, -1] == rules.end) | rules.ends_with_stop(front.tokens, step + 1)
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


def _apart(tokens: Tensor, like: Tensor) -> Tensor:
    """Tokens (B K, t) -> (B, K, t), with B and K those of `like`."""
    return tokens.reshape(*like.shape, tokens.shape[1])


def _rows(texts: Tensor, across: int) -> Tensor:
    """Return the rows of the beginnings of `texts`, `across` of each."""
    return (texts[:, None] * across + torch.arange(across, device=texts.device)).flatten()


def _once(tokens: Tensor, logs: Tensor) -> Tensor:
    """`logs` (N, L) of `tokens` (N, L), -inf where an earlier token of the row is the same."""
    same = (tokens[:, :, None] == tokens[:, None, :]).tril(-1).any(2)
    return logs.masked_fill(same, -torch.inf)
