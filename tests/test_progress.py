"""Progress: a bar on a terminal, occasional lines elsewhere, nothing if it is disabled."""

import os
import pty
import subprocess
import sys
import termios
from collections.abc import Iterator

import pytest

from factorcell.io import progress
from factorcell.io.progress import progress_bar
from tests.findings import logged_progress

JOB = """
import logging
from factorcell.io import progress
logging.getLogger("factorcell").setLevel(logging.INFO)
progress.FIRST_DELAY = progress.INTERVAL = progress.FIRST_BAR_DELAY = 0.0
for _ in progress.progress_bar(range(20), desc="reading", unit="rows", mininterval=0):
    pass
"""


@pytest.fixture(autouse=True)
def _log_progress() -> Iterator[None]:
    """Show progress in all tests of this module."""
    with logged_progress():
        yield


def run_job(seconds: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the lines of a job that makes one step per second."""
    clock = iter(range(10_000))
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with progress_bar(desc="reading", unit="rows", total=100, mininterval=0) as bar:
        for _ in range(seconds):
            now[0] = next(clock)
            bar.update()
    return capsys.readouterr().err.splitlines()


def test_the_first_line_comes_after_5_seconds_and_others_every_30_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_job(4, monkeypatch, capsys) == []
    lines = run_job(100, monkeypatch, capsys)
    assert [line.split(" rows")[0] for line in lines] == [f"reading: {n} of 100" for n in (6, 36, 66, 96)]


def test_the_time_left_is_not_estimated_from_one_item(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "FIRST_DELAY", 0.0)
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    lines = run_job(10, monkeypatch, capsys)
    first, *others = [line.partition("rows, ")[2] for line in lines if not line.startswith("reading: 0")]
    assert first == "? rows/s, ? left"
    assert others
    assert all("?" not in line for line in others)


@pytest.mark.parametrize(("seconds", "rate"), [(2, " 5.00 rows/s"), (25, " 2.50 s/rows")])
def test_rates_below_one_have_a_readable_unit(seconds: int, rate: str) -> None:
    bar = progress_bar(desc="reading", unit="rows", show=False)
    assert f", {rate}]" in bar.format_meter(10, 20, seconds, unit=" rows")


def test_description_and_postfix_can_change(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "FIRST_DELAY", 0.0)
    bar = progress_bar(desc="run", unit="steps", mininterval=0)
    bar.set_description("run, best\x1b 3", refresh=False)
    bar.set_postfix_str("loss\n2", refresh=False)
    bar.update()
    assert capsys.readouterr().err.splitlines()[-1].startswith("run: 0 steps")
    monkeypatch.setattr(bar.fp._wrapped, "next_line_time", 0.0)
    bar.update()
    line = capsys.readouterr().err
    assert line.startswith(r"run, best\x1b 3: 2 steps, ")
    assert line.endswith(", loss\\n2\n")
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
    assert b"reading: 100%" in output
    assert b"20/20" in output
