"""Trainings that are interrupted at any write: the same command starts again, or --resume gives the same result."""

import errno
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from factorcell import Run, UserError
from factorcell.config import Config
from factorcell.io import files, lock
from factorcell.training.fit import fit
from factorcell.training.trainer import Trainer
from tests.checkpoints import checkpoints_every_step
from tests.processes import requires_fork, run_and_kill
from tests.training.test_resume import assert_same_run

frequent_checkpoints = checkpoints_every_step()
READING_FILES = ("config.json", "schema.json", "vocabulary.txt")

ROWS = [{"text": text, "who": who} for who in ("ann", "bob") for text in ("bake bread", "ball", "bat and ball") * 3]
CONFIG = Config.of(
    tokenizer="char",
    user="who",
    min_count=1,
    min_user_count=2,
    max_tokens=20,
    embedding_size=4,
    hidden_size=5,
    rank=2,
    context_size=3,
    variable_size=2,
    epochs=3,
    batch_tokens=60,
    evaluations=2,
)


def train_run(folder: Path, resume: bool = False) -> Run:
    """Train the run that the tests interrupt."""
    return fit(ROWS, dev=ROWS[:4], out=folder, resume=resume, config=CONFIG)


def train_or_resume(folder: Path) -> Run:
    """Train; resume if the folder contains a training that can be resumed."""
    try:
        return train_run(folder)
    except UserError as error:
        if "resume=True" not in str(error):
            raise
        return train_run(folder, resume=True)


def assert_same_files(folder: Path, uninterrupted: Path) -> None:
    """Assert that the files equal those of an uninterrupted training except for times, and that there are no others."""
    assert_same_run(folder, uninterrupted)
    for name in (*READING_FILES, "training.json", "popularity.jsonl", "completion.json", "mixture.json"):
        resumed, expected = (path / name for path in (folder, uninterrupted))
        assert resumed.exists() == expected.exists(), name
        assert not resumed.exists() or resumed.read_bytes() == expected.read_bytes(), name
    assert {path.name for path in folder.iterdir()} == {path.name for path in uninterrupted.iterdir()}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an uninterrupted training."""
    return train_run(tmp_path_factory.mktemp("uninterrupted") / "run").folder


def failing_fsync(number: int, fail: Callable[[], None]) -> Callable[[int], None]:
    """Return an `os.fsync` that calls `fail` from call `number` on: just before or just after a file is renamed."""
    remaining, fsync = [number], os.fsync

    def counted_fsync(handle: int) -> None:
        remaining[0] -= 1
        if remaining[0] < 0:
            fail()
        fsync(handle)

    return counted_fsync


def raise_disk_full() -> None:
    """Raise the error of a full disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def is_stopped_by_full_disk(number: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Train on a disk that is full from call `number` of `os.fsync` on; return whether that stopped the training."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing_fsync(number, raise_disk_full))
        try:
            train_run(folder)
        except UserError as error:
            if os.strerror(errno.ENOSPC) not in str(error):
                raise
            return True
    return False


@pytest.mark.parametrize("number", [0, 3, 7])
def test_training_after_a_full_disk_gives_the_same_files(
    number: int, uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_stopped_by_full_disk(number, tmp_path / "run", monkeypatch)
    assert not list((tmp_path / "run").glob("*.partial"))
    train_or_resume(tmp_path / "run")
    assert_same_files(tmp_path / "run", uninterrupted)


@pytest.mark.slow
def test_training_after_a_full_disk_at_any_write_gives_the_same_files(
    uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = 0
    while is_stopped_by_full_disk(number, tmp_path / f"{number}", monkeypatch):
        train_or_resume(tmp_path / f"{number}")
        assert_same_files(tmp_path / f"{number}", uninterrupted)
        number += 1
    assert number > 15


@pytest.mark.parametrize("error", [KeyboardInterrupt, UserError])
def test_a_training_stopped_before_its_first_checkpoint_starts_again(
    error: type[BaseException], uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def interrupted_step(*_: Any) -> None:
        raise error

    folder = tmp_path / "run"
    for resume in (False, True):
        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "step", interrupted_step)
            with pytest.raises(error):
                train_run(folder, resume=resume)
    (folder / "config.json.partial").write_text("half")
    (folder / "vocabulary.txt").unlink()
    train_run(folder)
    assert_same_files(folder, uninterrupted)


def test_trained_runs_and_other_files_are_not_overwritten(uninterrupted: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe").mkdir()
    files.write_json(tmp_path / "recipe" / "config.json", {})
    bare = Path(shutil.copytree(uninterrupted, tmp_path / "bare"))
    for path in bare.iterdir():
        if path.name not in (*READING_FILES, "weights.safetensors"):
            path.unlink()
    with_notes = Path(shutil.copytree(uninterrupted, tmp_path / "with_notes"))
    for path in with_notes.iterdir():
        if path.suffix == ".safetensors" or path.name in ("README.md", "training.json", "popularity.jsonl"):
            path.unlink()
    (with_notes / "notes.txt").touch()
    for folder in (tmp_path / "recipe", bare, with_notes, uninterrupted):
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        with pytest.raises(UserError, match="exists already; resume=True to continue it, or choose another folder"):
            train_run(folder)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_second_training_in_a_folder_is_refused(uninterrupted: Path, tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    folder = Path(shutil.copytree(uninterrupted, tmp_path / "run"))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with lock.training_lock(folder):
        with pytest.raises(UserError, match=rf"run: process {os.getpid()} on .* is training there"):
            train_run(folder, resume=True)
        with lock.training_lock(tmp_path / "new"), pytest.raises(UserError, match="is training there"):
            train_run(tmp_path / "new")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    train_run(folder, resume=True)
    assert_same_files(folder, uninterrupted)


def train_and_die(number: int, folder: Path) -> None:
    """Train, and kill this process at call `number` of `os.fsync`, if there are as many calls."""
    deadly_fsync = failing_fsync(number, lambda: os.kill(os.getpid(), signal.SIGKILL))
    os.fsync = deadly_fsync  # type: ignore[assignment]
    train_or_resume(folder)


def count_kills(attempt: Callable[[Path], bool], count: int, uninterrupted: Path, tmp_path: Path) -> Iterator[int]:
    """Train in new folders until `attempt` was killed `count` times; yield the kills of each completed folder."""
    kills = folders = 0
    while kills < count or folders < 5:
        folder, before, folders = tmp_path / f"{folders}", kills, folders + 1
        while attempt(folder):
            kills += 1
            if (folder / "training.json").exists():
                Run.open(folder)
        assert_same_files(folder, uninterrupted)
        yield kills - before


@pytest.mark.slow
@requires_fork
def test_a_training_killed_at_any_write_resumes_to_the_same_files(uninterrupted: Path, tmp_path: Path) -> None:
    draw = random.Random(5)
    for kills in count_kills(
        lambda folder: run_and_kill(partial(train_and_die, draw.randrange(35), folder)), 120, uninterrupted, tmp_path
    ):
        assert kills >= 0
