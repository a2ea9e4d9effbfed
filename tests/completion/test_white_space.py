"""Texts that differ only in white space are one text when they are counted, learned, suggested or forgotten."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from factorcell.completion.completer import Completer
from factorcell.completion.online import User, learn_one
from factorcell.completion.popularity import History, Popularity
from factorcell.completion.search import PlainEngine
from factorcell.config import Config
from factorcell.data.counts import TextCounts
from factorcell.data.preparation import prepare
from factorcell.data.text_folds import same_prefix, same_text
from factorcell.errors import UserError
from factorcell.service.engine import Service
from factorcell.service.learning import ServedModel
from factorcell.service.messages import CompletionRequest
from factorcell.service.record import Record, StoredText
from factorcell.service.stores.store import open_store, update
from tests.service import runs
from tests.small_runs import make_letters

TEXT = "zebra crossing"
VARIANTS = {
    "ends": " zebra crossing\r\n",
    "two spaces": "zebra  crossing",
    "tab": "zebra\tcrossing",
    "no-break space": "zebra\u00a0crossing",
    "narrow space": "zebra\u202f crossing\u2009",
    "separators": "zebra\x85\u2028\x1ccrossing",
}
each_variant = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
USERS = {"user": "city", "context": (), "min_user_count": 1}


@each_variant
def test_variants_have_one_canonical_form(variant: str) -> None:
    assert same_text(variant) == same_text(TEXT) == TEXT
    assert same_text(f"{variant}\u0301") != TEXT


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("new", "new"),
        ("new ", "new "),
        ("new  ", "new "),
        ("new\n", "new "),
        ("new\u00a0", "new "),
        (" new", "new"),
        ("new  y", "new y"),
        ("\tnew\t\ty\t", "new y "),
        ("", ""),
        (" ", ""),
        (" \n\u3000", ""),
        ("cafe\u0301 ", "caf\u00e9 "),
    ],
)
def test_a_prefix_keeps_one_space_at_its_end(prefix: str, expected: str) -> None:
    assert same_prefix(prefix) == expected


@each_variant
def test_counts_of_variants_are_added(variant: str) -> None:
    texts, users = [TEXT, variant, variant, "other"], ["ann", "bob", "cas", "ann"]
    assert TextCounts.of(texts, 1) == TextCounts({TEXT: 3, "other": 1}, 4)
    assert TextCounts.of(texts, 3, users, 3).counts == {TEXT: 3}
    assert TextCounts.of(texts, 3, ["ann", "bob", "ann", "ann"], 3).counts == {}
    data = Config.of(tokenizer="char", user="who", min_count=1)
    rows = [{"text": text, "who": who} for text, who in zip(texts, users, strict=True)]
    for table, expected in ((rows, {TEXT: 3}), ([*rows[:2], rows[1], rows[3]], {})):
        assert TextCounts.of_corpus(prepare(table, data), 3).counts == expected


def test_texts_of_white_space_alone_are_not_counted() -> None:
    blank = ["", " ", "\n", "\u3000\t"]
    assert TextCounts.of(blank * 3, 1).counts == {}
    rows = [{"text": text, "who": number} for number, text in enumerate(blank * 3)]
    assert TextCounts.of_corpus(prepare(rows, Config.of(tokenizer="char", user="who", min_count=1)), 1).counts == {}


@each_variant
def test_popularity_and_history_suggest_a_text_once(variant: str) -> None:
    history = History((TEXT, variant)).add(variant)
    assert history.texts == (TEXT,) * 3
    for source in (Popularity.fit([TEXT, variant, variant], 3), history):
        for prefix in ("", " ", "zebra", variant.rstrip()[:-1], "\tzebra  ", "zebra\n"):
            for typos in (0, 1):
                assert [s.text for s in source.complete(prefix, typos=typos)] == [TEXT], (source, prefix)
        assert source.complete(variant.strip()) == []


def test_a_space_at_the_end_of_a_prefix_ends_its_word() -> None:
    texts = ["new york", "newton", "new"]
    for source in (Popularity.fit(texts, 1), History(tuple(texts))):
        for prefix in ("new ", "new\t", " new  "):
            assert [s.text for s in source.complete(prefix)] == ["new york"]
        assert {s.text for s in source.complete("new")} == {"new york", "newton"}


@each_variant
def test_a_user_learns_the_same_from_all_variants(variant: str) -> None:
    run = make_letters(("zebra crossing\n\u00a0",), data={**USERS, "max_tokens": 30}, spread=0.8)
    once, other = (learn_one(run, User.new(run), text) for text in (TEXT, variant))
    assert np.array_equal(once.vector, other.vector)
    assert once.history == other.history
    assert History.add(History(), variant) == once.history
    user = learn_one(run, once, variant)
    assert user.history.texts == (TEXT, TEXT)
    assert User.from_bytes(user.to_bytes()).history == user.history


@pytest.mark.parametrize("tokenizer", ["char", "grapheme"])
@pytest.mark.parametrize("typos", [0, 1])
def test_a_model_suggests_no_variants(tokenizer: str, typos: int) -> None:
    """A model that writes white space in many ways suggests each text once, in canonical form."""
    run = make_letters(
        ("ab", "a b", "b  a", "a\nb", "a\u00a0b "), data={"tokenizer": tokenizer, "max_tokens": 8}, spread=0.8
    )
    completer = Completer(run, typos=typos)
    for prefix in ("", "a", "a ", "\na  "):
        suggestions = completer.complete(prefix, k=30)
        texts = [s.text for s in suggestions]
        assert len(set(texts)) == len(texts) == 30
        assert texts == [same_text(text) for text in texts]
        assert all(s.typos or s.text.startswith(same_prefix(prefix)) for s in suggestions)
        assert suggestions == completer.complete(same_prefix(prefix), k=30)
    assert completer.type_text(completer.begin(), "a" + " " * 100).fits


def test_both_searches_return_the_same_texts() -> None:
    run = make_letters(("ab", "a b", "b  a", "a\nb"), data={"max_tokens": 7}, spread=0.8)
    compiled, plain = Completer(run), Completer(run)
    plain.engine = PlainEngine(run.model)
    for prefix in ("", "a ", "b"):
        for k in (1, 7, 40):
            compiled_suggestions, plain_suggestions = compiled.complete(prefix, k=k), plain.complete(prefix, k=k)
            assert [s.text for s in compiled_suggestions] == [s.text for s in plain_suggestions]
            expected = [s.log_probability for s in plain_suggestions]
            assert [s.log_probability for s in compiled_suggestions] == pytest.approx(expected, abs=1e-4)


@pytest.fixture
def service(tmp_path: Path) -> Service:
    """A service with a small model and a file."""
    model = ServedModel(runs.make_run(tmp_path / "run"))
    return Service(model, open_store(f"sqlite:///{tmp_path / 'users.db'}"))


@pytest.mark.parametrize("variant", ["cab a ", "cab  a", "\ncab a", "cab\u00a0a\r\n"])
def test_a_service_stores_the_canonical_form(service: Service, variant: str) -> None:
    assert service.accept("ann", "cab a", key="1").outcome == "learned"
    assert service.accept("ann", variant, key="1").outcome == "repeated"
    assert service.accept("ann", variant).outcome == "learned"
    profile = service.show("ann")
    assert profile is not None
    assert [s.text for s in profile.texts] == ["cab a"] * 2
    results = service.complete(CompletionRequest(" cab  ", "ann")).results
    assert [s.text for s in results].count("cab a") == 1
    assert results == service.complete(CompletionRequest("cab ", "ann")).results
    values = msgspec.to_builtins(service.show("ann"))
    service.delete("ann")
    service.restore({**values, "texts": [{"text": variant, "time": 1}]})
    assert service.wait_for_learning()
    profile = service.show("ann")
    assert profile is not None
    assert [s.text for s in profile.texts] == ["cab a"]
    with pytest.raises(UserError, match="text is empty"):
        service.accept("ann", "\u3000\n")
    service.close()


@each_variant
def test_forgetting_a_text_forgets_all_variants(service: Service, variant: str) -> None:
    texts = (TEXT, "other", *VARIANTS.values())
    record = msgspec.structs.replace(
        Record.new("ann", 1), last_number=len(texts), texts=tuple(StoredText(n, s, 1) for n, s in enumerate(texts, 1))
    )
    assert [s.text for s in record.without_text(variant).texts] == ["other"]
    assert service.store.write(record, None)
    assert service.forget("ann", variant) == len(texts) - 1
    for text in (TEXT, variant):
        service.accept("ann", text)
    before, after = update(service.store, "ann", lambda record: record.without_text(variant), lambda: 0)
    assert (len(before.texts), [s.text for s in after.texts]) == (3, ["other"])
    service.close()
