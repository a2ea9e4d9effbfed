"""The training lock: one process per folder, until that process dies."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from factorcell.errors import UserError
from factorcell.io import lock

fcntl = pytest.importorskip("fcntl")

HOLD = "import sys, time; from pathlib import Path; from factorcell.io.lock import training_lock\n"
HOLD += "with training_lock(Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"

LOCK_REPEATEDLY = """
import sys
from pathlib import Path
from factorcell.config import UserError
from factorcell.io.lock import training_lock

folder, done = Path(sys.argv[1]), 0
while done < 100:
    try:
        with training_lock(folder):
            (folder / "one").open("x").close()
            (folder / "one").unlink()
            done += 1
    except UserError:
        pass
"""


@pytest.fixture
def holder(tmp_path: Path) -> Any:
    """A process that holds the lock of a folder until it is killed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_process_is_refused_until_the_first_dies(holder: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error, lock.training_lock(tmp_path / "run"):
        pass
    assert str(error.value).startswith(f"{tmp_path / 'run'}: process {holder.pid} on ")
    assert str(error.value).endswith(" is training there")
    holder.kill()
    holder.wait()
    with lock.training_lock(tmp_path / "run"):
        pass


def test_a_folder_created_for_the_lock_is_removed_if_it_stays_empty(tmp_path: Path) -> None:
    with lock.training_lock(tmp_path / "deep" / "run"):
        assert (tmp_path / "deep" / "run" / lock.FILE).exists()
    assert not (tmp_path / "deep" / "run").exists()
    (tmp_path / "empty").mkdir()
    with lock.training_lock(tmp_path / "empty"):
        pass
    assert (tmp_path / "empty").exists()
    with lock.training_lock(tmp_path / "filled"):
        (tmp_path / "filled" / "file").touch()
    assert sorted(path.name for path in (tmp_path / "filled").iterdir()) == ["file", lock.FILE]


def test_only_one_process_at_a_time_holds_the_lock(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    processes = [
        subprocess.Popen([sys.executable, "-c", LOCK_REPEATEDLY, str(tmp_path / "run")], env=environment) for _ in "abc"
    ]
    assert [process.wait(120) for process in processes] == [0, 0, 0]


@pytest.mark.parametrize("reason", ["unsupported", "windows"])
def test_without_locks_each_process_may_train(reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    if reason == "windows":
        monkeypatch.setattr(lock, "fcntl", None)
    else:
        monkeypatch.setattr(fcntl, "flock", unsupported)
    with lock.training_lock(tmp_path / "run"), lock.training_lock(tmp_path / "run"):
        assert not lock.is_locked(tmp_path / "run")
