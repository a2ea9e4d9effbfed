"""Completion of any typed text in a context, from Python and from the command line."""

import json
import time
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorcell.commands.cli.main import main
from factorcell.completion.completer import Completer
from factorcell.completion.online import User, learn_one
from factorcell.completion.search import PlainEngine, SearchRequest
from factorcell.data.text_folds import lower_case, same_prefix, same_text
from factorcell.data.tokenizers.tokenizer import SPECIAL_TOKENS
from factorcell.errors import UserError
from factorcell.io import files
from factorcell.runs.run import Run
from tests.completion.test_search import CLOSE, enumerate_completions, plain_state
from tests.fake_device import DEVICE, FakeDevice, inference_mode
from tests.kernels import compiled
from tests.small_runs import make_letters, make_run

USERS = {"user": "city", "context": (), "min_user_count": 1}  # each city is a user
NASTY = {
    "nothing": "",
    "unknown": "zß",
    "control": "a\x00\x1b[2J\r\n\t",
    "emoji": "a👩‍👩‍👧‍👦🇳🇴",
    "half an emoji": "b👩‍",
    "right to left": "abשלום\u202eabc",
    "combining": "e\u0301" * 3 + "a\u0301\u0323",
    "not composed": "cafe\u0301",
    "capitals": "ABİJ\u030c",  # the last is one character only in lower case
    "special": "<s></s>",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run folder with a model of characters, two contexts and random weights."""
    source_run = make_letters(data={"context": ("city",)}, spread=0.8, seed=5)
    run = Run.create(tmp_path / "run", source_run.config, source_run.tokenizer, source_run.schema)
    run.model.load_state_dict(source_run.model.state_dict())
    run.save_weights({})
    return run.folder


def test_suggestions_are_the_most_probable_whole_texts() -> None:
    run = make_letters(seed=2, spread=0.8, data={"max_tokens": 6})
    completer, best = Completer(run), {}
    for city in ("Oslo", "Nice"):
        logs = {ids: log for ids, log in enumerate_completions(run, "a", city, 4).items() if ids}
        texts = sorted(logs, key=lambda ids: -logs[ids])[:7]
        suggestions = best[city] = completer.complete("a", context={"city": city}, k=7)
        assert [s.log_probability for s in suggestions] == pytest.approx([logs[ids] for ids in texts], abs=CLOSE)
        assert [s.text for s in suggestions] == ["a" + "".join(run.tokenizer.decode(ids)) for ids in texts]
        assert {s.source for s in suggestions} == {"model"}
    assert best["Oslo"] != best["Nice"]
    expected = completer.complete("a", k=7)
    assert expected == completer.complete("a", context={"city": None}, k=7)
    assert expected not in best.values()
    assert len(completer.complete("a", k=10_000)) == 3 + 9 + 27 + 81
    assert completer.complete("abcab") == []


def test_log_probabilities_agree_with_those_of_suggestions() -> None:
    run = make_letters(seed=2, spread=0.8, data={"max_tokens": 6})
    run_with_users = make_letters(seed=2, spread=0.8, data={**USERS, "max_tokens": 6})
    user = learn_one(run_with_users, User.new(run_with_users), "abca")
    for any_run, typing_user, context in (
        (run, None, {"city": "Oslo"}),
        (run_with_users, None, {"city": "Nice"}),
        (run_with_users, user, None),
    ):
        completer = Completer(any_run)
        suggestions = completer.complete("a", typing_user, context, k=10_000)
        assert len(suggestions) == 3 + 9 + 27 + 81
        logs = completer.log_probabilities("a", [s.text for s in suggestions], typing_user, context)
        assert logs == pytest.approx([s.log_probability for s in suggestions], abs=CLOSE)
        assert Completer(any_run, typos=1).log_probabilities("a", ["abc"], typing_user, context) == pytest.approx(
            completer.log_probabilities("a", ["abc"], typing_user, context)
        )
        assert completer.log_probabilities("a", [], typing_user, context) == []
        assert np.isnan(completer.log_probabilities("a", ["ba", "b", "abcabc"], typing_user, context)).all()
    with pytest.raises(UserError, match="expected a user vector of size 3, got size 2"):
        Completer(make_letters(data=USERS, variable_size=3)).log_probabilities("a", ["ab"], user)


@pytest.mark.parametrize("tokenizer", ["char", "grapheme"])
@pytest.mark.parametrize("typed", NASTY.values(), ids=NASTY)
@pytest.mark.parametrize("lowercase", [False, True])
def test_suggestions_continue_any_typed_text(tokenizer: str, typed: str, lowercase: bool) -> None:
    texts = ("abc", "ab", "e\u0301a", "\u0301", "🇳🇴", "🇳", "🇴", "👩", "a\rb\n", "\r\n")
    run = make_letters(texts, data={"tokenizer": tokenizer, "lowercase": lowercase, "max_tokens": 30}, spread=0.8)
    completer = Completer(run)
    suggestions = completer.complete(typed, k=25)
    shown = same_prefix(typed)
    shown = lower_case(shown) if lowercase else shown
    assert len({unicodedata.normalize("NFC", s.text) for s in suggestions}) == len(suggestions) == 25
    for s in suggestions:
        assert s.text.startswith(shown)
        assert s.text != shown
        assert not any(special in s.text.removeprefix(shown) for special in SPECIAL_TOKENS)
        assert s.text == same_text(s.text)
    # Typing one character at a time gives the same suggestions.
    typed_text = completer.begin()
    for end in range(len(typed) + 1):
        typed_text = completer.type_text(typed_text, typed[:end])
    assert completer.suggest(typed_text, k=25).suggestions == suggestions


def test_a_text_with_several_tokenizations_is_suggested_once() -> None:
    run = make_letters(("🇳🇴", "🇳", "🇴"), data={"tokenizer": "grapheme", "max_tokens": 4}, spread=0.2)
    prefix_state = plain_state(run, "")
    with run.scoring():
        result = PlainEngine(run.model).search(SearchRequest(prefix_state, 30, 2))
    texts = ["".join(run.tokenizer.decode(completion.ids)) for completion in result.completions]
    assert texts.count("🇳🇴") == 2
    texts_of_completer = [completion.text for completion in Completer(run).complete("", k=30)]
    assert len(set(texts_of_completer)) == len(texts_of_completer)
    assert "🇳🇴" in texts_of_completer


@pytest.mark.parametrize("typos", [0, 1])
def test_a_prefix_that_is_too_long_has_no_suggestions(typos: int) -> None:
    completer = Completer(make_letters(), typos=typos)
    start = completer.begin()
    long, short = completer.type_text(start, "a" * 10_000), completer.type_text(start, "ab")
    assert (long.fits, short.fits) == (False, True)
    assert completer.suggest(long).suggestions == []
    assert completer.suggest(short).suggestions
    assert completer.complete("a" * 12) == []
    assert completer.suggest(completer.type_text(long, "ab")).suggestions == completer.suggest(short).suggestions


def test_invalid_arguments_are_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected tokenizer char, grapheme, bpe or pretrained, got word"):
        Completer(make_run(tmp_path / "words"))
    completer = Completer(make_letters())
    with pytest.raises(UserError, match="unknown context column 'town'; choose from city"):
        completer.complete("a", context={"town": "Oslo"})
    with pytest.raises(UserError, match="Olso"):
        completer.complete("a", context={"city": "Olso"})
    with pytest.raises(UserError, match="count is 0"):
        completer.complete("a", k=0)
    assert Completer(make_letters(), unknown="expected").complete("a", context={"city": "Olso"}) == completer.complete(
        "a"
    )


def test_deadlines_and_time_limits_end_a_search() -> None:
    for typos in (0, 1):
        patient, hasty = Completer(make_letters(), typos=typos), Completer(make_letters(), seconds=0.0, typos=typos)
        typed_text = patient.type_text(patient.begin(), "abc")
        assert patient.suggest(typed_text, deadline=0.0).is_cut
        assert hasty.suggest(typed_text).is_cut
        assert hasty.suggest(typed_text, deadline=time.monotonic() + 60.0) == patient.suggest(typed_text)
    with pytest.raises(UserError, match="seconds is -1"):
        Completer(make_letters(), seconds=-1.0)


@pytest.mark.parametrize(
    "model", [pytest.param({}, id="compiled", marks=compiled), pytest.param({"cell": "gru"}, id="plain")]
)
@pytest.mark.parametrize("typos", [0, 1])
def test_texts_that_are_not_allowed_are_replaced_by_the_next_best(model: dict[str, Any], typos: int) -> None:
    run = make_letters(seed=2, spread=1.0, **model)
    plain, strict = Completer(run, typos=typos), Completer(run, typos=typos, is_allowed=lambda text: "ab" not in text)
    assert type(plain.engine).__name__ == ("PlainEngine" if model else "CompiledEngine")
    for prefix in ("", "a", "ca"):
        every = plain.complete(prefix, k=400)
        expected = [s.text for s in every if "ab" not in s.text and not s.typos]
        suggestions = [s.text for s in strict.complete(prefix, k=6) if not s.typos]
        assert suggestions == expected[: len(suggestions)]
        assert len(suggestions) == 6 or typos
        shown = [s.text for s in strict.complete(prefix, k=6)]
        assert len(shown) == 6
        assert "ab" not in " ".join(shown)
    assert [s.typos for s in strict.complete("ab")] == [] or typos


def test_a_run_on_another_device_completes_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FACTORCELL_KERNEL", "off")  # other devices only have the plain search
    monkeypatch.setattr("torch.inference_mode", inference_mode)
    run, device_run = make_letters(), make_letters()
    expected = Completer(run).complete("ab", context={"city": "Nice"})
    with FakeDevice():
        device_run.model.to(DEVICE)
        device_run.model.head.embedding = device_run.model.embedding
        completer = Completer(device_run)
        suggestions = completer.complete("ab", context={"city": "Nice"})
        assert [s.text for s in suggestions] == [s.text for s in expected]
        assert [s.log_probability for s in suggestions] == pytest.approx(
            [s.log_probability for s in expected], abs=CLOSE
        )


def test_complete_on_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["complete", str(folder), "a", "--context", "city=Oslo", "--count", "3", "--threads", "1"]
    assert main(command) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    suggestions = Completer(Run.open(folder)).complete("a", context={"city": "Oslo"}, k=3)
    assert header.split() == ["text", "probability"]
    assert [line.split() for line in lines] == [[s.text, f"{np.exp(s.log_probability):#.2g}"] for s in suggestions]
    assert main([*command, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    probabilities = [row.pop("probability") for row in rows]
    assert probabilities == pytest.approx([np.exp(s.log_probability) for s in suggestions], abs=CLOSE)
    assert [replace(suggestions[0], **row) for row in rows] == suggestions
    assert main([*command, "--explain"]) == 0
    output = capsys.readouterr()
    assert output.out.splitlines()[0].split() == ["text", "probability"]
    assert "--explain: all suggestions are from the model alone" in output.err
    assert main(["complete", str(folder), "", "--threads", "1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 11
    assert main([*command, "--seconds", "0"]) == 0
    assert "better suggestions may exist" in capsys.readouterr().err
    for wrong, message in (
        (["--context", "city"], "--context: expected NAME=VALUE, got 'city'"),
        (["--context", "city=Nice"], "--context: expected one value of city, got 'Oslo' and 'Nice'"),
        (["--context", "town=Nice"], "unknown context column 'town'"),
        (["--count", "0"], "--count: expected a whole number from 1"),
    ):
        assert main([*command, *wrong]) == 2
        assert message in capsys.readouterr().err


def test_a_suggestion_cannot_steer_the_terminal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["complete", str(folder), "a\x1b[2J\a", "--threads", "1"]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert len(lines) == 10
    assert all(line.startswith("a[2J") for line in lines)
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["text"].startswith("a[2J")
    assert files.read_json(folder / "config.json")["tokenizer"]["kind"] == "char"
