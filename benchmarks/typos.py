"""Measure how often a text is suggested for a prefix with a typo and without one, with typos forgiven and not forgiven.

    python benchmarks/typos.py RUN TEST.parquet --counted TRAIN.parquet

Prints a row of JSON for each way: the share of the texts among the first k, their mean reciprocal rank, milliseconds of
processor time. What is typed has 8 letters at least and is the same for all ways.
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

from factorcell import Completer, Popularity, Run, TypoTolerantLookup
from factorcell.completion.search import Suggestion
from factorcell.completion.typos import TypoCosts

LETTERS = "etaoinsrhldcumfpgwybvk "
SHORTEST, LONGEST = 8, 40  # letters that are typed at least, and of a text: few longer ones are ever suggested
Case = tuple[str, str, str, dict[str, Any]]  # text, typed, typed with a typo, context


def add_typo(typed: str, chosen: random.Random) -> str:
    """Add one random typo: a letter inserted, omitted or replaced, or two neighbouring letters swapped."""
    while True:
        place, letter = chosen.randrange(len(typed)), chosen.choice(LETTERS)
        before, replaced, after = typed[:place], typed[place], typed[place + 1 :]
        ways = (letter + replaced + after, after, letter + after, after[:1] + replaced + after[1:])
        if (changed := before + chosen.choice(ways)) != typed:
            return changed


def cases(run: Run, path: Path, count: int, seed: int) -> list[Case]:
    """Beginnings of random texts."""
    chosen, result = random.Random(seed), []
    column = run.config.data.text
    names = [variable.source_column for variable in run.schema.variables]
    rows = [row for row in pq.read_table(path).to_pylist() if SHORTEST < len(row[column]) <= LONGEST]
    for row in chosen.sample(rows, count):
        typed = row[column][: chosen.randint(SHORTEST, len(row[column]) - 1)]
        result.append((row[column], typed, add_typo(typed, chosen), {name: row[name] for name in names}))
    return result


def measure(
    name: str, suggest: Callable[[str, dict[str, Any]], list[Suggestion]], cases: list[Case], has_typo: bool
) -> None:
    """Print how often and where the text is."""
    ranks, times = [], []
    for text, typed, wrong, context in cases:
        began = time.thread_time()
        suggestions = suggest(wrong if has_typo else typed, context)
        times.append(1e3 * (time.thread_time() - began))
        ranks.append(
            next((1 / place for place, suggestion in enumerate(suggestions, 1) if suggestion.text == text), 0.0)
        )
    row = {
        "way": name,
        "typo": has_typo,
        "found": round(statistics.mean(rank > 0 for rank in ranks), 3),
        "reciprocal_rank": round(statistics.mean(ranks), 3),
        "milliseconds": round(statistics.median(times), 1),
    }
    print(json.dumps(row), flush=True)


def main() -> None:
    """Measure all ways."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("table", type=Path)
    parser.add_argument("--counted", type=Path, help="a table of texts to count, and to type: most popular completion")
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--costs", type=float, nargs="+", default=[TypoCosts().cost])
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    run = Run.open(arguments.run)
    texts = cases(run, arguments.table, arguments.count, arguments.seed)
    ways = [
        ("model", TypoCosts(0)),
        *((f"model, {cost:g} nats per typo", TypoCosts(2, cost)) for cost in arguments.costs),
    ]
    for name, typos in ways:
        completer = Completer(run, unknown="group", typos=typos)
        for has_typo in (False, True):
            measure(
                name, lambda typed, row, c=completer: c.complete(typed, context=row, k=arguments.k), texts, has_typo
            )
    if arguments.counted:
        popular = Popularity.fit(pq.read_table(arguments.counted)[run.config.data.text].to_pylist(), min_count=1)
        texts = cases(run, arguments.counted, arguments.count, arguments.seed)
        for name, counted in (("popularity", popular), ("popularity, typos", TypoTolerantLookup(popular))):
            for has_typo in (False, True):
                measure(name, lambda typed, row, c=counted: c.complete(typed, arguments.k), texts, has_typo)


if __name__ == "__main__":
    main()
