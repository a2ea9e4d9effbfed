"""Compare typo-tolerant lookup with a comparison of every text."""

import math
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from factorcell.completion import typos
from factorcell.completion.popularity import History, Popularity, Suggestion
from factorcell.completion.typos import FIRST_TOKEN_COST, TYPO_COST
from tests.completion.test_typos import count_typos, max_typos_for

TEXTS = st.text("ab🇳", max_size=6)


def expected_suggestions(
    shares: Mapping[str, float], exact: list[Suggestion], typed: str, k: int, max_typos: int
) -> list[Suggestion]:
    """Return the exact suggestions, then all texts within the permitted number of typos, sorted."""
    matches = []
    for text, share in shares.items():
        count = count_typos(text, typed)
        if 1 <= count <= max_typos_for(typed, max_typos):
            cost = count * typos.TYPO_COST + (text[:1] != typed[:1]) * typos.FIRST_TOKEN_COST
            matches.append((-(math.log(share) - cost), text, count))
    source = exact[0].source if exact else ""
    return exact + [Suggestion(text, -log, source, count) for log, text, count in sorted(matches)[: k - len(exact)]]


def are_close(actual: list[Suggestion], expected: list[Suggestion]) -> bool:
    """Return whether texts, typos and order agree, and log probabilities up to rounding."""
    return [(s.text, s.typos) for s in actual] == [(s.text, s.typos) for s in expected] and np.allclose(
        [s.log_probability for s in actual], [s.log_probability for s in expected], atol=1e-9
    )


@settings(max_examples=120)
@given(
    queries=st.lists(TEXTS, max_size=60),
    typed=st.text("aAb🇳", max_size=7),
    k=st.integers(1, 12),
    max_typos=st.integers(0, 2),
    cost=st.sampled_from([0.0, 1.0, TYPO_COST]),
    first=st.sampled_from([0.0, FIRST_TOKEN_COST]),
)
def test_lookup_finds_all_texts_within_the_permitted_typos(
    queries: list[str], typed: str, k: int, max_typos: int, cost: float, first: float
) -> None:
    history = History()
    for query in queries:
        history = history.add(query)
    popularity = Popularity.fit(queries, min_count=1)
    popular_shares = {text: count / len(queries) for text, count in popularity.counts.items()}
    for counted, shares, source in (
        (popularity, popular_shares, "popularity"),
        (history, history.shares, "history"),
    ):
        exact = counted.complete(typed, k)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(typos, "TYPO_COST", cost)
            patch.setattr(typos, "FIRST_TOKEN_COST", first)
            suggestions = counted.complete(typed, k, max_typos)
            expected = expected_suggestions(shares, exact, typed, k, max_typos)
        assert are_close(suggestions, expected)
        assert suggestions[: len(exact)] == exact
        assert {s.source for s in suggestions} <= {source}


def test_ties_are_in_alphabetical_order_and_unknown_letters_match_no_letter() -> None:
    lookup = Popularity.fit(["abd", "abc", "adc", "abe"], min_count=1)
    assert [s.text for s in lookup.complete("axc", typos=2)] == ["abc", "adc"]
    assert [s.text for s in lookup.complete("abx", typos=2)] == ["abc", "abd", "abe"]
    assert Popularity.fit(["adfh"], min_count=1).complete("acgh", typos=2) == []
