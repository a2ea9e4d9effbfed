"""The simulated recogniser: distances by sound against a plain table, its bigrams against the model's own."""

import itertools
from pathlib import Path

import numpy as np
import pytest

import nbest
from factorcell.config import DataConfig
from factorcell.evaluation.ngram import NGram
from factorcell.evaluation.rescoring.nbest import distances

TEXTS = ("so is it the same right", "is that right", "the knight is right", "write it so", "a fact and a fax in 1990")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> NGram:
    rows = [{"text": text} for text in TEXTS]
    return NGram.fit(rows, DataConfig(min_count=1), tmp_path_factory.mktemp("model") / "bigram", order=2)


def plain(one: str, other: str) -> float:
    """The distance of two sounds, letter by letter."""

    def gap(letter: str) -> float:
        return 0.5 if letter in nbest.VOWELS else 1.0

    def swap(a: str, b: str) -> float:
        alike = (a in nbest.VOWELS and b in nbest.VOWELS) or any({a, b} == set(pair) for pair in nbest.PARTNERS)
        return 0.0 if a == b else 0.5 if alike else 1.0

    table = {(0, 0): 0.0}
    for i, j in itertools.product(range(len(one) + 1), range(len(other) + 1)):
        ways = [table[i - 1, j] + gap(one[i - 1])] if i else []
        ways += [table[i, j - 1] + gap(other[j - 1])] if j else []
        ways += [table[i - 1, j - 1] + swap(one[i - 1], other[j - 1])] if i and j else []
        table[i, j] = min(ways, default=0.0)
    return table[len(one), len(other)]


def test_words_that_sound_alike() -> None:
    assert nbest.sound("right") == nbest.sound("rite")
    assert nbest.sound("knight") == nbest.sound("nite")
    assert nbest.sound("phone") == "fon"
    assert nbest.sound("1987") == "1987"


def test_distances_by_sound(model: NGram) -> None:
    vocabulary = tuple(model.vocabulary.tokens)
    ear = nbest.Ear(vocabulary)
    for word in ("right", "fact", "never", "1990"):
        expected = [plain(nbest.sound(word), nbest.sound(other)) for other in vocabulary[3:]]
        assert ear.distances(word) == pytest.approx(expected)
    ids, near = ear.near("write")
    assert {vocabulary[one] for one in ids[:2]} == {"write", "right"} or near[1] == 0.5
    assert list(near) == sorted(near)


def test_bigrams_are_those_of_the_model(model: NGram) -> None:
    text = "the right knight is so"
    ids = np.array([1, *model.vocabulary.encode(text.split()), 2])
    logs = [nbest.log_bigrams(model, ids[i : i + 1], ids[i + 1 : i + 2])[0, 0] for i in range(len(ids) - 1)]
    assert -np.array(logs) == pytest.approx(model.nats(model.prepare([{"text": text}])))


def test_without_noise_all_is_heard(model: NGram, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loud sounds without noise give what was said; noise gives other texts, by the seed, in order of their totals."""
    ear = nbest.Ear(tuple(model.vocabulary.tokens))
    words = TEXTS[0].split()
    noisy = nbest.hear(model, ear, words, np.random.default_rng(0))
    assert noisy == nbest.hear(model, ear, words, np.random.default_rng(0))
    assert noisy != nbest.hear(model, ear, words, np.random.default_rng(1))
    assert len({text for text, _ in noisy}) == len(noisy) == nbest.LIST
    totals = []
    for text, sounds in noisy:
        lm = -float(model.nats(model.prepare([{"text": text}])).sum())
        totals.append(nbest.first_pass({"text": text, "acoustic": sounds, "lm": lm}))
    assert totals == pytest.approx(sorted(totals, reverse=True))
    monkeypatch.setattr(nbest, "SPREAD", 0.0)
    monkeypatch.setattr(nbest, "SHARP", 50.0)
    clear = nbest.hear(model, ear, words, np.random.default_rng(0))
    assert distances(TEXTS[0], [clear[0][0]])[0] == 0
    assert clear[0][1] == 0


def test_held_speakers_and_utterances() -> None:
    """Every other of the ten who speak most; half of the utterances theirs, neither long nor short."""
    dev = [
        {"text": "a b c d e f" if turn % 2 else "a b", "speaker": f"s{number}", "role": "justice", "case": "x"}
        for number in range(12)
        for turn in range(40 - number)
    ]
    dev.append({"text": "a b c d e f", "speaker": "unknown", "role": "unidentified", "case": "x"})
    new = nbest.held(dev)
    assert new == {"s1", "s3", "s5", "s7", "s9"}
    drawn = nbest.utterances(dev, new, 0)
    assert all(len(row["words"]) == 6 and row["speaker"] != "unknown" for row in drawn)
    assert {row["speaker"] for row in drawn} == {f"s{number}" for number in range(12)}
    assert drawn == nbest.utterances(dev, new, 0) != nbest.utterances(dev, new, 1)


def test_command_line_lists_what_it_does(tmp_path: Path) -> None:
    """The docstring is what --help shows, and names the recipe, which is a config."""
    from factorcell.config import Config

    recipe = Path(nbest.__file__).with_name("nbest.toml")
    config = Config.load(recipe)
    assert config.data.user == "speaker"
    assert config.data.context == ("role", "case")
    assert recipe.name in str(nbest.__doc__)
    shared = {"strip_punctuation", "min_count", "max_tokens", "unit"}
    assert all(getattr(config.data, name) == getattr(nbest.DATA, name) for name in shared)
