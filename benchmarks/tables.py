"""Time and memory of reading a table and of a training, against the number of short texts.

    python -m benchmarks.tables --texts 1_000_000 5_000_000 20_000_000 --docs docs/results

Each table is a folder of Parquet files of `PART` texts with about 8 words, a category, a number and a user; the numbers
of words, categories and users do not depend on the number of texts. A case of `CASES` reads the table ("reading"), or
trains `STEPS` steps on it and completes the run folder ("training"), in a process of its own.

The memory is the peak of private memory (RssAnon, every 10 ms) minus that after the imports. Pages of memory-mapped
files do not count, because the system drops them when it needs memory; "disk" is the peak of these files (every 0.5 s).
Rows are appended as JSON lines; a point that has a row is not measured again. With --docs, the script draws the chart.
"""

import argparse
import json
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from pyarrow import parquet as pq

from benchmarks.service.report import about
from factorcell import fit
from factorcell.config import Config
from factorcell.data.preparation import prepare
from factorcell.io import files
from factorcell.io.arrays import temporary_folder
from factorcell.reports import charts

Row = dict[str, Any]
CASES: dict[str, dict[str, Any]] = {
    "words": {"tokenizer": "word", "context": ("topic", "price")},
    "characters with users": {"tokenizer": "char", "user": "user", "context": ("topic",)},
}
STAGES = ("reading", "training")
SIZES = (1_000_000, 5_000_000, 20_000_000)
PART, WORDS, MEAN_LENGTH, TOPICS, USERS, STEPS = 250_000, 20_000, 8, 20, 1_000, 20
MODEL = {"hidden_size": 64, "embedding_size": 32, "rank": 4, "steps": STEPS, "evaluations": 1, "threads": 1}
ROWS = Path(__file__).parent.parent / "experiments" / "results" / "tables.jsonl"


def write_part(path: Path, number: int, count: int) -> None:
    """Write `count` texts to a Parquet file; the words have Zipf frequencies."""
    random = np.random.default_rng(number)
    names = np.array([f"w{index:x}" for index in range(WORDS)])
    shares = np.cumsum(1 / np.arange(1, WORDS + 1) ** 1.05)
    lengths = 1 + random.poisson(MEAN_LENGTH - 1, count)
    words = names[np.searchsorted(shares, random.random(lengths.sum()) * shares[-1])].tolist()
    ends = np.cumsum(lengths).tolist()
    columns = {
        "text": [" ".join(words[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)],
        "topic": [f"t{topic}" for topic in random.integers(0, TOPICS, count)],
        "price": random.lognormal(3, 1, count).round(2),
        "user": [f"u{user}" for user in random.integers(0, USERS, count)],
    }
    pq.write_table(pa.table(columns), path)


def run_stage(case: str, stage: str, table: Path, folder: Path) -> None:
    """Read or train; the first line of output says that the imports are done, the last one has the seconds."""
    torch.set_num_threads(1)
    print("imported", flush=True)
    time.sleep(0.2)  # for the first measurement of the memory
    start = time.perf_counter()
    if stage == "reading":
        prepare(table, Config.of(**CASES[case]))
    else:
        fit(table, out=folder / "run", **CASES[case], **MODEL)
    print(round(time.perf_counter() - start, 1), flush=True)


def private_bytes(process: int) -> int:
    """Return the private memory of a process; 0 after its end."""
    status = ""
    with suppress(FileNotFoundError, ProcessLookupError):
        status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    lines = re.findall(r"^RssAnon:\s+(\d+) kB$", status, re.MULTILINE)
    return int(lines[0]) * 1024 if lines else 0


def temporary_bytes(process: int) -> int:
    """Return the size of the temporary files without a name that a process has open or mapped."""
    sizes = dict[int, int]()
    with suppress(FileNotFoundError, ProcessLookupError):
        for path in Path(f"/proc/{process}/fd").iterdir():
            with suppress(FileNotFoundError):
                status = path.stat()
                if stat.S_ISREG(status.st_mode) and not status.st_nlink:
                    sizes[status.st_ino] = status.st_size
        for line in Path(f"/proc/{process}/maps").read_text(encoding="utf-8").splitlines():
            if f" {temporary_folder()}" in line and line.endswith("(deleted)"):
                begin, end = (int(address, 16) for address in line.split()[0].split("-"))
                sizes[int(line.split()[4])] = end - begin
    return sum(sizes.values())


def measure(case: str, stage: str, table: Path) -> Row:
    """Return the seconds and the peak of private memory of a stage in a new process."""
    with tempfile.TemporaryDirectory(dir=table.parent) as folder:
        command = [sys.executable, "-m", "benchmarks.tables", "--stage", case, stage, str(table), folder]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        before = peak = private_bytes(process.pid)
        disk = 0
        while process.poll() is None:
            disk = max(disk, temporary_bytes(process.pid))
            for _ in range(50):
                peak = max(peak, private_bytes(process.pid))
                time.sleep(0.01)
        if process.returncode:
            raise SystemExit(process.returncode)
        seconds = float(process.stdout.read().split()[-1])
        return {"seconds": seconds, "megabytes": round((peak - before) / 1e6, 1), "disk": round(disk / 1e6, 1)}


@charts.styled()
def chart(rows: Sequence[Row]) -> Figure:
    """Draw the memory of each case and stage against the number of texts."""
    figure = Figure(figsize=(6.4, 3.4), facecolor="white")
    axes, curves = figure.add_subplot(), list(dict.fromkeys((row["case"], row["stage"]) for row in rows))
    for curve, colour in zip(curves, charts.colours([" ".join(curve) for curve in curves]).values(), strict=True):
        points = sorted((row["texts"], row["megabytes"]) for row in rows if (row["case"], row["stage"]) == curve)
        axes.plot(*zip(*points, strict=True), "o-", color=colour, ms=3.5, lw=1.2, label=f"{curve[1]}, {curve[0]}")
    axes.set(xscale="log", ylim=(0, None), title="MB of private memory", xlabel="texts")
    axes.grid(axis="y")
    charts.round_ticks(axes.xaxis, is_log=True)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    charts.add_legend(figure)
    return figure


def main(argv: Sequence[str]) -> None:
    """Measure the points that have no row, print them and draw the chart."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, nargs="+", default=SIZES, help="numbers of texts")
    parser.add_argument("--folder", type=Path, help="folder of the tables (default: a temporary folder)")
    parser.add_argument("--out", type=Path, default=ROWS, help="file that JSON lines are appended to")
    parser.add_argument("--docs", type=Path, help="folder in which the chart is written")
    parser.add_argument("--stage", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.stage:
        case, stage, table, folder = arguments.stage
        run_stage(case, stage, Path(table), Path(folder))
        return
    rows = files.read_rows(arguments.out)
    finished = {(row["case"], row["stage"], row["texts"]) for row in rows}
    table = Path(tempfile.mkdtemp(dir=arguments.folder), "table")
    table.mkdir()
    for texts in sorted(arguments.texts):
        for number, begin in enumerate(range(0, texts, PART)):
            if not (path := table / f"part-{number:05d}.parquet").exists():
                write_part(path, number, min(PART, texts - begin))
        for case, stage in ((case, stage) for case in CASES for stage in STAGES):
            if (case, stage, texts) not in finished:
                rows.append({"case": case, "stage": stage, "texts": texts, **measure(case, stage, table), **about()})
                files.append_row(arguments.out, rows[-1])
                print(json.dumps(rows[-1]), flush=True)
    shutil.rmtree(table.parent)
    if arguments.docs:
        files.write(arguments.docs / "tables-memory.svg", charts.svg(chart(rows), "tables-memory"))


if __name__ == "__main__":
    main(sys.argv[1:])
