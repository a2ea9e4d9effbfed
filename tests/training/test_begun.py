"""What a training leaves that is stopped anywhere: the same command begins anew, or --resume ends it the same."""

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

from factorcell import Run, UserError, digests, files, lock
from factorcell.config import Config
from factorcell.model.run import LISTED
from factorcell.training.check import check
from factorcell.training.fit import fit
from factorcell.training.trainer import Trainer
from tests.processes import requires_fork, run_and_kill
from tests.training.test_resume import same

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
    save_every=3,
    log_every=2,
)


def go(folder: Path, resume: bool = False) -> Run:
    """The command that is stopped."""
    return fit(ROWS, ROWS[:4], CONFIG, folder, resume=resume)


def go_again(folder: Path) -> Run:
    """The same command, and where it refuses, with --resume."""
    try:
        return go(folder)
    except UserError as error:
        if "resume=True" not in str(error):
            raise
        return go(folder, resume=True)


def ends_the_same(folder: Path, whole: Path) -> None:
    """All files as those of a training that nothing interrupted, but for times, and no others."""
    same(folder, whole)
    for name in LISTED:
        ours, theirs = (path / name for path in (folder, whole))
        assert ours.exists() == theirs.exists(), name
        assert not ours.exists() or ours.read_bytes() == theirs.read_bytes(), name
    assert {path.name for path in folder.iterdir()} == {path.name for path in whole.iterdir()}
    assert [one.text for one in check(folder) if not one.is_valid] == []


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training that nothing interrupted."""
    return go(tmp_path_factory.mktemp("whole") / "run").folder


def at_synchronisation(number: int, then: Callable[[], None]) -> Callable[[int], None]:
    """An `os.fsync` that calls `then` from its call of this number on: before a rename, or just after one."""
    left, fsync = [number], os.fsync

    def watched(handle: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            then()
        fsync(handle)

    return watched


def full() -> None:
    """What a full disk says when its buffers are written."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def stops_when_full(number: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Train on a disk that is full from so many synchronisations on; whether that stopped it."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", at_synchronisation(number, full))
        try:
            go(folder)
        except UserError as error:
            if os.strerror(errno.ENOSPC) not in str(error):
                raise
            return True
    return False


@pytest.mark.parametrize("number", [0, 5, 14])
def test_after_a_full_disk_the_same_command_ends_as_an_uninterrupted_training(
    number: int, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stops_when_full(number, tmp_path / "run", monkeypatch)
    assert not list((tmp_path / "run").glob("*.partial"))
    go_again(tmp_path / "run")
    ends_the_same(tmp_path / "run", whole)


@pytest.mark.slow
def test_a_disk_that_is_full_at_any_write_loses_nothing(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = 0
    while stops_when_full(number, tmp_path / f"{number}", monkeypatch):
        go_again(tmp_path / f"{number}")
        ends_the_same(tmp_path / f"{number}", whole)
        number += 1
    assert number > 40


@pytest.mark.parametrize("error", [KeyboardInterrupt, UserError])
def test_a_training_stopped_before_its_first_checkpoint_begins_anew(
    error: type[BaseException], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def stopped(*_: Any) -> None:
        raise error

    folder = tmp_path / "run"
    for resume in (False, True):
        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "step", stopped)
            with pytest.raises(error):
                go(folder, resume=resume)
    (folder / "config.json.partial").write_text("half")
    (folder / "vocabulary.txt").unlink()
    go(folder)
    ends_the_same(folder, whole)


def test_trained_runs_and_other_files_are_not_overwritten(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe").mkdir()
    files.write_json(tmp_path / "recipe" / "config.json", {})
    bare = Path(shutil.copytree(whole, tmp_path / "bare"))
    for path in bare.iterdir():
        if path.name not in ("config.json", "schema.json", "vocabulary.txt", "weights.safetensors", digests.FILE):
            path.unlink()
    noted = Path(shutil.copytree(whole, tmp_path / "noted"))
    for path in noted.iterdir():
        if path.suffix == ".safetensors" or path.name in ("README.md", "training.json", "popularity.jsonl"):
            path.unlink()
    (noted / "notes.txt").touch()
    for folder in (tmp_path / "recipe", bare, noted, whole):
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        with pytest.raises(UserError, match="exists already; resume=True to continue it, or choose another folder"):
            go(folder)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_second_training_in_a_folder_is_refused(whole: Path, tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    folder = Path(shutil.copytree(whole, tmp_path / "run"))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with lock.training_lock(folder):
        with pytest.raises(UserError, match=rf"run: process {os.getpid()} on .* is training there"):
            go(folder, resume=True)
        with lock.training_lock(tmp_path / "new"), pytest.raises(UserError, match="is training there"):
            go(tmp_path / "new")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    go(folder, resume=True)
    ends_the_same(folder, whole)


def dies_at(number: int, folder: Path) -> None:
    """Train, and be killed at a synchronisation if it comes so far."""
    deadly = at_synchronisation(number, lambda: os.kill(os.getpid(), signal.SIGKILL))
    os.fsync = deadly  # type: ignore[assignment]
    go_again(folder)


def dies_often(attempt: Callable[[Path], bool], count: int, whole: Path, tmp_path: Path) -> Iterator[int]:
    """Begin and go on in new folders until `attempt` was killed `count` times; the kills of each folder, once whole."""
    kills = folders = 0
    while kills < count or folders < 5:
        folder, before, folders = tmp_path / f"{folders}", kills, folders + 1
        while attempt(folder):
            kills += 1
            if (folder / "training.json").exists():
                Run.open(folder)
        ends_the_same(folder, whole)
        yield kills - before


@pytest.mark.slow
@requires_fork
def test_a_training_killed_at_any_write_ends_the_same(whole: Path, tmp_path: Path) -> None:
    draw = random.Random(5)
    for kills in dies_often(
        lambda folder: run_and_kill(partial(dies_at, draw.randrange(70), folder)), 120, whole, tmp_path
    ):
        assert kills >= 0
