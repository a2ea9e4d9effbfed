"""What fits a gap: the words w that make `left w right` most probable, left and right context scored together.

    log p(w | left) + log p(right | left w)

Fillers of every width up to a limit are grown from the left, the K likeliest beginnings of each width are kept, and
what stands on the right is read after each. With K as large as all beginnings the best fillers are found for certain.

Shapes: B contexts, K beginnings of each, L tokens that each is grown by.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from factorcell.generation.beam_search import Beam, Finished
from factorcell.generation.choosing import Constraints
from factorcell.generation.sampling import Clock, Hypotheses, WritingTask
from factorcell.model.backbone import State


@dataclass(frozen=True)
class InfillingOptions:
    """How a gap is filled: by up to `max_tokens` tokens and without the words or texts `banned`.

    The search holds `width` beginnings of each length, and `length_penalty` compares fillers of different length: 0
    looks for the most probable text, 1 for the lowest perplexity. `whole`: the text ends with the template, and that is
    scored too. After `seconds` what is found so far is given back.
    """

    max_tokens: int = 4
    width: int = 100
    length_penalty: float = 0.0
    banned: tuple[str, ...] = ()
    whole: bool = False
    seconds: float | None = None


@dataclass(frozen=True)
class Filler:
    """What fills a gap: its `tokens`, and log p of them and of what stands on the right, given what is on the left."""

    tokens: tuple[int, ...]
    log_probability: float


def fill(task: WritingTask, right: Sequence[int], beam: Beam) -> list[list[Filler]]:
    """Return the best fillers, best first, of each context of `task` (B,), by the likeliest beginnings of every length.

    The text on the left is the prompt of the task. Its rules limit the length of a filler, which does not end the text;
    `right` may hold the end token. Fillers of different length are compared as texts are, those on the right counted.
    """
    rules, clock, front, contexts = task.rules, Clock(task.seconds), task.begin(), task.contexts
    scores = torch.zeros(len(contexts), 1, dtype=torch.double, device=contexts.device)
    found = [Finished[Filler](beam.best) for _ in contexts]
    for length in range(rules.max_tokens + 1):  # of the beginnings in `front`
        pick = partial(_grown, rules, front.tokens, length, beam.width, right[:1])
        state, (tokens, logs, after) = task.look(front, pick)
        if length >= max(1, rules.min_tokens):
            whole = scores + (after + _read(task, front, state, right)).view(scores.shape)
            fillers = front.tokens[:, front.tokens.shape[1] - length :].reshape(*scores.shape, length).tolist()
            values, order = whole.topk(min(beam.best, whole.shape[1]), dim=1)
            for place, k in (~torch.isneginf(values)).nonzero().tolist():
                log = float(values[place, k])
                filler = Filler(tuple(fillers[place][int(order[place, k])]), log)
                found[place].add(log / (length + len(right)) ** beam.length_penalty, filler)
        total = (scores.view(-1, 1) + logs).view(len(scores), -1)
        kept = total.topk(min(beam.width, total.shape[1]), dim=1)
        # No beginning can still become one of the best: log p only falls.
        reachable = (kept.values.amax(1) / (rules.max_tokens + len(right)) ** beam.length_penalty).tolist()
        settled = all(own.worst >= limit for own, limit in zip(found, reachable, strict=True))
        if length == rules.max_tokens or clock.late() or settled:
            break
        front = front.children(tokens, kept.indices, state)
        scores = kept.values
    return [[filler for _, filler in own.texts] for own in found]


def _grown(
    rules: Constraints, written: Tensor, length: int, width: int, right: Sequence[int], rows: Tensor, logs: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the likeliest tokens, their log probabilities (n, L), and that of the first token on the right (n,)."""
    after = logs[:, right[0]].double() if right else logs.new_zeros(len(logs), dtype=torch.double)
    rules.forbid(logs, written[rows], length)
    logs[:, rules.end] = -torch.inf
    best = logs.topk(min(width, logs.shape[1]), dim=1)
    return best.indices, best.values.double(), after


def _read(task: WritingTask, front: Hypotheses, state: State, right: Sequence[int]) -> Tensor:
    """Return log p (N,) of the tokens on the right except the first; `state` is that after the texts of `front`."""
    total = torch.zeros(len(front.tokens), dtype=torch.double, device=front.tokens.device)
    for token, following in pairwise(right):
        front = front.grown(torch.full_like(front.contexts, token), state)

        def pick(rows: Tensor, logs: Tensor, token: int = following) -> tuple[Tensor]:
            return (logs[:, token].double(),)

        state, (logs,) = task.look(front, pick)
        total += logs
    return total
