"""The examples for Ray and Spark on this machine: the figures of `factorcell score`, and workers that are killed."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import json, parquet

from tests import ROOT
from tests.small_runs import ROWS, make_run

pytestmark = pytest.mark.slow

TEXTS, FILES = 200_000, 20
MINUTES = 9  # time limit of a script
# Statistics of use would be sent over the network.
ENVIRONMENT = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYSPARK_PYTHON": sys.executable}
ENVIRONMENT |= {"PYSPARK_SUBMIT_ARGS": "--master local[2,4] pyspark-shell", "SPARK_LOCAL_IP": "127.0.0.1"}
ENVIRONMENT["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT / "src", os.environ.get("PYTHONPATH", ""))))


class Engine(NamedTuple):
    """An engine: its package, its example, and what the command line of a worker contains while it computes."""

    package: str
    script: str
    worker: str


ENGINES = {
    "ray": Engine("ray", "ray_score.py", "ray::MapWorker(MapBatches(Worker)).submit"),
    "spark": Engine("pyspark", "spark_score.py", "pyspark.daemon"),
}


@pytest.fixture(params=sorted(ENGINES))
def engine(request: pytest.FixtureRequest) -> Engine:
    engine = ENGINES[request.param]
    if importlib.util.find_spec(engine.package) is None:
        pytest.skip(f"{engine.package} is not installed; make check-slow installs it")
    if engine.package == "pyspark" and shutil.which("java") is None:
        pytest.skip("Java is not installed")
    return engine


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, a folder of Parquet files, and the scores by the command line."""
    folder = tmp_path_factory.mktemp("clusters")
    make_run(folder / "run").save_weights({})
    (folder / "table").mkdir()
    size = TEXTS // FILES
    for file in range(FILES):
        rows = [{"id": file * size + row, **ROWS[(file + row * row) % len(ROWS)]} for row in range(size)]
        for row in rows[:: len(ROWS)]:
            row["text"] = f"the sea {'is cold ' * (row['id'] % 37)}"
        parquet.write_table(pa.Table.from_pylist(rows), folder / "table" / f"{file:02}.parquet")
    with (folder / "scores.jsonl").open("w", encoding="utf-8") as out:
        command = [sys.executable, "-m", "factorcell", "score", str(folder / "run"), str(folder / "table"), "--json"]
        subprocess.run(command, stdout=out, env=ENVIRONMENT, check=True)
    return folder


@pytest.fixture
def start(engine: Engine, folder: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """A function that starts the example for a table, with options, and writes its messages to the file `log`."""
    processes = []

    def start_script(*options: str, table: str = "table") -> subprocess.Popen[bytes]:
        paths = (ROOT / "examples" / engine.script, folder / "run", folder / table, tmp_path / "out")
        command = [sys.executable, *map(str, paths), *options]
        with (tmp_path / "log").open("wb") as log:
            processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=ENVIRONMENT, cwd=tmp_path))
        return processes[-1]

    yield start_script
    for process in processes:
        if process.poll() is None:  # after an error
            kill([*descendants(process.pid), process.pid])
        process.wait()


def kill(processes: Iterable[int]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def workers_of(process: subprocess.Popen[bytes], engine: Engine) -> set[int]:
    """Return the ids of the worker processes; not of the daemon of Spark, a child of Java that forks them."""
    ids = [number for number in descendants(process.pid) if engine.worker in command_line(number)]
    return {number for number in ids if engine.package != "pyspark" or "java" not in command_line(parent_of(number))}


def descendants(process: int) -> list[int]:
    """Return the ids of all descendants of a process, parents before their children."""
    parents = {int(path.name): parent_of(int(path.name)) for path in Path("/proc").glob("[0-9]*")}
    ids = [process]
    for number in ids:  # grows
        ids += [child for child, parent in parents.items() if parent == number]
    return ids[1:]


def command_line(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text(encoding="utf-8").replace("\0", " ")
    except OSError:  # it has ended
        return ""


def parent_of(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    except OSError:
        return 0


def check_scores(folder: Path, out: Path) -> None:
    """Check that the result has each row once, with the figures of the command line."""
    result = parquet.read_table(out).sort_by("id")
    assert result["id"].to_pylist() == list(range(TEXTS))
    expected = json.read_json(folder / "scores.jsonl")
    for name in ("targets", "unknown_targets"):
        assert result[name].to_pylist() == expected[name].to_pylist()
    for name in ("nats", "perplexity"):
        assert np.array_equal(result[name], expected[name]), np.abs(np.subtract(result[name], expected[name])).max()


def test_the_figures_are_those_of_the_command_line(
    start: Callable[..., subprocess.Popen[bytes]], folder: Path, tmp_path: Path
) -> None:
    assert start().wait(60 * MINUTES) == 0, (tmp_path / "log").read_text(encoding="utf-8")
    check_scores(folder, tmp_path / "out")


def test_the_rows_of_a_killed_worker_are_computed_again(
    engine: Engine, start: Callable[..., subprocess.Popen[bytes]], folder: Path, tmp_path: Path
) -> None:
    process, killed, later = start(), set[int](), set[int]()
    deadline = time.monotonic() + 60 * MINUTES
    while process.poll() is None:
        assert time.monotonic() < deadline
        workers = workers_of(process, engine)
        if killed:
            later |= workers - killed
        elif workers and any((tmp_path / "out").rglob("*.parquet")):
            killed = workers
            kill(workers)
        time.sleep(0.05)
    log = (tmp_path / "log").read_text(encoding="utf-8")
    assert killed, f"no worker was killed: {log}"
    assert later, f"no other worker was started: {log}"
    assert process.returncode == 0, log
    check_scores(folder, tmp_path / "out")


@pytest.mark.parametrize("options", [("--target", "city"), ("--task", "embed"), ("--task", "generate")], ids=" ".join)
def test_the_other_tasks_add_their_columns(
    options: tuple[str, str], start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    code = start(*options, table="table/00.parquet").wait(60 * MINUTES)
    assert code == 0, (tmp_path / "log").read_text(encoding="utf-8")
    result = parquet.read_table(tmp_path / "out")
    column = {"city": "predicted", "embed": "context_vector", "generate": "generated"}[options[1]]
    assert result.num_rows == TEXTS // FILES
    assert result[column].null_count == 0
    assert result.column_names[: len(ROWS[0]) + 1] == ["id", *ROWS[0]]
