"""Most popular completion against a look at every text."""

import math
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from factorcell import files
from factorcell.completion.popularity import History, Popularity
from factorcell.completion.search import Suggestion
from factorcell.config import UserError
from factorcell.data.counts import TextCounts

TEXTS = st.text("ab\0é🇳", max_size=4)


def looked_at(queries: list[str], prefix: str, k: int, least: int) -> list[Suggestion]:
    """Every text counted, those that go on from the prefix sorted."""
    counts = [(-n, text) for text, n in Counter(queries).items() if n >= least and text]
    found = sorted((n, text) for n, text in counts if text.startswith(prefix) and text != prefix)[:k]
    return [Suggestion(text, math.log(-n) - math.log(len(queries)), "popularity") for n, text in found]


@settings(max_examples=150)
@given(queries=st.lists(TEXTS, max_size=60), prefix=TEXTS, k=st.integers(1, 12), least=st.integers(1, 3))
def test_suggestions_are_the_most_frequent_texts_that_begin_with_the_prefix(
    queries: list[str], prefix: str, k: int, least: int
) -> None:
    found = Popularity.fit(queries, min_count=least)
    assert found.complete(prefix, k) == looked_at(queries, prefix, k, least)


def test_many_texts_are_ranked_by_count_and_then_by_alphabet() -> None:
    chosen = random.Random(1)
    queries = ["".join(chosen.choices("abcd", k=chosen.randint(1, 9))) for _ in range(20_000)]
    found = Popularity.fit(queries, min_count=1)
    for prefix in ("", "a", "dc", "abcd", "abcdabcd", "e"):
        for k in (1, 10, 300):
            assert found.complete(prefix, k) == looked_at(queries, prefix, k, 1)


def test_texts_that_are_composed_differently_are_one() -> None:
    found = Popularity.fit(["caf\u0065\u0301 noir", "caf\u00e9 noir", "caf\u00e9"], min_count=2)
    assert [one.text for one in found.complete("cafe\u0301")] == ["caf\u00e9 noir"]
    assert found.complete("caf\u00e9 noir") == []


def test_counts_are_read_back_from_their_file_and_a_damaged_row_is_named(tmp_path: Path) -> None:
    path = tmp_path / "popular.jsonl"
    counts = TextCounts.of(["fix typo"] * 4 + ["fix\ttests\n"] * 3 + ["add"] * 2 + [""] * 5, 3)
    counts.save(path)
    found = Popularity(counts)
    assert files.read_rows(path)[0] == {"total": 14, "min_text_users": 0}
    assert TextCounts.open(path) == counts
    again = Popularity(TextCounts.open(path))
    assert len(again) == 2
    assert again.complete("fix") == found.complete("fix")
    assert [one.text for one in again.complete("", 9)] == ["fix typo", "fix tests"]
    assert again.complete("")[0].log_probability == pytest.approx(math.log(4 / 14))
    for rows in ([], [{"text": "a", "count": 1}], [{"total": 3}, {"text": "a"}], [{"total": 3}, ["a", 1]]):
        path.write_text("".join(f"{row}\n" for row in map(str, rows)).replace("'", '"'), encoding="utf-8")
        with pytest.raises(UserError, match=r"popular\.jsonl( line 2)?: (not a file|a row of JSON)"):
            TextCounts.open(path)
    with pytest.raises(UserError, match="not Unicode text"):
        Popularity.fit(["\ud800"], min_count=1)


@settings(max_examples=100)
@given(texts=st.lists(st.text("ab", max_size=3), max_size=12), prefix=st.text("ab", max_size=2), k=st.integers(1, 5))
def test_a_text_of_the_history_weighs_half_after_every_half_life(texts: list[str], prefix: str, k: int) -> None:
    history = History(half_life=3.0, max_texts=8)
    for text in texts:
        history = history.add(text)
    kept = texts[-8:]
    assert history.texts == tuple(kept)
    weights: dict[str, float] = {}
    for place, text in enumerate(kept, 1):
        weights[text] = weights.get(text, 0.0) + 2 ** ((place - len(kept)) / 3)
    going = {t: w / sum(weights.values()) for t, w in weights.items() if t.startswith(prefix) and t != prefix}
    found = history.complete(prefix, k)
    assert len(found) == min(k, len(going))
    assert [one.log_probability for one in found] == pytest.approx(
        sorted(map(math.log, going.values()), reverse=True)[:k]
    )
    assert all(one.log_probability == pytest.approx(math.log(going[one.text])) for one in found)
    assert {one.source for one in found} <= {"history"}
