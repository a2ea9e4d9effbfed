"""Training: learning rates, evaluations, best weights, and context dropout."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from factorcell.config import Config
from factorcell.data.corpus import Corpus, target_frequencies
from factorcell.data.preparation import prepare
from factorcell.runs.run import Run
from factorcell.training.schedule import learning_rate
from factorcell.training.trainer import Trainer, train
from tests.small_runs import as_any

Dialects = Callable[[int, int], tuple[list[dict[str, str]], float]]


def make_run(
    folder: Path, rows: list[dict[str, str]], test: list[dict[str, str]], **training: Any
) -> tuple[Run, Corpus, Corpus]:
    """Return a small run with training and development texts."""
    model = {"embedding_size": 12, "hidden_size": 20, "rank": 2, "context_size": 4, "variable_size": 4}
    model |= training.pop("model", {})
    config = Config.of(
        **{
            "context": ["dialect"],
            "min_count": 1,
            **model,
            "epochs": 1,
            "batch_tokens": 400,
            "learning_rate": 1e-2,
            "evaluations": 2,
            **training,
        }
    )
    corpus = prepare(rows, config)
    dev = prepare(test, config, tokenizer=corpus.tokenizer, schema=corpus.schema)
    return Run.create(folder, config, corpus.tokenizer, corpus.schema), corpus, dev


@pytest.fixture
def small_tables(two_dialects: Dialects) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """A few hundred training texts, and some development texts."""
    return two_dialects(300, 1)[0], two_dialects(60, 2)[0]


def test_the_best_weights_are_saved_and_patience_stops_the_training(tmp_path: Path, small_tables: Any) -> None:
    run, corpus, dev = make_run(
        tmp_path / "run", *small_tables, epochs=20, evaluations=20, learning_rate=0.1, patience=3
    )
    rows = [row for row in train(run, corpus, dev) if row["split"] == "dev"]
    perplexities = [row["perplexity"] for row in rows]
    best = int(np.argmin(perplexities))
    assert len(rows) == best + 1 + 3 < 20
    from factorcell.evaluation.perplexity import evaluate

    assert evaluate(run, dev).perplexity == pytest.approx(perplexities[best], rel=1e-6)
    assert [row["best"] for row in rows] == np.minimum.accumulate(perplexities).tolist()


def test_learning_rates_follow_the_schedule() -> None:
    rates = [learning_rate(step, 100, 2.0, 0.1) for step in range(100)]
    assert rates[:3] == pytest.approx([0.2, 0.4, 0.6])
    assert max(rates) == rates[9] == pytest.approx(2.0)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[55] == pytest.approx(1.0)
    assert rates[-1] < 0.01


def test_training_starts_at_the_unigram_frequencies(tmp_path: Path, small_tables: Any) -> None:
    run, corpus, dev = make_run(tmp_path / "run", *small_tables)
    counts = target_frequencies(corpus)
    assert counts.sum() == corpus.target_count
    Trainer(run, corpus, dev)
    expected = np.log((counts + 1) / (counts + 1).sum())
    np.testing.assert_allclose(as_any(run.model.head).bias.detach().numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize(("samples", "layer_norm"), [(0, False), (20, True)])
def test_bfloat16_products_train_as_well_as_float32(
    samples: int, layer_norm: bool, tmp_path: Path, small_tables: Any
) -> None:
    perplexities = []
    for precision in ("float32", "bfloat16"):
        options: dict[str, Any] = {
            "samples": samples,
            "epochs": 3,
            "model": {"layer_norm": layer_norm},
        }
        run, corpus, dev = make_run(tmp_path / precision, *small_tables, precision=precision, **options)
        *_, last = train(run, corpus, dev)
        perplexities.append(last["perplexity"])
        assert {parameter.dtype for parameter in run.model.parameters()} == {torch.float32}
    assert perplexities[0] != perplexities[1]
    assert perplexities[1] == pytest.approx(perplexities[0], rel=0.01)


def test_context_dropout_trains_the_unknown_value(tmp_path: Path, small_tables: Any) -> None:
    _, corpus, _ = with_dropout = make_run(tmp_path / "run", *small_tables, epochs=3, model={"dropout_context": 0.25})
    context = corpus.context(np.arange(300))
    dropped = [context.drop_categories(0.25, (0, step)).categories for step in range(40)]
    share = float(torch.stack(dropped).eq(0).float().mean())
    assert share == pytest.approx(0.25, abs=0.02)
    assert torch.equal(dropped[3], context.drop_categories(0.25, (0, 3)).categories)
    assert not torch.equal(dropped[3], dropped[4])
    unchanged = dropped[0] != 0
    assert torch.equal(dropped[0][unchanged], context.categories[unchanged])
    plain = make_run(tmp_path / "plain", *small_tables, epochs=3)
    for run, *rest in (with_dropout, plain):
        list(train(run, *rest))
    learned = [run.model.encoder.tables[0][0].norm() for run, *_ in (with_dropout, plain)]  # type: ignore[union-attr]
    assert learned[0] > 0
    assert learned[1] == 0, "no value is rare, so only dropout moves the unknown value"
