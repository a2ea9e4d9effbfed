"""Training: it reaches what is known to be reachable, resumes bit for bit, and loses nothing."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from factorcell.config import Config, TrainingConfig, UserError
from factorcell.data.cache import prepare
from factorcell.data.corpus import Corpus, target_counts
from factorcell.model.run import Run
from factorcell.training.loop import due, train
from factorcell.training.trainer import Trainer, learning_rate

Dialects = Callable[[int, int], tuple[list[dict[str, str]], float]]


def make(
    folder: Path, rows: list[dict[str, str]], test: list[dict[str, str]], **training: Any
) -> tuple[Run, Corpus, Corpus]:
    """A small run and its data."""
    model = {"embedding_size": 12, "hidden_size": 20, "rank": 2, "context_size": 4, "variable_size": 4}
    model |= training.pop("model", {})
    config = Config.from_dict(
        {
            "data": {"context": ["dialect"], "min_count": 1},
            "model": model,
            "training": {"epochs": 1, "batch_tokens": 400, "learning_rate": 1e-2, "evaluations": 2, **training},
        }
    )
    corpus = prepare(rows, config.data)
    dev = prepare(test, config.data, vocabulary=corpus.vocabulary, schema=corpus.schema)
    return Run.create(folder, config, corpus.vocabulary, corpus.schema), corpus, dev


@pytest.fixture
def few(two_dialects: Dialects) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """A few hundred texts, and some to test on."""
    return two_dialects(300, 1)[0], two_dialects(60, 2)[0]


def test_resumed_is_uninterrupted_bit_for_bit(tmp_path: Path, few: Any) -> None:
    """Stopped between any two checkpoints, a training goes on to the same weights and the same rows."""
    options: dict[str, Any] = {
        "epochs": 4,
        "save_every": 3,
        "log_every": 2,
        "model": {"dropout_output": 0.2, "dropout_recurrent": 0.2},
    }
    whole = list(train(*make(tmp_path / "whole", *few, **options)))
    run, corpus, dev = make(tmp_path / "cut", *few, **{**options, "model": dict(options["model"])})
    for row in train(run, corpus, dev):
        if row["step"] >= 8:
            break  # as if the process had ended here, after the checkpoint of step 6
    resumed = Run.open(tmp_path / "cut", trained=False)
    list(train(resumed, corpus, dev, resume=True))
    ours, theirs = Run.open(tmp_path / "whole"), Run.open(tmp_path / "cut")
    assert all(map(torch.equal, ours.model.parameters(), theirs.model.parameters()))
    timeless = [{k: v for k, v in row.items() if k not in ("seconds", "tokens_per_second")} for row in whole]
    assert [{k: row[k] for k in row if k not in ("seconds", "tokens_per_second")} for row in theirs.log()] == timeless


def test_a_finished_training_is_not_trained_again(tmp_path: Path, few: Any) -> None:
    """`resume` at the end yields nothing and leaves the best weights."""
    run, corpus, dev = make(tmp_path / "run", *few)
    rows = list(train(run, corpus, dev))
    assert list(train(Run.open(tmp_path / "run", trained=False), corpus, dev, resume=True)) == []
    assert run.log() == rows


def test_the_best_weights_are_kept_and_patience_ends(tmp_path: Path, few: Any) -> None:
    """With a rate that destroys the model, the weights saved are those of the best evaluation."""
    run, corpus, dev = make(
        tmp_path / "run", *few, epochs=20, evaluations=20, learning_rate=0.3, decay="none", patience=3
    )
    rows = [row for row in train(run, corpus, dev) if row["split"] == "dev"]
    perplexities = [row["perplexity"] for row in rows]
    best = int(np.argmin(perplexities))
    assert len(rows) == best + 1 + 3 < 20
    from factorcell.evaluation.perplexity import evaluate

    assert evaluate(run, dev)["perplexity"] == pytest.approx(perplexities[best], rel=1e-6)
    assert [row["best"] for row in rows] == np.minimum.accumulate(perplexities).tolist()


def test_a_loss_that_is_not_finite_names_its_row(tmp_path: Path, few: Any) -> None:
    """The row of the table is named, and the checkpoint before it can be opened."""
    run, corpus, dev = make(tmp_path / "run", *few, save_every=2)
    original = run.model.forward

    def poisoned(batch: Any, *rest: Any) -> Any:
        nats = original(batch, *rest)
        return torch.where((batch.rows == 17)[:, None], torch.nan, nats)

    run.model.forward = poisoned  # type: ignore[method-assign, assignment]
    with pytest.raises(UserError, match=r"the loss is not finite at step \d+, row 18 of the training data"):
        list(train(run, corpus, dev))
    del run.model.forward
    fresh = Run.open(tmp_path / "run", trained=False)
    rows = list(train(fresh, corpus, dev, resume=True))
    assert math.isfinite(rows[-1]["perplexity"])


def test_a_full_disk_keeps_the_last_checkpoint(tmp_path: Path, few: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saving fails in the middle; the checkpoint before it is whole and can be resumed."""
    run, corpus, dev = make(tmp_path / "run", *few, save_every=2, evaluations=1)
    rows = train(run, corpus, dev)
    trainer = Trainer(run, corpus, dev)
    trainer.save()
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(UserError, match="the last good one is kept"):
        list(rows)
    monkeypatch.undo()
    again = Trainer(Run.open(tmp_path / "run", trained=False), corpus, dev)
    again.load()
    assert again.progress.step == 0


@pytest.mark.parametrize(("steps", "times"), [(1, 1), (5, 3), (10, 10), (3, 7), (1001, 10), (12, 4)])
def test_evaluations_are_as_many_as_asked_for_even_and_the_last_at_the_end(steps: int, times: int) -> None:
    when = [step for step in range(1, steps + 1) if due(step, steps, times)]
    assert len(when) == min(steps, times)
    assert when[-1] == steps
    gaps = [b - a for a, b in zip([0, *when], when, strict=False)]
    assert max(gaps) - min(gaps) <= 1


def test_learning_rates() -> None:
    """A linear rise, then a fall to zero, or none."""
    config = TrainingConfig(learning_rate=2.0, warmup=0.1, decay="cosine")
    rates = [learning_rate(step, 100, config) for step in range(100)]
    assert rates[:3] == pytest.approx([0.2, 0.4, 0.6])
    assert max(rates) == rates[9] == pytest.approx(2.0)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[55] == pytest.approx(1.0)
    assert rates[-1] < 0.01
    assert learning_rate(55, 100, TrainingConfig(learning_rate=2.0, warmup=0.1, decay="linear")) == pytest.approx(1.0)
    assert learning_rate(99, 100, TrainingConfig(learning_rate=2.0, warmup=0.1, decay="none")) == 2.0


def test_training_starts_at_the_unigram_frequencies(tmp_path: Path, few: Any) -> None:
    """Before the first step the biases are the (smoothed) log frequencies of the targets."""
    run, corpus, dev = make(tmp_path / "run", *few)
    counts = target_counts(corpus)
    assert counts.sum() == corpus.targets
    Trainer(run, corpus, dev)
    expected = np.log((counts + 1) / (counts + 1).sum())
    np.testing.assert_allclose(run.model.output.bias.detach().numpy(), expected, rtol=1e-5)


def test_weight_decay_spares_vectors(tmp_path: Path, few: Any) -> None:
    """Matrices are decayed, biases are not."""
    run, corpus, dev = make(tmp_path / "run", *few, weight_decay=0.5)
    groups = Trainer(run, corpus, dev).optimiser.param_groups
    assert [group["weight_decay"] for group in groups] == [0.5, 0.0, 0.5]
    assert [{p.dim() > 1 for p in group["params"]} for group in groups] == [{True}, {False}, {True}]
    assert sum(len(group["params"]) for group in groups) == len(list(run.model.parameters()))


@pytest.mark.parametrize(("loss", "layer_norm"), [("full", False), ("sampled", True), ("sampled_text", False)])
def test_products_of_bfloat16_learn_alike(loss: str, layer_norm: bool, tmp_path: Path, few: Any) -> None:
    """The same perplexity to a hundredth, by another path; weights and moments stay floats."""
    found = []
    for precision in ("float32", "bfloat16"):
        how: dict[str, Any] = {"loss": loss, "samples": 20, "epochs": 3, "model": {"layer_norm": layer_norm}}
        run, corpus, dev = make(tmp_path / precision, *few, precision=precision, **how)
        *_, last = train(run, corpus, dev)
        found.append(last["perplexity"])
        assert {parameter.dtype for parameter in run.model.parameters()} == {torch.float32}
    assert found[0] != found[1]
    assert found[1] == pytest.approx(found[0], rel=0.01)


def test_forgotten_categories_teach_the_unknown_value(tmp_path: Path, few: Any) -> None:
    """About that share of a batch is read as unknown, differently at every step, and again the same when resumed."""
    _, corpus, _ = made = make(tmp_path / "run", *few, epochs=3, model={"dropout_context": 0.25})
    context = corpus.context(np.arange(300))
    forgotten = [context.forgetting(0.25, (0, step)).categories for step in range(40)]
    share = float(torch.stack(forgotten).eq(0).float().mean())
    assert share == pytest.approx(0.25, abs=0.02)
    assert torch.equal(forgotten[3], context.forgetting(0.25, (0, 3)).categories)
    assert not torch.equal(forgotten[3], forgotten[4])
    kept = forgotten[0] != 0
    assert torch.equal(forgotten[0][kept], context.categories[kept])
    plain = make(tmp_path / "plain", *few, epochs=3)
    for run, *rest in (made, plain):
        list(train(run, *rest))
    learned = [run.model.encoder.tables[0][0].norm() for run, *_ in (made, plain)]  # type: ignore[union-attr]
    assert learned[0] > 0
    assert learned[1] == 0, "no value is rare, so nothing but forgetting moves the unknown one"
