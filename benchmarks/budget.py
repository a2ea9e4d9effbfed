"""Measure how a time budget changes completions: the same prefixes with different budgets, on one thread.

    python benchmarks/budget.py runs/queries queries.parquet --seconds 0.003 0.005 0.01 --prefixes 300

For each budget: wall-clock milliseconds (run nothing else), searches that were cut, the share of the suggestions that
an unbounded search also returns, and the mean reciprocal rank of the text of the prefix.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from factorcell.completion.compiled import new_engine
from factorcell.completion.completer import Completer, Suggestions
from factorcell.completion.replay import streams as replay_streams
from factorcell.nn.packing import PRODUCT_TYPES
from factorcell.runs.run import Run


def complete_all(completer: Completer, prefixes: list[str]) -> tuple[list[Suggestions], list[float]]:
    """Complete each prefix; return the suggestions and the milliseconds."""
    empty, results, times = completer.begin(), [], []
    for prefix in prefixes:
        typed = completer.type_text(empty, prefix)
        start = time.perf_counter()
        results.append(completer.suggest(typed))
        times.append((time.perf_counter() - start) * 1e3)
    return results, times


def reciprocal_rank(results: list[Suggestions], texts: list[str]) -> float:
    """Return the mean reciprocal rank of the texts among the suggestions."""
    ranks = [
        replay_streams.rank_of(text, [s.text for s in result.suggestions])
        for result, text in zip(results, texts, strict=True)
    ]
    return sum(1 / rank for rank in ranks if rank) / len(texts)


def shared_suggestions(results: list[Suggestions], unbounded: list[Suggestions]) -> float:
    """Return the mean share of the suggestions without a budget that are also suggested with one."""
    pairs = [
        ({s.text for s in a.suggestions}, {s.text for s in b.suggestions})
        for a, b in zip(results, unbounded, strict=True)
    ]
    return float(np.mean([len(first & second) / max(1, len(second)) for first, second in pairs]))


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description="Measure how a time budget changes completions.")
    parser.add_argument("run", type=Path)
    parser.add_argument("table", type=Path, help="table of texts, with columns user and time")
    parser.add_argument("--seconds", type=float, nargs="+", default=[0.003, 0.005, 0.01, 0.02])
    parser.add_argument("--prefixes", type=int, default=300)
    parser.add_argument(
        "--products", choices=PRODUCT_TYPES, default=PRODUCT_TYPES[0], help="numeric type of the search"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    run = Run.open(arguments.run)
    engine = new_engine(run.model, arguments.products)

    def completer(seconds: float | None = None) -> Completer:
        result = Completer(run, seconds=seconds)
        result.engine = engine
        return result

    streams = replay_streams.read_streams(
        arguments.table, run.config, max_rows_per_user=40, draw=replay_streams.PrefixDraw(5)
    )
    pairs = [(p, row[run.config.data.text]) for s in streams for p, row in zip(s.prefixes, s.rows, strict=True) if p]
    prefixes, texts = map(list, zip(*pairs[: arguments.prefixes], strict=True))
    unbounded, times = complete_all(completer(), prefixes)
    print("| budget, ms | MRR | shared | p50 ms | p95 ms | p99 ms | cut |\n|---|---:|---:|---:|---:|---:|---:|")
    for seconds in (None, *arguments.seconds):
        results, times = (unbounded, times) if seconds is None else complete_all(completer(seconds), prefixes)
        middle, late, slow = np.percentile(times, (50, 95, 99))
        cut = sum(result.is_cut for result in results)
        name = "none" if seconds is None else f"{1e3 * seconds:g}"
        figures = f"{reciprocal_rank(results, texts):.4f} | {shared_suggestions(results, unbounded):.3f}"
        print(f"| {name} | {figures} | {middle:.1f} | {late:.1f} | {slow:.1f} | {cut} |")


if __name__ == "__main__":
    main()
