"""What the scripts of the thesis' tables share: rows to train, two side by side, each kept as a line of JSON.

An experiment is a recipe and rows of options by which the models differ. OUT/NAME.jsonl holds the finished rows,
OUT/NAME/ROW the run of each, OUT/tables the texts. Stop a script as you like: the same command goes on, half-trained
runs included.
"""

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from pyarrow import parquet as pq
from tqdm import tqdm

from factorcell import files
from factorcell.config import Config, UserError, choose
from factorcell.model.run import Run
from factorcell.training.fit import fit

HERE = Path(__file__).parent
TRIAL = 0.01  # of the training texts; ten times that share of the others
POLL = 1.0  # seconds between two looks at the trainings

Row = dict[str, Any]
Tables = dict[str, Path]  # "train", "dev" and what else is measured on
Options = Mapping[str, Mapping[str, Any]]  # section -> option -> value


@dataclass(frozen=True)
class Experiment:
    """`rows` of options over the file `recipe`, the `tables` of (data, folder, share), what else to `measure`."""

    name: str
    recipe: str
    rows: Mapping[str, Options]
    tables: Callable[[Path, Path, float], Tables]
    measure: Callable[[Run, Tables], Row]

    def config(self, row: str, threads: int) -> Config:
        """The options of one row. `UserError` names what the library does not have."""
        sections = tomllib.loads((HERE / self.recipe).read_text(encoding="utf-8"))
        for section, options in self.rows[row].items():
            sections[section] = {**sections[section], **options}
        sections["training"]["threads"] = threads
        return Config.from_dict(sections, where=f"row {row}")


@dataclass(frozen=True)
class Job:
    """An experiment, where its results go, and the command line that asked for it."""

    experiment: Experiment
    data: Path
    out: Path
    only: tuple[str, ...]
    threads: int
    jobs: int
    trial: bool
    command: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the results; those of a trial are kept apart."""
        return self.experiment.name + ("-trial" if self.trial else "")

    @property
    def results(self) -> Path:
        """The JSON lines."""
        return self.out / f"{self.name}.jsonl"

    def folder(self, row: str) -> Path:
        """The run folder of a row."""
        return self.out / self.name / row

    def tables(self) -> Tables:
        """The texts, written at the first call."""
        folder = self.out / "tables"
        folder.mkdir(parents=True, exist_ok=True)
        return self.experiment.tables(self.data, folder, TRIAL if self.trial else 1.0)

    def missing(self) -> list[str]:
        """The rows asked for that are not finished; one that was made with other options is an error."""
        done = {row["row"]: row for row in files.read_rows(self.results)}
        for name in (name for name in self.only if name in done):
            made, wanted = Config.from_dict(done[name]["config"]), self.experiment.config(name, self.threads)
            if made != replace(wanted, training=replace(wanted.training, threads=made.training.threads)):
                raise UserError(f"{self.results}: row {name} was made with other options; choose another --out")
        return [name for name in self.only if name not in done]


def parser(text: str) -> argparse.ArgumentParser:
    """The options that all scripts have."""
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    made.add_argument(
        "--data", type=Path, required=True, help="folder with a folder of Parquet files for each data set"
    )
    made.add_argument("--out", type=Path, required=True, help="folder for results; the same one to go on")
    made.add_argument("--only", nargs="+", metavar="ROW", help="these rows; all, if not given")
    made.add_argument("--threads", type=int, default=1, help="threads of each training")
    made.add_argument("--jobs", type=int, default=2, help="trainings side by side")
    made.add_argument("--trial", action="store_true", help="a hundredth of the data, to see that all works")
    return made


def main(experiment: Experiment, given: argparse.Namespace, command: Sequence[str]) -> int:
    """Train and measure the missing rows; the exit code."""
    try:
        only = tuple(choose("row", name, experiment.rows) for name in given.only or experiment.rows)
        job = Job(experiment, given.data, given.out, only, given.threads, given.jobs, given.trial, tuple(command))
        missing = job.missing()
        tables = job.tables()
        if min(job.jobs, len(missing)) > 1:
            return side_by_side(job, missing)
        torch.set_num_threads(job.threads)
        for row in missing:
            finish(job, row, tables)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        return 130
    return 0


def finish(job: Job, row: str, tables: Tables) -> None:
    """Train one row, or go on with it, measure it, and add it to the results."""
    config = job.experiment.config(row, job.threads)
    say = print if sys.stderr.isatty() else None
    run = fit(tables["train"], tables["dev"], config, job.folder(row), resume=True, say=say)
    best = run.best()
    assert best is not None  # a training ends with an evaluation
    result = {
        "experiment": job.name,
        "row": row,
        "command": shlex.join(("python", *job.command)),
        "seed": config.training.seed,
        "minutes": run.minutes(),
        "parameters": run.model.parameter_count(),
        **files.read_json(run.folder / "training.json"),
        **{key: best[key] for key in ("step", "steps", "perplexity", "perplexity_known")},
        **job.experiment.measure(run, tables),
        "config": config.to_dict(),
    }
    files.append_row(job.results, result)
    print(json.dumps({key: result[key] for key in ("row", "minutes", "perplexity", "perplexity_known")}), flush=True)


def side_by_side(job: Job, rows: Sequence[str]) -> int:
    """Each row in a process of its own, `jobs` at once; a row that fails leaves the others alone. The exit code."""
    waiting, running, failed = list(rows), dict[str, subprocess.Popen[bytes]](), list[str]()
    with _until_stopped(running), tqdm(total=len(rows), desc=job.name, unit="row", dynamic_ncols=True) as bar:
        while waiting or running:
            while waiting and len(running) < job.jobs:
                row = waiting.pop(0)
                running[row] = _started(job, row)
            time.sleep(POLL)
            for row, process in list(running.items()):
                if process.poll() is not None:
                    del running[row]
                    failed += [row] if process.returncode else []
            standing = {row: _standing(job.folder(row)) for row in running}
            whole = len(rows) - len(waiting) - len(running)
            bar.n = round(whole + sum(share for share, _ in standing.values()), 2)
            bar.set_postfix_str(", ".join(f"{row} {share:.0%} {best}" for row, (share, best) in standing.items()))
    for row in failed:
        last = _log(job, row).read_text(encoding="utf-8", errors="replace").strip().split("\n")[-1]
        print(f"{row} failed: {last} (all of it in {_log(job, row)})", file=sys.stderr)
    return 1 if failed else 0


def _started(job: Job, row: str) -> "subprocess.Popen[bytes]":
    """A process that makes one row; what it says goes into a file."""
    command = [sys.executable, *job.command, "--jobs", "1", "--only", row]
    log = _log(job, row)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        surroundings = {**os.environ, "OMP_NUM_THREADS": str(job.threads)}
        return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=surroundings)


def _log(job: Job, row: str) -> Path:
    return job.out / job.name / f"{row}.txt"


@contextlib.contextmanager
def _until_stopped(running: Mapping[str, "subprocess.Popen[bytes]"]) -> Iterator[None]:
    """However this process ends, but for a kill, those that are `running` end with it."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()


def _standing(folder: Path) -> tuple[float, str]:
    """How much of a run is trained, and its best perplexity so far."""
    rows = files.read_rows(folder / "log.jsonl")
    best = min((row["perplexity"] for row in rows if row["split"] == "dev"), default=None)
    return (rows[-1]["step"] / rows[-1]["steps"] if rows else 0.0), f"({best:.2f})" if best else ""


def kept(path: Path, make: Callable[[], pa.Table]) -> Path:
    """`path`, a Parquet file that is made at the first call and stays as it is."""
    if not path.exists():
        partial = path.with_name(path.name + ".partial")
        pq.write_table(make(), partial, compression="zstd")
        partial.replace(path)
    return path


def read(path: Path) -> pa.Table:
    """A Parquet file."""
    if not path.is_file():
        raise UserError(f"{path}: there is no such file (--data names the folder of all data sets)")
    return pq.read_table(path)


def head(data: Path, folder: Path, name: str, share: float) -> Tables:
    """The training and development texts of a data set as they are, or the first of them."""
    if share == 1.0:
        return {part: data / name / f"{part}.parquet" for part in ("train", "dev")}
    return {"train": _first(data, folder, name, "train", share), "dev": _first(data, folder, name, "dev", 10 * share)}


def _first(data: Path, folder: Path, name: str, part: str, share: float) -> Path:
    """The first `share` of the rows of a table, as a file."""
    table = read(data / name / f"{part}.parquet")
    return kept(folder / f"{name}-{part}-{share:g}.parquet", lambda: table.slice(0, max(1, round(share * len(table)))))
