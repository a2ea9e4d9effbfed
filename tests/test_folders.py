"""Errors about paths that are not runs: each command says in one line what the path contains."""

import json
from pathlib import Path

import pytest

from factorcell.commands.cli.main import main
from factorcell.config import Config
from factorcell.data.preparation import prepare
from factorcell.io import files, input_files
from factorcell.ngram import mixture, ngram
from factorcell.ngram.ngram import NGram
from factorcell.service.stores.store import open_store
from tests.small_runs import ROWS, make_run

NGRAM = "the folder of an n-gram model, which evaluate, rescore, mix and report accept"
MIXTURE = "the folder of a mixture of models, which evaluate and mix accept"
RUNS = "a folder of runs, such as "

# Each path that is not a run, and the error about it.
PATHS = {
    "ngram": NGRAM,
    "mixture": MIXTURE,
    "study": RUNS,
    "file": "a file",
    "empty": "a folder without config.json",
    "nothing": "a path that does not exist",
}
RUN, RUNS_EXPECTED = "a run folder", "a trained run or a folder of trained runs"

# Each command that opens a run, what it expects, and the paths that it accepts.
COMMANDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "score RUN table.jsonl": (RUN, ()),
    "classify RUN table.jsonl --target city": (RUN, ()),
    "generate RUN": (RUN, ()),
    "complete RUN the": (RUN, ()),
    "tune-online RUN table.jsonl": (RUN, ()),
    "explain RUN --text sea --between city=Oslo city=Nice": (RUN, ()),
    "contexts RUN --variable city": (RUN, ()),
    "finetune RUN table.jsonl --out new": (RUN, ()),
    "evaluate RUN table.jsonl": (RUN, ("ngram", "mixture")),
    "rescore RUN lists.jsonl": (RUN, ("ngram", "mixture")),
    "mix RUN --dev table.jsonl --out new": (RUN, ("ngram", "mixture")),
    "replay RUN table.jsonl --out new --user city": (RUN, ()),
    "report RUN --out new.html": (RUNS_EXPECTED, ("ngram", "study")),
    "users migrate RUN --store sqlite:///users.db": (RUN, ()),
    "serve RUN --port 0 --store sqlite:///users.db": (RUN, ()),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all of `PATHS`, a table and n-best lists; the mixture is only an index file."""
    folder = tmp_path_factory.mktemp("folder")
    config = Config.of(min_count=1)
    NGram.fit(prepare(ROWS, config), config, folder / "ngram")
    (folder / "mixture").mkdir()
    (folder / "mixture" / mixture.FILE).write_text("{}")
    make_run(folder / "study" / "trial-0000")
    (folder / "file").write_text("config.json")
    (folder / "empty").mkdir()
    files.write_rows(folder / "table.jsonl", ROWS * 3)
    hypotheses = [{"text": "sun", "lm": -1.0}]
    (folder / "lists.jsonl").write_text(json.dumps({"id": "a", "hypotheses": hypotheses}) + "\n")
    open_store(f"sqlite:///{folder / 'users.db'}").close()
    return folder


@pytest.mark.parametrize(
    ("command", "path"), [(name, path) for name in COMMANDS for path in PATHS if path not in COMMANDS[name][1]]
)
def test_the_error_says_what_the_path_contains(
    command: str, path: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    capsys.readouterr()
    assert main([path if word == "RUN" else word for word in command.split()]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("factorcell: ")
    _, expected, content = error.rpartition(f"{path}: expected {COMMANDS[command][0]}, got ")
    assert expected
    assert content.startswith(PATHS[path])
    assert content.endswith("trial-0000" if path == "study" else PATHS[path])


def test_other_models_are_recognized_by_their_files() -> None:
    assert list(input_files.OTHER_MODELS) == [ngram.FILE, mixture.FILE]


@pytest.mark.parametrize("command", ["evaluate RUN table.jsonl", "report RUN --out new.html"])
def test_an_ngram_model_is_accepted(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert command.split()[0] in input_files.OTHER_MODELS[ngram.FILE][1]
    assert main(["ngram" if word == "RUN" else word for word in command.split()]) == 0
