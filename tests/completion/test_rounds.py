"""The best of few are the first of many, whatever suggests."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from factorcell.completion import compiled
from factorcell.completion.blend import FEATURES, Blend, BlendWeights
from factorcell.completion.completer import Completer
from factorcell.completion.fuzzy import TypoTolerantLookup
from factorcell.completion.online import User
from factorcell.completion.popularity import History, Popularity
from factorcell.completion.search import MAX_COUNT, MIN_PROPOSALS, PlainEngine, Suggestion, merge_rounds, round_sizes
from tests.small_runs import make_letters

CITY = {"user": "city", "context": (), "min_user_count": 1}
COUNTS = (1, 2, 3, 7, 9, 10, 11, 15, 20, 21, 45)
RANDOM = np.random.default_rng(5)
TEXTS = ["".join(RANDOM.choice(list("abc"), RANDOM.integers(3, 9))) for _ in range(400)]
POPULAR = Popularity.fit([text for text in TEXTS for _ in range(RANDOM.geometric(0.3))], min_count=1)
OWN = History(tuple(RANDOM.choice(TEXTS, 90)))


def check(of: Callable[[int], Sequence[Suggestion]]) -> None:
    """Of every two counts the answer to the smaller is the beginning of that to the larger, probabilities too."""
    found = {count: of(count) for count in COUNTS}
    assert [len(found[count]) for count in COUNTS] == list(COUNTS)
    longest = found[COUNTS[-1]]
    assert len({one.text for one in longest}) == len(longest)
    for few in found.values():
        beginning = longest[: len(few)]
        assert [(one.text, one.source, one.typos) for one in few] == [
            (one.text, one.source, one.typos) for one in beginning
        ]
        logs = [one.log_probability for one in beginning]
        assert [one.log_probability for one in few] == pytest.approx(logs, abs=1e-5)
    assert found[1] == found[MIN_PROPOSALS][:1]


def test_a_round_is_twice_as_large_as_the_one_before() -> None:
    assert round_sizes(10) == [10]
    assert round_sizes(41) == [10, 20, 40, 80]
    assert round_sizes(MAX_COUNT)[-2:] == [81_920, MAX_COUNT]


def test_a_round_appends_what_is_new_in_it_and_raises_no_probability() -> None:
    first = [Suggestion(str(number), -1.0 - number, "model") for number in range(10)]
    second = [Suggestion("x", -2.0, "history"), *first[::-1], Suggestion("y", -11.0, "model")]
    found = merge_rounds(lambda size: first if size == 10 else second, 11)
    assert found == [*first, Suggestion("x", -10.0, "history")]
    assert merge_rounds(lambda size: first if size == 10 else second, 15)[10:] == [found[-1], second[-1]]
    assert merge_rounds(lambda size: first[:3], 15) == first[:3]


@pytest.mark.parametrize("prefix", ["", "a", "bc", "abca"])
def test_fewer_counted_texts_are_the_first_of_more(prefix: str) -> None:
    for counted in (POPULAR, OWN, TypoTolerantLookup(POPULAR), TypoTolerantLookup(OWN)):
        longest = counted.complete(prefix, 400)
        for count in COUNTS:
            assert counted.complete(prefix, count) == longest[:count]


@pytest.mark.parametrize("typos", [0, 1, 2])
@pytest.mark.parametrize("plain", [False, True])
def test_fewer_texts_of_a_model_are_the_first_of_more(typos: int, plain: bool) -> None:
    completer = Completer(make_letters(spread=0.8), typos=typos)
    assert isinstance(completer.engine, compiled.CompiledEngine)
    if plain:
        completer.engine = PlainEngine(completer.run.model)
    for prefix in ("", "bac", "abcaba"):
        written = completer.type(completer.begin(), prefix)
        assert not completer.suggest(written, COUNTS[-1]).cut
        check(lambda count, written=written: completer.suggest(written, count).suggestions)  # type: ignore[misc]


@pytest.mark.parametrize("typos", [0, 2])
@pytest.mark.parametrize("seed", [None, 0, 1])
def test_fewer_blended_texts_are_the_first_of_more(typos: int, seed: int | None) -> None:
    run = make_letters(data=CITY, spread=0.8)
    drawn = np.random.default_rng(seed).normal(size=len(FEATURES)).tolist()
    weights = None if seed is None else BlendWeights(dict(zip(FEATURES, drawn, strict=True)))
    blend, user = Blend(Completer(run, typos=typos), POPULAR, weights), replace(User.new(run), history=OWN)
    sources = set()
    for prefix in ("", "bac", "abcab"):
        check(lambda count, prefix=prefix: blend.complete(prefix, user, k=count))  # type: ignore[misc]
        sources |= {one.source for one in blend.complete(prefix, user, k=40)}
    assert len(sources) >= 5
