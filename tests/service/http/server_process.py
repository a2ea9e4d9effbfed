"""Starts a server in another process."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx

START_TIMEOUT = 60.0  # seconds on a busy machine


@contextmanager
def serving(run: Path, store: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """Start `factorcell serve`, and yield its process and a client."""
    arguments = ["serve", str(run), "--store", f"sqlite:///{store}", "--port", "0", "--deadline-ms", "5000", *options]
    process = subprocess.Popen(
        [sys.executable, "-m", "factorcell", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    try:
        with closing(ready(process)) as client:
            yield process, client
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stderr.close()


def ready(process: subprocess.Popen[str]) -> httpx.Client:
    """Wait until a server answers, and return a client."""
    assert process.stderr is not None
    line = ""
    while not (match := re.search(r"http://\S+:\d+", line)):
        line = process.stderr.readline()
        assert line, "the server exited"
    client, deadline = httpx.Client(base_url=match[0], timeout=30), time.monotonic() + START_TIMEOUT
    while True:
        try:
            if client.get("/readyz").status_code == 200:
                return client
        except httpx.TransportError:
            pass
        assert time.monotonic() < deadline, "the server does not answer"
        time.sleep(0.05)
