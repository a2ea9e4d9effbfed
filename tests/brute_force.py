"""All texts that a small model can write, with their log probabilities: what decoders are held against."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from factorcell.data.vocabulary import END, START
from factorcell.generation.choosing import Constraints
from factorcell.model.language_model import Conditioning
from factorcell.model.run import Run

Texts = dict[tuple[int, ...], float]


def conditioning(run: Run, cities: Sequence[str]) -> Conditioning:
    """A context a city."""
    corpus = run.read([""] * len(cities), [{"city": city} for city in cities])
    return run.model.condition(corpus.context(np.arange(len(cities))))


@torch.inference_mode()
def next_log_probs(run: Run, city: str, tokens: Sequence[int]) -> Tensor:
    """The log probabilities (V,) of what follows the start token and `tokens`, read one by one."""
    context, states = conditioning(run, [city]), None
    for token in (START, *tokens):
        logs, states = run.model.step(torch.tensor([token]), context, states)
    return logs[0].double()


def may_follow(rules: Constraints, prompt: Sequence[int], text: Sequence[int], token: int) -> bool:
    """Whether `rules` let `token` follow `prompt` and `text`."""
    if token in rules.banned or (token == END and len(text) < rules.min_tokens):
        return False
    before, n = [*prompt, *text], rules.no_repeat_ngram
    last = [*before, token][len(before) + 1 - n :]
    return not n or len(last) < n or all(before[i : i + n] != last for i in range(len(before) - n + 1))


def enumerate_texts(
    run: Run, city: str, rules: Constraints, prompt: Sequence[int] = (), renormalised: bool = False
) -> Texts:
    """Log probability of each text that may be written; with the end token where it ends, without where room ends.

    `renormalised`: over what the rules allow, step by step.
    """
    found: Texts = {}

    def grow(text: tuple[int, ...], total: float) -> None:
        logs = next_log_probs(run, city, (*prompt, *text))
        allowed = [token for token in range(len(logs)) if may_follow(rules, prompt, text, token)]
        if renormalised:
            logs = logs - logs[allowed].logsumexp(0)
        for token in allowed:
            longer, value = (*text, token), total + float(logs[token])
            stopped = any(longer[-len(stop) :] == stop for stop in rules.stops)
            if value == -np.inf:
                continue
            if token == END or stopped or len(longer) == rules.max_tokens:
                found[longer] = value
            else:
                grow(longer, value)

    grow((), 0.0)
    return found


def best_texts(
    texts: Mapping[tuple[int, ...], float], penalty: float, count: int
) -> list[tuple[tuple[int, ...], float]]:
    """The `count` best texts by log probability over targets ** penalty; a text of `texts` has as many as tokens."""
    return sorted(texts.items(), key=lambda item: -item[1] / len(item[0]) ** penalty)[:count]
