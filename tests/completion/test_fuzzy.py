"""Counted texts with typos against a look at every text."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from factorcell.completion.fuzzy import TypoTolerantLookup
from factorcell.completion.popularity import History, Popularity
from factorcell.completion.search import Suggestion
from factorcell.completion.typos import FIRST_TOKEN_COST, TYPO_COST, TypoCosts
from tests.completion.test_typos import slips_of, within

TEXTS = st.text("ab🇳", max_size=6)


def looked_at(
    shares: dict[str, float], exact: list[Suggestion], typed: str, k: int, typos: TypoCosts
) -> list[Suggestion]:
    """The exact ones, and every text within the typos, sorted."""
    found = []
    for text, share in shares.items():
        count = slips_of(text, typed)
        if 1 <= count <= within(typed, typos.max_typos):
            cost = count * typos.cost + (text[:1] != typed[:1]) * typos.first_token_cost
            found.append((-(math.log(share) - cost), text, count))
    source = exact[0].source if exact else ""
    return exact + [Suggestion(text, -log, source, count) for log, text, count in sorted(found)[: k - len(exact)]]


def alike(found: list[Suggestion], expected: list[Suggestion]) -> bool:
    """The same texts, typos and order, log probabilities but for roundings."""
    return [(one.text, one.typos) for one in found] == [(one.text, one.typos) for one in expected] and np.allclose(
        [one.log_probability for one in found], [one.log_probability for one in expected], atol=1e-9
    )


@settings(max_examples=120)
@given(
    queries=st.lists(TEXTS, max_size=60),
    typed=st.text("aAb🇳", max_size=7),
    k=st.integers(1, 12),
    most=st.integers(0, 2),
    cost=st.sampled_from([0.0, 1.0, TYPO_COST]),
    first=st.sampled_from([0.0, FIRST_TOKEN_COST]),
)
def test_forgiven_texts_are_those_of_a_look_at_every_text(
    queries: list[str], typed: str, k: int, most: int, cost: float, first: float
) -> None:
    typos = TypoCosts(most, cost, first)
    history = History()
    for query in queries:
        history = history.add(query)
    for counted, source in ((Popularity.fit(queries, min_count=1), "popularity"), (history, "history")):
        exact = counted.complete(typed, k)
        found = TypoTolerantLookup(counted, typos).complete(typed, k)
        assert alike(found, looked_at(counted.shares(), exact, typed, k, typos))
        assert found[: len(exact)] == exact
        assert {one.source for one in found} <= {source}


def test_ties_are_broken_by_alphabet_and_an_unknown_letter_is_no_other() -> None:
    found = TypoTolerantLookup(Popularity.fit(["abd", "abc", "adc", "abe"], min_count=1))
    assert [one.text for one in found.complete("axc")] == ["abc", "adc"]
    assert [one.text for one in found.complete("abx")] == ["abc", "abd", "abe"]
    assert TypoTolerantLookup(Popularity.fit(["adfh"], min_count=1)).complete("acgh") == []
