"""The npm package of the completer, which the tests of this folder build once."""

import fcntl
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def package() -> Path:
    """The folder of the built package; tests that need it are skipped if a tool that builds or runs it is missing."""
    if tools := [tool for tool in ("em++", "node", "npm", "make") if shutil.which(tool) is None]:
        pytest.skip(f"WebAssembly in Node needs {', '.join(tools)}")
    command = ["make", "-C", str(ROOT), "--no-print-directory", "web"]
    with (ROOT / "Makefile").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other test processes build the same files
        process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
    return ROOT / "web" / "dist"
