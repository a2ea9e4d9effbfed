"""Errors suggest only options that the command has."""

import re
from pathlib import Path

import pytest

from factorcell.commands.cli.main import main
from factorcell.config import Config
from factorcell.errors import UserError
from factorcell.io.files import write_rows
from factorcell.training import compare as comparing
from factorcell.training.fit import train_run
from tests.commands.leaf_commands import parser
from tests.commands.test_main import QUICK, SMALL
from tests.small_runs import ROWS, make_run

CONFIG = Config.of(context=["city", "stars"])
BARE = [{"text": row["text"], "stars": row["stars"]} for row in ROWS]
MISSING_COLUMN = "no column 'city'; it has text, stars"
TRAINING = ["--context", "city", "--context", "stars", *SMALL, *QUICK]
COMMANDS = {
    "train": ["whole.jsonl", "--dev", "bare.jsonl", "--out", "new", *TRAINING],
    "tune": ["whole.jsonl", "--dev", "bare.jsonl", "--out", "runs", "--trials", "1", *TRAINING],
    "baseline linear": ["whole.jsonl", "--test", "bare.jsonl", "--target", "city"],
    "evaluate": ["run", "bare.jsonl"],
    "score": ["run", "bare.jsonl"],
    "finetune": ["run", "bare.jsonl", "--out", "tuned"],
}


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a run, a complete table and a table without one of the context columns."""
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "run", ("city", "stars")).save_weights({})
    write_rows(tmp_path / "whole.jsonl", ROWS * 13)
    write_rows(tmp_path / "bare.jsonl", BARE)
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_suggests_only_options_that_it_has(
    tables: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), *COMMANDS[command]]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    options = parser(*command.split()).flags
    assert set(re.findall(r"--[a-z-]+", line)) == {"--unknown"}.intersection(options)
    assert ("the table must have every context column of training" in line) == ("--unknown" not in options)
    assert "no column 'city'" in line


def test_a_function_suggests_only_parameters_that_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run", ("city", "stars"))
    requirement = "the table must have every context column of training"
    with pytest.raises(UserError) as error:
        train_run(ROWS, BARE, CONFIG, tmp_path / "fit")
    assert str(error.value).endswith(f"{MISSING_COLUMN}; {requirement}")
    monkeypatch.setattr(comparing, "train_run", lambda *_, **__: run)
    with pytest.raises(UserError) as error:
        comparing.compare(ROWS, dev=ROWS, test=BARE, out=tmp_path / "compared", config=CONFIG, models=["unadapted"])
    assert str(error.value).endswith(f"{MISSING_COLUMN}; {requirement}")
    with pytest.raises(UserError) as error:
        run.score_rows(BARE)
    assert str(error.value).endswith(f'{MISSING_COLUMN}; unknown="expected" to continue anyway')
