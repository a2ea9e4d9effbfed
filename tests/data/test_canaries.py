"""Canaries: their form, how they are planted, and the file that stores them."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorcell.config import Config, UserError
from factorcell.data.cache import prepare
from factorcell.data.canaries import CANARIES_FILE, Canaries, CanaryForm, plant_canaries
from factorcell.data.corpus import Corpus
from factorcell.data.tokenizer import Tokenizer, new_tokenizer, tokenizer_class
from factorcell.data.vocabulary import SPECIAL_TOKENS, Vocabulary

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
ROWS: list[dict[str, Any]] = [
    {
        "text": f"{LETTERS[index % 7 :]} {word}!",
        "who": f"user {index % 5}",
        "lat": index / 2 if index % 3 else None,
        "title": f"{word} things",
        "topics": [index / 4, 1.0],
    }
    for index, word in enumerate(("cold", "sea", "sun", "sand") * 6)
]
DATA = {"tokenizer": "char", "user": "who", "min_count": 1, "min_user_count": 5, "min_context_word": 1}
CONTEXT = ("lat:number", "title:text", "topics:vector")


def corpus_of(**more: Any) -> tuple[Corpus, Config]:
    config = Config.of(**{**DATA, **more})
    rows = [{**row, "lat": row["lat"] or 0.0} for row in ROWS]
    return prepare(rows, config), config


def tokenizer_of(kind: str, tokens: Iterable[str]) -> Tokenizer:
    options = Config.of(tokenizer=kind).tokenizer
    return tokenizer_class(kind)(options, Vocabulary([*SPECIAL_TOKENS, *dict.fromkeys(tokens)]))


def lines_of(corpus: Corpus) -> list[list[int]]:
    return [corpus.tokens[corpus.offsets[i] : corpus.offsets[i + 1]].tolist() for i in range(len(corpus))]


@pytest.mark.parametrize("kind", ["char", "grapheme", "word", "space"])
def test_a_joined_canary_is_split_into_its_tokens(kind: str) -> None:
    words = ["the", "of", ",", "naïve", "-", "3", "x1", "…", *(f"w{number}" for number in range(60))]
    tokens = [*"eta 0.-7é", *LETTERS[1:4], *LETTERS[5:]] if kind in ("char", "grapheme") else words
    tokenizer = tokenizer_of(kind, tokens)
    form = CanaryForm.of(tokenizer, 200)
    texts = form.draw(tokenizer, 300, (1, 2))
    assert len(set(texts)) == 300
    assert form.space == len(form.alphabet) ** form.length
    assert texts == form.draw(tokenizer, 300, (1, 2)) != form.draw(tokenizer, 300, (1, 3))
    assert not {",", "-", "…", " ", "."} & set(form.alphabet)
    for text in texts:
        assert tokenizer.split(tokenizer.join(text)) == list(text)


def test_letters_that_compose_to_another_are_not_both_in_the_alphabet() -> None:
    for kind, count in (("char", 1), ("grapheme", 0)):
        tokenizer = tokenizer_of(kind, ["\u1100", "\u1161", *LETTERS])
        form = CanaryForm.of(tokenizer, 200)
        assert len({"\u1100", "\u1161"} & set(form.alphabet)) == count
        for text in form.draw(tokenizer, 200, (0,)):
            assert tokenizer.split(tokenizer.join(text)) == list(text)


def bpe_tokenizer(counts: dict[str, int]) -> Tokenizer:
    untrained = new_tokenizer(Config.of(tokenizer="bpe", max_vocabulary=400, min_count=1))
    return untrained.train(Counter(word for text, count in counts.items() for word in untrained.split(text) * count))


def test_a_canary_of_pieces_of_words_is_split_into_its_pieces() -> None:
    syllables = ("the", "sea", "né", "12", "日")
    words = [first + second for first in syllables for second in syllables]
    tokenizer = bpe_tokenizer({word: 2 for text in words for word in (text, f" {text}")})
    form = CanaryForm.of(tokenizer, 200)
    assert {tokenizer.readable(token)[:1] for token in form.alphabet} == {" "}
    texts = form.draw(tokenizer, 300, (1, 2))
    assert len(set(texts)) == 300
    for text in texts:
        assert len(text) == form.length
        assert tokenizer.join(text) == tokenizer.join(text).strip()  # like a text that a user types
        assert tokenizer.split(tokenizer.join(text)) == list(text)


def test_pieces_that_merge_are_not_drawn_together() -> None:
    tokenizer, form = bpe_tokenizer({"xy": 5}), CanaryForm(("x", "y"), 2)
    assert tokenizer.split("xy") == ["xy"]
    assert {*form.draw(tokenizer, 3, (0,))} == {("x", "x"), ("y", "x"), ("y", "y")}
    with pytest.raises(UserError, match="only 3 of 400 sequences of tokens are the tokens of their text, expected 4"):
        form.draw(tokenizer, 4, (0,))


def test_a_form_with_too_few_texts_is_an_error() -> None:
    with pytest.raises(UserError, match="make too few texts"):
        CanaryForm.of(tokenizer_of("char", ["a", "b", "!"]), 200)
    with pytest.raises(UserError, match="max_tokens"):
        CanaryForm.of(tokenizer_of("char", LETTERS), 3)


@pytest.mark.parametrize("user", ["who", ""])
def test_each_canary_is_planted_with_its_repetitions_and_the_context_of_one_text(user: str) -> None:
    corpus, config = corpus_of(user=user, context=CONTEXT)
    canaries = Canaries.draw(corpus, config.data.max_tokens, 20, seed=3)
    planted = canaries.plant(corpus)
    assert Counter(canaries.repetitions.tolist()) == dict.fromkeys(range(1, 11), 2)
    assert len(planted) == len(corpus) + 110
    assert lines_of(planted)[: len(corpus)] == lines_of(corpus)
    rows_by_text: dict[tuple[str, ...], list[int]] = {}
    for row, line in enumerate(lines_of(planted)[len(corpus) :], len(corpus)):
        rows_by_text.setdefault(tuple(planted.tokenizer.decode(line[1:-1])), []).append(row)
    assert {text: len(rows) for text, rows in rows_by_text.items()} == dict(
        zip(canaries.texts, canaries.repetitions.tolist(), strict=True)
    )
    original = [context_of(corpus, row) for row in range(len(corpus))]
    for rows in rows_by_text.values():
        contexts = [context_of(planted, row) for row in rows]
        assert contexts[0] in original
        assert all(context == contexts[0] for context in contexts)


def context_of(corpus: Corpus, row: int) -> Any:
    text = corpus.select(np.array([row]))
    vectors, bags = [v.tolist() for v in text.vectors], [bags.values.tolist() for bags in text.words]
    return [text.categories.tolist(), text.numbers.tolist(), vectors, bags, text.users.tolist()]


def test_the_file_notes_that_nothing_is_real_and_can_be_opened(tmp_path: Path) -> None:
    corpus, config = corpus_of(context=CONTEXT)
    canaries = Canaries.draw(corpus, config.data.max_tokens, 12, seed=0)
    canaries.save(tmp_path / CANARIES_FILE)
    content = json.loads((tmp_path / CANARIES_FILE).read_text(encoding="utf-8"))
    assert "None is real" in content["note"]
    assert "user 1" not in (tmp_path / CANARIES_FILE).read_text(encoding="utf-8")
    again = Canaries.open(tmp_path / CANARIES_FILE, corpus.tokenizer, corpus.schema)
    assert (again.form, again.texts, again.repetitions.tolist()) == (
        canaries.form,
        canaries.texts,
        canaries.repetitions.tolist(),
    )
    assert lines_of(again.corpus) == lines_of(canaries.corpus)
    for row in range(12):
        assert context_of(again.corpus, row)[:-1] == context_of(canaries.corpus, row)[:-1]


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.pop("form"),
        lambda content: content.pop("texts"),
        lambda content: content["contexts"].update(categories=[[99]] * 3),
        lambda content: content["contexts"].update(categories=[[0, 1]] * 3),
        lambda content: content.update(times="often"),
    ],
)
def test_a_damaged_file_is_reported_with_its_name(change: Any, tmp_path: Path) -> None:
    corpus, config = corpus_of()
    Canaries.draw(corpus, config.data.max_tokens, 3, seed=0).save(tmp_path / CANARIES_FILE)
    content = json.loads((tmp_path / CANARIES_FILE).read_text(encoding="utf-8"))
    change(content)
    (tmp_path / CANARIES_FILE).write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(UserError, match=f"{CANARIES_FILE}: not a file of canaries"):
        Canaries.open(tmp_path / CANARIES_FILE, corpus.tokenizer, corpus.schema)


def test_no_canaries_are_planted_by_default(tmp_path: Path) -> None:
    corpus, _ = corpus_of()
    assert plant_canaries(corpus, Config(), tmp_path) is corpus
    assert not list(tmp_path.iterdir())
