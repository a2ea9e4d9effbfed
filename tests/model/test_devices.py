"""Everything that makes a tensor makes it where the model is."""

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
from factorcell.evaluation.classification import log_likelihoods
from factorcell.generation.beam_search import Beam, search_beam
from factorcell.generation.choosing import Constraints, Sampler
from factorcell.generation.sampling import WritingTask, collect_texts, generate_steps, sampled
from factorcell.model.run import Run
from factorcell.training.trainer import Row, Trainer
from tests.data.test_columns import CONTEXT, rows_of_all_kinds
from tests.fake_device import DEVICE, FakeDevice, inference_mode
from tests.small_runs import ROWS, as_any, make_run

MISSING: dict[str, Any] = {"text": "sun and sea", "city": None, "stars": None, "lat": None, "lon": None}


def moved(run: Run) -> Run:
    run.model.to(DEVICE)
    run.model.head.embedding = run.model.embedding
    assert {tensor.device for tensor in (*run.model.parameters(), *run.model.buffers())} == {DEVICE}
    return run


def test_a_device_that_is_not_there_finds_what_is_mixed_up() -> None:
    with FakeDevice():
        there = torch.arange(3.0, device=DEVICE)
        assert (there * 2 + torch.tensor(1.0)).cpu().tolist() == [1.0, 3.0, 5.0]
        with pytest.raises(RuntimeError, match="two devices"):
            there + torch.arange(3)
        with pytest.raises(RuntimeError, match="two devices"):
            there[torch.tensor([0])]
        with pytest.raises((RuntimeError, TypeError)):
            there.numpy()


@pytest.mark.parametrize("model", [{"output_bias": (bias,)} for bias in OUTPUT_BIASES])
def test_scores_are_those_of_the_processor(
    model: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.inference_mode", inference_mode)
    run = make_run(tmp_path / "run", **model)
    rows = [*ROWS, MISSING]
    corpus, some = run.prepare(rows, unknown="expected"), [{"city": "Oslo"}, {"city": "Nice"}]
    points = [
        {"city": "Oslo", "stars": "1", "lat": 60.0, "lon": 10.0},
        {"city": "Nice", "stars": "5", "lat": 40, "lon": 8},
    ]

    def results() -> list[Any]:
        context = corpus.context(np.array([0, 1, 10])).to(run.device)
        conditioning, which, rules = (
            run.model.condition(context),
            torch.arange(3, device=run.device),
            Constraints(max_tokens=5),
        )
        chosen = generate_steps(WritingTask(run.model, conditioning, which, rules), sampled(Sampler(), 3, 5))
        found = [
            [one.tokens for one in own]
            for own in search_beam(WritingTask(run.model, conditioning, which, rules), Beam(num_texts=2))
        ]
        texts = found, [text.tokens for text in collect_texts(3, chosen, rules)]
        return [run.nats(corpus), log_likelihoods(run, corpus, some), log_likelihoods(run, corpus, points), texts]

    expected = results()
    with FakeDevice():
        moved(run)
        found = results()
    for a, b in zip(found[:3], expected[:3], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert found[3] == expected[3]


def test_every_kind_of_context_goes_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.inference_mode", inference_mode)
    rows = [{**row, "at": row["at"].isoformat()} for row in rows_of_all_kinds(6)]
    data = {"context": ("city", *CONTEXT), "min_count": 1, "min_context_count": 1, "min_context_word": 1}
    config = Config.of(**{**data, "hidden_size": 6, "embedding_size": 5, "adapt": ["factor", "prefix"]})
    corpus = prepare(rows, config)
    run = Run.create(tmp_path / "run", config, corpus.tokenizer, corpus.schema)
    corpus = run.prepare([*rows, {"text": "a"}], unknown="expected")

    def results() -> list[Any]:
        batch = run.batch(corpus, np.arange(7))
        some, which = batch.context.select(torch.tensor([6, 1, 6]).to(run.device)).distinct()
        cities = [{"city": "a"}, {"city": "b"}]
        with torch.no_grad():
            vectors = as_any(run.model.condition(some).head).features
        return [run.nats(corpus), log_likelihoods(run, corpus, cities), vectors.cpu(), which.cpu()]

    expected = [np.asarray(result) for result in results()]
    with FakeDevice():
        moved(run)
        found = [np.asarray(result) for result in results()]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def bernoulli(shape: tuple[int, ...], rate: float, like: Tensor) -> Tensor:
    """As `dropout.mask` elsewhere than on the processor."""
    return like.new_empty(shape).bernoulli_(1 - rate).div_(1 - rate)


@pytest.mark.parametrize("loss", LOSSES)
def test_training_is_that_of_the_processor(loss: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.random.fork_rng", lambda devices: nullcontext())
    plain = torch.optim.AdamW
    monkeypatch.setattr("torch.optim.AdamW", lambda groups, lr, fused: plain(groups, lr=lr, foreach=False))
    monkeypatch.setattr("torch.inference_mode", inference_mode)
    for module in ("cells", "dropout"):  # the masks of other devices, on both
        monkeypatch.setattr(f"factorcell.model.{module}.mask", bernoulli)
    how = {"loss": loss, "samples": 5, "batch_tokens": 30}
    drop: dict[str, Any] = {f"dropout_{kind}": 0.2 for kind in ("recurrent", "input", "output", "token")}
    found: list[tuple[Row, dict[str, Tensor]]] = []
    for device in (torch.device("cpu"), DEVICE):
        torch.manual_seed(0)
        run = make_run(tmp_path / str(device), training=how, **drop)
        corpus = run.prepare([*ROWS, MISSING], unknown="expected")
        with FakeDevice() if device == DEVICE else nullcontext():
            monkeypatch.setattr(Run, "to", lambda run, device: moved(run) if device == DEVICE else run)
            monkeypatch.setattr("factorcell.training.trainer.find_device", lambda _, device=device: device)
            trainer = Trainer(run, corpus, corpus)
            for batch in itertools.islice(trainer.batches(), 3):
                trainer.step(batch)
            row = trainer.evaluate()
            trainer.save()
            trainer.load()
            trainer.step(next(trainer.batches()))
            found.append((row, {name: tensor.detach().cpu() for name, tensor in trainer.parameters.items()}))
    (ours, weights), (theirs, others) = found
    assert ours == pytest.approx(theirs)
    for name, weight in weights.items():
        torch.testing.assert_close(weight, others[name])
