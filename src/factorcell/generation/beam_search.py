"""Beam search for the best generated texts of a context.

A *hypothesis* is an unfinished text. Each step extends the K best hypotheses of a context by one token and selects the
K most probable results. `search_beam` extends a hypothesis by its most probable tokens, `search_stochastic_beam` by
sampled tokens (thesis 2018, section 6.1). Finished texts are compared by their score

    log p(text) / targets ** length_penalty

where `targets` is the number of tokens including the end token. With the penalty 1, the best text is the one with the
lowest perplexity; with 0, it is the most probable one, which is usually short.

Shapes: B contexts, K hypotheses per context, L extensions per hypothesis, t tokens of a text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from factorcell import limits
from factorcell.generation.choosing import Sampler
from factorcell.generation.sampling import GeneratedText, WritingTask, random_generator, to_generated_text
from factorcell.model.kernels.drawing import TokenRequest, TopRequest

# Indices of the unfinished contexts, number of hypotheses of each -> request for the extensions of all hypotheses.
RequestExtensions = Callable[[Sequence[int], int], TokenRequest]


@dataclass(frozen=True)
class Beam:
    """Options of a beam search, which retains `width` hypotheses and returns the best `num_texts` texts per context."""

    width: int = 8
    length_penalty: float = 0.0
    num_texts: int = 1

    def __post_init__(self) -> None:
        limits.check(width=self.width, number=self.num_texts, length_penalty=self.length_penalty)


@dataclass
class _Finished:
    """At most `max_texts` finished texts of one context, those with the best scores, best first."""

    max_texts: int
    texts: list[tuple[float, GeneratedText]] = field(default_factory=list)

    @property
    def min_score(self) -> float:
        """The score that a text must exceed to be added."""
        return self.texts[-1][0] if len(self.texts) == self.max_texts else -float("inf")

    def add(self, score: float, text: GeneratedText) -> None:
        """Add `text` if its score is among the best, and drop the worst text if there are then too many."""
        if score > self.min_score:
            self.texts.append((score, text))
            self.texts.sort(key=lambda entry: -entry[0])
            del self.texts[self.max_texts :]


def search_beam(task: WritingTask, beam: Beam) -> list[list[GeneratedText]]:
    """Return the best texts of each context of `task` (B,), best first, found with the most probable extensions."""
    extensions = TopRequest(beam.width + 1)  # one of them may be the end token, which leaves `width` others
    return _search(task, beam, lambda unfinished, across: extensions)


def search_stochastic_beam(
    task: WritingTask, beam: Beam, sampler: Sampler, *, branching: int = 8, seed: int = 0, first: int = 0
) -> list[list[GeneratedText]]:
    """Return the best texts of each context of `task` (B,), best first, found with sampled extensions.

    Args:
        task: The contexts and constraints.
        beam: The options of the search.
        sampler: Options of the distribution from which extensions are sampled.
        branching: Number of tokens that are sampled for each hypothesis; equal tokens count once.
        seed: The seed of the random draws.
        first: The number of the first text; the draws of a text depend only on the seed and on its number.
    """
    limits.check(branching=branching, seed=seed)
    generators = [random_generator(seed, first + index) for index in range(len(task.contexts))]

    def request_extensions(unfinished: Sequence[int], across: int) -> TokenRequest:
        # Each step draws `width` rows, so the draws of later steps do not depend on the number of hypotheses.
        places = [generators[index].random((beam.width, branching))[:across] for index in unfinished]
        return sampler.draws(torch.from_numpy(np.concatenate(places)).to(task.contexts.device))

    return _search(task, beam, request_extensions)


def _search(task: WritingTask, beam: Beam, request_extensions: RequestExtensions) -> list[list[GeneratedText]]:
    constraints, contexts = task.constraints, task.contexts
    finished = [_Finished(beam.num_texts) for _ in contexts]

    def finish(unfinished: Sequence[int], tokens: Tensor, log_probs: Tensor) -> None:
        """Finish those texts `tokens` (B, K, t) of the contexts `unfinished` (B,) whose log p (B, K) is finite."""
        for row, k in (~torch.isneginf(log_probs)).nonzero().tolist():
            text = to_generated_text(tokens[row, k].tolist(), float(log_probs[row, k]), constraints)
            finished[unfinished[row]].add(text.log_probability / max(1, text.targets) ** beam.length_penalty, text)

    hypotheses, unfinished = task.begin(), list(range(len(contexts)))
    scores = torch.zeros(len(contexts), 1, dtype=torch.double, device=contexts.device)  # log p (B, K)
    for step in range(constraints.max_tokens):
        if task.is_late or not unfinished:
            break
        states, tokens, logs = task.choose(hypotheses, request_extensions(unfinished, scores.shape[1]), step)
        total = (scores.view(-1, 1) + _mask_duplicates(tokens, logs.double())).view(len(scores), -1)
        is_end = tokens.view(len(scores), -1) == constraints.end
        best = total.masked_fill(is_end, -torch.inf).topk(min(beam.width, total.shape[1]), dim=1)
        ends = total.masked_fill(~is_end, -torch.inf).topk(min(beam.num_texts, total.shape[1]), dim=1)
        parents = hypotheses
        for extensions in (ends, best):
            hypotheses = parents.children(tokens, extensions.indices, states)
            last_tokens = hypotheses.tokens[:, -1]
            is_done = (last_tokens == constraints.end) | constraints.ends_with_stop(hypotheses.tokens, step + 1)
            is_done = is_done.view(extensions.values.shape)
            done_scores = extensions.values.masked_fill(~is_done, -torch.inf)
            finish(unfinished, _by_context(hypotheses.tokens[:, -step - 1 :], is_done), done_scores)
        scores = best.values.masked_fill(is_done, -torch.inf)
        # An upper bound of the scores that a context can reach: log p never rises, and a text has at most
        # max_tokens + 1 targets. The search of a context ends when the bound does not exceed its `min_score`.
        reachable = scores.amax(1) / (constraints.max_tokens + 1) ** beam.length_penalty
        min_scores = scores.new_tensor([finished[index].min_score for index in unfinished])
        active = (reachable > min_scores).nonzero()[:, 0]
        hypotheses = hypotheses.select(_rows(active, scores.shape[1]))
        unfinished, scores = [unfinished[row] for row in active.tolist()], scores[active]
    # The remaining texts have reached the limit of tokens or of time.
    finish(unfinished, _by_context(hypotheses.tokens[:, len(task.prompt) + 1 :], scores), scores)
    return [[text for _, text in best_texts.texts] for best_texts in finished]


def _by_context(tokens: Tensor, like: Tensor) -> Tensor:
    """Reshape tokens (B K, t) to (B, K, t), where (B, K) is the shape of `like`."""
    return tokens.reshape(*like.shape, tokens.shape[1])


def _rows(contexts: Tensor, across: int) -> Tensor:
    """Return the indices of all hypotheses of the rows `contexts` (B,), which have `across` each."""
    return (contexts[:, None] * across + torch.arange(across, device=contexts.device)).flatten()


def _mask_duplicates(tokens: Tensor, logs: Tensor) -> Tensor:
    """Return `logs` (N, L) with -inf where one of `tokens` (N, L) has occurred before in its row."""
    is_duplicate = (tokens[:, :, None] == tokens[:, None, :]).tril(-1).any(2)
    return logs.masked_fill(is_duplicate, -torch.inf)
