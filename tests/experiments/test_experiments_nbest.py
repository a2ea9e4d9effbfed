"""The simulated recogniser: distances by sound against a plain table, its bigrams against the model's own."""

import itertools
from argparse import Namespace
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

import nbest
import rescoring
import study
from factorcell import files
from factorcell.completion.online import LearningRule
from factorcell.config import Config, DataConfig
from factorcell.evaluation.ngram import NGram
from factorcell.evaluation.rescoring.word_errors import distances
from factorcell.model.run import Run

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
    assert {vocabulary[one] for one in ids[:2]} == {"write", "right"}
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
    drawn = nbest.utterances(dev, new, 1000, 0)
    assert all(len(row["text"].split()) == 6 and row["speaker"] != "unknown" for row in drawn)
    assert {row["speaker"] for row in drawn} == {f"s{number}" for number in range(12)}
    assert all(row["known"] == ("no" if row["speaker"] in new else "yes") for row in drawn)
    assert drawn == nbest.utterances(dev, new, 1000, 0) != nbest.utterances(dev, new, 1000, 1)
    few = Counter(row["known"] for row in nbest.utterances(dev, new, 10, 0))
    assert few == {"no": 5, "yes": 5}


def test_the_recipe_reads_as_the_recogniser_writes() -> None:
    """Its words are those of the n-gram models, and speakers are learned."""
    config = Config.load(Path(nbest.__file__).with_name(rescoring.EXPERIMENT.recipe))
    assert config.data.user == "speaker"
    assert {*config.data.context, config.data.user} == set(rescoring.CONTEXT)
    shared = {"strip_punctuation", "min_count", "max_tokens", "unit"}
    assert all(getattr(config.data, name) == getattr(nbest.DATA, name) for name in shared)


# ---- what is rescored ----

NAMES = [f"s{number}" for number in range(12)]
WORDS = "the court may hear this case and rule on it so is that right your honor".split()


def spoken(count: int, seed: int) -> list[dict[str, str]]:
    """Turns of twelve speakers, each fond of other words."""
    random = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        who = random.choice(12, p=np.arange(14, 2, -1) / 102)
        fond = np.where(np.arange(len(WORDS)) % 12 == who, 8.0, 1.0)
        text = " ".join(random.choice(WORDS, 8, p=fond / fond.sum()))
        role = "justice" if number % 2 else "advocate"
        rows.append({"text": text, "speaker": NAMES[who], "role": role, "case": f"c{number % 2}", "term": "1"})
    return rows


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the rows of small models on lists of small turns, and what they were made of."""
    folder = tmp_path_factory.mktemp("rescoring")
    (folder / "scotus").mkdir()
    for seed, (part, count) in enumerate({"train": 400, "dev": 120, "test": 150}.items()):
        pq.write_table(pa.Table.from_pylist(spoken(count, seed)), folder / "scotus" / f"{part}.parquet")
    sizes = {"embedding_size": 6, "hidden_size": 6, "context_size": 3, "variable_size": 3, "rank": 2}
    small = {name: {**row, "model": {**row["model"], **sizes}} for name, row in rescoring.EXPERIMENT.rows.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rescoring, "UTTERANCES", {"dev": 20, "test": 40})
        given = Namespace(data=folder, out=folder, results=None, trial=False, only=None, seeds=[0], threads=1, jobs=1)
        assert study.main(replace(rescoring.EXPERIMENT, rows=small), given, ["rescoring.py"]) == 0
    return folder


def test_word_errors_are_those_of_the_lists(measured: Path) -> None:
    """The first of each list and the best in it, counted here; nobody new is in training."""
    rows = {row["row"]: row for row in files.read_rows(measured / "rescoring.jsonl")}
    lists = files.read_rows(measured / "tables" / "rescoring-1" / "test.jsonl")
    new = {row["speaker"] for row in lists if row["known"] == "no"}
    train = pq.read_table(measured / "tables" / "rescoring-train-1.parquet")
    assert len(lists) == 40
    assert new
    assert new.isdisjoint(train["speaker"].to_pylist())
    errors = [distances(row["reference"], [one["text"] for one in row["hypotheses"]]) for row in lists]
    words = [len(row["reference"].split()) for row in lists]
    assert rows["first pass"]["wer"] == pytest.approx(sum(one[0] for one in errors) / sum(words))
    assert rows["oracle"]["wer"] == pytest.approx(sum(min(one) for one in errors) / sum(words))
    theirs = [row["known"] == "no" for row in lists]
    first = [one[0] for one, own in zip(errors, theirs, strict=True) if own]
    assert rows["first pass"]["wer_new"] == pytest.approx(sum(first) / np.dot(words, theirs))
    for kind in ("wer", "said", "wer_learned", "said_learned", "wer_bare", "said_bare", "likelihood"):
        own = study.ungrouped(rows["factorcell"])
        assert own[f"{kind}_new"].below.sum() + own[f"{kind}_known"].below.sum() == own[kind].below.sum()


def test_what_was_said_costs_what_the_run_says(measured: Path) -> None:
    """In context as the run evaluates its test; who learns nothing costs the same; without context otherwise."""
    rows = {row["row"]: row for row in files.read_rows(measured / "rescoring.jsonl")}
    row, table = rows["factorcell"], measured / "tables" / "rescoring-test-1.parquet"
    assert row["said"] == pytest.approx(row["perplexity"], rel=1e-5)
    run = Run.open(measured / "rescoring" / "factorcell" / "0")
    LearningRule("sgd", 0.0).save(run)
    still = rescoring.said_learning(run, table)
    plain = rescoring.said(run, table)
    assert still["said_learned"].ratio == pytest.approx(plain["said"].ratio, rel=1e-4)
    bare = run.prepare([{"text": one} for one in pq.read_table(table)["text"].to_pylist()], unknown="expected")
    assert row["said_bare"] == pytest.approx(float(np.exp(run.nats(bare).mean())), rel=1e-4)
    assert row["said_bare"] != pytest.approx(row["said"], rel=1e-4)
