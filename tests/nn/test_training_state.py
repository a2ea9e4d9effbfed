"""Statements about the training of a run: running as long as its lock is held, stopped or ended otherwise."""

from pathlib import Path
from typing import Any

import pytest

from factorcell.commands.cli.main import main
from factorcell.errors import UserError
from factorcell.evaluation.diagnostics import run_findings
from factorcell.io import files, lock
from factorcell.runs import saved_results
from factorcell.runs.run import Run
from factorcell.training.fit import train_run
from tests.small_runs import ROWS, make_run

RUNNING = "its training is running (step 40 of 100)"
STOPPED = "its training stopped (step 40 of 100)"
ROW = {"step": 40, "steps": 100, "seconds": 1.0, "tokens": 5, "split": "dev", "perplexity": 9.0, "best": 9.0}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run whose log ends at step 40 of 100."""
    run = make_run(tmp_path / "run", ("city",))
    run.save_weights({})
    files.write_rows(run.log_path, [{**ROW, "perplexity_known": 9.0}])
    files.write_rows(tmp_path / "test.jsonl", ROWS)
    return run


def test_warnings_say_running_while_the_lock_is_held_and_stopped_afterwards(run: Run) -> None:
    with lock.training_lock(run.folder):
        (finding,) = run_findings(run)
        assert RUNNING in finding.text
    (finding,) = run_findings(run)
    assert STOPPED in finding.text


def test_a_run_without_weights_says_whether_its_training_is_running(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with lock.training_lock(folder), pytest.raises(UserError, match="run: its training is running and has no weights"):
        Run.open(folder)  # the training has not written any file yet
    run = make_run(folder)
    files.write_rows(run.log_path, [ROW])
    with (
        lock.training_lock(folder),
        pytest.raises(UserError, match=r"is running \(step 40 of 100\) and has no weights"),
    ):
        Run.open(folder)
    with pytest.raises(UserError, match="training stopped before its first evaluation; run the training command"):
        Run.open(folder)


def test_results_of_weights_that_will_change_are_not_saved(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["evaluate", str(run.folder), str(tmp_path / "test.jsonl"), "--save"]
    with lock.training_lock(run.folder):
        assert main(command) == 0
    assert f"the result was not saved in the run folder, because {RUNNING}" in capsys.readouterr().err
    assert saved_results.read(run.folder) == []
    assert main(command) == 0
    assert len(saved_results.read(run.folder)) == 1


def test_a_resumed_training_deletes_the_results_of_the_stopped_one(tmp_path: Path) -> None:
    options: dict[str, Any] = {"data": {"context": ["city"], "min_context_count": 1}, "training": {"epochs": 1}}
    run = train_run(ROWS, ROWS, options, tmp_path / "run")
    saved_results.append(run.folder, {"kind": "evaluate", "table": "rows"})
    train_run(ROWS, ROWS, options, run.folder, resume=True)
    assert len(saved_results.read(run.folder)) == 2  # the training was complete
    (run.folder / "training.json").unlink()
    train_run(ROWS, ROWS, options, run.folder, resume=True)
    assert [row["kind"] for row in saved_results.read(run.folder)] == ["train"]


def test_asking_for_the_state_does_not_prevent_a_training(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl")
    with lock.training_lock(run.folder):
        pass
    with (run.folder / lock.FILE).open("rb") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)  # what `is_locked` does for an instant
        monkeypatch.setattr("time.sleep", lambda _: fcntl.flock(reader, fcntl.LOCK_UN))
        with lock.training_lock(run.folder):
            assert lock.is_locked(run.folder)
