"""Tokens a second of one process on two threads against two processes under torchrun, on the same texts and options.

    python benchmarks/processes.py --repeats 3 --out processes.jsonl

Both in turns; a figure is the median over the runs of the median rate in their logs, without the first rows.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import speed

TEXTS, LENGTH, WORDS = 30_000, 39, 50_000
OPTIONS = (
    "--context section --embedding-size 200 --hidden-size 240 --rank 12 --context-size 30 --loss sampled --samples 150 "
    "--batch-tokens 4000 --epochs 0.6 --evaluations 1 --log-every 10 --save-every 100000 --min-count 1"
).split()
HOW = {
    "one process, two threads": ["-m", "factorcell", "train", "--threads", "2"],
    "two processes": [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "factorcell",
        "train",
    ],
}


def write_texts(path: Path, texts: int) -> None:
    """Texts of words after Zipf, with a category."""
    random = np.random.default_rng(0)
    shares = 1 / np.arange(1, WORDS + 1) ** 1.05
    ids = random.choice(WORDS, (texts, LENGTH), p=shares / shares.sum())
    lines = (f"{' '.join(f'w{index}' for index in row)},s{row[0] % 60}" for row in ids)
    path.write_text("\n".join(["text,section", *lines]) + "\n", encoding="utf-8")


def rate(folder: Path) -> float:
    """The median rate that a run has logged, without the first rows."""
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    return statistics.median([row["tokens_per_second"] for row in rows if row["split"] == "train"][2:])


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="JSON lines are added to this file")
    given = parser.parse_args()
    rates: dict[str, list[float]] = {name: [] for name in HOW}
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        environment = {**os.environ, "FACTORCELL_CACHE": str(base / "cache")}
        write_texts(base / "train.csv", TEXTS)
        write_texts(base / "dev.csv", 50)
        for repeat in range(given.repeats):
            for number, (name, how) in enumerate(HOW.items()):
                out = base / f"run{repeat}{number}"
                command = [sys.executable, *how, str(base / "train.csv"), "--dev", str(base / "dev.csv"), *OPTIONS]
                subprocess.run([*command, "--out", str(out)], env=environment, capture_output=True, check=True)
                rates[name].append(rate(out))
    first = statistics.median(rates["one process, two threads"])
    for name, values in rates.items():
        median = statistics.median(values)
        figures = {"tokens_per_second": round(median), "times": round(median / first, 2)}
        speed.note({"group": "processes", "what": name, **figures}, given.out)


if __name__ == "__main__":
    main()
