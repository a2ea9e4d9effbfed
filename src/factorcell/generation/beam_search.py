"""Beam search for texts, with the most probable or with sampled extensions.

    beam         the K most probable hypotheses of a context, extended by their most probable tokens
    stochastic   the same, extended by sampled tokens (thesis 2018, section 6.1)

Texts of different length are compared by log p(text) / targets ** length_penalty: penalty 0 prefers the most probable
text, which is short, and 1 the text with the lowest perplexity.

Shapes: B contexts, K hypotheses per context, L extensions per hypothesis, t written tokens, V vocabulary.
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

# The contexts whose search goes on, and the number of hypotheses of each -> request for their extensions.
RequestExtensions = Callable[[Sequence[int], int], TokenRequest]


@dataclass(frozen=True)
class Beam:
    """A beam of `width` hypotheses per context; the best `num_texts` texts are returned."""

    width: int = 8
    length_penalty: float = 0.0
    num_texts: int = 1

    def __post_init__(self) -> None:
        limits.check(width=self.width, number=self.num_texts, length_penalty=self.length_penalty)


@dataclass
class _Finished:
    """The best finished texts of one context with their scores, best first."""

    max_texts: int
    texts: list[tuple[float, GeneratedText]] = field(default_factory=list)

    @property
    def min_score(self) -> float:
        """The score that a text must exceed to be added."""
        return self.texts[-1][0] if len(self.texts) == self.max_texts else -float("inf")

    def add(self, score: float, text: GeneratedText) -> None:
        """Add `text` if its score is among the best."""
        if score > self.min_score:
            self.texts.append((score, text))
            self.texts.sort(key=lambda entry: -entry[0])
            del self.texts[self.max_texts :]


def search_beam(task: WritingTask, beam: Beam) -> list[list[GeneratedText]]:
    """Return the best texts of each context of `task` (B,), best first."""
    return _search(task, beam, lambda contexts, count: TopRequest(beam.width + 1))  # one more, in case one is the end


def search_stochastic_beam(
    task: WritingTask, beam: Beam, sampler: Sampler, *, branching: int = 8, seed: int = 0, first: int = 0
) -> list[list[GeneratedText]]:
    """Return the best texts of each context of `task` (B,), best first, by a stochastic beam search.

    Args:
        task: The contexts and constraints.
        beam: The beam.
        sampler: How extensions are sampled.
        branching: Sampled extensions per hypothesis; equal ones count once.
        seed: The seed.
        first: The number of the first text; the draws of a text depend on the seed and its number.
    """
    limits.check(branching=branching, seed=seed)
    generators = [random_generator(seed, first + text) for text in range(len(task.contexts))]

    def request_extensions(contexts: Sequence[int], count: int) -> TokenRequest:
        # Each step draws the same number of values, whatever the number of hypotheses.
        places = [generators[context].random((beam.width, branching))[:count] for context in contexts]
        return sampler.draws(torch.from_numpy(np.concatenate(places)).to(task.contexts.device))

    return _search(task, beam, request_extensions)


def _search(task: WritingTask, beam: Beam, request_extensions: RequestExtensions) -> list[list[GeneratedText]]:
    constraints, contexts = task.constraints, task.contexts
    finished = [_Finished(beam.num_texts) for _ in contexts]

    def finish(contexts: Sequence[int], tokens: Tensor, scores: Tensor) -> None:
        """Finish the texts `tokens` (B, K, t) whose score (B, K) is finite."""
        for place, k in (~torch.isneginf(scores)).nonzero().tolist():
            text = to_generated_text(tokens[place, k].tolist(), float(scores[place, k]), constraints)
            finished[contexts[place]].add(text.log_probability / max(1, text.targets) ** beam.length_penalty, text)

    hypotheses, open_contexts = task.begin(), list(range(len(contexts)))
    scores = torch.zeros(len(contexts), 1, dtype=torch.double, device=contexts.device)  # log p (B, K)
    for step in range(constraints.max_tokens):
        if task.is_late or not open_contexts:
            break
        states, tokens, logs = task.choose(hypotheses, request_extensions(open_contexts, scores.shape[1]), step)
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
            finish(open_contexts, _by_context(hypotheses.tokens[:, -step - 1 :], is_done), done_scores)
        scores = best.values.masked_fill(is_done, -torch.inf)
        # The search for a context ends when no hypothesis can reach the best texts: log p only falls, and a text has
        # at most max_tokens + 1 targets.
        reachable = scores.amax(1) / (constraints.max_tokens + 1) ** beam.length_penalty
        min_scores = scores.new_tensor([finished[context].min_score for context in open_contexts])
        active = (reachable > min_scores).nonzero()[:, 0]
        hypotheses = hypotheses.select(_rows(active, scores.shape[1]))
        open_contexts, scores = [open_contexts[place] for place in active.tolist()], scores[active]
    # The limit of tokens or time was reached: the remaining hypotheses are texts without an end.
    finish(open_contexts, _by_context(hypotheses.tokens[:, len(task.prompt) + 1 :], scores), scores)
    return [[text for _, text in best_texts.texts] for best_texts in finished]


def _by_context(tokens: Tensor, like: Tensor) -> Tensor:
    """Reshape tokens (B K, t) to (B, K, t), with B and K those of `like`."""
    return tokens.reshape(*like.shape, tokens.shape[1])


def _rows(contexts: Tensor, count: int) -> Tensor:
    """Return the rows of the hypotheses of `contexts`, `count` per context."""
    return (contexts[:, None] * count + torch.arange(count, device=contexts.device)).flatten()


def _mask_duplicates(tokens: Tensor, logs: Tensor) -> Tensor:
    """Set `logs` (N, L) of `tokens` (N, L) to -inf where an earlier token of the row is the same."""
    is_duplicate = (tokens[:, :, None] == tokens[:, None, :]).tril(-1).any(2)
    return logs.masked_fill(is_duplicate, -torch.inf)
