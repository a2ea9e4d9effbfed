"""Minutes until a perplexity is reached: this package compared with `nn.LSTM` and `cross_entropy` in plain PyTorch.

    python benchmarks/time_to_quality.py TABLE DEV --recipe experiments/agnews_words.toml --goal 120 --threads 2

All models have the sizes, dropout, rate, schedule and batches of the recipe; the plain model has four gates and no
context. Perplexity is over all targets of the first 1,000 development texts, which all models evaluate equally often;
minutes are wall-clock, with evaluations. Run nothing else on the machine.
"""

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import speed
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from factorcell.config import MODELS, PRECISIONS, Config, RecurrentOptions
from factorcell.data.corpus import Batch, Corpus
from factorcell.data.preparation import prepare
from factorcell.runs.run import Run
from factorcell.training.optimization import MAX_GRADIENT_NORM
from factorcell.training.trainer import train

EVALUATIONS = 2  # per pass
PLAIN = "nn.LSTM, cross_entropy"
Evaluation = tuple[float, float]  # passes over the training texts, perplexity


class PlainModel(nn.Module):
    """A straightforward model: shared input and output embeddings, `nn.LSTM` and a projection."""

    def __init__(self, config: Config, size: int) -> None:
        super().__init__()
        options, width = config.backbone, config.model.embedding_size
        assert isinstance(options, RecurrentOptions)
        self.embedding = nn.Embedding(size, width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.lstm = nn.LSTM(width, options.hidden_size, batch_first=True)
        self.projection = nn.Linear(options.hidden_size, width, bias=False)
        self.bias = nn.Parameter(torch.zeros(size))
        self.rates = options.dropout_input, options.dropout_output

    def forward(self, batch: Batch) -> Tensor:
        """Return the nats of all targets (N,) of a batch."""
        before, after = self.rates
        inputs = F.dropout(self.embedding(batch.tokens[:, :-1]), before, self.training)
        hidden = F.dropout(self.lstm(inputs)[0], after, self.training)
        inside = batch.mask()
        logits = F.linear(self.projection(hidden[inside]), self.embedding.weight, self.bias)
        return F.cross_entropy(logits, batch.tokens[:, 1:][inside], reduction="none")


def plain(config: Config, corpus: Corpus, dev: Corpus) -> Iterator[Evaluation]:
    """Train the plain model and yield its evaluations."""
    training = config.training
    torch.manual_seed(training.seed)
    model = PlainModel(config, len(corpus.tokenizer))
    optimizer = torch.optim.Adam(model.parameters(), training.learning_rate)
    passes = math.ceil(training.epochs)
    order = [rows for epoch in range(passes) for rows in corpus.batches(training.batch_tokens, training.seed, epoch)]
    interval = max(1, len(order) // (passes * EVALUATIONS))
    for step, rows in enumerate(order, 1):
        for group in optimizer.param_groups:
            group["lr"] = training.learning_rate * (1 + math.cos(math.pi * step / len(order))) / 2
        optimizer.zero_grad()
        model.train()(corpus.batch(rows)).mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
        optimizer.step()
        if step % interval == 0:
            with torch.no_grad():
                nats = [model.eval()(dev.batch(part)).sum() for part in dev.batches(training.batch_tokens)]
            yield step * passes / len(order), math.exp(float(torch.stack(nats).sum()) / dev.target_count)


def factorcell(config: Config, corpus: Corpus, dev: Corpus) -> Iterator[Evaluation]:
    """Train a model of this package and yield its evaluations."""
    evaluations = math.ceil(config.training.epochs) * EVALUATIONS
    config = replace(config, training=replace(config.training, evaluations=evaluations))
    with tempfile.TemporaryDirectory() as folder:
        run = Run.create(Path(folder) / "run", config, corpus.tokenizer, corpus.schema)
        for row in train(run, corpus, dev):
            if row["split"] == "dev":
                yield row["step"] / row["steps"] * config.training.epochs, row["perplexity"]


def time_to_goal(name: str, evaluations: Iterator[Evaluation], goal: float, minutes: float) -> dict[str, Any]:
    """Return the minutes until the perplexity is at most `goal`, or the perplexity after `minutes`."""
    begun, best, passes, spent = time.perf_counter(), math.inf, 0.0, 0.0
    for passes, perplexity in tqdm(evaluations, desc=name, unit="evaluation"):
        spent, best = (time.perf_counter() - begun) / 60, min(best, perplexity)
        tqdm.write(f"{name}: {spent:.1f} minutes, {passes:.2f} passes, perplexity {perplexity:.1f}", file=sys.stderr)
        if best <= goal or spent > minutes:
            break
    reached = {"passes": round(passes, 2), "minutes": round(spent, 2), "perplexity": round(best, 2)}
    return {"what": name, "goal": goal, "reached": best <= goal, **reached}


def main() -> None:
    """Train the models in turn, print and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, help="training texts")
    parser.add_argument("dev", type=Path, help="development texts")
    parser.add_argument("--recipe", type=Path, required=True)
    parser.add_argument("--models", nargs="+", default=[PLAIN, "unadapted", "factorcell"], choices=[PLAIN, *MODELS])
    parser.add_argument("--precision", default="float32", choices=PRECISIONS, help="precision of this package's models")
    parser.add_argument("--epochs", type=float, help="passes of the schedule (default: from the recipe)")
    parser.add_argument("--goal", type=float, default=120.0, help="perplexity (default: 120)")
    parser.add_argument("--minutes", type=float, default=60.0, help="time limit of each model (default: 60)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="file that JSON lines are appended to")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    config = Config.of(config=arguments.recipe)
    changes = {"threads": arguments.threads, "epochs": arguments.epochs or config.training.epochs, "patience": 0}
    config = replace(config, training=replace(config.training, precision=arguments.precision, **changes))
    corpus = prepare(arguments.table, config)
    dev = prepare(arguments.dev, config, tokenizer=corpus.tokenizer, schema=corpus.schema, unknown="group")
    dev = dev.select(np.arange(1000))
    for name in arguments.models:
        adapted = config if name == PLAIN else config.with_options(model=name)
        evaluations = (plain if name == PLAIN else factorcell)(adapted, corpus, dev)
        speed.write_row(
            time_to_goal(name, evaluations, arguments.goal, arguments.minutes) | {"threads": arguments.threads},
            arguments.out,
        )


if __name__ == "__main__":
    main()
