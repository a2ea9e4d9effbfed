"""Searched texts against all texts that there are."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from factorcell.config import UserError
from factorcell.data.vocabulary import END, UNKNOWN
from factorcell.generation.beam_search import Beam, search_beam, search_stochastic_beam
from factorcell.generation.choosing import Constraints, Sampler
from factorcell.generation.sampling import GeneratedText, WritingTask, random_generator
from tests.brute_force import best_texts, conditioning, enumerate_texts, may_follow, next_log_probs
from tests.small_runs import make_letters

RUN = make_letters(spread=1.0)
CITIES = ("Oslo", "Nice")
A, B, C = RUN.tokenizer.encode("abc")
RULES = [
    Constraints(max_tokens=4),
    Constraints(max_tokens=4, min_tokens=2, banned=(UNKNOWN, B)),
    Constraints(max_tokens=5, no_repeat_ngram=2),
    Constraints(max_tokens=4, stops=((A, C), (B,))),
]
NAMES = ["free", "long", "new", "stop"]
TASK = WritingTask(RUN.model, conditioning(RUN, ["Oslo"]), torch.tensor([0]), Constraints())


def as_counted(text: GeneratedText, rules: Constraints) -> tuple[int, ...]:
    """The tokens with the end token, where it was written."""
    stopped = any(text.tokens[-len(stop) :] == stop for stop in rules.stops)
    return (*text.tokens, END) if text.ended and not stopped else text.tokens


@pytest.mark.parametrize("rules", RULES, ids=NAMES)
@pytest.mark.parametrize("length_penalty", [0.0, 0.7, 1.0])
def test_a_wide_beam_finds_the_best_texts(rules: Constraints, length_penalty: float) -> None:
    found = search_beam(
        WritingTask(RUN.model, conditioning(RUN, CITIES), torch.tensor([1, 0, 1]), rules, prompt=(C,)),
        Beam(width=300, length_penalty=length_penalty, num_texts=7),
    )
    for city, texts in zip(("Nice", "Oslo", "Nice"), found, strict=True):
        wanted = best_texts(enumerate_texts(RUN, city, rules, (C,)), length_penalty, 7)
        assert [as_counted(text, rules) for text in texts] == [tokens for tokens, _ in wanted]
        assert [text.log_probability for text in texts] == pytest.approx([log for _, log in wanted], abs=1e-5)


@pytest.mark.parametrize("rules", RULES, ids=NAMES)
def test_a_stochastic_beam_writes_what_the_rules_allow(rules: Constraints) -> None:
    context = conditioning(RUN, CITIES)
    found = search_stochastic_beam(
        WritingTask(RUN.model, context, torch.tensor([0, 1]), rules),
        Beam(length_penalty=1.0, width=4, num_texts=3),
        Sampler(),
        grow=2,
    )
    for city, texts in zip(CITIES, found, strict=True):
        everything = enumerate_texts(RUN, city, rules)
        assert texts
        assert len({text.tokens for text in texts}) == len(texts)
        for text in texts:
            assert text.log_probability == pytest.approx(everything[as_counted(text, rules)], abs=1e-5)
    found = search_stochastic_beam(
        WritingTask(RUN.model, context, torch.tensor([0, 1]), rules),
        Beam(length_penalty=1.0, width=300, num_texts=3),
        Sampler(3.0),
        grow=300,
    )
    for city, texts in zip(CITIES, found, strict=True):
        wanted = [tokens for tokens, _ in best_texts(enumerate_texts(RUN, city, rules), 1.0, 3)]
        assert [as_counted(text, rules) for text in texts] == wanted


def test_a_stochastic_beam_is_the_same_beside_any_others() -> None:
    context, rules = conditioning(RUN, CITIES), Constraints(max_tokens=8, min_tokens=6, no_repeat_ngram=3)

    def texts(numbers: range, seed: int) -> list[tuple[int, ...]]:
        contexts = torch.tensor([number % 2 for number in numbers])
        found = search_stochastic_beam(
            WritingTask(RUN.model, context, contexts, rules),
            Beam(width=3, length_penalty=0.5),
            Sampler(),
            grow=2,
            seed=seed,
            first=numbers[0],
        )
        return [text.tokens for (text,) in found]

    together = texts(range(30), 1)
    assert texts(range(7, 8), 1) == together[7:8]
    assert texts(range(12, 30), 1) == together[12:]
    assert texts(range(30), 2) != together
    assert len(set(together)) > 5


def by_hand(city: str, number: int, width: int, grow: int, rules: Constraints) -> dict[tuple[int, ...], float]:
    """Every text that the thesis' stochastic beam ends up with, by its summed log probability (section 6.1).

    A queue holds the `width` likeliest beginnings, and each is grown by what `grow` draws name.
    """
    draws, done = random_generator(5, number), dict[tuple[int, ...], float]()
    queue: dict[tuple[int, ...], float] = {(): 0.0}
    for _ in range(rules.max_tokens):
        grown: dict[tuple[int, ...], float] = {}
        for (tokens, total), places in zip(queue.items(), draws.random((width, grow)), strict=False):
            logs = next_log_probs(RUN, city, tokens).numpy()
            chances = np.exp(logs) * [may_follow(rules, (), tokens, token) for token in range(len(logs))]
            for token in np.searchsorted(chances.cumsum() / chances.sum(), places, side="right").tolist():
                grown[(*tokens, token)] = total + float(logs[token])
        done |= {tokens: total for tokens, total in grown.items() if tokens[-1] == END}
        going = sorted((item for item in grown.items() if item[0][-1] != END), key=lambda item: -item[1])
        queue = dict(going[:width])
    return done | queue


@pytest.mark.parametrize(("width", "grow"), [(1, 1), (3, 2), (8, 4), (120, 8)])
def test_a_stochastic_beam_is_that_of_the_thesis(width: int, grow: int) -> None:
    rules, numbers = Constraints(max_tokens=5, min_tokens=2), range(20)
    found: dict[float, list[tuple[int, ...]]] = {}
    for penalty in (0.0, 1.0):
        texts = search_stochastic_beam(
            WritingTask(RUN.model, conditioning(RUN, CITIES), torch.tensor([n % 2 for n in numbers]), rules),
            Beam(width=width, length_penalty=penalty),
            Sampler(),
            grow=grow,
            seed=5,
        )
        found[penalty] = [as_counted(text, rules) for (text,) in texts]
        for number, (text,) in enumerate(texts):
            reached = by_hand(CITIES[number % 2], number, width, grow, rules)
            ((expected, log),) = best_texts(reached, penalty, 1)
            assert as_counted(text, rules) == expected
            assert text.log_probability == pytest.approx(log, abs=1e-5)
    assert (found[0.0] == found[1.0]) == (width == 1)
    assert sum(map(len, found[0.0])) <= sum(map(len, found[1.0]))


def test_a_search_without_time_gives_the_empty_texts() -> None:
    task = WritingTask(
        RUN.model, conditioning(RUN, CITIES), torch.tensor([0, 1]), Constraints(max_tokens=4), deadline=0
    )
    for found in (search_beam(task, Beam()), search_stochastic_beam(task, Beam(), Sampler())):
        assert found == [[GeneratedText((), 0.0, 0, False)]] * 2


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Beam(width=0), "width is 0"),
        (lambda: Beam(num_texts=0), "number is 0"),
        (lambda: Beam(length_penalty=-1.0), "length_penalty"),
        (lambda: search_stochastic_beam(TASK, Beam(), Sampler(), grow=0), "grow is 0"),
    ],
)
def test_a_number_out_of_range_is_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        make()
