"""The npm package of the completer, which the tests of this folder build once, and Node and browsers that run it."""

import fcntl
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.firefox import Firefox, firefox_path, open_firefox
from tests.web.device_runs import NODE
from tests.web.tabs import ChromiumTab, DeviceError, FirefoxTab, OpenTab, Play, play_in_tab, serving

ROOT = Path(__file__).parents[2]
PLAYER = Path(__file__).with_name("session.mjs")
BROWSERS = ("chromium", "firefox")


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


@pytest.fixture(scope="module")
def firefox() -> Iterator[Firefox]:
    if firefox_path() is None:
        pytest.skip("Firefox is not installed")
    with open_firefox() as firefox:
        yield firefox


@pytest.fixture(params=BROWSERS)
def open_tab(request: pytest.FixtureRequest, package: Path) -> Iterator[OpenTab]:
    """Open tabs that share their storage, in each browser."""
    with tabs_of(request.param, request) as open_new:
        yield open_new


@contextmanager
def tabs_of(name: str, request: pytest.FixtureRequest) -> Iterator[OpenTab]:
    if name == "firefox":
        firefox = request.getfixturevalue("firefox")
        yield lambda: FirefoxTab(firefox)
    else:
        with request.getfixturevalue("browser").new_context() as window:
            yield lambda: ChromiumTab(window)


@pytest.fixture(params=["node", *(pytest.param(name, marks=pytest.mark.slow) for name in BROWSERS)])
def play(request: pytest.FixtureRequest, package: Path) -> Iterator[Play]:
    """Play a script with an exported folder and an empty storage, in Node and in each browser."""

    def play_in_node(folder: Path, script: Any) -> list[Any]:
        command = [*NODE, str(PLAYER), str(package), str(folder)]
        process = subprocess.run(command, input=json.dumps(script), capture_output=True, text=True, timeout=300)
        if process.returncode:
            raise DeviceError(process.stderr)
        results: list[Any] = json.loads(process.stdout)
        return results

    if request.param == "node":
        yield play_in_node
        return
    with tabs_of(request.param, request) as open_new:
        tab = open_new()

        def play_in_browser(folder: Path, script: Any) -> list[Any]:
            with serving(folder) as site:
                return play_in_tab(tab, site, script)

        yield play_in_browser
