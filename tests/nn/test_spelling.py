"""Probabilities of spellings against sums over all strings, and the nats of the spellings of texts."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from factorcell.config import Config
from factorcell.data.corpus import Corpus
from factorcell.data.preparation import prepare
from factorcell.ngram import spelling
from factorcell.ngram.ngram import NGram
from factorcell.ngram.spelling import SpellingModel, spelling_model, spelling_nats

WORDS = ("ab", "abb", "ba", "aab", "bab")


def read(words: tuple[str, ...], kind: str = "word", corpus: Corpus | None = None) -> Corpus:
    config = Config.of(tokenizer=kind, min_count=1)
    return prepare([{"text": word} for word in words], config, tokenizer=None if corpus is None else corpus.tokenizer)


def test_the_probabilities_of_all_other_strings_sum_to_one() -> None:
    model = SpellingModel(read(WORDS).tokenizer)
    alphabet = ("a", "b", "\u00e9")  # the last character stands for all characters that no word has
    totals = []
    for length in range(10):
        strings = ["".join(letters) for letters in itertools.product(alphabet, repeat=length)]
        others = [string for string in strings if string not in WORDS]
        powers = [string.count("\u00e9") for string in others]
        characters = math.log(spelling.CHARACTERS - 2) * np.array(powers)
        totals.append(float(np.exp(-model.nats(others) + characters).sum()) if others else 0.0)
    assert 0.98 < sum(totals) < 1
    assert sum(totals[:5]) < sum(totals)


def test_spellings_are_texts_of_a_model_of_characters(tmp_path: Path) -> None:
    """The raw probabilities are those of an n-gram model that is fitted on the words with the tokenizer `char`."""
    corpus = read(WORDS)
    config = Config.of(tokenizer="char", min_count=1)
    ngram = NGram.fit([{"text": word} for word in WORDS], config, tmp_path / "ngram", order=spelling.ORDER)

    def nats(word: str) -> float:
        return float(ngram.nats(ngram.prepare([{"text": word}])).sum())

    remainder = 1 - sum(math.exp(-nats(word)) for word in WORDS)
    strings = ["a", "bbb", "abab", ""]
    expected = [nats(string) + math.log(remainder) for string in strings]
    assert SpellingModel(corpus.tokenizer).nats(strings) == pytest.approx(expected)


def test_similar_spellings_are_more_probable_than_others() -> None:
    model = SpellingModel(read(WORDS).tokenizer)
    similar, longer, foreign = model.nats(["abab", "abababab", "ab\u00e9b"])
    assert similar < longer < foreign


def test_nats_of_texts_are_sums_over_their_unknown_tokens() -> None:
    train = read((*WORDS, "ab ba"))
    texts = ("ab xyz ba xyz", "", "ab", "caf\u00e9 ab", "<unk> \ud800")
    corpus = read(texts, corpus=train)
    nats = spelling_model(train.tokenizer).nats
    expected = [2 * nats(["xyz"])[0], 0, 0, nats(["caf\u00e9"])[0], nats(["<", "unk", ">", "\ud800"]).sum()]
    assert spelling_nats(corpus) == pytest.approx(expected)
    assert spelling_nats(corpus.select(np.array([3, 1, 0]))) == pytest.approx([expected[3], 0, expected[0]])
    assert spelling_nats(train).tolist() == [0] * len(train)


@pytest.mark.parametrize("kind", ["char", "grapheme"])
def test_a_model_of_characters_spells_unknown_characters(kind: str) -> None:
    train = read(("abab", "ba"), kind)
    first, second = spelling_nats(read(("aéb", "é"), kind, train))
    assert first == second > math.log(spelling.CHARACTERS - 2)


def test_a_vocabulary_without_tokens_has_spellings() -> None:
    model = SpellingModel(type(read(WORDS).tokenizer)(Config.of(tokenizer="word").tokenizer))
    assert np.isfinite(model.nats(["a", "", "xyz"])).all()
    assert model.nats([]).tolist() == []
