"""Compare corrections with a plain edit distance and an enumeration of all texts."""

import itertools
import json
import math
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from factorcell.commands.cli.main import main
from factorcell.completion import completer as completer_module
from factorcell.completion import typos as typo_module
from factorcell.completion.completer import Completer
from factorcell.completion.popularity import History, Suggestion
from factorcell.completion.typos import (
    FIRST_TOKEN_COST,
    LONGEST_CORRECTED,
    TYPO_COST,
    Corrections,
    Distances,
    find_corrections,
)
from factorcell.completion.typos import (
    max_typos_for as allowed_typos,
)
from factorcell.data.text_folds import same_prefix
from factorcell.data.tokenizers.tokenizer import END
from factorcell.errors import UserError
from factorcell.runs.run import Run
from tests.completion.test_completer import NASTY
from tests.completion.test_search import CLOSE, enumerate_completions, plain_state
from tests.small_runs import make_letters


@cache
def edit_distance(first: str, second: str) -> int:
    """Return the optimal string alignment distance by its recursive definition."""
    if not first or not second:
        return len(first) + len(second)
    ways = [edit_distance(first[:-1], second) + 1, edit_distance(first, second[:-1]) + 1]
    ways.append(edit_distance(first[:-1], second[:-1]) + (first[-1] != second[-1]))
    if len(first) > 1 and len(second) > 1 and first[-2:] == second[-1] + second[-2]:
        ways.append(edit_distance(first[:-2], second[:-2]) + 1)
    return min(ways)


def count_typos(text: str, typed: str) -> int:
    """Return the fewest typos of any beginning of `text`."""
    return min(edit_distance(text[:end], typed) for end in range(len(text) + 1))


def max_typos_for(typed: str, max_typos: int) -> int:
    """Return how many typos are forgiven in a prefix."""
    return 0 if len(typed) < 3 else min(1, max_typos) if len(typed) < 6 else max_typos


def cost_of(text: str, typed: str) -> float:
    """Return the nats for the typos of a text and for a different first letter."""
    return count_typos(text, typed) * TYPO_COST + (text[:1] != typed[:1]) * FIRST_TOKEN_COST


LETTERS = "abc"


@settings(max_examples=150)
@given(typed=st.text(LETTERS, min_size=1, max_size=7), text=st.text(LETTERS, max_size=9), max_typos=st.integers(0, 2))
def test_distances_are_those_of_every_beginning(typed: str, text: str, max_typos: int) -> None:
    distances, too_many = Distances.start([ord(letter) for letter in typed], max_typos), max_typos + 1
    for length in range(len(text) + 1):
        if length:
            distances = distances.extend(np.zeros(1, np.int64), np.array([ord(text[length - 1])]))
        expected = [min(too_many, edit_distance(text[:length], typed[:end])) for end in range(len(typed) + 1)]
        assert distances.distances[0].tolist() == expected
        best = min(too_many, count_typos(text[:length], typed))
        assert distances.whole_prefix_typos[0] == best
        # The continuations with the fewest typos end with a suffix of the prefix.
        follows = [
            min(too_many, count_typos(text[:length] + typed[position:], typed)) for position in range(len(typed) + 1)
        ]
        assert distances.is_settled[0] == (min(follows) == best)
        assert distances.min_typos[0] == min(follows)
        if length:
            expected_cost = best * TYPO_COST + (text[0] != typed[0]) * FIRST_TOKEN_COST
            assert distances.costs(distances.whole_prefix_typos)[0] == expected_cost


def test_longer_prefixes_may_have_more_typos() -> None:
    assert [allowed_typos(length, 2) for length in range(8)] == [0, 0, 0, 1, 1, 1, 2, 2]
    assert [allowed_typos(length, 1) for length in range(8)] == [0, 0, 0, 1, 1, 1, 1, 1]
    assert {allowed_typos(length, 0) for length in range(8)} == {0}
    assert [allowed_typos(length, 2) for length in (LONGEST_CORRECTED, LONGEST_CORRECTED + 1)] == [2, 0]
    for number in (-1, 3):
        with pytest.raises(UserError, match=f"typos is {number}; it must be"):
            Completer(make_letters(), typos=number)
        with pytest.raises(UserError, match="from 0 to 2"):
            History().complete("abc", typos=number)


# Corrections by the model.


def is_settled(text: str, typed: str, max_typos: int) -> bool:
    """Return whether no continuation has fewer typos; the best continuations end with a suffix of the prefix."""
    fewest = min(count_typos(text + typed[position:], typed) for position in range(len(typed) + 1))
    return min(max_typos + 1, fewest) == min(max_typos + 1, count_typos(text, typed))


def enumerate_corrections(
    run: Run, typed: str, max_typos: int, max_tokens: int
) -> dict[tuple[str, bool], tuple[int, float]]:
    """Return the typos and log p - cost of all settled beginnings and whole texts with at least one typo."""
    letters = list(run.tokenizer.tokens[END + 1 :])
    letters += sorted(set(typed) - set(letters))
    max_length = min(len(typed) + max_typos, max_tokens)
    expected: dict[tuple[str, bool], tuple[int, float]] = {}

    def visit(text: str) -> None:
        typos, settled = count_typos(text, typed), is_settled(text, typed, max_typos)
        if 1 <= typos <= max_typos:
            expected[text, not settled] = (
                typos,
                log_prob_of(run, text, is_whole_text=not settled) - cost_of(text, typed),
            )
        if not settled and len(text) < max_length:
            for letter in letters:
                if letter in run.tokenizer.tokens or letter in nearby_letters(typed, len(text), max_typos):
                    visit(text + letter)

    visit("")
    return expected


def nearby_letters(typed: str, position: int, max_typos: int) -> str:
    """Return the typed letters near a position, which is where unknown letters may stay."""
    return typed[max(0, position - max_typos) : position + max_typos + 1]


def corrections_of(
    run: Run, typed: str, max_tokens: int = 99, *, expanded: int = 10**7, count: int = 10**6
) -> Corrections:
    """Return the corrections that the search finds with these limits."""
    with run.scoring(), set_constants(MAX_EXPANDED=expanded, MAX_CORRECTIONS=count):
        state = plain_state(run, typed)
        return find_corrections(run, tuple(typed), state, max_typos_for(typed, 2), max_tokens=max_tokens)


@contextmanager
def set_constants(**values: float) -> Iterator[None]:
    """Change constants of the search for corrections within the block."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            patch.setattr(typo_module, name, value)
        yield


@pytest.mark.parametrize("typed", ["abc", "aaa", "bcz", "zzz", "bacc", "abcac", "acbbca"])
def test_corrections_are_those_of_an_enumeration(typed: str) -> None:
    run = make_letters(seed=len(typed), spread=0.8)
    max_typos = max_typos_for(typed, 2)
    max_tokens = 7 if len(typed) < 6 else 6
    expected = enumerate_corrections(run, typed, max_typos, max_tokens)
    result = corrections_of(run, typed, max_tokens)
    actual = {("".join(c.tokens), c.is_whole_text): (c.typos, c.log_probability) for c in result.corrections}
    assert len(actual) == len(result.corrections)
    assert actual.keys() == expected.keys()
    for key, (typos, log) in expected.items():
        assert actual[key][0] == typos
        assert actual[key][1] == pytest.approx(log, abs=CLOSE)
    logs = [c.log_probability for c in result.corrections]
    assert logs == sorted(logs, reverse=True)
    assert result.log_total == pytest.approx(float(np.logaddexp.reduce(logs)), abs=CLOSE)
    assert result.typed_log_probability == pytest.approx(log_prob_of(run, typed, is_whole_text=False), abs=CLOSE)
    # A limit returns the best corrections.
    few = corrections_of(run, typed, max_tokens, count=3)
    assert few.corrections == result.corrections[:3]
    assert few.log_total == result.log_total


@settings(max_examples=15)
@given(typed=st.text("abcz", min_size=3, max_size=9), rows=st.integers(0, 120), seed=st.integers(0, 9))
def test_a_narrow_beam_reads_at_most_max_rows_hypotheses(typed: str, rows: int, seed: int) -> None:
    run = make_letters(seed=seed, spread=0.8)
    result = corrections_of(run, typed, expanded=rows, count=20)
    assert result.expanded_count <= rows
    assert bool(result.corrections) or rows < 11 * len(typed)
    for correction in result.corrections:
        text = "".join(correction.tokens)
        log = log_prob_of(run, text, is_whole_text=correction.is_whole_text)
        assert correction.log_probability == pytest.approx(log - cost_of(text, typed), abs=CLOSE)
        assert 1 <= correction.typos == count_typos(text, typed) <= max_typos_for(typed, 2)
    assert corrections_of(run, typed, expanded=rows, count=20) == result
    with run.scoring():
        prefix_state = plain_state(run, typed)
        late = find_corrections(run, tuple(typed), prefix_state, 1, max_tokens=99, deadline=0.0)
    assert (late.corrections, late.expanded_count) == ((), 0)
    assert late.typed_log_probability == result.typed_log_probability


# Whole texts.


CHEAP = {"TYPO_COST": 1.5, "FIRST_TOKEN_COST": 0.5}  # low costs, so that texts with typos are among the best


@pytest.mark.parametrize("typed", ["abc", "cba", "bbca", "bzc", "abcabc"])
def test_suggestions_are_the_most_probable_of_all_texts(typed: str) -> None:
    """Rank all texts except the prefix by log p - cost; among the best, texts without typos come first."""
    max_tokens = max(4, len(typed))
    run = make_letters(seed=4, spread=0.6, data={"max_tokens": max_tokens + 1})
    letters, max_typos, k = "".join(run.tokenizer.tokens[END + 1 :]), max_typos_for(typed, 2), 12
    every = {
        "".join(run.tokenizer.decode(ids)): log
        for ids, log in enumerate_completions(run, "", "Oslo", max_tokens).items()
    }
    if "z" in typed:  # it stays where it was typed and is read as the unknown token
        longer = (text for size in range(5) for text in map("".join, itertools.product(letters + "z", repeat=size)))
        every |= {
            text: log_prob_of(run, text) for text in longer if "z" in text and count_typos(text, typed) <= max_typos
        }
    scores = {
        text: log - count_typos(text, typed) * CHEAP["TYPO_COST"] - (text[:1] != typed[:1]) * CHEAP["FIRST_TOKEN_COST"]
        for text, log in every.items()
        if count_typos(text, typed) <= max_typos and text != typed and is_reachable(text, typed)
    }
    ranked = sorted(scores, key=lambda text: -scores[text])
    chosen = sorted(ranked[:k], key=lambda text: not text.startswith(typed))
    with set_constants(MAX_EXPANDED=10**7, MAX_CORRECTIONS=10**6, **CHEAP):
        suggestions = Completer(run, typos=2).complete(typed, context={"city": "Oslo"}, k=k)
    assert [s.text for s in suggestions] == chosen
    assert [s.typos for s in suggestions] == [count_typos(text, typed) for text in chosen]
    logs = [s.log_probability - scores[s.text] for s in suggestions]
    assert logs == pytest.approx([logs[0]] * len(logs), abs=CLOSE)
    assert {s.source for s in suggestions} == {"model"}
    assert any(s.typos for s in suggestions), "the test needs texts with typos among the best"


def log_prob_of(run: Run, text: str, *, is_whole_text: bool = True) -> float:
    """Return the log probability of a whole text, or of a beginning."""
    with run.scoring():
        read = plain_state(run, text)
    targets = [*read.ids, END] if is_whole_text else read.ids
    return sum(float(step.log_probs[0, token]) for step, token in zip(read.states, targets, strict=False))


def is_reachable(text: str, typed: str) -> bool:
    """Return whether the search finds a text: unknown letters stay near where they were typed, before it is settled."""
    max_typos = max_typos_for(typed, 2)
    for end, letter in enumerate(text):
        if letter == "z" and (
            is_settled(text[:end], typed, max_typos) or "z" not in nearby_letters(typed, end, max_typos)
        ):
            return False
    return True


@pytest.mark.parametrize("typed", NASTY.values(), ids=NASTY)
@pytest.mark.parametrize("tokenizer", ["char", "grapheme"])
def test_typos_are_forgiven_in_any_typed_text(tokenizer: str, typed: str) -> None:
    texts = ("abc", "ab", "e\u0301a", "\u0301", "🇳🇴", "🇳", "👩", "a\rb\n", "\r\n", "שלום")
    run = make_letters(texts, data={"tokenizer": tokenizer, "max_tokens": 30}, spread=0.8)
    plain, tolerant = Completer(run), Completer(run, typos=2)
    with set_constants(**CHEAP):
        exact, suggestions = plain.complete(typed, k=15), tolerant.complete(typed, k=15)
    normalized, split = same_prefix(typed), plain.tokenizer.split
    assert len({unicodedata.normalize("NFC", s.text) for s in suggestions}) == len(suggestions) == 15
    assert [s.typos > 0 for s in suggestions] == sorted(s.typos > 0 for s in suggestions)
    first = [s.text for s in suggestions if not s.typos]
    assert first == [s.text for s in exact][: len(first)]
    for s in suggestions:
        assert s.text == unicodedata.normalize("NFC", s.text)
        assert s.log_probability < 0
        tokens, typed_prefix = split(s.text), split(normalized)
        assert s.typos or tokens[: len(typed_prefix)] == typed_prefix
        # A line break of the model is a typo for a typed space, although their texts are the same.
        assert not s.typos or tokens[: len(typed_prefix)] != typed_prefix or typed_prefix[-1:] == [" "]
    if len(split(normalized)) < 3:
        assert suggestions == exact
    elif typed != "":
        assert any(s.typos for s in suggestions)


def test_short_prefixes_are_not_corrected() -> None:
    run = make_letters(spread=0.8)
    plain = Completer(run)
    with patch.object(completer_module, "find_corrections", side_effect=AssertionError):
        for typed in ("", "a", "ab"):
            assert Completer(run, typos=2).complete(typed) == plain.complete(typed)
        assert Completer(run, typos=0).complete("abc") == plain.complete("abc")
    assert {s.typos for s in plain.complete("abc")} == {0}


def test_typos_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source_run = make_letters(spread=2.0, seed=5)
    run = Run.create(tmp_path / "run", source_run.config, source_run.tokenizer, source_run.schema)
    run.model.load_state_dict(source_run.model.state_dict())
    run.save_weights({})
    completer = Completer(Run.open(run.folder), typos=1)
    typed = next(
        typed
        for typed in map("".join, itertools.product("abc", repeat=3))
        if len({s.typos for s in completer.complete(typed)}) == 2
    )
    suggestions = completer.complete(typed)
    command = ["complete", str(run.folder), typed, "--threads", "1", "--typos"]
    assert main([*command, "1"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["text", "share", "typos"]
    assert [line.split()[::2] for line in lines] == [[s.text, str(s.typos or "-")] for s in suggestions]
    shares = [math.exp(s.log_probability) for s in suggestions]
    assert [float(line.split()[1]) for line in lines] == pytest.approx(shares, rel=0.05)
    assert main([*command, "1", "--explain"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["text", "share", "typos", "probability"]
    assert [line.endswith("-") for line in lines] == [s.typos > 0 for s in suggestions]
    assert main([*command, "1", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    probabilities = [row.pop("probability") for row in rows]
    assert [p is None for p in probabilities] == [s.typos > 0 for s in suggestions]
    assert [Suggestion(**row) for row in rows] == suggestions
    assert main([*command, "0"]) == 0
    assert "typos" not in capsys.readouterr().out
    assert main([*command, "3"]) == 2
    assert "--typos: expected a whole number from 0 to 2, got '3'" in capsys.readouterr().err
