"""The sparse softmax bias: zero for an uninformative context, nonzero for an informative word, optimal at the end."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from factorcell.runs.run import Run
from factorcell.training.fit import fit
from factorcell.training.proximal import sparse_bias_of
from factorcell.training.trainer import Trainer
from tests import small_runs

CITIES, WORDS, FAVOURITE = ("a", "b", "c", "d"), 60, "w7"
OPTIONS: dict[str, Any] = {
    **{"context": ["city"], "min_context_count": 1, "tokenizer": "space", "min_count": 1, "hidden_size": 8},
    **{"embedding_size": 8, "adapt": [], "output_bias": ["sparse"], "sparse_l1": ["0.005"]},
    **{"epochs": 6, "batch_tokens": 1000, "learning_rate": 0.01, "evaluations": 1},
}


def make_texts(count: int, factor: float = 1.0) -> list[dict[str, str]]:
    """Return random texts; in the city b the weight of `FAVOURITE` is multiplied by `factor`."""
    random = np.random.default_rng(0)
    zipf = 1 / np.arange(2, WORDS + 2)
    rows = []
    for _ in range(count):
        city, weights = random.choice(CITIES), zipf.copy()
        weights[7] *= factor if city == "b" else 1.0
        words = random.choice(WORDS, 8, p=weights / weights.sum())
        rows.append({"city": str(city), "text": " ".join(f"w{word}" for word in words)})
    return rows


def train_run(folder: Path, factor: float, **model: Any) -> Run:
    """Train a run whose only adaptation is the sparse bias."""
    rows = make_texts(1500, factor)
    return fit(rows[:1400], dev=rows[1400:], out=folder, **{**OPTIONS, **model})


def nonzero_share(run: Run) -> float:
    """Return the share of coefficients that are not zero."""
    (row,) = json.loads((run.folder / "training.json").read_text())["sparse_bias"]
    assert row["coefficients"] == len(run.tokenizer) * 5
    return float(row["nonzero"] / row["coefficients"])


def test_a_sparse_bias_stays_zero_on_noise(tmp_path: Path) -> None:
    run = train_run(tmp_path / "run", 1.0)
    assert nonzero_share(run) < 0.01
    bias = sparse_bias_of(run)
    assert bias is not None
    assert int((bias.weight == 0).sum()) >= 0.99 * bias.weight.numel()


def test_a_sparse_bias_finds_the_informative_word(tmp_path: Path) -> None:
    run = train_run(tmp_path / "run", 4.0)
    bias = sparse_bias_of(run)
    assert bias is not None
    weight = bias.weight.detach()
    token, column = run.tokenizer.encode([FAVOURITE])[0], run.schema.variables[0].values.index("b")
    assert 0.5 < float(weight[token, column]) < np.log(4)
    assert float(weight.abs().amax()) == float(weight[token, column])
    assert nonzero_share(run) < 0.03
    again = Run.open(run.folder)
    b, c = (row["nats"] for row in again.score_rows([{"text": FAVOURITE, "city": city} for city in "bc"]))
    assert b < c - 0.3


def test_training_minimizes_the_penalized_loss(tmp_path: Path) -> None:
    options: dict[str, Any] = {"epochs": 600, "batch_tokens": 10_000, "learning_rate": 0.05}
    options |= {"evaluations": 1, "sparse_l1": ["0.001", "stars=0.004"]}
    torch.manual_seed(0)
    run = small_runs.make_run(tmp_path / "run", training=options, adapt=(), output_bias=("sparse",))
    corpus = run.prepare(small_runs.ROWS)
    trainer = Trainer(run, corpus, corpus)
    for batch in trainer.batches():
        trainer.step(batch)
    bias = sparse_bias_of(run)
    assert bias is not None
    run.model.zero_grad()
    (run.model(corpus.batch(np.arange(len(corpus)))).sum() / corpus.target_count).backward()
    gradient, weight = bias.weight.grad, bias.weight.detach()
    assert gradient is not None
    l1 = torch.tensor([0.001] * 3 + [0.004] * 3).expand_as(weight)
    nonzero = weight != 0
    assert torch.allclose(gradient[nonzero], -(l1 * weight.sign())[nonzero], atol=2e-4)
    assert bool((gradient.abs() <= l1 + 2e-4)[~nonzero].all())
    for part in (nonzero[:, :3], nonzero[:, 3:]):
        assert 0 < int(part.sum()) < part.numel()


def test_penalized_tables_are_dense_with_a_sampled_loss(tmp_path: Path) -> None:
    nonzero_counts = []
    for l1 in ("10", "0"):
        options = {"samples": 5, "epochs": 3, "batch_tokens": 40, "sparse_l1": [l1]}
        run = small_runs.make_run(tmp_path / l1, training=options, output_bias=("low_rank", "sparse"))
        trainer = Trainer(run, run.prepare(small_runs.ROWS), run.prepare(small_runs.ROWS))
        bias = sparse_bias_of(run)
        assert bias is not None
        with torch.no_grad():
            bias.weight.zero_()
        assert bool(trainer.penalties) == (l1 == "10") == (not trainer.row_optimizers)
        for batch in trainer.batches():
            trainer.step(batch)
        trainer.catch_up()
        nonzero_counts.append(int((bias.weight != 0).sum()))
    assert nonzero_counts[0] == 0 < nonzero_counts[1]
