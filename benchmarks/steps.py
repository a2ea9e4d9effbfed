"""Time of the parts of a training step, by recipe.

    python benchmarks/steps.py agnews_words/train.parquet --config experiments/agnews_words.toml --threads 1

Each part is timed without the parts that it calls, so all of them add up to the step. "Backward, other" is the work of
PyTorch in the backward pass: products of small layers, sums, its own overhead. Figures are means over the steps, in
milliseconds of processor time (of all threads), which other work on the machine changes little, and as shares of the
step. Prints a Markdown table.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from factorcell.adapters.encoder import ContextEncoder
from factorcell.config import Config
from factorcell.data.corpus import Corpus
from factorcell.data.preparation import prepare
from factorcell.nn.backbones.recurrent import RecurrentBackbone
from factorcell.nn.kernels import library, softmax
from factorcell.nn.language_model import LanguageModel
from factorcell.nn.output import Proposal, SoftmaxHead
from factorcell.runs.run import Run
from factorcell.training.row_adam import RowAdam
from factorcell.training.trainer import Trainer

# The timed functions: owner, name, and label in the table.
PARTS: list[tuple[Any, str, str]] = [
    (Corpus, "batch", "next batch"),
    (Proposal, "draw", "drawing samples"),
    (SoftmaxHead, "sampled_rows", "row lookup"),
    (RowAdam, "catch_up", "row catch-up, other"),
    (RowAdam, "read", "row reads"),
    (ContextEncoder, "variable_embeddings", "context"),
    (ContextEncoder, "join", "context"),
    (LanguageModel, "sampled_nats", "forward, other"),
    (LanguageModel, "forward", "forward, other"),
    (RecurrentBackbone, "condition", "adapters"),
    (RecurrentBackbone, "forward", "recurrence, around it"),
    (SoftmaxHead, "sampled_nats", "softmax, around it"),
    (SoftmaxHead, "nats", "softmax, around it"),
    (softmax._CompiledSampled, "forward", "softmax, around it"),
    (softmax._CompiledSampled, "backward", "softmax, around it"),
    (softmax._Compiled, "forward", "softmax, around it"),
    (softmax._Compiled, "backward", "softmax, around it"),
    (torch.autograd, "backward", "backward, other"),
    (torch.nn.utils, "get_total_norm", "gradient norm"),
    (RowAdam, "step", "row step, other"),
    (torch.optim.AdamW, "step", "dense step"),
]
COMPILED = {
    ("recurrence", (False,)): "recurrence, forward",
    ("recurrence", (True,)): "recurrence, backward",
    ("softmax", ()): "softmax, forward",
    ("softmax_gradient", ()): "softmax, backward",
    ("rows", (True,)): "row catch-up",
    ("rows", (False,)): "row step",
}


class Clock:
    """Seconds of each part, without those of the parts inside it."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self.inside = [0.0]  # for each active part, seconds of the parts inside it

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time within this context for `name`."""
        self.inside.append(0.0)
        start = time.process_time()
        try:
            yield
        finally:
            whole = time.process_time() - start
            self.spent[name] += whole - self.inside.pop()
            self.inside[-1] += whole

    def watch(self, owner: Any, name: str, part_of_call: Callable[..., str]) -> None:
        """Count the time of a function from now on, for the part that `part_of_call` returns for its arguments."""
        function = getattr(owner, name)

        def timed(*positional: Any, **keywords: Any) -> Any:
            with self.part(part_of_call(*positional)):
                return function(*positional, **keywords)

        setattr(owner, name, staticmethod(timed) if hasattr(owner, "save_for_backward") else timed)


def measure(trainer: Trainer, steps: int) -> dict[str, float]:
    """Return the milliseconds of the parts of a step, after a quarter as many steps that are not counted."""
    clock, batches = Clock(), trainer.batches()
    for owner, name, part in PARTS:
        clock.watch(owner, name, lambda *_, part=part: part)
    clock.watch(library, "call", lambda function, arguments, number, *flags: COMPILED[function, flags])
    clock.watch(Trainer, "step", lambda *_: "step, other")
    for step in range(steps + steps // 4):
        if step == steps // 4:
            clock.spent.clear()
        trainer.step(next(batches))
    return {name: seconds * 1e3 / steps for name, seconds in clock.spent.items()}


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description="Measure the parts of a training step.")
    parser.add_argument("table", type=Path)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    config = Config.of(config=arguments.config).with_options(model="factorcell")
    config = replace(config, training=replace(config.training, precision=arguments.precision))
    corpus = prepare(arguments.table, config)
    run = Run(Path(), config, corpus.tokenizer, corpus.schema)
    spent = measure(Trainer(run, corpus, corpus.select(np.arange(2))), arguments.steps)
    whole = sum(spent.values())
    print("| part | milliseconds | share |\n|---|---:|---:|")
    for name, milliseconds in sorted(spent.items(), key=lambda item: -item[1]):
        print(f"| {name} | {milliseconds:.2f} | {milliseconds / whole:.1%} |")
    print(f"| all | {whole:.2f} | |")


if __name__ == "__main__":
    main()
