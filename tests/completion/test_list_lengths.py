"""A list of at most ten suggestions is the beginning of the list of ten."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from factorcell.completion import compiled
from factorcell.completion.blend import FEATURES, Blend, BlendWeights
from factorcell.completion.completer import Completer
from factorcell.completion.online import User
from factorcell.completion.popularity import MIN_PROPOSALS, History, Popularity, Suggestion
from factorcell.completion.search import PlainEngine
from tests import kernels
from tests.small_runs import make_letters

CITY = {"user": "city", "context": (), "min_user_count": 1}
COUNTS = (1, 2, 3, 7, 9, MIN_PROPOSALS)
RANDOM = np.random.default_rng(5)
TEXTS = ["".join(RANDOM.choice(list("abc"), RANDOM.integers(3, 9))) for _ in range(400)]
POPULAR = Popularity.fit([text for text in TEXTS for _ in range(RANDOM.geometric(0.3))], min_count=1)
HISTORY = History(tuple(RANDOM.choice(TEXTS, 90)))


def check_shorter_lists(complete: Callable[[int], Sequence[Suggestion]]) -> None:
    """Check that shorter lists begin longer ones, with the same probabilities."""
    suggestions = {count: complete(count) for count in COUNTS}
    assert [len(suggestions[count]) for count in COUNTS] == list(COUNTS)
    longest = suggestions[COUNTS[-1]]
    assert len({s.text for s in longest}) == len(longest)
    for shorter in suggestions.values():
        beginning = longest[: len(shorter)]
        assert [(s.text, s.source, s.typos) for s in shorter] == [(s.text, s.source, s.typos) for s in beginning]
        logs = [s.log_probability for s in beginning]
        assert [s.log_probability for s in shorter] == pytest.approx(logs, abs=1e-5)


@pytest.mark.parametrize("prefix", ["", "a", "bc", "abca"])
def test_shorter_lists_of_counted_texts_begin_longer_ones(prefix: str) -> None:
    lookups: list[Popularity | History] = [POPULAR, HISTORY]
    for lookup, typos in itertools.product(lookups, (0, 2)):
        longest = lookup.complete(prefix, 400, typos)
        for count in COUNTS:
            assert lookup.complete(prefix, count, typos) == longest[:count]


@pytest.mark.parametrize("typos", [0, 1, 2])
@pytest.mark.parametrize("plain", [pytest.param(False, marks=kernels.compiled), True])
def test_shorter_lists_of_a_model_begin_longer_ones(typos: int, plain: bool) -> None:
    completer = Completer(make_letters(spread=0.8), typos=typos)
    if plain:
        completer.engine = PlainEngine(completer.run.model)
    else:
        assert isinstance(completer.engine, compiled.CompiledEngine)
    for prefix in ("", "bac", "abcaba"):
        typed_text = completer.type_text(completer.begin(), prefix)
        assert not completer.suggest(typed_text, COUNTS[-1]).is_cut
        check_shorter_lists(lambda count, typed_text=typed_text: completer.suggest(typed_text, count).suggestions)  # type: ignore[misc]


@pytest.mark.parametrize("typos", [0, 2])
@pytest.mark.parametrize("seed", [None, 0, 1])
def test_shorter_lists_of_a_blend_begin_longer_ones(typos: int, seed: int | None) -> None:
    run = make_letters(data=CITY, spread=0.8)
    values = np.random.default_rng(seed).normal(size=len(FEATURES)).tolist()
    weights = None if seed is None else BlendWeights(dict(zip(FEATURES, values, strict=True)))
    blend, user = Blend(run, POPULAR, weights, typos=typos), replace(User.new(run), history=HISTORY)
    sources = set()
    for prefix in ("", "bac", "abcab"):
        check_shorter_lists(lambda count, prefix=prefix: blend.complete(prefix, user, k=count))  # type: ignore[misc]
        sources |= {s.source for s in blend.complete(prefix, user, k=40)}
    assert len(sources) >= 4
