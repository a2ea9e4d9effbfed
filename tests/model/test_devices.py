"""Tests that all tensors are created on the device of the model, with a fake second device."""

import itertools
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from factorcell.config import LOSSES, OUTPUT_BIASES, Config
from factorcell.data.cache import prepare
from factorcell.evaluation.likelihoods import log_likelihoods
from factorcell.generation.beam_search import Beam, search_beam
from factorcell.generation.choosing import Constraints, Sampler
from factorcell.generation.sampling import WritingTask, collect_texts, generate_steps, sampling_requests
from factorcell.model.run import Run
from factorcell.training.trainer import Row, Trainer
from tests.data.test_columns import CONTEXT, rows_of_all_kinds
from tests.fake_device import DEVICE, FakeDevice, inference_mode
from tests.small_runs import ROWS, as_any, make_run

MISSING: dict[str, Any] = {"text": "sun and sea", "city": None, "stars": None, "lat": None, "lon": None}


def move(run: Run) -> Run:
    run.model.to(DEVICE)
    run.model.head.embedding = run.model.embedding
    assert {tensor.device for tensor in (*run.model.parameters(), *run.model.buffers())} == {DEVICE}
    return run


def test_fake_device_detects_operations_on_two_devices() -> None:
    with FakeDevice():
        tensor = torch.arange(3.0, device=DEVICE)
        assert (tensor * 2 + torch.tensor(1.0)).cpu().tolist() == [1.0, 3.0, 5.0]
        with pytest.raises(RuntimeError, match="two devices"):
            tensor + torch.arange(3)
        with pytest.raises(RuntimeError, match="two devices"):
            tensor[torch.tensor([0])]
        with pytest.raises((RuntimeError, TypeError)):
            tensor.numpy()


@pytest.mark.parametrize("model", [{"output_bias": (bias,)} for bias in OUTPUT_BIASES])
def test_scores_equal_those_of_the_processor(
    model: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.inference_mode", inference_mode)
    run = make_run(tmp_path / "run", **model)
    rows = [*ROWS, MISSING]
    corpus, cities = run.prepare(rows, unknown="expected"), [{"city": "Oslo"}, {"city": "Nice"}]
    points = [
        {"city": "Oslo", "stars": "1", "lat": 60.0, "lon": 10.0},
        {"city": "Nice", "stars": "5", "lat": 40, "lon": 8},
    ]

    def results() -> list[Any]:
        context = corpus.context(np.array([0, 1, 10])).to(run.device)
        conditioning, rows_of_texts, rules = (
            run.model.condition(context),
            torch.arange(3, device=run.device),
            Constraints(max_tokens=5),
        )
        task = WritingTask(run.model, conditioning, rows_of_texts, rules)
        steps = generate_steps(task, sampling_requests(Sampler(), 3, 5))
        beams = [[text.tokens for text in beam] for beam in search_beam(task, Beam(num_texts=2))]
        texts = beams, [text.tokens for text in collect_texts(3, steps, rules)]
        return [run.nats(corpus), log_likelihoods(run, corpus, cities), log_likelihoods(run, corpus, points), texts]

    expected = results()
    with FakeDevice():
        move(run)
        actual = results()
    for a, b in zip(actual[:3], expected[:3], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert actual[3] == expected[3]


def test_every_kind_of_context_is_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.inference_mode", inference_mode)
    rows = [{**row, "at": row["at"].isoformat()} for row in rows_of_all_kinds(6)]
    data = {"context": ("city", *CONTEXT), "min_count": 1, "min_context_count": 1, "min_context_word": 1}
    config = Config.of(**{**data, "hidden_size": 6, "embedding_size": 5, "adapt": ["factor", "prefix"]})
    corpus = prepare(rows, config)
    run = Run.create(tmp_path / "run", config, corpus.tokenizer, corpus.schema)
    corpus = run.prepare([*rows, {"text": "a"}], unknown="expected")

    def results() -> list[Any]:
        batch = run.batch(corpus, np.arange(7))
        contexts, row_of_text = batch.context.select(torch.tensor([6, 1, 6]).to(run.device)).distinct()
        cities = [{"city": "a"}, {"city": "b"}]
        with torch.no_grad():
            vectors = as_any(run.model.condition(contexts).head).features
        return [run.nats(corpus), log_likelihoods(run, corpus, cities), vectors.cpu(), row_of_text.cpu()]

    expected = [np.asarray(result) for result in results()]
    with FakeDevice():
        move(run)
        actual = [np.asarray(result) for result in results()]
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def bernoulli(shape: tuple[int, ...], rate: float, like: Tensor) -> Tensor:
    """Draw a dropout mask as on devices other than the processor."""
    return like.new_empty(shape).bernoulli_(1 - rate).div_(1 - rate)


@pytest.mark.parametrize("loss", LOSSES)
def test_training_equals_that_on_the_processor(loss: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.random.fork_rng", lambda devices: nullcontext())
    plain = torch.optim.AdamW
    monkeypatch.setattr("torch.optim.AdamW", lambda groups, lr, fused: plain(groups, lr=lr, foreach=False))
    monkeypatch.setattr("torch.inference_mode", inference_mode)
    for module in ("cells", "dropout"):  # draw the masks of other devices on both
        monkeypatch.setattr(f"factorcell.model.{module}.dropout_mask", bernoulli)
    options = {"loss": loss, "samples": 5, "batch_tokens": 30}
    drop: dict[str, Any] = {f"dropout_{kind}": 0.2 for kind in ("recurrent", "input", "output", "token")}
    results: list[tuple[Row, dict[str, Tensor]]] = []
    for device in (torch.device("cpu"), DEVICE):
        torch.manual_seed(0)
        run = make_run(tmp_path / str(device), training=options, **drop)
        corpus = run.prepare([*ROWS, MISSING], unknown="expected")
        with FakeDevice() if device == DEVICE else nullcontext():
            monkeypatch.setattr(Run, "to", lambda run, device: move(run) if device == DEVICE else run)
            monkeypatch.setattr("factorcell.training.trainer.find_device", lambda _, device=device: device)
            trainer = Trainer(run, corpus, corpus)
            for batch in itertools.islice(trainer.batches(), 3):
                trainer.step(batch)
            row = trainer.evaluate()
            trainer.save()
            trainer.load()
            trainer.step(next(trainer.batches()))
            results.append((row, {name: tensor.detach().cpu() for name, tensor in trainer.parameters.items()}))
    (row, weights), (other_row, other_weights) = results
    assert row == pytest.approx(other_row)
    for name, weight in weights.items():
        torch.testing.assert_close(weight, other_weights[name])
