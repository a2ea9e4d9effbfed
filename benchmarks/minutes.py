"""Measure whether `train --minutes` keeps its time, and what the time limit costs in perplexity.

    python benchmarks/minutes.py DATA RUNS --out minutes.jsonl --minutes 2 10 --loops 0 1 3 --seeds 0 1 2

DATA is a folder of data sets, each a folder with train.parquet and dev.parquet; RUNS is a folder for the trainings.
First, each case is trained with `--minutes` in a process of its own, while busy loops occupy the processor: run nothing
else on its cores (`taskset -c 0` chooses them). Then each case is trained again with the same number of steps and
without limit, which is not timed. Rows are appended to the file of `--out`, and a repeated command continues; then the
script prints the table.
"""

import argparse
import itertools
import json
import math
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from factorcell.io import files
from factorcell.runs.run import Run

CASES: dict[str, list[str]] = {  # data set -> options of its training
    "agnews": ["--context", "section"],
    "dbpedia14": ["--context", "category"],
    "hotels": ["--context", "hotel", "--context", "rating"],
    "womens_clothing": ["--context", "class", "--context", "rating"],
    "imdb": ["--context", "rating"],
    "commonvoice9": ["--context", "language", "--tokenizer", "char"],
    "placenames": ["--context", "lat:number", "--context", "lon:longitude", "--tokenizer", "char"],
    "commits": ["--user", "user", "--tokenizer", "char", "--lowercase"],
}
STARTUP = "import sys; from factorcell.__main__ import main; sys.exit(main())"
Row = dict[str, Any]


def spin(core: int) -> None:
    """Keep one core of the processor busy for ever."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    while True:
        pass


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Occupy the processor with `count` busy loops, each on one core."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    context = multiprocessing.get_context("spawn")
    loops = [context.Process(target=spin, args=(cores[number % len(cores)],), daemon=True) for number in range(count)]
    for loop in loops:
        loop.start()
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.join()


def train(folder: Path, data: Path, options: list[str]) -> float:
    """Train a run in a process of its own, and return the wall-clock seconds of the command."""
    tables = [str(data / "train.parquet"), "--dev", str(data / "dev.parquet"), "--out", str(folder)]
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", STARTUP, "train", *tables, *options], check=True, capture_output=True)
    return time.perf_counter() - start


def development_perplexity(folder: Path, data: Path) -> float:
    """Return the perplexity of all development texts with the neural model of a run."""
    run = Run.open(folder, mixture=False)
    return math.exp(run.nats(run.prepare(data / "dev.parquet")).mean(dtype=np.float64))


def train_limited(folder: Path, data: Path, minutes: float, loops: int, seed: int) -> None:
    """Train with `minutes` next to busy loops, and write the time of the command next to the run."""
    shutil.rmtree(folder, ignore_errors=True)
    with busy_loops(loops):
        options = [*CASES[data.name], "--minutes", str(minutes), "--seed", str(seed)]
        seconds = train(folder / "limited", data, options)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    (folder / "time.json").write_text(json.dumps({"cores": cores, "seconds": seconds}))


def repeat(folder: Path, data: Path) -> Row:
    """Train a case again with the same steps and without limit; return the figures of both trainings."""
    limited, repeated = folder / "limited", folder / "repeated"
    log = Run.open(limited).log()
    evaluations = [row for row in log if row["split"] == "dev"]
    losses = [row for row in log if row["split"] == "train"]
    tokens = np.diff([0, *(row["tokens"] for row in losses)])
    shutil.copy(limited / "config.json", folder / "config.json")
    shutil.rmtree(repeated, ignore_errors=True)
    train(repeated, data, ["--config", str(folder / "config.json")])
    return {
        **json.loads((folder / "time.json").read_text()),
        "step_seconds": float((tokens / [row["tokens_per_second"] for row in losses]).sum()),
        "steps": log[-1]["step"],
        "stopped_early": evaluations[-1]["step"] < evaluations[-1]["steps"],
        "perplexity": development_perplexity(limited, data),
        "repeated": development_perplexity(repeated, data),
    }


def table(rows: list[Row]) -> str:
    """Return a Markdown table with the median and the worst case of each number of minutes and loops."""
    lines = ["| minutes | busy loops | trainings | late, s | steps, % of the time | perplexity, % |"]
    lines.append("| --: | --: | --: | --: | --: | --: |")
    for minutes, loops in sorted({(row["minutes"], row["loops"]) for row in rows}):
        cases = [row for row in rows if (row["minutes"], row["loops"]) == (minutes, loops)]
        late = [row["seconds"] - 60 * minutes for row in cases]
        shares = [100 * row["step_seconds"] / (60 * minutes) for row in cases if not row["stopped_early"]] or [math.nan]
        costs = [100 * (row["perplexity"] / row["repeated"] - 1) for row in cases]
        cells = [
            f"{np.median(values):+.1f} ({worst(values):+.1f})"
            for values, worst in ((late, max), (shares, min), (costs, max))
        ]
        lines.append(f"| {minutes:g} | {loops} | {len(cases)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure the cases that are missing in the file, and print the table."""
    parser = argparse.ArgumentParser(description="Measure whether train --minutes keeps its time.")
    parser.add_argument("data", type=Path, help="folder of the data sets")
    parser.add_argument("runs", type=Path, help="folder for the trainings")
    parser.add_argument("--out", type=Path, required=True, help="file of the rows")
    parser.add_argument("--sets", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--minutes", nargs="+", type=float, default=[2.0, 10.0])
    parser.add_argument("--loops", nargs="+", type=int, default=[0, 1, 3])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    arguments = parser.parse_args()
    rows = files.read_rows(arguments.out) if arguments.out.exists() else []
    names = ("seed", "minutes", "loops", "data")
    finished = {tuple(row[name] for name in names) for row in rows}
    cases = itertools.product(arguments.seeds, arguments.minutes, arguments.loops, arguments.sets)
    missing = {case: arguments.runs / "_".join(map(str, case)) for case in cases if case not in finished}
    for (seed, minutes, loops, name), folder in missing.items():
        if not (folder / "time.json").exists():
            train_limited(folder, arguments.data / name, minutes, loops, seed)
    for case, folder in missing.items():
        row = dict(zip(names, case, strict=True)) | repeat(folder, arguments.data / case[-1])
        files.append_row(arguments.out, row)
        rows.append(row)
        sys.stderr.write(json.dumps(row) + "\n")
    sys.stdout.write(table(rows) + "\n")


if __name__ == "__main__":
    main()
