"""Folders and files in place of a run: each command says in one line what is there."""

import json
from pathlib import Path

import pytest

from factorcell import files, folders
from factorcell.commands.main import main
from factorcell.config import Config
from factorcell.data.cache import prepare
from factorcell.evaluation import ngram
from factorcell.evaluation.ngram import NGram
from factorcell.service.stores.opening import open_store
from factorcell.training import mixture, per_value
from tests.small_runs import ROWS, make_run

NGRAM = "the folder of an n-gram model, which evaluate, rescore, mix, report and check accept"
MIXTURE = "the folder of a mixture of models, which evaluate, mix and check accept"
SEPARATE = "the folder of separate runs of the values of a column, which evaluate, mix, report and check accept"
RUNS = "a folder of runs, such as "

# Each path that is not a run, and the error about it.
PATHS = {
    "ngram": NGRAM,
    "mixture": MIXTURE,
    "separate": SEPARATE,
    "study": RUNS,
    "file": "a file",
    "empty": "a folder without config.json",
    "nothing": "a path that does not exist",
}
ONE, MANY = "a run folder", "a trained run or a folder of trained runs"

# Each command that opens a run, what it expects, and the paths that it accepts.
COMMANDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "score RUN table.jsonl": (ONE, ()),
    "classify RUN table.jsonl --target city": (ONE, ()),
    "generate RUN": (ONE, ()),
    "complete RUN the": (ONE, ()),
    "tune-online RUN table.jsonl": (ONE, ()),
    "explain RUN --text sea --between city=Oslo city=Nice": (ONE, ()),
    "contexts RUN --variable city": (ONE, ()),
    "audit RUN table.jsonl": (ONE, ()),
    "finetune RUN table.jsonl --out new": (ONE, ()),
    "evaluate RUN table.jsonl": (ONE, ("ngram", "mixture", "separate")),
    "rescore RUN lists.jsonl": (ONE, ("ngram",)),
    "mix RUN --dev table.jsonl --out new": (ONE, ("ngram", "mixture", "separate")),
    "replay RUN table.jsonl --out new --user city": ("a run folder or a folder of runs", ("study",)),
    "report RUN --out new.html": (MANY, ("ngram", "study")),
    "users migrate RUN --store sqlite:///users.db": (ONE, ()),
    "serve RUN --port 0 --store sqlite:///users.db": (ONE, ()),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all of `PATHS`, a table and lists; mixtures and separate runs have only their own file."""
    place = tmp_path_factory.mktemp("place")
    config = Config.of(min_count=1)
    NGram.fit(prepare(ROWS, config), config, place / "ngram")
    for name, file in (("mixture", mixture.INDEX_FILE), ("separate", per_value.INDEX_FILE)):
        (place / name).mkdir()
        (place / name / file).write_text("{}")
    make_run(place / "study" / "trial-0000")
    (place / "file").write_text("config.json")
    (place / "empty").mkdir()
    files.write_rows(place / "table.jsonl", ROWS * 3)
    hypotheses = [{"text": "sun", "lm": -1.0}]
    (place / "lists.jsonl").write_text(json.dumps({"id": "a", "hypotheses": hypotheses}) + "\n")
    open_store(f"sqlite:///{place / 'users.db'}").close()
    return place


@pytest.mark.parametrize(
    ("command", "path"), [(name, path) for name in COMMANDS for path in PATHS if path not in COMMANDS[name][1]]
)
def test_what_is_no_run_is_named(
    command: str, path: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    capsys.readouterr()
    assert main([path if word == "RUN" else word for word in command.split()]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("factorcell: ")
    _, expected, found = error.rpartition(f"{path}: expected {COMMANDS[command][0]}, got ")
    assert expected
    assert found.startswith(PATHS[path])
    assert found.endswith("trial-0000" if path == "study" else PATHS[path])


def test_other_models_are_known_by_their_files() -> None:
    assert list(folders.OTHER_MODELS) == [ngram.FILE, per_value.INDEX_FILE, mixture.INDEX_FILE]


@pytest.mark.parametrize("command", ["evaluate RUN table.jsonl", "report RUN --out new.html", "check RUN"])
def test_an_ngram_model_is_accepted(
    command: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    assert command.split()[0] in folders.OTHER_MODELS[ngram.FILE][1]
    assert main(["ngram" if word == "RUN" else word for word in command.split()]) == 0
