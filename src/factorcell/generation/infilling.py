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

from factorcell.generation.beam_search import Beam
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
    """The best fillers, best first, of each context of `task` (B,), by the likeliest beginnings of every length.

    What stands on the left is the prompt of the task. Its rules say how long a filler may be; it is not the end of a
    text, but `right` may hold one. Fillers of different length are compared as texts are, those on the right counted.
    """
    rules, width, best, length_penalty = task.rules, beam.width, beam.best, beam.length_penalty
    clock, front, contexts = Clock(task.seconds), task.begin(), task.contexts
    scores = torch.zeros(len(contexts), 1, dtype=torch.double, device=contexts.device)
    found: list[list[tuple[float, Filler]]] = [[] for _ in contexts]
    for length in range(rules.max_tokens + 1):  # of the beginnings in `front`
        pick = partial(_grown, rules, front.tokens, length, width, right[:1])
        state, (tokens, logs, after) = task.look(front, pick)
        if length >= max(1, rules.min_tokens):
            whole = scores + (after + _read(task, front, state, right)).view(scores.shape)
            fillers = front.tokens[:, front.tokens.shape[1] - length :].reshape(*scores.shape, length)
            _keep(fillers, whole, (length + len(right)) ** length_penalty, found, best)
        total = (scores.view(-1, 1) + logs).view(len(scores), -1)
        kept = total.topk(min(width, total.shape[1]), dim=1)
        if (
            length == rules.max_tokens
            or clock.late()
            or _settled(kept.values, found, best, (rules.max_tokens + len(right)) ** length_penalty)
        ):
            break
        front = front.children(tokens, kept.indices, state)
        scores = kept.values
    return [[filler for _, filler in own] for own in found]


def _grown(
    rules: Constraints, written: Tensor, length: int, width: int, right: Sequence[int], rows: Tensor, logs: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The likeliest tokens to grow by, their log probabilities (n, L), and that of the first on the right (n,)."""
    after = logs[:, right[0]].double() if right else logs.new_zeros(len(logs), dtype=torch.double)
    rules.forbid(logs, written[rows], length)
    logs[:, rules.end] = -torch.inf
    best = logs.topk(min(width, logs.shape[1]), dim=1)
    return best.indices, best.values.double(), after


def _read(task: WritingTask, front: Hypotheses, state: State, right: Sequence[int]) -> Tensor:
    """Log probability (N,) of what stands on the right but for its first token; `state` after the texts of `front`."""
    total = torch.zeros(len(front.tokens), dtype=torch.double, device=front.tokens.device)
    for token, following in pairwise(right):
        front = front.grown(torch.full_like(front.contexts, token), state)
        state, (logs,) = task.look(front, partial(_of, following))
        total += logs
    return total


def _of(token: int, rows: Tensor, logs: Tensor) -> tuple[Tensor]:
    return (logs[:, token].double(),)


def _keep(fillers: Tensor, scores: Tensor, divisor: float, found: list[list[tuple[float, Filler]]], best: int) -> None:
    """Put the `best` of the `fillers` (B, K, w) among those `found` for each context, by scores (B, K)."""
    values, order = scores.topk(min(best, scores.shape[1]), dim=1)
    for own, tokens, logs, places in zip(found, fillers.tolist(), values.tolist(), order.tolist(), strict=True):
        scored = [(log, Filler(tuple(tokens[k]), log)) for log, k in zip(logs, places, strict=True) if log > -torch.inf]
        own += [(log / divisor, filler) for log, filler in scored]
        own.sort(key=lambda one: -one[0])
        del own[best:]


def _settled(scores: Tensor, found: list[list[tuple[float, Filler]]], best: int, divisor: float) -> bool:
    """Whether no beginning, with scores (B, K), can still become one of the best: log p only falls."""
    reachable = (scores.amax(1) / divisor).tolist()
    return all(len(own) == best and own[-1][0] >= limit for own, limit in zip(found, reachable, strict=True))
