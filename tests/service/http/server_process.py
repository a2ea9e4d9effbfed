"""A server in a process of its own."""

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

STARTING = 60.0  # seconds on a machine that is busy


@contextmanager
def serving(
    run: Path, store: Path, *options: str, files: int | None = None
) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """`factorcell serve`, and a client once it is ready; the process is killed at the end if it is still there.

    `files`: how many it may have open.
    """
    limited = [] if files is None else ["bash", "-c", f'ulimit -n {files}; exec "$@"', "-"]
    words = ["serve", str(run), "--store", f"sqlite:///{store}", "--port", "0", "--deadline-ms", "5000", *options]
    process = subprocess.Popen(
        [*limited, sys.executable, "-m", "factorcell", *words],
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
    assert process.stderr is not None
    line = ""
    while not (found := re.search(r"http://\S+:\d+", line)):
        line = process.stderr.readline()
        assert line, "the server ended"
    client, stop = httpx.Client(base_url=found[0], timeout=30), time.monotonic() + STARTING
    while True:
        try:
            if client.get("/readyz").status_code == 200:
                return client
        except httpx.TransportError:
            pass
        assert time.monotonic() < stop, "the server does not answer"
        time.sleep(0.05)
