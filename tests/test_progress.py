"""A bar on a terminal; a line now and then elsewhere; nothing unless it is asked for."""

import os
import pty
import subprocess
import sys
import termios

import pytest

from factorcell import progress
from factorcell.progress import progress_bar

JOB = """
from factorcell import progress
progress.FIRST = progress.SELDOM = 0.0
for _ in progress.progress_bar(range(20), desc="reading", unit="rows"):
    pass
"""


def lines_of(seconds: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines of a job with a step each second."""
    clock = iter(range(10_000))
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with progress_bar(desc="reading", unit="rows", total=100, mininterval=0) as bar:
        for _ in range(seconds):
            now[0] = next(clock)
            bar.update()
    return capsys.readouterr().err.splitlines()


def test_the_first_line_is_after_five_seconds_and_others_every_half_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lines_of(4, monkeypatch, capsys) == []
    lines = lines_of(100, monkeypatch, capsys)
    assert [line.split(" rows")[0] for line in lines] == [f"reading: {n} of 100" for n in (6, 36, 66, 96)]


def test_the_job_can_be_renamed_and_say_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "FIRST", 0.0)
    bar = progress_bar(desc="run", unit="steps", mininterval=0)
    bar.set_description("run, best\x1b 3", refresh=False)
    bar.set_postfix_str("loss\n2", refresh=False)
    bar.update()
    assert capsys.readouterr().err.splitlines()[-1].startswith("run: 0 steps")
    monkeypatch.setattr(bar.fp._wrapped, "due", 0.0)
    bar.update()
    line = capsys.readouterr().err
    assert line.startswith(r"run, best\x1b 3: 2 steps, ")
    assert line.endswith(", loss\\n2\n")
    assert list(progress_bar(iter("ab"), desc="x", unit="y", show=False)) == ["a", "b"]
    assert capsys.readouterr().err == ""


def test_pipe_gets_lines_and_no_carriage_return() -> None:
    done = subprocess.run([sys.executable, "-c", JOB], capture_output=True, check=True)
    assert b"\r" not in done.stderr
    assert done.stderr.decode().splitlines()[-1].startswith("reading: 20 of 20 rows, ")
    assert done.stdout == b""


def test_terminal_gets_a_bar() -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    process = subprocess.Popen([sys.executable, "-c", JOB], stderr=theirs)
    os.close(theirs)
    said = b""
    try:
        while part := os.read(ours, 4096):
            said += part
    except OSError:  # Linux's way to say that the other end is closed
        pass
    os.close(ours)
    assert process.wait() == 0
    assert b"\r" in said
    assert b"reading: 100%" in said
    assert b"20/20" in said
