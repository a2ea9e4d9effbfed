"""Measure the cost of checking the arguments of compiled functions before each call, next to the work itself.

    python benchmarks/checks.py

The checks are timed within the calls, on one thread, so other work on the machine affects both times alike; figures
are medians. The share of a whole step or completion is smaller than that of the calls measured here.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from factorcell.completion.compiled import CompiledEngine
from factorcell.completion.search import SearchRequest
from factorcell.config import Config, RecurrentOptions
from factorcell.data.preparation import prepare
from factorcell.nn.backbones.backbone import BackboneSizes
from factorcell.nn.backbones.recurrent import Cell
from factorcell.nn.kernels import signatures, softmax
from factorcell.nn.packing import PackedModel
from factorcell.runs.run import Run
from factorcell.training.row_adam import RowAdam

WORDS = 50_000
LETTERS = 104


class Clock:
    """Seconds that are spent inside the checks."""

    def __init__(self) -> None:
        self.spent, self.inside = 0.0, False

    def watch(self, owner: object, name: str) -> None:
        """Count the time of a method from now on."""
        method = getattr(owner, name)

        def timed(*positional: Any, **keywords: Any) -> Any:
            if self.inside:
                return method(*positional, **keywords)
            self.inside, begin = True, time.perf_counter()
            try:
                return method(*positional, **keywords)
            finally:
                self.spent, self.inside = self.spent + time.perf_counter() - begin, False

        setattr(owner, name, timed)

    def measure(self, work: Callable[[], object], repeats: int) -> tuple[float, float]:
        """Return the median seconds of the work, and those spent in checks."""
        totals, checks = [], []
        for number in range(repeats + 3):
            self.spent, begin = 0.0, time.perf_counter()
            work()
            if number >= 3:
                totals.append(time.perf_counter() - begin)
                checks.append(self.spent)
        return statistics.median(totals), statistics.median(checks)


def recurrent_pass(texts: int, steps: int, width: int, hidden: int, rank: int) -> Callable[[], object]:
    """Return the forward and backward pass of the recurrent layer over texts of any length."""
    options = RecurrentOptions(hidden_size=hidden, dropout_recurrent=0.2)
    cell = Cell(options, BackboneSizes(width, 20, ("factor",), rank))
    inputs, context, lengths = torch.randn(texts, steps, width), torch.randn(texts, 20), torch.full((texts,), steps)

    def work() -> None:
        outputs, _ = cell(inputs, cell.linear.condition(context), lengths=lengths)
        outputs.sum().backward()

    return work


def softmax_sums(targets: int) -> Callable[[], object]:
    """Return the softmax sums over all words."""
    values, table, bias = torch.randn(targets, 100), torch.randn(WORDS, 100), torch.zeros(WORDS)
    return lambda: softmax.log_sums(values, table, bias)


def adam_step(count: int) -> Callable[[], object]:
    """Return a step of Adam on rows of a table of words, with the catch-up of rows that earlier steps skipped."""
    adam = RowAdam([nn.Parameter(torch.randn(WORDS, 100))], 100_000, 0.0)
    gradient, rows = torch.randn(count, 100), torch.randperm(WORDS)[:count].sort().values

    def work() -> None:
        adam.catch_up(rows)
        adam.step(0.01, rows, [gradient])

    return work


def typing_and_search() -> tuple[Callable[[], object], Callable[[], object]]:
    """Return typing one more letter, and ten completions, with a model of the published size."""
    letters = "".join(map(chr, range(48, 48 + LETTERS)))
    model = {"hidden_size": 600, "embedding_size": 24, "rank": 60, "context_size": 40, "adapt": ("factor",)}
    data = {"context": ("city",), "tokenizer": "char", "min_count": 1, "min_context_count": 1}
    config = Config.of(**{**data, **model, "layer_norm": True})
    corpus = prepare([{"text": letters, "city": city} for city in ("Oslo", "Nice")], config)
    run = Run(folder=Path("none"), config=config, tokenizer=corpus.tokenizer, schema=corpus.schema)
    packed = PackedModel.from_model(run.model)
    assert packed is not None, "the compiled kernels are missing"
    engine = CompiledEngine(run.model, packed)
    with torch.inference_mode():
        typed = engine.read_prefix(engine.begin(corpus.context(np.zeros(1, np.int64))), run.tokenizer.encode("ab"))
    ids, more = typed.ids, run.tokenizer.encode("c")
    request = SearchRequest(typed, 10, 5, lambda ids: ids or None, deadline=0.02)
    return lambda: engine.read_prefix(typed, [*ids, *more]), lambda: engine.search(request)


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repeats", type=int, default=50)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    torch.manual_seed(0)
    letter, search = typing_and_search()
    contenders = {
        "layer of 240, 64 texts of 20 words, forward and backward": recurrent_pass(64, 20, 100, 240, 12),
        "layer of 240, 1 text of 20 words, forward and backward (a user is learned)": recurrent_pass(
            1, 20, 100, 240, 12
        ),
        "softmax sums of 500 targets, 50,000 words": softmax_sums(500),
        "softmax sums of 1 target, 50,000 words": softmax_sums(1),
        "Adam step of 2,000 rows of a table, with their catch-up": adam_step(2000),
        "one letter typed": letter,
        "a search for ten completions, 20 ms": search,
    }
    clock = Clock()
    for signature in vars(signatures).values():
        if isinstance(signature, signatures.Signature):
            for method in ("sizes", "checked_addresses", "checked_arguments"):
                clock.watch(signature, method)
    print("| work | milliseconds | checks, microseconds | share |\n|---|---:|---:|---:|")
    measured = {name: clock.measure(contenders[name], repeats) for name in random.sample(list(contenders), 7)}
    for name in contenders:
        total, checks = measured[name]
        print(f"| {name} | {total * 1e3:.2f} | {checks * 1e6:.0f} | {checks / total:.2%} |")


if __name__ == "__main__":
    main()
