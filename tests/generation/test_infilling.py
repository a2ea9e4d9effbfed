"""Fillers of a gap against all that there are."""

import functools
import itertools

import pytest
import torch

from factorcell.data.vocabulary import END, UNKNOWN
from factorcell.generation.beam_search import Beam
from factorcell.generation.choosing import Constraints
from factorcell.generation.infilling import fill
from factorcell.generation.sampling import WritingTask
from tests.every_text import conditioned, logs_after, may_follow
from tests.small import make_letters

Ids = tuple[int, ...]
RUN = make_letters(("abc", "cab", "bad"), spread=1.0)
A, B, C, D = RUN.tokenizer.encode("abcd")


@functools.cache
def after(city: str, tokens: Ids) -> torch.Tensor:
    """The log probabilities of what follows `tokens`."""
    return logs_after(RUN, city, tokens)


def log_probability(city: str, left: Ids, text: Ids) -> float:
    """log p of `text` after `left`."""
    return sum(float(after(city, (*left, *text[:i]))[token]) for i, token in enumerate(text))


def every_filler(city: str, left: Ids, right: Ids, rules: Constraints) -> dict[Ids, float]:
    """Log probability of each filler that the rules allow."""
    fillers = [
        w
        for n in range(max(1, rules.min_tokens), rules.max_tokens + 1)
        for w in itertools.product((UNKNOWN, A, B, C, D), repeat=n)
    ]
    allowed = [w for w in fillers if all(may_follow(rules, left, w[:i], token) for i, token in enumerate(w))]
    return {w: log_probability(city, left, (*w, *right)) for w in allowed}


@pytest.mark.parametrize(
    ("left", "right"),
    [((A, B), (C, END)), ((), (A,)), ((C,), ()), ((A,), (B, A, END))],
    ids=["both", "right", "left", "long"],
)
@pytest.mark.parametrize(
    "rules",
    [
        Constraints(max_tokens=3),
        Constraints(max_tokens=3, min_tokens=2, banned=(UNKNOWN, B)),
        Constraints(max_tokens=3, no_repeat_ngram=2),
    ],
    ids=["free", "long", "new"],
)
@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_a_wide_search_finds_the_best_fillers(left: Ids, right: Ids, rules: Constraints, length_penalty: float) -> None:
    found = fill(
        WritingTask(RUN.model, conditioned(RUN, ["Oslo", "Nice"]), torch.tensor([1, 0]), rules, prompt=left),
        right,
        Beam(width=200, length_penalty=length_penalty, best=6),
    )
    for city, fillers in zip(("Nice", "Oslo"), found, strict=True):
        every = every_filler(city, left, right, rules)
        wanted = sorted(every, key=lambda w: -every[w] / (len(w) + len(right)) ** length_penalty)[:6]
        assert [filler.tokens for filler in fillers] == wanted
        assert [filler.log_probability for filler in fillers] == pytest.approx([every[w] for w in wanted], rel=1e-5)


def test_a_narrow_search_finds_fillers_with_their_probabilities() -> None:
    (fillers,) = fill(
        WritingTask(RUN.model, conditioned(RUN, ["Oslo"]), torch.tensor([0]), Constraints(max_tokens=4), prompt=(A,)),
        (C,),
        Beam(width=2, best=5),
    )
    assert fillers
    for filler in fillers:
        assert filler.log_probability == pytest.approx(log_probability("Oslo", (A,), (*filler.tokens, C)), rel=1e-5)
