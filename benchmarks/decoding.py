"""Generate texts in contexts: the speed of each decoder, compared with the model's steps alone.

    python benchmarks/decoding.py runs/hotels --column rating --tokens 70 --out decoding.jsonl

Every contender generates texts of exactly `--tokens` tokens, for all values of a column in turn, in random order within
each round; a figure is the median of the rounds (wall-clock). "Rows" are hypotheses that the model evaluates: one per
token for plain sampling, 120 for a stochastic beam. The limit is `LanguageModel.step` alone, on as many texts at once
as a decoder takes, with one context each. Run nothing else on the machine.
"""

import argparse
import json
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from factorcell.config import PRECISIONS
from factorcell.generation.generate import (
    GenerationOptions,
    category_values,
    generate,
    new_task,
)
from factorcell.generation.writing import MAX_TEXTS_PER_STEP, Constraints
from factorcell.nn.kernels import library
from factorcell.runs.run import Run

LIMIT = "the steps alone"


def decoders(tokens: int) -> dict[str, GenerationOptions]:
    """Return the contenders; the stochastic beam is that of the thesis."""
    length: dict[str, Any] = {"max_tokens": tokens, "min_tokens": tokens}
    return {
        "sample": GenerationOptions(**length),
        "sample, top p .9": GenerationOptions(**length, top_p=0.9),
        "sample, no repeated trigram": GenerationOptions(**length, no_repeat_ngram=3),
        "greedy": GenerationOptions("greedy", **length),
        "beam 8": GenerationOptions("beam", **length),
        "stochastic beam 8 of 120": GenerationOptions("stochastic", **length, no_repeat_ngram=3),
    }


class Bench:
    """A run, the number of rows that its model evaluated, and the rates of each contender."""

    def __init__(self, run: Run, column: str, tokens: int) -> None:
        self.run, self.tokens, self.rows = run, tokens, 0
        self.contexts = [{column: value} for value in category_values(run.schema, column)]
        self.rates: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for owner, name in ((run.model, "step"), (run.model.backbone, "forward")):  # forward: in compiled decoding
            setattr(owner, name, self._count_rows(getattr(owner, name)))

    def _count_rows(self, read: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that also counts the rows that it evaluates."""

        def counted(inputs: torch.Tensor, *rest: Any) -> Any:
            self.rows += len(inputs)
            return read(inputs, *rest)

        return counted

    def write(self, name: str, options: GenerationOptions, texts: int) -> None:
        """Generate `texts` texts."""
        contexts = [self.contexts[number % len(self.contexts)] for number in range(texts)]
        self.rows, begin = 0, time.perf_counter()
        tokens = sum(row["tokens"] for row in generate(self.run, contexts, options=options))
        self.record(name, time.perf_counter() - begin, tokens)

    def steps(self, count: int) -> None:
        """Run `count` steps of the model and nothing else."""
        with self.run.scoring():
            corpus = self.run.read([""] * len(self.contexts), self.contexts)
            conditioning = new_task(self.run, corpus, range(len(corpus)), Constraints()).conditioning
            conditioning = conditioning.select(torch.arange(MAX_TEXTS_PER_STEP) % len(self.contexts))
            token, states = torch.randint(3, len(self.run.tokenizer), (MAX_TEXTS_PER_STEP,)), None
            self.rows, begin = 0, time.perf_counter()
            for _ in range(count):
                _, states = self.run.model.step(token, conditioning, states)
            self.record(LIMIT, time.perf_counter() - begin, self.rows)

    def record(self, name: str, seconds: float, tokens: int) -> None:
        """Record a round of one contender."""
        self.rates[name]["tokens_per_second"].append(tokens / seconds)
        self.rates[name]["rows_per_second"].append(self.rows / seconds)

    def figures(self) -> list[dict[str, Any]]:
        """Return a row for each contender; `share` compares its rows per second with the limit."""
        medians = {
            name: {what: statistics.median(values) for what, values in rates.items()}
            for name, rates in self.rates.items()
        }
        limit = medians[LIMIT]["rows_per_second"]
        return [
            {"contender": name, **figures, "share": figures["rows_per_second"] / limit}
            for name, figures in medians.items()
        ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description="Generate texts in contexts: tokens per second of each decoder.")
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("--column", required=True, help="context column; the texts have its values in turn")
    parser.add_argument("--tokens", type=int, default=70, help="tokens of a text (default: 70)")
    parser.add_argument("--texts", type=int, default=256, help="texts of a round, fewer for beams (default: 256)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", choices=PRECISIONS, default="float32", help="numbers in matrix products")
    parser.add_argument("--out", type=Path, help="file that JSON lines are appended to")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    bench = Bench(Run.open(options.run, precision=options.precision), options.column, options.tokens)
    contenders = decoders(options.tokens)
    for _ in range(options.rounds):
        for name in random.sample([LIMIT, *contenders], len(contenders) + 1):
            if name == LIMIT:
                bench.steps(max(1, options.texts * options.tokens // MAX_TEXTS_PER_STEP))
            else:
                is_beam = contenders[name].method in ("beam", "stochastic")
                bench.write(name, contenders[name], max(8, options.texts // (32 if is_beam else 1)))
    rows = bench.figures()
    print("| | tokens/s | rows/s | share of the limit |\n|---|---:|---:|---:|")
    for row in rows:
        rates = f"{row['tokens_per_second']:,.0f} | {row['rows_per_second']:,.0f}"
        print(f"| {row['contender']} | {rates} | {row['share']:.2f} |")
    if options.out:
        with options.out.open("a", encoding="utf-8") as file:
            for row in rows:
                about = {"threads": options.threads, "precision": options.precision, "kernel": library.variant()}
                file.write(json.dumps({"what": "decoding", **about, **row}) + "\n")


if __name__ == "__main__":
    main()
