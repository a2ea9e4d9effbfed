"""Training and scoring compared with the plain path and with PyTorch's own functions, in one process.

    python benchmarks/speed.py --threads 2 --repeats 7 --out speed.jsonl

All contenders run in random order; a figure is the median of its repeats, fewer for calls that take long. Limits are
measured among them: a large matrix product (by PyTorch's library, which does not reach the peak rate of some
processors) and a sweep over memory. Contenders in bfloat16 run only if the instruction set multiplies bfloat16: a large
product without such instructions takes a minute. Writes one JSON object per measurement, and describes the machine.

To measure a narrower instruction set than the processor's best one, set it for the compiled code and for PyTorch:

    FACTORCELL_KERNEL=avx2 ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 \
        python benchmarks/speed.py

A training changes how its process allocates memory, so it is better to measure each group in a separate process, as
`ratios.py` does.

Words: e 200, d 240, rank 12, context 30, batches of 100 texts of 40 words. Characters: e 24, d 600, rank 60.
"""

import argparse
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from factorcell.config import Config, RecurrentOptions, WordOptions
from factorcell.data.columns.context import Ragged
from factorcell.data.columns.schema import UNKNOWN_VALUE, ContextSchema, Variable
from factorcell.data.corpus import Corpus, target_frequencies
from factorcell.data.tokenizers.tokenizer import END, SPECIAL_TOKENS, START, WordTokenizer
from factorcell.nn.backbones.backbone import BackboneSizes
from factorcell.nn.backbones.recurrent import Cell
from factorcell.nn.kernels import library as kernels
from factorcell.nn.kernels import softmax
from factorcell.nn.output import Proposal
from factorcell.runs.run import Run
from factorcell.training.trainer import Trainer

Once = Callable[[], object]
CONTEXT, WORDS = 30, 50_000
INSTRUCTION_SET = os.environ.get("FACTORCELL_KERNEL", "")  # of the compiled code; empty: the best one
MAX_SECONDS, MIN_REPEATS = 5.0, 3  # of the repeats of a contender; a slow contender has at least the minimum


@dataclass(frozen=True)
class Work:
    """One contender: the function `once`, its `tokens`, its `operations`, and its kernel ("": the compiled code)."""

    group: str
    what: str
    once: Once
    tokens: int = 0
    operations: float = 0.0
    kernel: str = ""
    precision: str = "float32"


def cell_work(name: str, shape: dict[str, int], layer_norm: bool) -> list[Work]:
    """Return forward and backward passes of one layer; PyTorch's LSTM has four gates and no adapters."""
    batch, steps, embedding, hidden, rank = shape.values()
    inputs = torch.randn(batch, steps, embedding, requires_grad=True)
    gradient = torch.randn(batch, steps, hidden)

    def layer(adapt: tuple[str, ...]) -> Once:
        sizes = BackboneSizes(embedding, CONTEXT, adapt, rank)
        cell = Cell(RecurrentOptions(hidden_size=hidden, layer_norm=layer_norm), sizes)
        vector = torch.randn(batch, CONTEXT, requires_grad=True)

        def once() -> None:
            cell.zero_grad()
            outputs, _ = cell(inputs, cell.linear.condition(vector))
            outputs.backward(gradient.to(outputs.dtype))

        return once

    def library() -> Once:
        lstm = torch.nn.LSTM(embedding, hidden, batch_first=True)

        def once() -> None:
            lstm.zero_grad()
            lstm(inputs)[0].backward(gradient)

        return once

    def cost(rank: int, gates: int = 3) -> float:
        width = embedding + hidden
        return 3.0 * 2 * batch * steps * (width * gates * hidden + rank * (width + gates * hidden))

    both, tokens = ("concat", "factor"), batch * steps
    return [
        Work(name, "nn.LSTM, no adapters", library(), tokens, cost(0, 4)),
        Work(name, "plain loop", layer(both), tokens, cost(rank), "off"),
        Work(name, "compiled, no adapters", layer(("concat",)), tokens, cost(0)),
        Work(name, "compiled", layer(both), tokens, cost(rank)),
        Work(name, "compiled, no adapters, bfloat16", layer(("concat",)), tokens, cost(0), "", "bfloat16"),
        Work(name, "compiled, bfloat16", layer(both), tokens, cost(rank), "", "bfloat16"),
    ]


def texts(contexts: int, rows: int, length: int, vocabulary: int) -> Corpus:
    """Return texts of one length with Zipf word frequencies and random contexts."""
    generator = np.random.default_rng(0)
    shares = 1 / np.arange(1, vocabulary - 2) ** 1.05
    tokens = generator.choice(np.arange(3, vocabulary), (rows, length + 1), p=shares / shares.sum())
    tokens[:, 0], tokens[:, -1] = START, END
    categories = generator.integers(1, contexts + 1, (rows, 1)).astype(np.int32)
    names = (UNKNOWN_VALUE, *(f"c{index}" for index in range(contexts)))
    schema = ContextSchema((Variable("context", "category", values=names, counts=(1,) * len(names)),))
    words = (*SPECIAL_TOKENS, *(f"w{index}" for index in range(3, vocabulary)))
    tokenizer = WordTokenizer(WordOptions(), words)
    offsets = np.arange(rows + 1) * (length + 1)
    unknown = Ragged(np.zeros(0, np.int32), np.zeros(len(offsets), np.int64))
    return Corpus(tokens.ravel(), offsets, categories, np.zeros((rows, 0), np.float32), unknown, (), tokenizer, schema)


def trainer(corpus: Corpus, length: int, precision: str = "float32") -> Trainer:
    """Return the trainer of a FactorCell of the published size before its first step."""
    sizes = {"embedding_size": 200, "hidden_size": 240, "rank": 12, "context_size": CONTEXT}
    training = {"samples": 150, "batch_tokens": 100 * length, "epochs": 1e3, "precision": precision}
    run = Run(Path(), Config.of(**sizes, **training), corpus.tokenizer, corpus.schema)
    return Trainer(run, corpus, corpus.select(np.arange(2)))


def plain_step(corpus: Corpus, length: int) -> Once:
    """Return a step of the plain path: shared samples, dense gradients, Adam over all rows."""
    model = trainer(corpus, length).run.model.train()
    proposal = Proposal(torch.from_numpy(target_frequencies(corpus)), 150)
    optimizer = torch.optim.Adam(model.parameters())
    batches = corpus.batches(100 * length, seed=0)

    def once() -> None:
        batch = corpus.batch(random.choice(batches))
        loss = model.sampled_nats(batch, proposal.draw()).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()

    return once


def step_work() -> list[Work]:
    """Return training steps on 4,000 words, for few and for many contexts, and for texts of half the length."""
    name, few, many = f"training step, {WORDS:,} words", texts(1, 2000, 40, WORDS), texts(5800, 2000, 40, WORDS)

    def trained_step(corpus: Corpus, length: int = 40, precision: str = "float32") -> Once:
        fresh_trainer = trainer(corpus, length, precision)
        batches = fresh_trainer.batches()
        return lambda: fresh_trainer.step(next(batches))

    return [
        Work(name, "plain path", plain_step(many, 40), 4000, 0, "off"),
        Work(name, "compiled", trained_step(many), 4000),
        Work(name, "compiled, bfloat16", trained_step(many, 40, "bfloat16"), 4000, precision="bfloat16"),
        Work(name, "compiled, one context", trained_step(few), 4000),
        Work(name, "compiled, texts half as long", trained_step(texts(5800, 2000, 20, WORDS), 20), 2000),
    ]


def score_work() -> list[Work]:
    """Return calls for exact nats of 4,000 targets among 50,000 words, without and with gradients."""
    count, width = 4000, 216
    values, table = torch.randn(count, width) * 0.3, torch.randn(WORDS, width) * 0.3
    bias, targets = torch.randn(WORDS), torch.randint(WORDS, (count,))
    cost = 2.0 * count * width * WORDS

    def library(rows: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(torch.addmm(bias, rows, table.T), targets, reduction="none")

    def compiled(rows: torch.Tensor) -> torch.Tensor:
        return softmax.nats(rows, table, bias, targets)

    def scored(function: Callable[[torch.Tensor], torch.Tensor]) -> Once:
        def once() -> None:
            with torch.inference_mode():
                function(values)

        return once

    def learned(function: Callable[[torch.Tensor], torch.Tensor]) -> Once:
        leaf = values.clone().requires_grad_()
        weight = table.requires_grad_()

        def once() -> None:
            leaf.grad = weight.grad = None
            function(leaf).sum().backward()  # type: ignore[no-untyped-call]

        return once

    name, more = f"exact nats, {WORDS:,} words", f"exact loss with gradients, {WORDS:,} words"
    return [
        Work(name, "cross_entropy", scored(library), count, cost),
        Work(name, "plain, in chunks", scored(compiled), count, cost, "off"),
        Work(name, "compiled", scored(compiled), count, cost),
        Work(name, "compiled, bfloat16", scored(compiled), count, cost, "", "bfloat16"),
        Work(more, "cross_entropy", learned(library), count, 3 * cost),
        Work(more, "plain, in chunks", learned(compiled), count, 3 * cost, "off"),
        Work(more, "compiled", learned(compiled), count, 3 * cost),
        Work(more, "compiled, bfloat16", learned(compiled), count, 3 * cost, "", "bfloat16"),
    ]


def limits() -> list[Work]:
    """Return the limits of the machine: a product of 2 * 2048^3 operations, and a read of 256 MB."""
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    short, sweep = (a.bfloat16(), b.bfloat16()), torch.randn(64_000_000)
    return [
        Work("limit", "matrix product", lambda: torch.mm(a, b, out=torch.empty(2048, 2048)), 0, 2 * 2048.0**3),
        Work("limit", "matrix product, bfloat16", lambda: torch.mm(*short), 0, 2 * 2048.0**3, "", "bfloat16"),
        Work("limit", "memory sweep, 256 MB", lambda: sweep.sum()),
    ]


def supported_works(works: list[Work]) -> list[Work]:
    """Return the works in float32, and those in bfloat16 if the instruction set multiplies bfloat16."""
    return [work for work in works if work.precision == "float32" or kernels.has_bfloat16()]


def run_once(work: Work) -> float:
    """Run a work with its kernel and precision; return the seconds."""
    os.environ["FACTORCELL_KERNEL"] = work.kernel or INSTRUCTION_SET
    with kernels.precision(work.precision if work.group[:8] != "training" else "float32", torch.device("cpu")):
        began = time.perf_counter()
        work.once()
        return time.perf_counter() - began


def measure(works: list[Work], repeats: int) -> dict[Work, float]:
    """Return the median seconds of each, in random order, after one run that is not counted.

    A work that takes long has fewer repeats.
    """
    order: list[Work] = []
    for work in works:
        order += [work] * min(repeats, max(MIN_REPEATS, round(MAX_SECONDS / run_once(work))))
    random.Random(0).shuffle(order)
    times: dict[Work, list[float]] = {work: [] for work in works}
    for work in order:
        times[work].append(run_once(work))
    return {work: statistics.median(values) for work, values in times.items()}


BASELINES = ("plain loop", "plain path", "cross_entropy")


def rows(seconds: dict[Work, float]) -> list[dict[str, Any]]:
    """Return milliseconds, tokens per second, and rates relative to the baseline, nn.LSTM and the matrix product."""
    product = next(work.operations / spent for work, spent in seconds.items() if work.what == "matrix product")
    result = []
    for work, spent in seconds.items():
        row: dict[str, Any] = {"group": work.group, "what": work.what, "milliseconds": round(spent * 1e3, 2)}
        if work.tokens:
            row["tokens_per_second"] = round(work.tokens / spent)
        for other, time_of_other in seconds.items():
            if other.group == work.group and work.tokens:
                rate = other.tokens / time_of_other
                if other.what in BASELINES:
                    row["times_baseline"] = round(work.tokens / spent / rate, 2)
                if other.what.startswith("nn.LSTM"):
                    row["times_lstm"] = round(work.tokens / spent / rate, 2)
        if work.operations:
            row["gflops"] = round(work.operations / spent / 1e9)
            row["share_of_product"] = round(work.operations / spent / product, 2)
        result.append(row)
    return result


GROUPS: dict[str, Callable[[], list[Work]]] = {
    "words": lambda: cell_work("layer, words", dict(zip("bsehr", (100, 40, 200, 240, 12), strict=True)), False),
    "characters": lambda: cell_work(
        "layer with normalisation, characters", dict(zip("bsehr", (48, 60, 24, 600, 60), strict=True)), True
    ),
    "step": step_work,
    "score": score_work,
}


def write_row(row: dict[str, Any], out: Path | None) -> None:
    """Print one row, and append it to the file `out`."""
    line = json.dumps(row)
    print(line)
    if out:
        with out.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def main() -> None:
    """Measure, print and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--out", type=Path, help="file that JSON lines are appended to")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    random.seed(0)
    about = {
        "processor": next((line.split(": ")[1] for line in _processor() if "model name" in line), platform.machine()),
        "cores": os.cpu_count(),
        "threads": arguments.threads,
        "torch": torch.__version__,
        "kernel": kernels.variant(),
    }
    works = supported_works([work for name in arguments.groups for work in GROUPS[name]()] + limits())
    measured = rows(measure(works, arguments.repeats))
    for row in measured:
        write_row({**row, **about}, arguments.out)


def _processor() -> list[str]:
    """Return the lines of /proc/cpuinfo."""
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


if __name__ == "__main__":
    main()
