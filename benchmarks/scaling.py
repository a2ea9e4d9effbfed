"""Throughput of training with 1, 2 and more processes of torchrun on this machine, each on one thread.

    python benchmarks/scaling.py --counts 1 2 --batch-tokens 2000 16000

The texts are random words with 50 contexts; the model is that of `factorcell train` with the options below. A figure is
the median of the tokens per second of the rows of the log after the first, which the start slows down. Prints a
Markdown table. Each process needs a core of its own: with fewer cores, more processes cannot be faster.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from factorcell.io import files
from factorcell.io.memory import usable_cores

TEXTS, WORDS, VOCABULARY, CONTEXTS = 50_000, 20, 20_000, 50
OPTIONS: dict[str, list[str]] = {
    "words, sampled loss": ["--hidden-size", "256", "--samples", "1000"],
    "characters": ["--hidden-size", "256", "--tokenizer", "char"],
    "new Transformer": ["--architecture", "gpt2", "--hidden-size", "128", "--layers", "2"],
}
STEPS = 150


def write_tables(folder: Path) -> None:
    """Write random training and development texts, whose words have the frequencies of Zipf's law."""
    random = np.random.default_rng(0)
    weights = 1 / np.arange(1, VOCABULARY + 1)
    for name, count in (("train", TEXTS), ("dev", 200)):
        words = random.choice(VOCABULARY, size=(count, WORDS), p=weights / weights.sum())
        contexts = random.integers(CONTEXTS, size=count)
        rows = [
            {"text": " ".join(f"w{word}" for word in text), "context": f"c{context}"}
            for text, context in zip(words, contexts, strict=True)
        ]
        files.write_rows(folder / f"{name}.jsonl", rows)


def tokens_per_second(folder: Path, name: str, count: int, batch_tokens: int) -> float:
    """Train for `STEPS` steps with `count` processes, and return the median of the throughput."""
    run = folder / f"{name}-{count}-{batch_tokens}".replace(" ", "-")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(count), "--module", "factorcell"]
    command += ["train", str(folder / "train.jsonl"), "--dev", str(folder / "dev.jsonl"), "--out", str(run)]
    command += ["--context", "context", "--steps", str(STEPS), "--evaluations", "1", "--threads", "1"]
    command += ["--batch-tokens", str(batch_tokens), *OPTIONS[name]]
    subprocess.run(command, check=True, capture_output=True)
    rows: list[dict[str, Any]] = [row for row in files.read_rows(run / "log.jsonl") if row["split"] == "train"]
    return statistics.median(row["tokens_per_second"] for row in rows[1:])


def main() -> None:
    """Measure all models, batches and numbers of processes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--counts", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--batch-tokens", nargs="+", type=int, default=[2000, 16_000])
    parser.add_argument("--models", nargs="+", choices=OPTIONS, default=list(OPTIONS))
    arguments = parser.parse_args()
    print(f"{usable_cores()} cores; tokens per second, and the speedup over the first number of processes\n")
    print("| model | tokens of a batch |" + "".join(f" {count} |" for count in arguments.counts))
    print("|---|---:|" + "---:|" * len(arguments.counts))
    with tempfile.TemporaryDirectory() as temporary:
        write_tables(Path(temporary))
        for name in arguments.models:
            for batch_tokens in arguments.batch_tokens:
                speeds = [tokens_per_second(Path(temporary), name, count, batch_tokens) for count in arguments.counts]
                cells = [f"{speed:,.0f} ({speed / speeds[0]:.2f} x)" for speed in speeds]
                print(f"| {name} | {batch_tokens:,} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
