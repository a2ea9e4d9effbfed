"""Runs can be trained, opened and used with lone surrogates in texts, values, column names and folder names."""

import sys

import pytest

from factorcell import Run, classify, evaluate, generate
from factorcell.completion import Popularity
from factorcell.config import Config
from factorcell.reports.runs import report_page
from factorcell.training.fit import train_run

COLUMN, VALUE, TEXT = "ci\udce9ty", "Os\udfff", "the s\ud800ea"
ROWS = [
    {"text": text, COLUMN: city, "who": who}
    for text, city, who in (
        (TEXT, VALUE, "an\udc80n"),
        ("warm sand", "Nice", "bob"),
        ("cold sand", VALUE, "eve"),
        ("warm sand", "Nice", "an\udc80n"),
    )
] * 4
MIN_COUNTS = dict.fromkeys(("min_count", "min_context_count", "min_user_count", "min_text_users"), 1)
CONFIG = Config.of(
    **{
        "context": (COLUMN,),
        "user": "who",
        "tokenizer": "char",
        **MIN_COUNTS,
        "hidden_size": 6,
        "embedding_size": 4,
        "variable_size": 2,
        "context_size": 3,
        "epochs": 1,
        "evaluations": 1,
    }
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run in a folder whose name is not UTF-8, if the system allows such names."""
    folder = tmp_path_factory.mktemp("runs") / ("r\udce9n" if sys.platform == "linux" else "run")
    train_run(ROWS, ROWS[:4], CONFIG, folder)
    return Run.open(folder)


def test_lone_surrogates_are_stored_and_read(run: Run) -> None:
    assert run.config.data.context == (COLUMN,)
    assert VALUE in run.schema.variable(COLUMN).values
    assert "\ud800" in run.tokenizer.tokens


def test_a_run_with_lone_surrogates_can_be_used(run: Run) -> None:
    assert evaluate(run, ROWS).row["texts"] == len(ROWS)
    assert VALUE in classify(run, ROWS, COLUMN).names
    (row,) = generate(run, [{COLUMN: VALUE}])
    assert row["context"] == {COLUMN: VALUE}
    for page in ((run.folder / "README.md").read_text(encoding="utf-8"), report_page([run.folder])):
        page.encode()
        assert "ci\\" in page
        assert "udce9ty" in page


def test_a_text_with_lone_surrogates_is_not_popular(run: Run) -> None:
    assert sorted(Popularity.from_run(run).texts) == ["cold sand", "warm sand"]
