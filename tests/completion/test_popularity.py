"""Compare most popular completion and histories with a comparison of every text."""

import math
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from factorcell.completion import popularity as popularity_module
from factorcell.completion.popularity import History, Popularity, Suggestion
from factorcell.data.counts import TextCounts
from factorcell.errors import UserError
from factorcell.io import files

TEXTS = st.text("ab\ue000é🇳", max_size=4)


def expected_suggestions(queries: list[str], prefix: str, k: int, min_count: int) -> list[Suggestion]:
    """Count all texts and return those that continue the prefix, sorted."""
    counts = [(-n, text) for text, n in Counter(queries).items() if n >= min_count and text]
    matches = sorted((n, text) for n, text in counts if text.startswith(prefix) and text != prefix)[:k]
    return [Suggestion(text, math.log(-n) - math.log(len(queries)), "popularity") for n, text in matches]


def check_equal(actual: list[Suggestion], expected: list[Suggestion]) -> None:
    """Check that suggestions are the same up to rounding errors of their log probabilities."""
    assert [(s.text, s.source) for s in actual] == [(s.text, s.source) for s in expected]
    assert [s.log_probability for s in actual] == pytest.approx([s.log_probability for s in expected], abs=1e-12)


@settings(max_examples=150)
@given(queries=st.lists(TEXTS, max_size=60), prefix=TEXTS, k=st.integers(1, 12), min_count=st.integers(1, 3))
def test_suggestions_are_the_most_frequent_texts_that_begin_with_the_prefix(
    queries: list[str], prefix: str, k: int, min_count: int
) -> None:
    popularity = Popularity.fit(queries, min_count=min_count)
    check_equal(popularity.complete(prefix, k), expected_suggestions(queries, prefix, k, min_count))


@settings(max_examples=150)
@given(
    queries=st.lists(st.text("aAbBéÉ", max_size=4), max_size=40),
    prefix=st.text("aAbBéÉ", max_size=2),
    k=st.integers(1, 9),
)
def test_texts_in_another_case_are_the_most_frequent_ones(queries: list[str], prefix: str, k: int) -> None:
    counts = Counter(filter(None, queries))
    longer = [text for text in counts if text.lower().startswith(prefix.lower()) and len(text) > len(prefix)]
    expected = sorted((text for text in longer if not text.startswith(prefix)), key=lambda text: (-counts[text], text))
    suggestions = Popularity.fit(queries, min_count=1).complete_in_other_case(prefix, k)
    assert [suggestion.text for suggestion in suggestions] == expected[:k]
    assert {suggestion.typos for suggestion in suggestions} <= {0}


def test_many_texts_are_ranked_by_count_and_then_by_alphabet() -> None:
    rng = random.Random(1)
    queries = ["".join(rng.choices("abcd", k=rng.randint(1, 9))) for _ in range(20_000)]
    popularity = Popularity.fit(queries, min_count=1)
    for prefix in ("", "a", "dc", "abcd", "abcdabcd", "e"):
        for k in (1, 10, 300):
            check_equal(popularity.complete(prefix, k), expected_suggestions(queries, prefix, k, 1))


def test_texts_in_different_unicode_compositions_are_one_text() -> None:
    popularity = Popularity.fit(["caf\u0065\u0301 noir", "caf\u00e9 noir", "caf\u00e9"], min_count=2)
    assert [s.text for s in popularity.complete("cafe\u0301")] == ["caf\u00e9 noir"]
    assert popularity.complete("caf\u00e9 noir") == []


def test_counts_are_restored_from_their_file_and_damaged_rows_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "popular.jsonl"
    counts = TextCounts.of(["fix typo"] * 4 + ["fix\ttests\n"] * 3 + ["add"] * 2 + [""] * 5, 3)
    counts.save(path)
    popularity = Popularity(counts)
    assert files.read_rows(path)[0] == {"total": 14, "min_text_users": 0}
    assert TextCounts.open(path) == counts
    restored = Popularity(TextCounts.open(path))
    assert restored.texts == ["fix tests", "fix typo"]
    assert restored.complete("fix") == popularity.complete("fix")
    assert [s.text for s in restored.complete("", 9)] == ["fix typo", "fix tests"]
    assert restored.complete("")[0].log_probability == pytest.approx(math.log(4 / 14))
    for rows in ([], [{"text": "a", "count": 1}], [{"total": 3}, {"text": "a"}], [{"total": 3}, ["a", 1]]):
        path.write_text("".join(f"{row}\n" for row in map(str, rows)).replace("'", '"'), encoding="utf-8")
        with pytest.raises(UserError, match=r"popular\.jsonl( line 2)?: (not a file|a row of JSON)"):
            TextCounts.open(path)
    with pytest.raises(UserError, match="not Unicode text"):
        Popularity.fit(["\ud800"], min_count=1)


@settings(max_examples=100)
@given(texts=st.lists(st.text("ab", max_size=3), max_size=12), prefix=st.text("ab", max_size=2), k=st.integers(1, 5))
def test_the_weight_of_a_text_halves_with_every_half_life(texts: list[str], prefix: str, k: int) -> None:
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(popularity_module, "HALF_LIFE", 3.0)
    monkeypatch.setattr(popularity_module, "MAX_HISTORY", 8)
    history = History()
    for text in texts:
        history = history.add(text)
    newest = texts[-8:]
    suggestions = history.complete(prefix, k)
    monkeypatch.undo()
    assert history.texts == tuple(newest)
    weights: dict[str, float] = {}
    for position, text in enumerate(newest, 1):
        weights[text] = weights.get(text, 0.0) + 2 ** ((position - len(newest)) / 3)
    shares = {t: w / sum(weights.values()) for t, w in weights.items() if t.startswith(prefix) and t != prefix}
    assert len(suggestions) == min(k, len(shares))
    assert [s.log_probability for s in suggestions] == pytest.approx(
        sorted(map(math.log, shares.values()), reverse=True)[:k]
    )
    assert all(s.log_probability == pytest.approx(math.log(shares[s.text])) for s in suggestions)
    assert {s.source for s in suggestions} <= {"history"}
