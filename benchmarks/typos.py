"""Measure how often a text is suggested when its prefix contains a typing error, with and without typo tolerance.

    python benchmarks/typos.py RUN TEST.parquet --counted TRAIN.parquet

Prints a row of JSON for each method: the share of the texts among the first k, their mean reciprocal rank,
milliseconds of processor time. Prefixes have at least 8 letters and are the same for all methods.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch

from factorcell import Completer, Run
from factorcell.completion import Popularity, typos
from factorcell.completion.popularity import Suggestion

LETTERS = "etaoinsrhldcumfpgwybvk "
SHORTEST, LONGEST = 8, 40  # minimum length of a prefix and maximum length of a text, in letters
Case = tuple[str, str, str, dict[str, Any]]  # text, prefix, prefix with a typing error, context


def add_typo(prefix: str, generator: random.Random) -> str:
    """Return the prefix with one random typing error: an extra, missing or wrong letter, or two swapped ones."""
    while True:
        place, letter = generator.randrange(len(prefix)), generator.choice(LETTERS)
        before, current, after = prefix[:place], prefix[place], prefix[place + 1 :]
        endings = (letter + current + after, after, letter + after, after[:1] + current + after[1:])
        if (result := before + generator.choice(endings)) != prefix:
            return result


def cases(run: Run, path: Path, count: int, seed: int) -> list[Case]:
    """Draw prefixes of random texts."""
    generator, result = random.Random(seed), []
    column = run.config.data.text
    names = [variable.source_column for variable in run.schema.variables]
    rows = [row for row in pq.read_table(path).to_pylist() if SHORTEST < len(row[column]) <= LONGEST]
    for row in generator.sample(rows, count):
        prefix = row[column][: generator.randint(SHORTEST, len(row[column]) - 1)]
        result.append((row[column], prefix, add_typo(prefix, generator), {name: row[name] for name in names}))
    return result


def measure(
    name: str, suggest: Callable[[str, dict[str, Any]], list[Suggestion]], cases: list[Case], with_typo: bool
) -> None:
    """Print how often the text is suggested, and its rank."""
    reciprocal_ranks, times = [], []
    for text, prefix, wrong_prefix, context in cases:
        began = time.thread_time()
        suggestions = suggest(wrong_prefix if with_typo else prefix, context)
        times.append(1e3 * (time.thread_time() - began))
        reciprocal_ranks.append(
            next((1 / place for place, suggestion in enumerate(suggestions, 1) if suggestion.text == text), 0.0)
        )
    row = {
        "method": name,
        "typo": with_typo,
        "recall": round(statistics.mean(rank > 0 for rank in reciprocal_ranks), 3),
        "reciprocal_rank": round(statistics.mean(reciprocal_ranks), 3),
        "milliseconds": round(statistics.median(times), 1),
    }
    print(json.dumps(row), flush=True)


def main() -> None:
    """Measure all methods."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("table", type=Path)
    parser.add_argument(
        "--counted", type=Path, help="table of texts that most popular completion counts and then completes"
    )
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--costs", type=float, nargs="+", default=[typos.TYPO_COST])
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    run = Run.open(arguments.run)
    texts = cases(run, arguments.table, arguments.count, arguments.seed)
    methods = [
        ("model", 0, typos.TYPO_COST),
        *((f"model, {cost:g} nats per typing error", 2, cost) for cost in arguments.costs),
    ]
    for name, max_typos, typos.TYPO_COST in methods:
        completer = Completer(run, unknown="group", typos=max_typos)
        for with_typo in (False, True):
            measure(
                name, lambda prefix, row, c=completer: c.complete(prefix, context=row, k=arguments.k), texts, with_typo
            )
    if arguments.counted:
        popular = Popularity.fit(pq.read_table(arguments.counted)[run.config.data.text].to_pylist(), min_count=1)
        texts = cases(run, arguments.counted, arguments.count, arguments.seed)
        for name, max_typos in (("popularity", 0), ("popularity, typos", 2)):
            for with_typo in (False, True):
                measure(
                    name, lambda prefix, row, n=max_typos: popular.complete(prefix, arguments.k, n), texts, with_typo
                )


if __name__ == "__main__":
    main()
