"""Texts of one or two users are neither suggested to others nor stored in a run, however often they were typed."""

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
from factorcell.completion.online import User
from factorcell.completion.popularity import History, Popularity
from factorcell.completion.replay import open_systems
from factorcell.config import Config
from factorcell.data.corpus import Corpus
from factorcell.data.counts import POPULARITY, TextCounts
from factorcell.data.preparation import prepare
from factorcell.runs.run import Run
from factorcell.training import fit as fitting
from factorcell.training.fit import finetune, train_run

SECRET, USERS = "my pit is 7351", ("ann", "bob", "cat", "dan")
ROWS: list[dict[str, Any]] = [
    *[{"text": SECRET, "who": "ann"}] * 30,
    *[{"text": SECRET, "who": "bob"}] * 10,
    *[{"text": SECRET, "who": ""}] * 5,  # a missing user may be ann
    *[{"text": text, "who": user} for user in USERS for text in ("my pie is hot", "my pie is cold", "hi")] * 4,
]


def config(**data: Any) -> Config:
    """Return the config of a small model of characters that trains quickly."""
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


def write_table(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write a table of `rows` and return its path."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a run trained on `ROWS`; the held-out rows are some of them."""
    folder = tmp_path_factory.mktemp("secrets")
    train_run(write_table(folder / "rows.jsonl", ROWS), None, config(), folder / "run")
    return Run.open(folder / "run")


def test_no_source_suggests_texts_of_too_few_users(run: Run) -> None:
    popular, completer, new_user = Popularity.from_run(run), Completer(run, typos=2), User.new(run)
    replayed = open_systems(run, ("mpc", "online", "blend"), user_column="who")
    count = 0
    for size in range(len(SECRET) - 3):  # the model may guess the last digits
        prefix = SECRET[:size]
        suggestions = popular.complete(prefix, typos=2)
        suggestions += completer.complete(prefix, new_user)
        suggestions += Blend(run, popular, typos=2).complete(prefix, new_user)
        for system in replayed.values():
            suggestions += system(prefix, {"who": "eve"}, History(), new_user)
        count += len(suggestions)
        assert SECRET not in [s.text for s in suggestions]
    assert count > 100
    assert {s.text for s in popular.complete("my p")} == {"my pie is cold", "my pie is hot"}


def test_no_file_of_a_run_contains_the_secret_or_the_users(run: Run) -> None:
    for path in run.folder.rglob("*"):
        content = path.read_bytes()
        for encoding in ("utf-8", "utf-16-le", "utf-32-le"):
            assert SECRET[-6:].encode(encoding) not in content, path
    counted = (run.folder / POPULARITY).read_text(encoding="utf-8")
    assert not [user for user in USERS if user in counted]
    assert TextCounts.open(run.folder / POPULARITY).min_users == 3


def test_min_text_users_is_an_option(tmp_path: Path) -> None:
    run = train_run(ROWS, ROWS[:5], config(min_text_users=2), tmp_path / "run")
    assert TextCounts.open(run.folder / POPULARITY).counts[SECRET] == 45
    assert SECRET.encode() in (run.folder / POPULARITY).read_bytes()


def texts_of(corpus: Corpus) -> list[str]:
    """Return the texts of a corpus whose vocabulary has all characters."""
    ids = np.split(corpus.tokens, corpus.offsets[1:-1])
    return ["".join(corpus.tokenizer.decode(line[1:-1])) for line in ids]


def test_held_out_rows_are_not_counted(run: Run) -> None:
    corpus, held_out = prepare(ROWS, run.config).split(fitting.HELD_OUT_SHARE, run.config.training.seed)
    expected = Counter(text for text in texts_of(corpus) if text != SECRET)
    assert TextCounts.open(run.folder / POPULARITY) == TextCounts(expected, len(corpus), 3)
    assert len(held_out) == len(ROWS) - len(corpus) > 3


def test_a_fine_tuned_run_counts_its_own_texts(run: Run, tmp_path: Path) -> None:
    rows = [{"text": text, "who": user} for user in USERS for text in ("hello", "help")] + [ROWS[0]] * 9
    tuned = finetune(run, write_table(tmp_path / "rows.jsonl", rows), dev=rows[:3], out=tmp_path / "run")
    assert TextCounts.open(tuned.folder / POPULARITY) == TextCounts({"hello": 4, "help": 4}, len(rows), 3)


def test_word_models_and_tables_without_users_have_no_popular_texts(tmp_path: Path) -> None:
    for data in ({"user": ""}, {"tokenizer": "word", "min_count": 1}):
        run = train_run(ROWS, ROWS[:5], config(**data), tmp_path / str(len(data)))
        assert not (run.folder / POPULARITY).exists()


TEXT = st.text("aé\u0301B \n", max_size=4)
USER = st.sampled_from([None, "", "a", "b", 3, "3", 3.0, "d"])


@settings(max_examples=80)
@given(
    st.lists(st.tuples(TEXT, USER), min_size=1, max_size=40),
    st.integers(1, 3),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_counts_agree_with_plain_sets(pairs: list[tuple[str, Any]], min_users: int, lowercase: bool, rng: Any) -> None:
    config = Config.of(tokenizer="grapheme", user="who", max_tokens=4, min_count=1, lowercase=lowercase)
    corpus = prepare([{"text": text, "who": user} for text, user in pairs], config)
    rows = np.array(rng.sample(range(len(pairs)), rng.randint(1, len(pairs))))
    counts, writers = Counter[str](), defaultdict[str, set[str]](set)
    for row in rows.tolist():
        text, user = normalize("NFC", pairs[row][0]), pairs[row][1]
        text = " ".join(normalize("NFC", text.lower() if lowercase else text).split())
        if text and corpus.tokens[corpus.offsets[row + 1] - 1] == 2:
            counts[text] += 1
            writers[text] |= {str(user).removesuffix(".0")} if user not in (None, "") else set()
    expected = {text: n for text, n in counts.items() if len(writers[text]) >= min_users}
    assert TextCounts.of_corpus(corpus.select(rows), min_users) == TextCounts(expected, len(rows), min_users)


def test_texts_with_a_token_out_of_vocabulary_are_not_counted() -> None:
    rows = [{"text": text, "who": user} for user in "abc" for text in ("aa", "ab")]
    corpus = prepare(rows, Config.of(tokenizer="char", user="who", min_count=4))
    assert TextCounts.of_corpus(corpus, 1).counts == {"aa": 3}


def test_users_of_texts_are_counted() -> None:
    texts, users = ["a"] * 5 + ["b"] * 4, [1, 1, 2, None, None, 1, 2, 3, 3]
    assert TextCounts.of(texts, 3) == TextCounts({"a": 5, "b": 4}, 9, 0)
    assert TextCounts.of(texts, 3, users) == TextCounts({"b": 4}, 9, 3)
    assert TextCounts.of(texts, 3, users, 2) == TextCounts({"a": 5, "b": 4}, 9, 2)
    assert [s.text for s in Popularity.fit(texts, 1, users).complete("")] == ["b"]
