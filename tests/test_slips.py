"""What may have been meant, against a plain distance and all texts written out."""

import itertools
import json
import math
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from factorcell import completer as completing
from factorcell import forgiving
from factorcell.cli import main
from factorcell.completer import Completer, Suggestions
from factorcell.completion import Suggestion
from factorcell.config import UserError
from factorcell.forgiving import Forgiving
from factorcell.popularity import History, Popularity
from factorcell.run import Run
from factorcell.slips import FIRST, SLIP, Meanings, Meant, Pattern, Slips, join, meant
from factorcell.vocabulary import END, UNKNOWN
from small import make_letters
from test_completer import NASTY
from test_completion import CLOSE, typed_in, written_out


@cache
def distance(one: str, other: str) -> int:
    """Optimal string alignment, as it is defined: the last letters alike, or a slip of each kind."""
    if not one or not other:
        return len(one) + len(other)
    ways = [distance(one[:-1], other) + 1, distance(one, other[:-1]) + 1]
    ways.append(distance(one[:-1], other[:-1]) + (one[-1] != other[-1]))
    if len(one) > 1 and len(other) > 1 and one[-2:] == other[-1] + other[-2]:
        ways.append(distance(one[:-2], other[:-2]) + 1)
    return min(ways)


def slips_of(text: str, typed: str) -> int:
    """The fewest slips of any beginning of `text`."""
    return min(distance(text[:end], typed) for end in range(len(text) + 1))


def within(typed: str, most: int) -> int:
    """The slips that are forgiven in what is typed."""
    return 0 if len(typed) < 3 else min(1, most) if len(typed) < 6 else most


def cost_of(text: str, typed: str) -> float:
    """Nats for the slips of a text, and for another first letter."""
    return slips_of(text, typed) * SLIP + (text[:1] != typed[:1]) * FIRST


def test_distances_that_everybody_knows() -> None:
    """The oracle itself: each kind of slip, and that no slip is made within a swap of two."""
    pairs = {("ab", "ba"): 1, ("ca", "abc"): 3, ("kitten", "sitting"): 3, ("", "abc"): 3, ("fix", "fxi"): 1}
    assert {pair: distance(*pair) for pair in pairs} == pairs


LETTERS = "abc"


@settings(max_examples=300)
@given(typed=st.text(LETTERS, max_size=7), text=st.text(LETTERS, max_size=9), most=st.integers(0, 2))
def test_a_band_is_the_distance_of_every_beginning(typed: str, text: str, most: int) -> None:
    """Every place within D slips; the best of all beginnings; settled exactly where nothing after it can be better."""
    pattern = Pattern([ord(letter) for letter in typed], most)
    band, none = pattern.start(), most + 1
    for length in range(len(text) + 1):
        if length:
            band = pattern.read(band, np.zeros(1, np.int64), np.array([ord(text[length - 1])]), length)
        for place, found in zip(length + pattern.offsets, band.now[0], strict=True):
            inside = 0 <= place <= len(typed)
            assert found == (min(none, distance(text[:length], typed[:place])) if inside else none)
        best = min(none, slips_of(text[:length], typed))
        assert band.best[0] == best
        # Whatever follows: of the texts that go on with the rest of what is typed is the one with the fewest slips.
        follows = [min(none, slips_of(text[:length] + typed[place:], typed)) for place in range(len(typed) + 1)]
        assert band.settled[0] == (min(follows) == best)
        assert band.fewest[0] == min(follows)
        assert not length or band.strange[0] == (text[0] != (typed or " ")[0])


def test_how_many_slips_are_forgiven() -> None:
    """None in two letters, one in three, two in six, and never more than asked for; other numbers are a mistake."""
    assert [Slips(2).within(length) for length in range(8)] == [0, 0, 0, 1, 1, 1, 2, 2]
    assert [Slips(1).within(length) for length in range(8)] == [0, 0, 0, 1, 1, 1, 1, 1]
    assert {Slips(0).within(length) for length in range(8)} == {0}
    for wrong in (-1, 3):
        with pytest.raises(UserError, match=f"slips = {wrong}; it must be 0, 1 or 2"):
            Completer(make_letters(), slips=wrong)
        with pytest.raises(UserError, match="must be 0, 1 or 2"):
            Forgiving(History(), wrong)


# Counted texts.

TEXTS = st.text("abé🇳", max_size=9)


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


@settings(max_examples=200)
@given(
    queries=st.lists(TEXTS, max_size=40),
    typed=st.text("abéz🇳", max_size=8),
    k=st.integers(1, 12),
    most=st.integers(0, 2),
    cost=st.sampled_from([0.0, 1.0, SLIP]),
    first=st.sampled_from([0.0, FIRST]),
)
def test_forgiven_texts_are_those_of_a_look_at_every_text(
    queries: list[str], typed: str, k: int, most: int, cost: float, first: float
) -> None:
    """Popular texts and one's own; unknown letters (z), no texts at all, an empty text, nothing typed."""
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


def test_texts_near_the_edit_of_real_words() -> None:
    """Each kind of slip, at the beginning, within, at the end; long texts, another alphabet, emoji."""
    texts = ["fix typo", "fix tests", "add tests", "שלום עולם", "🇳🇴 flag", "update the readme", "a" * 300]
    found = Forgiving(Popularity.fit(texts, min_count=1))
    for typed, meant_text in (
        ("fxi", "fix tests"),
        ("fix typp", "fix typo"),
        ("fix typoo", "fix typo"),
        ("ifx typo", "fix typo"),
        ("xfx tests", "fix tests"),
        ("dad tests", "add tests"),
        ("updat ethe", "update the readme"),
        ("update teh redame", "update the readme"),
        ("שלוםעולם", "שלום עולם"),
        ("🇴🇳 fla", "🇳🇴 flag"),
        ("日add tests", "add tests"),
        ("a" * 299 + "b", "a" * 300),
        ("a" * 302, "a" * 300),
    ):
        assert meant_text in [one.text for one in found.complete(typed)], typed
        assert all(one.slips for one in found.complete(typed))
    assert found.complete("xx") == found.complete("") [:0] == []
    assert found.complete("a" * 303) == []
    exact, *others = found.complete("fix typo"[:7])
    assert (exact.text, exact.slips) == ("fix typo", 0)
    assert "fix typo" not in [one.text for one in others]
    assert found.complete("cafe\u0301") == []
    assert [one.text for one in Forgiving(Popularity.fit(["café noir"], 1)).complete("cafe\u0301 niro")] == ["café noir"]


def test_popular_texts_with_slips_are_above_rare_ones() -> None:
    """By share less cost: many more with another first letter, or two slips, come before few with one."""
    counts = {"fix it": 1, "mix it": 5, "fax it": 10**5}
    queries = [text for text, count in counts.items() for _ in range(count)]
    found = Forgiving(Popularity.fit(queries, min_count=1)).complete("fx it")
    assert [(one.text, one.slips) for one in found] == [("fax it", 1), ("fix it", 1)]
    dear = Forgiving(Popularity.fit(queries, min_count=1), Slips(2, cost=1.0, first=0.5)).complete("xix it")
    assert [(one.text, one.slips) for one in dear] == [("fax it", 2), ("mix it", 1), ("fix it", 1)]


# Beginnings by the model.


def beginnings(run: Run, typed: str, most: int, longest: int) -> dict[tuple[str, bool], tuple[int, float]]:
    """All settled beginnings and ended texts with a slip at least: their slips and log p - cost, written out.

    Settled: everything that goes on, by as much as could matter, has as many slips, and its parent is not settled.
    """
    letters = [token for token in run.vocabulary.tokens[END + 1 :]]
    letters += sorted(set(typed) - set(letters))
    deepest = min(len(typed) + most, longest)
    slips = {
        text: min(most + 1, slips_of(text, typed))
        for size in range(len(typed) + 2 * most + 2)
        for text in map("".join, itertools.product(letters, repeat=size))
    }
    with run.scoring():
        begun = typed_in(run, "")

        @cache
        def read(text: str) -> tuple[float, float]:
            """Log probabilities of a beginning, and of its end as well."""
            logs = begun.to(run.model, run.vocabulary.encode(text)).logs
            ids = [*run.vocabulary.encode(text), END]
            steps = [float(log[0, token]) for log, token in zip(logs, ids, strict=True)]
            return sum(steps[:-1]), sum(steps)

        found: dict[tuple[str, bool], tuple[int, float]] = {}

        def visit(text: str) -> None:
            fewest = min(slips_of(text + typed[place:], typed) for place in range(len(typed) + 1))
            settled = min(most + 1, fewest) == slips[text]
            if 1 <= slips[text] <= most:
                found[text, not settled] = (slips[text], read(text)[not settled] - cost_of(text, typed))
            if not settled and len(text) < deepest:
                for letter in letters:
                    if letter in run.vocabulary.ids or letter in nearby(typed, len(text), most):
                        visit(text + letter)

        visit("")
    return found


def nearby(typed: str, place: int, most: int) -> str:
    """What is typed at a place and as many places to its sides as there may be slips: here unknown letters may be."""
    return typed[max(0, place - most) : place + most + 1]


def meanings(run: Run, typed: str, slips: Slips, **bounds: int) -> Meanings:
    """What the search finds."""
    with run.scoring():
        return meant(run.model, run.vocabulary, tuple(typed), typed_in(run, typed), slips, **{"longest": 99, **bounds})


@pytest.mark.parametrize("typed", ["abc", "cab", "aaa", "bcz", "zzz", "bacc", "abcac", "acbbca", "zzabzb"])
@pytest.mark.parametrize("seed", range(2))
def test_what_was_meant_is_what_all_beginnings_written_out_have(typed: str, seed: int) -> None:
    """With room for all: every beginning, once, its slips and probability; the mass of all; unknown letters (z)."""
    run = make_letters(seed=seed, spread=0.8)
    most = within(typed, 2)
    longest = 7 if len(typed) < 6 else 6
    expected = beginnings(run, typed, most, longest)
    found = meanings(run, typed, Slips(2), longest=longest, best=10**6, rows=10**7)
    got = {("".join(one.tokens), one.ended): (one.slips, one.log_probability) for one in found.best}
    assert len(got) == len(found.best)
    assert got.keys() == expected.keys()
    for key, (slips, log) in expected.items():
        assert got[key][0] == slips
        assert got[key][1] == pytest.approx(log, abs=CLOSE)
    logs = [one.log_probability for one in found.best]
    assert logs == sorted(logs, reverse=True)
    assert found.mass == pytest.approx(float(np.logaddexp.reduce(logs)), abs=CLOSE)
    with run.scoring():
        as_typed = typed_in(run, typed)
    steps = zip(as_typed.logs, as_typed.ids, strict=False)
    assert found.typed == pytest.approx(sum(float(log[0, token]) for log, token in steps))
    # A few of them are the best few.
    few = meanings(run, typed, Slips(2), longest=longest, best=3, rows=10**7)
    assert few.best == found.best[:3]
    assert few.mass == found.mass


@settings(max_examples=30)
@given(typed=st.text("abcz", min_size=3, max_size=9), rows=st.integers(0, 120), seed=st.integers(0, 9))
def test_a_narrow_beam_keeps_within_its_rows(typed: str, rows: int, seed: int) -> None:
    """What it finds is true, if not all there is."""
    run = make_letters(seed=seed, spread=0.8)
    found = meanings(run, typed, Slips(2), rows=rows, best=20)
    assert found.rows <= rows
    assert bool(found.best) or rows < 11 * len(typed)
    for one in found.best:
        text = "".join(one.tokens)
        with run.scoring():
            read = typed_in(run, text)
        targets = [*read.ids, END] if one.ended else read.ids
        log = sum(float(step[0, token]) for step, token in zip(read.logs, targets, strict=False))
        assert one.log_probability == pytest.approx(log - cost_of(text, typed), abs=CLOSE)
        assert 1 <= one.slips == slips_of(text, typed) <= within(typed, 2)
    assert meanings(run, typed, Slips(2), rows=rows, best=20) == found
    with run.scoring():
        begun = typed_in(run, typed)
        late = meant(run.model, run.vocabulary, tuple(typed), begun, Slips(2), longest=99, seconds=0.0)
    assert (late.best, late.rows) == ((), 0)
    assert late.typed == found.typed


# Whole texts.


@pytest.fixture
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Completers look at everything that may have been meant."""
    monkeypatch.setattr(completing, "meant", partial(meant, rows=10**7, best=10**6))


@pytest.mark.usefixtures("roomy")
@pytest.mark.parametrize("typed", ["abc", "cba", "bbca", "bzc", "abcabc"])
def test_suggestions_are_the_most_probable_of_all_texts(typed: str) -> None:
    """Of all texts written out, by log p less cost, what is typed itself left out; as probabilities given the rest."""
    run = make_letters(seed=4, spread=0.6, data={"max_tokens": 7})
    letters = "".join(run.vocabulary.tokens[END + 1 :])
    every = {"".join(run.vocabulary.decode(ids)): log for ids, log in written_out(run, "", "Oslo", 6).items()}
    if "z" in typed:  # kept where it was typed, read as the unknown token
        longer = [text for size in range(7) for text in map("".join, itertools.product(letters + "z", repeat=size))]
        with run.scoring():
            for text in (text for text in longer if "z" in text and slips_of(text, typed) <= 1):
                read = typed_in(run, text)
                logs = zip(read.logs, [*read.ids, END], strict=True)
                every[text] = sum(float(log[0, token]) for log, token in logs)
    most, k = within(typed, 2), 12
    scores = {
        text: log - cost_of(text, typed)
        for text, log in every.items()
        if slips_of(text, typed) <= most and text != typed and possible(text, typed)
    }
    chosen = sorted(scores, key=lambda text: -scores[text])[:k]
    chosen.sort(key=lambda text: not text.startswith(typed))
    found = Completer(run, slips=2).complete(typed, {"city": "Oslo"}, k)
    assert [one.text for one in found] == chosen
    assert [one.slips for one in found] == [slips_of(text, typed) for text in chosen]
    logs = [one.log_probability - scores[one.text] for one in found]
    assert logs == pytest.approx([logs[0]] * len(logs), abs=CLOSE)
    assert {one.source for one in found} == {"model"}
    assert len({one.slips > 0 for one in found}) == 2, "no slips are among the best: it is no test"


def possible(text: str, typed: str) -> bool:
    """Whether unknown letters are near where they were typed, and none is added after all is settled."""
    most = within(typed, 2)
    for end, letter in enumerate(text):
        fewest = min(slips_of(text[:end] + typed[place:], typed) for place in range(len(typed) + 1))
        settled = min(most + 1, fewest) == min(most + 1, slips_of(text[:end], typed))
        if letter == "z" and (settled or "z" not in nearby(typed, end, most)):
            return False
    return True
