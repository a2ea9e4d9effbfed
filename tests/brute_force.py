"""All texts that a small model can generate, with their log probabilities: the oracle of decoders."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from factorcell.data.tokenizers.tokenizer import END, START
from factorcell.generation.writing import Constraints
from factorcell.nn.language_model import Conditioning
from factorcell.runs.run import Run

Texts = dict[tuple[int, ...], float]


def conditioning(run: Run, cities: Sequence[str]) -> Conditioning:
    """Return the conditioning of a batch with one city per text."""
    corpus = run.read([""] * len(cities), [{"city": city} for city in cities])
    return run.model.condition(corpus.context(np.arange(len(cities))))


@torch.inference_mode()
def next_log_probs(run: Run, city: str, tokens: Sequence[int]) -> Tensor:
    """Return the log probabilities (V,) of the next token after the start token and `tokens`, read one by one."""
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
    run: Run, city: str, rules: Constraints, prompt: Sequence[int] = (), renormalized: bool = False
) -> Texts:
    """Return the log probability of each allowed text, with its end token unless it is cut at `max_tokens`.

    `renormalized`: divide by the probability of all allowed tokens at each step.
    """
    texts: Texts = {}

    def grow(text: tuple[int, ...], total: float) -> None:
        logs = next_log_probs(run, city, (*prompt, *text))
        allowed = [token for token in range(len(logs)) if may_follow(rules, prompt, text, token)]
        if renormalized:
            logs = logs - logs[allowed].logsumexp(0)
        for token in allowed:
            longer, value = (*text, token), total + float(logs[token])
            if value == -np.inf:
                continue
            if token == END or len(longer) == rules.max_tokens:
                texts[longer] = value
            else:
                grow(longer, value)

    grow((), 0.0)
    return texts


def best_texts(
    texts: Mapping[tuple[int, ...], float], penalty: float, count: int
) -> list[tuple[tuple[int, ...], float]]:
    """Return the `count` best texts by log probability / targets ** penalty; a text has one target per token."""
    return sorted(texts.items(), key=lambda item: -item[1] / len(item[0]) ** penalty)[:count]
