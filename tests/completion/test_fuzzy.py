"""Counted texts with slips against a look at every text."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from factorcell.completion.fuzzy import Forgiving
from factorcell.completion.popularity import History, Popularity
from factorcell.completion.search import Suggestion
from factorcell.completion.typos import FIRST, SLIP, Slips
from tests.completion.test_typos import slips_of, within

TEXTS = st.text("ab🇳", max_size=6)


def looked_at(shares: dict[str, float], exact: list[Suggestion], typed: str, k: int, slips: Slips) -> list[Suggestion]:
    """The exact ones, and every text within the slips, sorted."""
    found = []
    for text, share in shares.items():
        count = slips_of(text, typed)
        if 1 <= count <= within(typed, slips.most):
            cost = count * slips.cost + (text[:1] != typed[:1]) * slips.first
            found.append((-(math.log(share) - cost), text, count))
    source = exact[0].source if exact else ""
    return exact + [Suggestion(text, -log, source, count) for log, text, count in sorted(found)[: k - len(exact)]]


def alike(found: list[Suggestion], expected: list[Suggestion]) -> bool:
    """The same texts, slips and order, log probabilities but for roundings."""
    return [(one.text, one.slips) for one in found] == [(one.text, one.slips) for one in expected] and np.allclose(
        [one.log_probability for one in found], [one.log_probability for one in expected], atol=1e-9
    )


@settings(max_examples=120)
@given(
    queries=st.lists(TEXTS, max_size=60),
    typed=st.text("aAb🇳", max_size=7),
    k=st.integers(1, 12),
    most=st.integers(0, 2),
    cost=st.sampled_from([0.0, 1.0, SLIP]),
    first=st.sampled_from([0.0, FIRST]),
)
def test_forgiven_texts_are_those_of_a_look_at_every_text(
    queries: list[str], typed: str, k: int, most: int, cost: float, first: float
) -> None:
    slips = Slips(most, cost, first)
    history = History()
    for query in queries:
        history = history.add(query)
    for counted, source in ((Popularity.fit(queries, min_count=1), "popularity"), (history, "history")):
        exact = counted.complete(typed, k)
        found = Forgiving(counted, slips).complete(typed, k)
        assert alike(found, looked_at(counted.shares(), exact, typed, k, slips))
        assert found[: len(exact)] == exact
        assert {one.source for one in found} <= {source}


def test_ties_are_broken_by_alphabet_and_an_unknown_letter_is_no_other() -> None:
    found = Forgiving(Popularity.fit(["abd", "abc", "adc", "abe"], min_count=1))
    assert [one.text for one in found.complete("axc")] == ["abc", "adc"]
    assert [one.text for one in found.complete("abx")] == ["abc", "abd", "abe"]
    assert Forgiving(Popularity.fit(["adfh"], min_count=1)).complete("acgh") == []
