"""What one or two people typed, however often, is suggested to nobody else, and in no file of the run."""

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from factorcell.completion.blend import Blend
from factorcell.completion.completer import Completer
from factorcell.completion.fuzzy import TypoTolerantLookup
from factorcell.completion.online import Learner, User
from factorcell.completion.popularity import Popularity
from factorcell.completion.replay.systems import open_systems
from factorcell.config import Config
from factorcell.data.cache import prepare
from factorcell.data.corpus import Corpus
from factorcell.data.counts import POPULARITY, TextCounts
from factorcell.model.run import Run
from factorcell.training import fit as fitting
from factorcell.training.finetuning import finetune
from factorcell.training.fit import fit

SECRET, PEOPLE = "my pin is 7351", ("ann", "bob", "cat", "dan")
ROWS: list[dict[str, Any]] = [
    *[{"text": SECRET, "who": "ann"}] * 30,
    *[{"text": SECRET, "who": "bob"}] * 10,
    *[{"text": SECRET, "who": ""}] * 5,  # may be ann, for all that is known
    *[{"text": text, "who": who} for who in PEOPLE for text in ("my pie is hot", "my pie is cold", "hi")] * 4,
]


def config(**data: Any) -> Config:
    """A small model of characters, soon trained."""
    return Config.of(
        **{
            "tokenizer": "char",
            "user": "who",
            "min_user_count": 2,
            **data,
            "embedding_size": 4,
            "hidden_size": 8,
            "rank": 2,
            "variable_size": 3,
            "epochs": 1,
            "evaluations": 1,
        }
    )


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A table of `rows`."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Trained on `ROWS`, and on nothing that was held out."""
    folder = tmp_path_factory.mktemp("secrets")
    fit(write(folder / "rows.jsonl", ROWS), None, config(), folder / "run")
    return Run.open(folder / "run")


def test_no_source_suggests_what_too_few_people_wrote(run: Run) -> None:
    popular, completer, stranger = Popularity.from_run(run), Completer(run, typos=2), User.new(run)
    replayed = open_systems(run.folder, ("mpc", "online", "blend"), user_column="who")
    asked = 0
    for size in range(len(SECRET) - 3):  # the last digits may be guessed
        prefix = SECRET[:size]
        found = [*popular.complete(prefix), *TypoTolerantLookup(popular).complete(prefix)]
        found += completer.complete(prefix, stranger)
        found += Blend(completer, popular).complete(prefix, stranger)
        for system in replayed.values():
            found += system.suggest(system.start("eve"), prefix, {"who": "eve"}, 10)
        asked += len(found)
        assert SECRET not in [one.text for one in found]
    assert asked > 100
    assert SECRET not in [text for text, *_ in Learner(run).largest_gains(stranger, popular.top(100), 100)]
    assert {one.text for one in popular.complete("my p")} == {"my pie is cold", "my pie is hot"}


def test_no_file_of_a_run_holds_it_nor_who_wrote_a_text(run: Run) -> None:
    for path in run.folder.rglob("*"):
        content = path.read_bytes()
        for encoding in ("utf-8", "utf-16-le", "utf-32-le"):
            assert SECRET[-6:].encode(encoding) not in content, path
    counted = (run.folder / POPULARITY).read_text(encoding="utf-8")
    assert not [who for who in PEOPLE if who in counted]
    assert TextCounts.open(run.folder / POPULARITY).min_users == 3


def test_an_option_says_how_many_people(tmp_path: Path) -> None:
    run = fit(ROWS, ROWS[:5], config(min_text_users=2), tmp_path / "run")
    assert TextCounts.open(run.folder / POPULARITY).counts[SECRET] == 45
    assert SECRET.encode() in (run.folder / POPULARITY).read_bytes()


def texts_of(corpus: Corpus) -> list[str]:
    """The texts of a corpus whose vocabulary has all characters."""
    ids = np.split(corpus.tokens, corpus.offsets[1:-1])
    return ["".join(corpus.tokenizer.decode(line[1:-1])) for line in ids]


def test_held_out_rows_are_not_counted(run: Run) -> None:
    corpus, held = prepare(ROWS, run.config).split(fitting.HELD_OUT, run.config.training.seed)
    expected = Counter(text for text in texts_of(corpus) if text != SECRET)
    assert TextCounts.open(run.folder / POPULARITY) == TextCounts(expected, len(corpus), 3)
    assert len(held) == len(ROWS) - len(corpus) > 3


def test_a_fine_tuned_run_counts_its_own_texts(run: Run, tmp_path: Path) -> None:
    rows = [{"text": text, "who": who} for who in PEOPLE for text in ("hello", "help")] + [ROWS[0]] * 9
    tuned = finetune(run, write(tmp_path / "rows.jsonl", rows), rows[:3], tmp_path / "run", unknown="group")
    assert TextCounts.open(tuned.folder / POPULARITY) == TextCounts({"hello": 4, "help": 4}, len(rows), 3)


def test_words_and_tables_without_people_have_no_popular_texts(tmp_path: Path) -> None:
    for data in ({"user": ""}, {"tokenizer": "word", "min_count": 1}):
        run = fit(ROWS, ROWS[:5], config(**data), tmp_path / str(len(data)))
        assert not (run.folder / POPULARITY).exists()


TEXT = st.text("aé\u0301B \n", max_size=4)
PERSON = st.sampled_from([None, "", "a", "b", 3, "3", 3.0, "d"])


@settings(max_examples=80)
@given(
    st.lists(st.tuples(TEXT, PERSON), min_size=1, max_size=40),
    st.integers(1, 3),
    st.integers(1, 3),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_counts_are_those_of_plain_sets(
    pairs: list[tuple[str, Any]], least: int, people: int, lowercase: bool, chosen: Any
) -> None:
    popular = {"min_text_count": least, "min_text_users": people}
    config = Config.of(tokenizer="grapheme", user="who", max_tokens=4, min_count=1, lowercase=lowercase, **popular)
    corpus = prepare([{"text": text, "who": who} for text, who in pairs], config)
    rows = np.array(chosen.sample(range(len(pairs)), chosen.randint(1, len(pairs))))
    counts, writers = Counter[str](), defaultdict[str, set[str]](set)
    for row in rows.tolist():
        text, who = normalize("NFC", pairs[row][0]), pairs[row][1]
        text = " ".join(normalize("NFC", text.lower() if lowercase else text).split())
        if text and corpus.tokens[corpus.offsets[row + 1] - 1] == 2:
            counts[text] += 1
            writers[text] |= {str(who).removesuffix(".0")} if who not in (None, "") else set()
    expected = {text: n for text, n in counts.items() if n >= least and len(writers[text]) >= people}
    assert TextCounts.of_corpus(corpus.select(rows), least, people) == TextCounts(expected, len(rows), people)


def test_texts_with_a_token_out_of_vocabulary_are_not_counted() -> None:
    rows = [{"text": text, "who": who} for who in "abc" for text in ("aa", "ab")]
    corpus = prepare(rows, Config.of(tokenizer="char", user="who", min_count=4))
    assert TextCounts.of_corpus(corpus, 1, 1).counts == {"aa": 3}


def test_people_may_be_given_beside_texts() -> None:
    texts, users = ["a"] * 5 + ["b"] * 4, [1, 1, 2, None, None, 1, 2, 3, 3]
    assert TextCounts.of(texts, 3) == TextCounts({"a": 5, "b": 4}, 9, 0)
    assert TextCounts.of(texts, 3, users) == TextCounts({"b": 4}, 9, 3)
    assert TextCounts.of(texts, 3, users, 2) == TextCounts({"a": 5, "b": 4}, 9, 2)
    assert [one.text for one in Popularity.fit(texts, 1, users).complete("")] == ["b"]
