"""Beam search for the best generated texts of a context.

A *hypothesis* is an unfinished text. Each step extends the K best hypotheses of a context by one token and selects the
K most probable results. `search_beam` extends a hypothesis by its most probable tokens, `search_stochastic_beam` by
sampled tokens (thesis 2018, section 6.1). The best finished texts of a context are those with the highest score:

    score = log p(text) / target_count ** length_penalty

`target_count` is the number of tokens including the end token. With the penalty 1, the best text is the one with the
lowest perplexity; with 0, it is the most probable one, which is usually short.

Shapes: B contexts, K hypotheses per context, L extensions per hypothesis, t tokens of a text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from factorcell.generation.choosing import Sampler
from factorcell.generation.sampling import GeneratedText, WritingTask, random_generator, to_generated_text
from factorcell.nn.kernels.drawing import TokenRequest, TopRequest
from factorcell.options import limits

# Indices of the contexts with unfinished texts, hypotheses per context -> request for extensions of all hypotheses.
RequestExtensions = Callable[[Sequence[int], int], TokenRequest]


@dataclass(frozen=True)
class Beam:
    """Options of a beam search, which retains `width` hypotheses and returns the best `num_texts` texts per context."""

    width: int = 8
    length_penalty: float = 0.0
    num_texts: int = 1

    def __post_init__(self) -> None:
        limits.make_plain(self)
        limits.NUMBER_LIMITS["width"].check("width", self.width)
        limits.check(number=self.num_texts, length_penalty=self.length_penalty)


@dataclass
class _Finished:
    """At most `max_texts` finished texts of one context, those with the best scores, best first."""

    max_texts: int
    scored_texts: list[tuple[float, GeneratedText]] = field(default_factory=list)

    @property
    def min_score(self) -> float:
        """The score that a text must exceed to be added."""
        if len(self.scored_texts) < self.max_texts:
            return -float("inf")
        worst_score, _ = self.scored_texts[-1]
        return worst_score

    def add(self, score: float, text: GeneratedText) -> None:
        """Add `text` if its score is among the best, and drop the worst text if there are then too many."""
        if score > self.min_score:
            self.scored_texts.append((score, text))
            self.scored_texts.sort(key=lambda scored_text: -scored_text[0])
            del self.scored_texts[self.max_texts :]


def search_beam(task: WritingTask, beam: Beam) -> list[list[GeneratedText]]:
    """Return the best texts of each context of `task` (B,), best first, found with the most probable extensions."""
    request = TopRequest(beam.width + 1)  # one extension may be the end token, which leaves `width` other tokens
    return _search(task, beam, lambda _unfinished, _hypothesis_count: request)


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
        first: The number of the first search. There is one search per context; its draws depend only on the seed and on
            its number.
    """
    branching, seed = limits.check(branching=branching, seed=seed)
    generators = [random_generator(seed, first + index) for index in range(len(task.context_rows))]

    def request_extensions(unfinished: Sequence[int], hypothesis_count: int) -> TokenRequest:
        # Each step draws `width` rows, so the draws of later steps do not depend on the number of hypotheses.
        places = [generators[index].random((beam.width, branching))[:hypothesis_count] for index in unfinished]
        return sampler.request_draws(torch.from_numpy(np.concatenate(places)).to(task.context_rows.device))

    return _search(task, beam, request_extensions)


def _search(task: WritingTask, beam: Beam, request_extensions: RequestExtensions) -> list[list[GeneratedText]]:
    constraints, context_count, device = task.constraints, len(task.context_rows), task.context_rows.device
    finished = [_Finished(beam.num_texts) for _ in range(context_count)]

    def finish(unfinished: Sequence[int], tokens: Tensor, log_probs: Tensor) -> None:
        """Add the texts that have ended to the results of their contexts.

        Row b of `log_probs` (B, K) has the log probabilities of K texts of the context `unfinished[b]`, or -inf for
        texts that have not ended. `tokens` (B K, t) are the tokens of all these texts.
        """
        tokens_by_context = tokens.reshape(*log_probs.shape, tokens.shape[1])
        for row, k in (~torch.isneginf(log_probs)).nonzero().tolist():
            text = to_generated_text(tokens_by_context[row, k].tolist(), float(log_probs[row, k]), constraints)
            score = text.log_probability / max(1, text.target_count) ** beam.length_penalty
            finished[unfinished[row]].add(score, text)

    hypotheses, unfinished = task.begin(), list(range(context_count))
    log_probs = torch.zeros(context_count, 1, dtype=torch.double, device=device)  # of the hypotheses (B, K)
    for step in range(constraints.max_tokens):
        if task.is_late or not unfinished:
            break
        request = request_extensions(unfinished, log_probs.shape[1])
        states, tokens, token_log_probs = task.choose(hypotheses, request, step)
        token_log_probs = _mask_duplicates(tokens, token_log_probs.double())
        extended = (log_probs.view(-1, 1) + token_log_probs).view(len(log_probs), -1)  # of all extensions (B, K L)
        is_end = tokens.view(len(log_probs), -1) == constraints.end
        continued = extended.masked_fill(is_end, -torch.inf).topk(min(beam.width, extended.shape[1]), dim=1)
        ended = extended.masked_fill(~is_end, -torch.inf).topk(min(beam.num_texts, extended.shape[1]), dim=1)
        parents = hypotheses
        for extensions, extended_states in ((ended, None), (continued, states)):  # a state is a large copy
            hypotheses = parents.select_extensions(tokens, extensions.indices, extended_states)
            last_tokens = hypotheses.tokens[:, -1]
            is_finished = (last_tokens == constraints.end) | constraints.ends_with_stop(hypotheses.tokens, step + 1)
            is_finished = is_finished.view(extensions.values.shape)
            finished_log_probs = extensions.values.masked_fill(~is_finished, -torch.inf)
            finish(unfinished, hypotheses.tokens[:, -step - 1 :], finished_log_probs)
        log_probs = continued.values.masked_fill(is_finished, -torch.inf)
        # An upper bound of the scores that a context can reach: log p never rises, and a text has at most
        # max_tokens + 1 targets. The search of a context ends when the bound does not exceed its `min_score`.
        max_scores = log_probs.amax(1) / (constraints.max_tokens + 1) ** beam.length_penalty
        min_scores = log_probs.new_tensor([finished[index].min_score for index in unfinished])
        active = (max_scores > min_scores).nonzero()[:, 0]
        if len(active) < len(unfinished):
            hypotheses = hypotheses.select(_hypothesis_rows(active, log_probs.shape[1]))
            unfinished, log_probs = [unfinished[row] for row in active.tolist()], log_probs[active]
    # The remaining texts have reached the limit of tokens or of time.
    finish(unfinished, hypotheses.tokens[:, len(task.prompt) + 1 :], log_probs)
    return [[text for _, text in best_texts.scored_texts] for best_texts in finished]


def _hypothesis_rows(contexts: Tensor, hypothesis_count: int) -> Tensor:
    """Return the indices of all hypotheses of the contexts with the indices `contexts`; each has `hypothesis_count`."""
    offsets = torch.arange(hypothesis_count, device=contexts.device)
    return (contexts[:, None] * hypothesis_count + offsets).flatten()


def _mask_duplicates(tokens: Tensor, log_probs: Tensor) -> Tensor:
    """Return `log_probs` (B K, L) with -inf for each of the `tokens` (B K, L) that occurs earlier in its row."""
    is_duplicate = (tokens[:, :, None] == tokens[:, None, :]).tril(-1).any(2)
    return log_probs.masked_fill(is_duplicate, -torch.inf)
