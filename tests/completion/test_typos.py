"""What may have been meant, against a plain distance and all texts written out."""

import itertools
import json
import math
import unicodedata
from dataclasses import replace
from functools import cache
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from factorcell.commands.main import main
from factorcell.completion import completer as completing
from factorcell.completion.completer import Completer
from factorcell.completion.fuzzy import TypoTolerantLookup
from factorcell.completion.popularity import History
from factorcell.completion.search import Suggestion
from factorcell.completion.typos import FIRST_TOKEN_COST, TYPO_COST, Corrections, Pattern, TypoCosts, find_corrections
from factorcell.config import UserError
from factorcell.data.vocabulary import END
from factorcell.model.run import Run
from tests.completion.test_completer import NASTY
from tests.completion.test_search import CLOSE, typed_in, written_out
from tests.small_runs import make_letters


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
    """The fewest typos of any beginning of `text`."""
    return min(distance(text[:end], typed) for end in range(len(text) + 1))


def within(typed: str, most: int) -> int:
    """The typos that are forgiven in what is typed."""
    return 0 if len(typed) < 3 else min(1, most) if len(typed) < 6 else most


def cost_of(text: str, typed: str) -> float:
    """Nats for the typos of a text, and for another first letter."""
    return slips_of(text, typed) * TYPO_COST + (text[:1] != typed[:1]) * FIRST_TOKEN_COST


LETTERS = "abc"


@settings(max_examples=150)
@given(typed=st.text(LETTERS, max_size=7), text=st.text(LETTERS, max_size=9), most=st.integers(0, 2))
def test_a_band_is_the_distance_of_every_beginning(typed: str, text: str, most: int) -> None:
    pattern = Pattern([ord(letter) for letter in typed], most)
    band, none = pattern.start(), most + 1
    for length in range(len(text) + 1):
        if length:
            band = pattern.extend(band, np.zeros(1, np.int64), np.array([ord(text[length - 1])]), length)
        for place, found in zip(length + pattern.offsets, band.now[0], strict=True):
            inside = 0 <= place <= len(typed)
            assert found == (min(none, distance(text[:length], typed[:place])) if inside else none)
        best = min(none, slips_of(text[:length], typed))
        assert band.complete_typos[0] == best
        # Whatever follows: of the texts that go on with the rest of what is typed is the one with the fewest typos.
        follows = [min(none, slips_of(text[:length] + typed[place:], typed)) for place in range(len(typed) + 1)]
        assert band.settled[0] == (min(follows) == best)
        assert band.min_typos[0] == min(follows)
        assert not length or band.first_token_differs[0] == (text[0] != (typed or " ")[0])


def test_how_many_slips_are_forgiven() -> None:
    assert [TypoCosts(2).max_typos_for(length) for length in range(8)] == [0, 0, 0, 1, 1, 1, 2, 2]
    assert [TypoCosts(1).max_typos_for(length) for length in range(8)] == [0, 0, 0, 1, 1, 1, 1, 1]
    assert {TypoCosts(0).max_typos_for(length) for length in range(8)} == {0}
    for wrong in (-1, 3):
        with pytest.raises(UserError, match=f"typos is {wrong}; it must be"):
            Completer(make_letters(), typos=wrong)
        with pytest.raises(UserError, match="from 0 to 2"):
            TypoTolerantLookup(History(), wrong)


# Beginnings by the model.


def is_settled(text: str, typed: str, most: int) -> bool:
    """Whether nothing that goes on has fewer typos: not even the rest of what is typed, from any of its places."""
    fewest = min(slips_of(text + typed[place:], typed) for place in range(len(typed) + 1))
    return min(most + 1, fewest) == min(most + 1, slips_of(text, typed))


def beginnings(run: Run, typed: str, most: int, longest: int) -> dict[tuple[str, bool], tuple[int, float]]:
    """All settled beginnings and ended texts with a slip at least: their typos and log p - cost, written out."""
    letters = list(run.tokenizer.tokens[END + 1 :])
    letters += sorted(set(typed) - set(letters))
    deepest = min(len(typed) + most, longest)
    found: dict[tuple[str, bool], tuple[int, float]] = {}

    def visit(text: str) -> None:
        typos, settled = slips_of(text, typed), is_settled(text, typed, most)
        if 1 <= typos <= most:
            found[text, not settled] = (typos, log_of(run, text, ended=not settled) - cost_of(text, typed))
        if not settled and len(text) < deepest:
            for letter in letters:
                if letter in run.tokenizer.tokens or letter in nearby(typed, len(text), most):
                    visit(text + letter)

    visit("")
    return found


def nearby(typed: str, place: int, most: int) -> str:
    """What is typed at a place and as many places to its sides as there may be typos: here unknown letters may be."""
    return typed[max(0, place - most) : place + most + 1]


def meanings(run: Run, typed: str, typos: TypoCosts, longest: int = 99) -> Corrections:
    """What the search finds."""
    with run.scoring():
        return find_corrections(run, tuple(typed), typed_in(run, typed), typos, max_tokens=longest)


@pytest.mark.parametrize("typed", ["abc", "aaa", "bcz", "zzz", "bacc", "abcac", "acbbca"])
def test_what_was_meant_is_what_all_beginnings_written_out_have(typed: str) -> None:
    run = make_letters(seed=len(typed), spread=0.8)
    most = within(typed, 2)
    longest = 7 if len(typed) < 6 else 6
    expected = beginnings(run, typed, most, longest)
    found = meanings(run, typed, TypoCosts(2, **ALL), longest)
    got = {("".join(one.tokens), one.is_whole_text): (one.typos, one.log_probability) for one in found.corrections}
    assert len(got) == len(found.corrections)
    assert got.keys() == expected.keys()
    for key, (typos, log) in expected.items():
        assert got[key][0] == typos
        assert got[key][1] == pytest.approx(log, abs=CLOSE)
    logs = [one.log_probability for one in found.corrections]
    assert logs == sorted(logs, reverse=True)
    assert found.log_total == pytest.approx(float(np.logaddexp.reduce(logs)), abs=CLOSE)
    assert found.typed_log_probability == pytest.approx(log_of(run, typed, ended=False), abs=CLOSE)
    # A few of them are the best few.
    few = meanings(run, typed, TypoCosts(2, max_rows=10**7, max_corrections=3), longest)
    assert few.corrections == found.corrections[:3]
    assert few.log_total == found.log_total


@settings(max_examples=15)
@given(typed=st.text("abcz", min_size=3, max_size=9), rows=st.integers(0, 120), seed=st.integers(0, 9))
def test_a_narrow_beam_keeps_within_its_rows(typed: str, rows: int, seed: int) -> None:
    run = make_letters(seed=seed, spread=0.8)
    found = meanings(run, typed, TypoCosts(2, max_rows=rows, max_corrections=20))
    assert found.rows <= rows
    assert bool(found.corrections) or rows < 11 * len(typed)
    for one in found.corrections:
        text = "".join(one.tokens)
        log = log_of(run, text, ended=one.is_whole_text)
        assert one.log_probability == pytest.approx(log - cost_of(text, typed), abs=CLOSE)
        assert 1 <= one.typos == slips_of(text, typed) <= within(typed, 2)
    assert meanings(run, typed, TypoCosts(2, max_rows=rows, max_corrections=20)) == found
    with run.scoring():
        begun = typed_in(run, typed)
        late = find_corrections(run, tuple(typed), begun, TypoCosts(2), max_tokens=99, deadline=0.0)
    assert (late.corrections, late.rows) == ((), 0)
    assert late.typed_log_probability == found.typed_log_probability


# Whole texts.


ALL = {"rows": 10**7, "best": 10**6}  # everything that may have been meant is looked at
CHEAP = TypoCosts(2, cost=1.5, first_token_cost=0.5)  # so that typos are among the best


@pytest.mark.parametrize("typed", ["abc", "cba", "bbca", "bzc", "abcabc"])
def test_suggestions_are_the_most_probable_of_all_texts(typed: str) -> None:
    """Of all texts written out, by log p less cost, what is typed itself left out.

    Of the ten best, and of the ten after them, those that begin with it come first.
    """
    longest = max(4, len(typed))
    run = make_letters(seed=4, spread=0.6, data={"max_tokens": longest + 1})
    letters, most, k = "".join(run.tokenizer.tokens[END + 1 :]), within(typed, 2), 12
    every = {"".join(run.tokenizer.decode(ids)): log for ids, log in written_out(run, "", "Oslo", longest).items()}
    if "z" in typed:  # kept where it was typed, read as the unknown token
        longer = (text for size in range(5) for text in map("".join, itertools.product(letters + "z", repeat=size)))
        every |= {text: log_of(run, text) for text in longer if "z" in text and slips_of(text, typed) <= most}
    scores = {
        text: log - slips_of(text, typed) * CHEAP.cost - (text[:1] != typed[:1]) * CHEAP.first_token_cost
        for text, log in every.items()
        if slips_of(text, typed) <= most and text != typed and possible(text, typed)
    }
    ranked = sorted(scores, key=lambda text: -scores[text])
    chosen = [one for r in (ranked[:10], ranked[10:20]) for one in sorted(r, key=lambda t: not t.startswith(typed))][:k]
    found = Completer(run, typos=replace(CHEAP, **ALL)).complete(typed, context={"city": "Oslo"}, k=k)
    assert [one.text for one in found] == chosen
    assert [one.typos for one in found] == [slips_of(text, typed) for text in chosen]
    logs = [one.log_probability - scores[one.text] for one in found]
    assert logs == pytest.approx([logs[0]] * len(logs), abs=CLOSE)
    assert {one.source for one in found} == {"model"}
    assert any(one.typos for one in found), "no typos are among the best: it is no test"


def log_of(run: Run, text: str, *, ended: bool = True) -> float:
    """The log probability of a text, or of it as a beginning."""
    with run.scoring():
        read = typed_in(run, text)
    targets = [*read.ids, END] if ended else read.ids
    return sum(float(logs[0, token]) for logs, token in zip(read.logs, targets, strict=False))


def possible(text: str, typed: str) -> bool:
    """Whether unknown letters are near where they were typed, and none is added after all is settled."""
    most = within(typed, 2)
    for end, letter in enumerate(text):
        if letter == "z" and (is_settled(text[:end], typed, most) or "z" not in nearby(typed, end, most)):
            return False
    return True


@pytest.mark.parametrize("typed", NASTY.values(), ids=NASTY)
@pytest.mark.parametrize("unit", ["char", "grapheme"])
def test_whatever_is_typed_slips_are_forgiven(unit: str, typed: str) -> None:
    texts = ("abc", "ab", "e\u0301a", "\u0301", "🇳🇴", "🇳", "👩", "a\rb\n", "\r\n", "שלום")
    run = make_letters(texts, data={"tokenizer": unit, "max_tokens": 30}, spread=0.8)
    plain, forgiving_one = Completer(run), Completer(run, typos=CHEAP)
    exact, found = plain.complete(typed, k=15), forgiving_one.complete(typed, k=15)
    shown, split = unicodedata.normalize("NFC", typed), plain.tokenizer.split
    assert len({unicodedata.normalize("NFC", one.text) for one in found}) == len(found) == 15
    assert [one.typos > 0 for one in found] == sorted(one.typos > 0 for one in found)
    first = [one.text for one in found if not one.typos]
    assert first == [one.text for one in exact][: len(first)]
    for one in found:
        assert one.text == unicodedata.normalize("NFC", one.text)
        assert one.log_probability < 0
        tokens, pattern = split(one.text), split(shown)
        assert (one.typos == 0) == (tokens[: len(pattern)] == pattern)
    if len(split(shown)) < 3:
        assert found == exact
    elif typed != "":
        assert any(one.typos for one in found)


def test_few_letters_are_taken_as_they_are() -> None:
    run = make_letters(spread=0.8)
    plain = Completer(run)
    with patch.object(completing, "find_corrections", side_effect=AssertionError):
        for typed in ("", "a", "ab"):
            assert Completer(run, typos=2).complete(typed) == plain.complete(typed)
        assert Completer(run, typos=0).complete("abc") == plain.complete("abc")
    assert {one.typos for one in plain.complete("abc")} == {0}


def test_slips_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = make_letters(spread=2.0, seed=5)
    run = Run.create(tmp_path / "run", made.config, made.tokenizer, made.schema)
    run.model.load_state_dict(made.model.state_dict())
    run.save_weights({})
    completer = Completer(Run.open(run.folder), typos=1)
    typed = next(
        typed
        for typed in map("".join, itertools.product("abc", repeat=3))
        if len({one.typos for one in completer.complete(typed)}) == 2
    )
    found = completer.complete(typed)
    command = ["complete", str(run.folder), typed, "--threads", "1", "--typos"]
    assert main([*command, "1"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["text", "share", "typos"]
    assert [line.split()[::2] for line in lines] == [[one.text, str(one.typos or "-")] for one in found]
    shares = [math.exp(one.log_probability) for one in found]
    assert [float(line.split()[1]) for line in lines] == pytest.approx(shares, rel=0.05)
    assert main([*command, "1", "--explain"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["text", "share", "typos", "probability"]
    assert [line.endswith("-") for line in lines] == [one.typos > 0 for one in found]
    assert main([*command, "1", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    probabilities = [row.pop("probability") for row in rows]
    assert [one is None for one in probabilities] == [one.typos > 0 for one in found], "only what is typed is given"
    assert [Suggestion(**row) for row in rows] == found
    assert main([*command, "0"]) == 0
    assert "typos" not in capsys.readouterr().out
    assert main([*command, "3"]) == 2
    assert "typos is 3; it must be from 0 to 2" in capsys.readouterr().err
