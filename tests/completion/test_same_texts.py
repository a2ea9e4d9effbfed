"""Texts that differ only in invisible characters are one text, and capitals complete what small letters complete."""

import itertools
import math
import unicodedata
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import regex

from factorcell.completion.completer import Completer
from factorcell.completion.online import Learner, User, learn_one
from factorcell.completion.popularity import History, Popularity
from factorcell.completion.replay import read_streams
from factorcell.config import HISTORY_COLUMN, Config
from factorcell.data.counts import TextCounts
from factorcell.data.text_folds import with_final_sigma
from factorcell.service.engine import Service
from factorcell.service.learning import ServedModel
from factorcell.service.messages import CompletionRequest
from factorcell.service.stores.store import open_store
from tests.service import runs
from tests.small_runs import make_letters

TEXT = "zebra crossing"
INVISIBLE = ("\u200b", "\u200d", "\u200e", "\u00ad", "\ufeff", "\u2060", "\u3164", "\x07")
each_character = pytest.mark.parametrize("character", INVISIBLE, ids=ascii)
USERS = {"user": "city", "context": (), "min_user_count": 1}


def variants_of(text: str, character: str) -> list[str]:
    return [text[:at] + character + text[at:] for at in range(len(text) + 1)]


@each_character
def test_every_source_knows_a_text_once(character: str) -> None:
    variants = variants_of(TEXT, character)
    assert TextCounts.of([TEXT, *variants], 1).counts == {TEXT: len(variants) + 1}
    popularity, history = Popularity.fit(variants, 1), History(tuple(variants)).add(variants[3])
    assert set(history.texts) == {TEXT}
    sources: list[Popularity | History] = [popularity, history]
    for source, typos in itertools.product(sources, (0, 1)):
        for prefix in ("", character, f"ze{character}b", f"zebra{character} ", f"zebra {character}"):
            assert [s.text for s in source.complete(prefix, typos=typos)] == [TEXT]
        assert source.complete(f"{TEXT}{character}") == []


@pytest.mark.parametrize("tokenizer", ["char", "grapheme", "bpe"])
def test_a_model_suggests_no_variants(tokenizer: str) -> None:
    texts = ("ab", "a\u200bb", "a\u00adb\ufeff", "ba\u200e", "b")
    completer = Completer(make_letters(texts, data={"tokenizer": tokenizer, "max_tokens": 6}, spread=0.8))
    for prefix in ("", "a", "a\u200b", "\ufeffa"):
        suggested = [s.text for s in completer.complete(prefix, k=12)]
        assert len(set(suggested)) == len(suggested)
        assert all(text.isascii() for text in suggested)
    assert completer.complete("a\u200b") == completer.complete("a")


@each_character
def test_a_service_saves_suggests_forgets_and_imports_one_text(character: str, tmp_path: Path) -> None:
    service = Service(ServedModel(runs.make_run(tmp_path / "run")), open_store(f"sqlite:///{tmp_path / 'users.db'}"))
    for variant in variants_of("cab a", character):
        service.accept("ann", variant)
    suggested = [s.text for s in service.complete(CompletionRequest("ca", "ann", limit=10)).results]
    assert suggested.count("cab a") == 1
    assert not any(character in text for text in suggested)
    exported = msgspec.to_builtins(service.show("ann"))
    assert {saved["text"] for saved in exported["texts"]} == {"cab a"}
    assert service.forget("ann", f"c{character}ab a") == 6
    service.delete("ann")
    service.restore({**exported, "texts": [{"text": text, "time": 1} for text in variants_of("cab a", character)]})
    assert service.forget("ann", "cab a") == 6
    service.close()


CARD = "4111\u00a01111\u00a01111\u00a01111"


def test_a_text_with_a_private_context_is_neither_learned_nor_saved(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "run")
    learner = Learner(run, unknown="group")
    for context in ({"city": CARD}, {"city": "call +49\u2011171\u20111234567"}):
        user = learner.new()
        assert learner.learn([user], ["ab"], [context])[0][0] is user
    (learned,), _ = learner.learn([user], ["ab"], [{"city": "x"}])
    assert learned.history.texts == ("ab",)
    service = Service(ServedModel(run), open_store(f"sqlite:///{tmp_path / 'users.db'}"))
    result = service.accept("ann", "ab", context={"city": CARD}, unknown="group")
    assert (result.outcome, result.why) == ("withheld", "a card number")
    assert service.accept("ann", "ab", context={"city": "x"}, unknown="group").outcome == "learned"
    exported = msgspec.to_builtins(service.show("ann"))
    saved = [{**exported["texts"][0], "context": {"city": value}} for value in (CARD, "x")]
    service.delete("ann")
    service.restore({**exported, "texts": saved})
    profile = service.show("ann")
    assert profile is not None
    assert [text.context for text in profile.texts] == [{"city": "x"}]
    service.close()


def test_a_replay_reads_no_private_texts_as_earlier_texts() -> None:
    rows: list[dict[str, Any]] = [{"text": text, "user": "ann"} for text in ("ab", "pin\u200b 4821", "cd")]
    (stream,) = read_streams(rows, Config.of(tokenizer="char"), time_column=None, context_columns=(HISTORY_COLUMN,))
    assert [row[HISTORY_COLUMN] for row in stream.rows] == [[], ["ab"], ["ab"]]


LOWERCASE_TEXTS = ("οδος ερμου", "οδοσημα", "ΣΟΦΟΣ ΣΑΣ", "İstanbul", "izmir", "ночь", "Été", "ǰa")


@pytest.mark.parametrize("tokenizer", ["char", "grapheme", "bpe"])
def test_a_prefix_in_capitals_has_the_completions_of_small_letters(tokenizer: str) -> None:
    data = {**USERS, "tokenizer": tokenizer, "lowercase": True, "max_tokens": 14}
    run = make_letters(LOWERCASE_TEXTS, data=data, spread=0.8)
    completer = Completer(run)
    for text in LOWERCASE_TEXTS if tokenizer != "bpe" else ("οδος",):  # searches with pieces of words take longer
        spellings = [regex.findall(r"\X", spelling) for spelling in (text, text.lower(), text.upper())]
        for length in range(len(spellings[0]) + 1):
            beginnings = ["".join(characters[:length]) for characters in spellings]
            completions = [completer.complete(beginning, k=5) for beginning in (*beginnings, beginnings[0].lower())]
            assert completions == completions[:1] * 4, beginnings
    assert completer.complete("ΟΔΟΣ", k=5) == completer.complete("οδοσ", k=5) == completer.complete("οδος", k=5)
    shown = completer.suggest(completer.type_text(completer.begin(), "ΟΔΟΣ")).written(run.tokenizer)
    assert all(suggestion.text == with_final_sigma(suggestion.text) for suggestion in shown)
    small, capital = (learn_one(run, User.new(run), text) for text in ("οδος", "ΟΔΟΣ"))
    assert np.array_equal(small.vector, capital.vector)
    assert small.history == capital.history


def test_log_probabilities_do_not_depend_on_case() -> None:
    run = make_letters(LOWERCASE_TEXTS, data={"tokenizer": "char", "lowercase": True, "max_tokens": 14}, spread=0.8)
    completer = Completer(run)
    log_probs = [
        completer.log_probabilities(prefix, [text])[0]
        for prefix in ("ΟΔΟΣ", "οδος", "οδοσ")
        for text in ("οδος ερμου", "ΟΔΟΣ ΕΡΜΟΥ", "οδοσ ερμου")
    ]
    assert not math.isnan(log_probs[0])
    assert log_probs == pytest.approx([log_probs[0]] * len(log_probs))
    decomposed = unicodedata.normalize("NFD", "Été")
    assert completer.complete(decomposed) == completer.complete("été")
