"""Measure whether `train --minutes` keeps its time, and what the time limit costs in perplexity.

    taskset -c 0 python benchmarks/minutes.py DATA RUNS --out minutes.jsonl --minutes 2 10 --others 0 1 2 --seeds 0 1 2

DATA is a folder of data sets, each a folder with train.parquet and dev.parquet; RUNS is a folder for the trainings.
First, each case is trained with `--minutes` in a process of its own, next to 0, 1 or 2 others on the same cores: run
nothing else on them. The others are cases of the same kind, each of which becomes a busy loop at its end. With
`--loops`, so many busy loops also run, each pinned to one of the cores in turn. Then each case is trained again with
the same number of steps and without limit, which is not timed; `--timed-only` omits this, and a later command without
it adds a row with both.
Rows are appended to the file of `--out`, and a repeated command continues on a processor with the same instructions;
then the script prints the table.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from factorcell.io import files
from factorcell.io.arrays import blocks
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
USED_SHARE = 0.8  # of its time, which a training uses unless it ends early
TIME, INSTRUCTIONS = "time.json", torch.backends.cpu.get_cpu_capability()  # AVX2 or AVX512
STARTUP = "import sys; from factorcell.__main__ import main; sys.exit(main())"
Row = dict[str, Any]


class Case(NamedTuple):
    """A training to measure on some cores, next to `others` and to busy `loops`."""

    minutes: float
    others: int
    seed: int
    data: str
    cores: int
    loops: int


def case_of(row: Row) -> Case:
    return Case(**{name: row[name] for name in Case._fields})


def train(folder: Path, data: Path, options: list[str]) -> float:
    """Train a run in a process of its own, and return the wall-clock seconds of the command."""
    tables = [str(data / "train.parquet"), "--dev", str(data / "dev.parquet"), "--out", str(folder)]
    command = [sys.executable, "-c", STARTUP, "train", *tables, *options]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}  # compiled packages, as users have them
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return time.perf_counter() - start


def development_perplexity(folder: Path, data: Path) -> float:
    """Return the perplexity of all development texts with the neural model of a run."""
    run = Run.open(folder, mixture=False)
    return math.exp(run.nats(run.prepare(data / "dev.parquet")).mean(dtype=np.float64))


def train_limited(case: Case, folder: Path, data: Path) -> None:
    """Train a case with its minutes, and write the time of the command next to the run."""
    shutil.rmtree(folder, ignore_errors=True)
    options = [*CASES[case.data], "--minutes", str(case.minutes), "--seed", str(case.seed)]
    seconds = train(folder / "limited", data / case.data, options)
    (folder / TIME).write_text(json.dumps({"seconds": seconds, "instructions": INSTRUCTIONS}))


def train_together(folders: Mapping[Case, Path], data: Path, count: int, pinned: int) -> None:
    """Train cases at the same time; busy loops replace those that have ended, and those that `count` has more.

    So many further busy loops are `pinned` to one core each.
    """
    cores = sorted(os.sched_getaffinity(0))
    with ExitStack() as loops, ThreadPoolExecutor(len(folders)) as pool:

        def start_loop(on: list[int]) -> None:
            code = f"import os; os.sched_setaffinity(0, {on})\nwhile True: pass"
            loop = loops.enter_context(subprocess.Popen([sys.executable, "-c", code]))
            loops.callback(loop.kill)

        for number in range(pinned):
            start_loop([cores[number % len(cores)]])
        for _ in range(count - len(folders)):
            start_loop(cores)
        for future in as_completed([pool.submit(train_limited, *item, data) for item in folders.items()]):
            future.result()
            start_loop(cores)


def read_time(folder: Path) -> Row:
    """Return the seconds of a training and the instructions of its processor; nothing before it."""
    return json.loads((folder / TIME).read_text()) if (folder / TIME).exists() else {}


def measure(folder: Path) -> Row:
    """Return the figures of a training with a time limit."""
    log = Run.open(folder / "limited").log()
    evaluations = [row for row in log if row["split"] == "dev"]
    losses = [row for row in log if row["split"] == "train"]
    tokens = np.diff([0, *(row["tokens"] for row in losses)])
    return {
        **read_time(folder),
        "step_seconds": float((tokens / [row["tokens_per_second"] for row in losses]).sum()),
        "steps": log[-1]["step"],
        "stopped_early": evaluations[-1]["step"] < evaluations[-1]["steps"],
    }


def repeat(folder: Path, data: Path) -> Row:
    """Train a case again with the same steps and without limit; return the perplexities of both trainings."""
    limited, repeated = folder / "limited", folder / "repeated"
    shutil.copy(limited / "config.json", folder / "config.json")
    shutil.rmtree(repeated, ignore_errors=True)
    train(repeated, data, ["--config", str(folder / "config.json")])
    return {"perplexity": development_perplexity(limited, data), "repeated": development_perplexity(repeated, data)}


def spread(values: list[float]) -> str:
    """Format the median and the range of values; of none, an empty text."""
    return f"{np.median(values):.1f} ({min(values):.1f} to {max(values):.1f})" if values else ""


def table(rows: list[Row]) -> str:
    """Return a Markdown table with the median and the range of each processor, time limit and load."""
    rows = list({(row["instructions"], case_of(row)): row for row in rows}.values())  # the last one of each case
    names = ("instructions", "cores", "minutes", "others", "loops")
    heading = "processor | cores | minutes | others | loops | trainings | late, s | steps, % of the time | repeated"
    lines = [f"| {heading} | perplexity, % |", "| :-- |" + " --: |" * 9]
    groups = [tuple(row[name] for name in names) for row in rows]
    for group in sorted(set(groups)):
        cases, minutes = [row for row, other in zip(rows, groups, strict=True) if other == group], group[2]
        late = [row["seconds"] - 60 * minutes for row in cases]
        # Some trainings end early: they no longer improve, or have made the largest number of passes.
        complete = [row for row in cases if not row["stopped_early"] and row["seconds"] > USED_SHARE * 60 * minutes]
        shares = [100 * row["step_seconds"] / (60 * minutes) for row in complete]
        costs = [100 * (row["perplexity"] / row["repeated"] - 1) for row in cases if "repeated" in row]
        cells = [*group, len(cases), spread(late), spread(shares), len(costs), spread(costs)]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> None:
    """Measure the cases that are missing in the file, and print the table."""
    parser = argparse.ArgumentParser(description="Measure whether train --minutes keeps its time.")
    parser.add_argument("data", type=Path, help="folder of the data sets")
    parser.add_argument("runs", type=Path, help="folder for the trainings")
    parser.add_argument("--out", type=Path, required=True, help="file of the rows")
    parser.add_argument("--sets", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--minutes", nargs="+", type=float, default=[2.0, 10.0])
    parser.add_argument("--others", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--loops", nargs="+", type=int, default=[0], help="busy loops, each pinned to a core")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--timed-only", action="store_true", help="do not train again without limit")
    arguments = parser.parse_args()
    rows = files.read_rows(arguments.out) if arguments.out.exists() else []
    complete = [row for row in rows if arguments.timed_only or "repeated" in row]
    finished = {case_of(row) for row in complete if row["instructions"] == INSTRUCTIONS}
    options = arguments.minutes, arguments.others, arguments.seeds, arguments.sets
    cores = [len(os.sched_getaffinity(0))]
    cases = [Case(*case) for case in product(*options, cores, arguments.loops)]
    folders = {case: arguments.runs / "_".join(map(str, case)) for case in cases}
    for minutes, others, loops in product(arguments.minutes, arguments.others, arguments.loops):
        load = {"minutes": minutes, "others": others, "loops": loops}
        kind = [case for case in cases if case not in finished and case == case._replace(**load)]
        untimed = [case for case in kind if read_time(folders[case]).get("instructions") != INSTRUCTIONS]
        for group in (untimed[part] for part in blocks(len(untimed), 1 + others) if untimed):
            train_together({case: folders[case] for case in group}, arguments.data, 1 + others, loops)
    for case in cases:
        if case not in finished:
            row = case._asdict() | measure(folders[case])
            if not arguments.timed_only:
                row |= repeat(folders[case], arguments.data / case.data)
            files.append_row(arguments.out, row)
            rows.append(row)
            sys.stderr.write(json.dumps(row) + "\n")
    sys.stdout.write(table(rows) + "\n")


if __name__ == "__main__":
    main()
