"""A bar on a terminal; a line now and then where nobody watches; nothing that was not asked for."""

import io
import os
import pty
import subprocess
import sys
import termios
from collections.abc import Iterator

import pytest

from factorcell import progress
from factorcell.progress import Lines, progress_bar

JOB = """
from factorcell import progress
progress.FIRST = progress.SELDOM = 0.0
for _ in progress.progress_bar(range(20), desc="reading", unit="rows"):
    pass
"""


class Clock:
    """A clock that goes on by a step with every look."""

    def __init__(self, step: float) -> None:
        self.now, self.step = -step, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def told(steps: int, pace: float, total: int | None = None, initial: int = 0) -> list[str]:
    """The lines of a job of so many steps, each of which takes `pace` seconds."""
    stream = io.StringIO()
    with Lines(None, "reading", "rows", total, initial, stream, Clock(pace)) as bar:
        for _ in range(steps):
            bar.update()
    return stream.getvalue().splitlines()


def test_short_job_is_silent() -> None:
    assert told(4, 1.0, total=4) == []


def test_first_line_after_five_seconds_then_one_every_half_minute() -> None:
    assert [line.split()[1] for line in told(100, 1.0, total=100)] == ["5", "35", "65", "95"]
    assert [line.split()[1] for line in told(100, 1.0)] == ["5", "35", "65", "95"]


def test_line_says_count_pace_and_time_left() -> None:
    assert told(5, 1.0, total=100)[0] == "reading: 5 of 100 rows (5%), 1.00 a second, 1:35 left"
    assert told(5, 1.0)[0] == "reading: 5 rows, 1.00 a second"
    assert told(5, 1.0, total=100, initial=50)[0] == "reading: 55 of 100 rows (55%), 1.00 a second, 0:45 left"
    assert told(5, 1.0, total=10_000)[0].endswith("2:46:35 left")


def test_iteration_gives_the_items_and_what_else_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "FIRST", 0.0)
    stream = io.StringIO()
    bar = Lines(["a", "b"], "run", "steps", stream=stream, clock=Clock(40.0))
    items: Iterator[str] = iter(bar)
    assert next(items) == "a"
    bar.set_description("run, best 3")
    bar.set_postfix_str("loss 2")
    assert list(items) == ["b"]
    assert stream.getvalue().splitlines() == [
        "run, best 3: 1 of 2 steps (50%), 0.03 a second, 0:40 left, loss 2",
        "run, best 3: 2 of 2 steps (100%), 0.03 a second, loss 2",
    ]
    assert list(progress_bar(iter("ab"), desc="x", unit="y", show=False)) == ["a", "b"]


def test_pipe_gets_lines_and_no_carriage_return() -> None:
    done = subprocess.run([sys.executable, "-c", JOB], capture_output=True, check=True)
    assert b"\r" not in done.stderr
    assert [line.split()[1] for line in done.stderr.decode().splitlines()] == [str(n) for n in range(1, 21)]
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
