"""Time and memory of `prepare` on a synthetic file with Zipf word frequencies and the text lengths of reviews.

    python benchmarks/prepare.py --words 10_000_000

Prints one JSON object; peak memory is that of a separate process, next to its peak after the imports.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from factorcell.config import Config

BLOCK = 1_000_000  # words per write
TYPES = 1_000_000  # size of the vocabulary
MEAN_LENGTH = 60


def write_table(path: Path, words: int, seed: int = 0) -> int:
    """Write a CSV file of at least `words` words with a category; return the number of words."""
    random = np.random.default_rng(seed)
    names = np.array([f"w{index:x}" for index in range(TYPES)])
    shares = np.cumsum(1 / np.arange(1, TYPES + 1) ** 1.05)
    count = 0
    with path.open("w", encoding="utf-8") as file:
        file.write("text,stars\n")
        while count < words:
            size = min(BLOCK, words - count)
            ids = np.searchsorted(shares, random.random(size) * shares[-1])
            block = names[ids].tolist()
            ends = np.cumsum(1 + random.poisson(MEAN_LENGTH - 1, size // MEAN_LENGTH + 2))
            begin = 0
            for end in [*ends[ends < size].tolist(), size]:
                file.write(f"{' '.join(block[begin:end])},{random.integers(1, 6)}\n")
                begin = end
            count += size
    return count


def peak_mib() -> float:
    """Return the peak resident memory of this process; Linux counts it in KiB, macOS in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def measure(path: Path, tokenizer: str) -> dict[str, float]:
    """Prepare `path`."""
    from factorcell.data.preparation import prepare

    config = Config.of(tokenizer=tokenizer, context=("stars",))
    before, start = peak_mib(), time.perf_counter()
    corpus = prepare(path, config)
    return {
        "rows": len(corpus),
        "vocabulary": len(corpus.tokenizer),
        "seconds": round(time.perf_counter() - start, 2),
        "peak_mib": round(peak_mib()),
        "peak_mib_after_imports": round(before),
    }


def main() -> None:
    """Write the table, measure in a new process and print the result."""
    parser = argparse.ArgumentParser(description="Measure time and memory of preparing a table.")
    parser.add_argument("--words", type=int, default=10_000_000)
    parser.add_argument("--tokenizer", default="word", choices=("word", "space", "char", "grapheme"))
    parser.add_argument("--measure", type=Path, metavar="TABLE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.tokenizer)))
        return
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder, "table.csv")
        words = write_table(table, options.words)
        command = [sys.executable, __file__, "--tokenizer", options.tokenizer, "--measure", str(table)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        result = json.loads(process.stdout)
        size = table.stat().st_size / (1 << 20)
    print(json.dumps({"words": words, "file_mib": round(size), **result, "words_s": round(words / result["seconds"])}))


if __name__ == "__main__":
    main()
