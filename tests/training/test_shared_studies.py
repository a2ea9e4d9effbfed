"""Searches of several processes in a study in PostgreSQL: each trial is trained once, and the dead hold up nobody."""

import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from factorcell.errors import UserError
from factorcell.io import files
from factorcell.runs.run import Run
from factorcell.training import fit as fitting
from factorcell.training.trainer import train
from tests.ports import free_port
from tests.processes import requires_fork, run_and_kill, start_process, wait_for_exit
from tests.service.stores.servers import Server, postgres_server
from tests.training.test_tuning import CONFIG, SPACE, search

pytestmark = [pytest.mark.slow, requires_fork]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with postgres_server() as server:
        yield server


def runs_in(folder: Path) -> set[str]:
    """Return the names of the trials of which a folder has a trained run."""
    return {path.parent.name for path in folder.glob("*/training.json")}


def state_of(process: int) -> str:
    """Return the letter of the state of a process."""
    return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]


def signal_self_in_a_trial(number: signal.Signals, folder: Path, url: str) -> None:
    """Search, and send this process a signal at the first evaluation."""

    def train_and_signal(*others: Any, **keywords: Any) -> Iterator[files.Row]:
        for row in train(*others, **keywords):
            yield row
            if row["split"] == "dev":
                os.kill(os.getpid(), number)

    fitting.train = train_and_signal  # type: ignore[attr-defined, assignment]
    search(folder, 4, storage=url)


def test_two_processes_train_each_trial_once(server: Server, tmp_path: Path) -> None:
    folders = [tmp_path / name / "both" for name in ("first", "second")]
    children = [start_process(partial(search, folder, 8, storage=server.url)) for folder in folders]
    assert [wait_for_exit(child) for child in children] == [0, 0]
    first, second = map(runs_in, folders)
    assert first
    assert second
    assert not first & second
    assert sorted(first | second) == [f"trial-{number:04}" for number in range(8)]
    rows = search(tmp_path / "third" / "both", 8, storage=server.url)
    assert {row["state"] for row in rows} == {"complete"}
    assert len({row["learning_rate"] for row in rows}) == len(rows)
    for row in rows:
        folder = next(folder for folder in folders if row["trial"] in runs_in(folder))
        evaluations = [
            entry["perplexity"] for entry in Run.open(folder / row["trial"]).log() if entry["split"] == "dev"
        ]
        assert row["perplexity"] == min(evaluations)
        assert row["machine"] == os.uname().nodename
    last = max(folders, key=lambda folder: (folder / "trials.jsonl").stat().st_mtime_ns)
    assert files.read_rows(last / "trials.jsonl") == rows
    assert (last / "best.toml").read_text(encoding="utf-8")


def test_processes_may_share_a_folder(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    children = [start_process(partial(search, folder, 4, storage=server.url)) for _ in range(2)]
    assert [wait_for_exit(child) for child in children] == [0, 0]
    assert len(runs_in(folder)) == 4
    assert [row["state"] for row in files.read_rows(folder / "trials.jsonl")] == ["complete"] * 4


def test_a_trial_whose_process_has_died_is_trained_by_another(server: Server, tmp_path: Path) -> None:
    dead, other = tmp_path / "dead" / "killed", tmp_path / "other" / "killed"
    assert run_and_kill(partial(signal_self_in_a_trial, signal.SIGKILL, dead, server.url))
    assert [path.name for path in dead.glob("trial-*")] == ["trial-0000"]
    assert not runs_in(dead)
    rows = search(other, 4, storage=server.url)
    assert [row["state"] for row in rows] == ["complete"] * 4
    assert len(runs_in(other)) == 4
    local = search(tmp_path / "local", 4)
    assert [{name: row[name] for name in local[0]} for row in rows] == local


def test_nobody_waits_for_a_process_that_hangs(server: Server, tmp_path: Path) -> None:
    hanging, other = tmp_path / "hanging" / "stopped", tmp_path / "other" / "stopped"
    child = start_process(partial(signal_self_in_a_trial, signal.SIGSTOP, hanging, server.url))
    while (state := state_of(child)) not in "TZ":  # stopped, or ended by an error
        time.sleep(0.05)
    assert state == "T"
    rows = search(other, 4, storage=server.url)
    assert sorted(row["state"] for row in rows) == ["complete", "complete", "complete", "running"]
    os.kill(child, signal.SIGKILL)
    assert wait_for_exit(child) == -signal.SIGKILL
    assert [row["state"] for row in search(other, 4, storage=server.url)] == ["complete"] * 4


def test_a_study_with_other_options_or_without_a_server_is_an_error(server: Server, tmp_path: Path) -> None:
    search(tmp_path / "s", 1, storage=server.url)
    with pytest.raises(UserError, match=r"study s in postgresql://.*: cannot resume; expected training\.epochs = 3"):
        search(tmp_path / "s", 2, CONFIG.with_options(epochs=4), storage=server.url)
    assert len(search(tmp_path / "t", 1, CONFIG.with_options(epochs=4), storage=server.url)) == 1
    for url, message in (
        (f"postgresql://me:secret@127.0.0.1:{free_port()}/x", "127.0.0.1:.*/x: .*repeat the command to continue"),
        ("sqlite:///study.db", "storage: expected postgresql://USER@HOST/DATABASE, got 'sqlite'"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            search(tmp_path / "u", 1, storage=url)
        assert "secret" not in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_search_goes_on_after_the_server_was_restarted(server: Server, tmp_path: Path) -> None:
    assert server.program is not None
    search(tmp_path / "s2", 2, storage=server.url)
    server.program.kill()
    with pytest.raises(UserError, match="repeat the command to continue"):
        search(tmp_path / "s2", 3, storage=server.url)
    server.program.start()
    assert [row["state"] for row in search(tmp_path / "s2", 3, storage=server.url, space=SPACE)] == ["complete"] * 3
