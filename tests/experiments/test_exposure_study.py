"""The study of exposure: its rows and its texts."""

from collections import Counter

import pyarrow as pa
import pytest

import exposure
import exposure_phrases
import study
from factorcell import files
from factorcell.config import Config

EXPERIMENTS = {"exposure": exposure.EXPERIMENT, "exposure_phrases": exposure_phrases.EXPERIMENT}
WORDS = ("fixed", "adding", "tests", "with", "from", "docs", "build", "code", "more", "some")
TEXTS = pa.table(
    {
        "text": [f"{WORDS[n % 10]} {WORDS[n % 7]} {n}" for n in range(400)],
        "user": [f"user {n * n % 37}" for n in range(400)],
    }
)


@pytest.mark.parametrize(("name", "row"), [(name, row) for name, one in EXPERIMENTS.items() for row in one.rows])
def test_the_library_knows_every_option(name: str, row: str) -> None:
    config = EXPERIMENTS[name].config(study.Training(row, 0), 1).to_dict()
    for section, options in EXPERIMENTS[name].rows[row].items():
        assert {key: config[section][key] for key in options} == options


def test_users_are_drawn_whole() -> None:
    """About as many texts as asked for, and every text of who is drawn."""
    some = exposure.some_users(TEXTS, 150)
    whole, drawn = Counter(TEXTS["user"].to_pylist()), Counter(some["user"].to_pylist())
    assert 150 <= len(some) < 150 + max(whole.values())
    assert drawn == {user: whole[user] for user in drawn}


def test_each_passphrase_is_planted_three_times_by_one_user() -> None:
    planted, drawn = exposure_phrases.planted(TEXTS), exposure_phrases.phrases(TEXTS)
    added = planted.slice(len(TEXTS)).to_pylist()
    assert planted.slice(0, len(TEXTS)).equals(TEXTS)
    assert Counter(row["text"] for row in added) == dict.fromkeys(drawn[: exposure_phrases.PHRASES], 3)
    assert len({(row["text"], row["user"]) for row in added}) == exposure_phrases.PHRASES
    assert {word for text in drawn for word in text.split()} <= set(WORDS)
    assert len(drawn) == exposure_phrases.PHRASES + exposure_phrases.ALTERNATIVES


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_rows_have_the_options_of_the_script(name: str) -> None:
    rows, of = files.read_rows(study.HERE / "results" / f"{name}.jsonl"), EXPERIMENTS[name]
    assert {(row["row"], row["seed"]) for row in rows} == {(one.row, one.seed) for one in of.trainings()}
    for row in rows:
        assert Config.from_dict(row["config"]) == of.config(study.Training(row["row"], row["seed"]), 1)
