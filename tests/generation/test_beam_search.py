"""Compare beam searches with an enumeration of all texts and with a plain implementation."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from factorcell.data.tokenizers.tokenizer import END, UNKNOWN
from factorcell.generation.generate import GenerationOptions, random_generator
from factorcell.generation.writing import Constraints, GeneratedText, WritingTask, search_beams
from factorcell.nn.backbones.recurrent import RecurrentState
from tests.brute_force import best_texts, conditioning, enumerate_texts, may_follow, next_log_probs
from tests.kernels import compiled
from tests.small_runs import make_letters

RUN = make_letters(spread=1.0)
CITIES = ("Oslo", "Nice")
A, B, C = RUN.tokenizer.encode("abc")
CONSTRAINTS = [
    Constraints(max_tokens=4),
    Constraints(max_tokens=4, min_tokens=2, banned=(UNKNOWN, B)),
    Constraints(max_tokens=5, no_repeat_ngram=2),
]
NAMES = ["free", "long", "new"]


def search(
    constraints: Constraints,
    contexts: Sequence[int],
    method: str = "beam",
    *,
    num_texts: int = 1,
    first: int = 0,
    prompt: Sequence[int] = (),
    deadline: float = math.inf,
    **options: Any,
) -> list[list[GeneratedText]]:
    """Return the best texts in the cities with the numbers `contexts`."""
    context = conditioning(RUN, CITIES)
    task = WritingTask(RUN.model, context, torch.tensor(contexts), constraints, prompt=prompt, deadline=deadline)
    settings = GenerationOptions(method, **options)
    width, _ = settings.beam_sizes(num_texts)
    requests = settings.requests(len(contexts), first, num_texts)
    return search_beams(task, requests, width=width, length_penalty=settings.length_penalty, num_texts=num_texts)


def with_end(text: GeneratedText) -> tuple[int, ...]:
    """Return the tokens, including the end token if it was written."""
    return (*text.tokens, END) if text.has_ended else text.tokens


@pytest.mark.parametrize("constraints", CONSTRAINTS, ids=NAMES)
@pytest.mark.parametrize("length_penalty", [0.0, 0.7, 1.0])
def test_a_wide_beam_finds_the_best_texts(constraints: Constraints, length_penalty: float) -> None:
    results = search(constraints, [1, 0, 1], prompt=(C,), width=300, length_penalty=length_penalty, num_texts=7)
    for city, texts in zip(("Nice", "Oslo", "Nice"), results, strict=True):
        expected = best_texts(enumerate_texts(RUN, city, constraints, (C,)), length_penalty, 7)
        assert [with_end(text) for text in texts] == [tokens for tokens, _ in expected]
        assert [text.log_probability for text in texts] == pytest.approx([log for _, log in expected], abs=1e-5)


@pytest.mark.parametrize("constraints", CONSTRAINTS, ids=NAMES)
def test_a_stochastic_beam_obeys_the_constraints(constraints: Constraints) -> None:
    results = search(constraints, [0, 1], "stochastic", width=4, num_texts=3, branching=2)
    for city, texts in zip(CITIES, results, strict=True):
        log_probs = enumerate_texts(RUN, city, constraints)
        assert texts
        assert len({text.tokens for text in texts}) == len(texts)
        for text in texts:
            assert text.log_probability == pytest.approx(log_probs[with_end(text)], abs=1e-5)
    results = search(constraints, [0, 1], "stochastic", width=300, num_texts=3, temperature=3.0, branching=300)
    for city, texts in zip(CITIES, results, strict=True):
        expected = [tokens for tokens, _ in best_texts(enumerate_texts(RUN, city, constraints), 1.0, 3)]
        assert [with_end(text) for text in texts] == expected


def test_stochastic_texts_are_the_same_in_any_batch() -> None:
    constraints = Constraints(max_tokens=8, min_tokens=6, no_repeat_ngram=3)

    def texts(numbers: range, seed: int) -> list[tuple[int, ...]]:
        options: dict[str, Any] = {"width": 3, "length_penalty": 0.5, "branching": 2, "seed": seed}
        contexts = [number % 2 for number in numbers]
        results = search(constraints, contexts, "stochastic", first=numbers[0], **options)
        return [text.tokens for (text,) in results]

    together = texts(range(30), 1)
    assert texts(range(7, 8), 1) == together[7:8]
    assert texts(range(12, 30), 1) == together[12:]
    assert texts(range(30), 2) != together
    assert len(set(together)) > 5


def reference_search(
    city: str, number: int, width: int, branching: int, constraints: Constraints
) -> dict[tuple[int, ...], float]:
    """Return all texts of the stochastic beam search of the thesis, with their log probabilities (section 6.1).

    A queue holds the `width` most probable hypotheses, each of which is extended by `branching` draws.
    """
    draws, finished = random_generator(5, number), dict[tuple[int, ...], float]()
    queue: dict[tuple[int, ...], float] = {(): 0.0}
    for _ in range(constraints.max_tokens):
        extended: dict[tuple[int, ...], float] = {}
        for (tokens, total), places in zip(queue.items(), draws.random((width, branching)), strict=False):
            logs = next_log_probs(RUN, city, tokens).numpy()
            probabilities = np.exp(logs) * [may_follow(constraints, (), tokens, token) for token in range(len(logs))]
            for token in np.searchsorted(probabilities.cumsum() / probabilities.sum(), places, side="right").tolist():
                extended[(*tokens, token)] = total + float(logs[token])
        finished |= {tokens: total for tokens, total in extended.items() if tokens[-1] == END}
        unfinished = sorted((item for item in extended.items() if item[0][-1] != END), key=lambda item: -item[1])
        queue = dict(unfinished[:width])
    return finished | queue


@pytest.mark.parametrize(("width", "branching"), [(1, 1), (3, 2), (8, 4), (120, 8)])
def test_a_stochastic_beam_agrees_with_the_thesis(width: int, branching: int) -> None:
    constraints, numbers = Constraints(max_tokens=5, min_tokens=2), range(20)
    results: dict[float, list[tuple[int, ...]]] = {}
    for penalty in (0.0, 1.0):
        options: dict[str, Any] = {"width": width, "length_penalty": penalty, "branching": branching, "seed": 5}
        texts = search(constraints, [number % 2 for number in numbers], "stochastic", **options)
        results[penalty] = [with_end(text) for (text,) in texts]
        for number, (text,) in enumerate(texts):
            reference = reference_search(CITIES[number % 2], number, width, branching, constraints)
            ((expected, log),) = best_texts(reference, penalty, 1)
            assert with_end(text) == expected
            assert text.log_probability == pytest.approx(log, abs=1e-5)
    assert (results[0.0] == results[1.0]) == (width == 1)
    assert sum(map(len, results[0.0])) <= sum(map(len, results[1.0]))


def test_a_search_without_time_returns_empty_texts() -> None:
    for method in ("beam", "stochastic"):
        results = search(Constraints(max_tokens=4), [0, 1], method, deadline=0)
        assert results == [[GeneratedText((), 0.0, 0, False)]] * 2


@compiled
def test_a_step_copies_the_states_of_unfinished_texts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, select = [], RecurrentState.select

    def record_count(state: RecurrentState, rows: torch.Tensor) -> RecurrentState:
        counts.append(len(rows))
        return select(state, rows)

    monkeypatch.setattr(RecurrentState, "select", record_count)
    search(Constraints(max_tokens=4, min_tokens=4), [0], width=2)
    assert counts[1:] == [2, 2, 2, 2]  # the first is the initial state
