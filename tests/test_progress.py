"""Progress: a bar on a terminal, occasional lines elsewhere, nothing if it is disabled."""

import os
import pty
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from factorcell.config import Config
from factorcell.io.progress import progress_bar
from factorcell.training.fit import train_run
from tests.findings import logged_progress
from tests.small_runs import ROWS

JOB = """
import logging, time
from factorcell.io import progress
logging.getLogger("factorcell").setLevel(logging.INFO)
progress.INTERVAL = progress.BAR_DELAY = 0.0
for _ in progress.progress_bar(range(20), desc="reading", unit="rows"):
    time.sleep(0.02)
"""


@pytest.fixture(autouse=True)
def _log_progress() -> Iterator[None]:
    """Show progress in all tests of this module."""
    with logged_progress():
        yield


def test_a_log_gets_lines_every_30_seconds(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    with progress_bar(desc="reading", unit="rows", total=100) as bar:
        for second in range(100):
            now[0] = second
            bar.update()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" rows")[0] for line in lines] == [f"reading: {n} of 100" for n in (31, 61, 91)]


def test_a_training_of_a_second_adds_no_line_to_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {"embedding_size": 4, "hidden_size": 5, "rank": 2, "context_size": 3, "variable_size": 2}
    options: dict[str, Any] = {
        "context": ["city"],
        "min_count": 1,
        "min_context_count": 1,
        "epochs": 2.0,
        "evaluations": 2,
    }
    train_run(ROWS, ROWS, Config.of(**options, **sizes), tmp_path / "run")
    assert "training: " not in capsys.readouterr().err


def test_nothing_is_shown_if_it_is_disabled(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(progress_bar(iter("ab"), desc="x", unit="y", show=False)) == ["a", "b"]
    assert capsys.readouterr().err == ""


def test_a_pipe_receives_lines_without_carriage_returns() -> None:
    done = subprocess.run([sys.executable, "-c", JOB], capture_output=True, check=True)
    assert b"\r" not in done.stderr
    assert done.stderr.decode().splitlines()[-1].startswith("reading: 20 of 20 rows, ")
    assert done.stdout == b""


def test_a_terminal_shows_a_bar() -> None:
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, 80))
    process = subprocess.Popen([sys.executable, "-c", JOB], stderr=slave)
    os.close(slave)
    output = b""
    try:
        while part := os.read(master, 4096):
            output += part
    except OSError:  # Linux reports the closed terminal so
        pass
    os.close(master)
    assert process.wait() == 0
    assert b"\r" in output
    assert b"reading: " in output
    assert b"/20" in output
