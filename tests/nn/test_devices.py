"""Tests that all tensors are created on the device of the model, with a fake second device."""

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.optim.adamw import adamw

from factorcell.completion.online import Learner, LearningRule
from factorcell.completion.replay import read_streams
from factorcell.completion.tuning import progressive_sums
from factorcell.config import OUTPUT_BIASES, Config, HuggingFaceOptions, RecurrentOptions
from factorcell.data.preparation import prepare
from factorcell.errors import UserError
from factorcell.evaluation.likelihoods import log_likelihoods
from factorcell.generation.generate import GenerationOptions
from factorcell.generation.writing import Constraints, WritingTask, search_beams, write_texts
from factorcell.nn import devices
from factorcell.nn.language_model import LanguageModel
from factorcell.runs.run import Run
from factorcell.training import rules
from factorcell.training.rules import plan
from factorcell.training.trainer import Row, Trainer
from tests.data.test_columns import CONTEXT, rows_of_all_kinds
from tests.fake_device import DEVICE, FakeDevice, inference_mode
from tests.nn.test_mixture import with_mixture
from tests.pretrained_models import write_pretrained
from tests.small_runs import ROWS, as_any, make_run

MISSING: dict[str, Any] = {"text": "sun and sea", "city": None, "stars": None, "lat": None, "lon": None}


def move_model(model: LanguageModel, device: torch.device) -> LanguageModel:
    """Move a model, and let its head share the embedding again."""
    torch.nn.Module.to(model, device)
    if device == DEVICE:
        model.head.embedding = model.embedding
    return model


def move(run: Run) -> Run:
    move_model(run.model, DEVICE)
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
        sampling = GenerationOptions(max_tokens=5).requests(3, device=run.device)
        searching = GenerationOptions("beam").requests(3, text_count=2)
        beams = search_beams(task, searching, width=8, length_penalty=0.0, num_texts=2)
        texts = [[text.tokens for text in beam] for beam in (*beams, write_texts(task, sampling))]
        return [run.nats(corpus), log_likelihoods(run, corpus, cities), log_likelihoods(run, corpus, points), texts]

    expected = results()
    with FakeDevice():
        move(run)
        actual = results()
    for a, b in zip(actual[:3], expected[:3], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert actual[3] == expected[3]


def test_a_mixture_reads_and_writes_texts_as_on_the_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.inference_mode", inference_mode)
    run = make_run(tmp_path / "run", ("city", "stars"))
    cities = [{"city": "Oslo"}, {"city": "Nice"}]

    def results() -> list[Any]:
        predictor, corpus = with_mixture(run).predictor, run.prepare(ROWS)
        conditioning = predictor.condition(corpus.context(np.array([0, 1, 2])).to(run.device))
        rows_of_texts = torch.arange(3, device=run.device)
        task = WritingTask(predictor, conditioning, rows_of_texts, Constraints(max_tokens=5))
        beams = search_beams(
            task, GenerationOptions("beam").requests(3, text_count=2), width=8, length_penalty=0.0, num_texts=2
        )
        return [log_likelihoods(run, corpus, cities), [[text.tokens for text in beam] for beam in beams]]

    expected = results()
    with FakeDevice():
        move(run)
        actual = results()
    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-4, atol=1e-5)
    assert actual[1] == expected[1]


def test_every_kind_of_context_is_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.inference_mode", inference_mode)
    rows = [{**row, "at": row["at"].isoformat()} for row in rows_of_all_kinds(6)]
    data = {"context": ("city", *CONTEXT), "min_count": 1, "min_context_count": 1}
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


@pytest.fixture
def plain_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace what a training uses that tensor subclasses do not support, on both devices."""
    monkeypatch.setattr("torch.random.fork_rng", lambda devices: nullcontext())
    monkeypatch.setattr("factorcell.training.adam.adamw", lambda *tensors, fused, **rates: adamw(*tensors, **rates))
    monkeypatch.setattr("torch.inference_mode", inference_mode)
    monkeypatch.setattr("factorcell.nn.sizes.step_bytes", lambda *sizes: 0)  # it creates a model on `DEVICE`


def train_on_both(
    make: Callable[[Path], Run], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[Row, dict[str, Tensor]]]:
    """Return the evaluation and the parameters after some steps and a resumption, on the processor and on `DEVICE`."""
    results: list[tuple[Row, dict[str, Tensor]]] = []
    for device in (torch.device("cpu"), DEVICE):
        torch.manual_seed(0)
        run = make(folder / str(device))
        corpus = run.prepare([*ROWS, MISSING], unknown="expected")
        with FakeDevice() if device == DEVICE else nullcontext():
            monkeypatch.setattr(LanguageModel, "to", move_model)
            monkeypatch.setattr("factorcell.training.optimization.find_device", lambda *_, device=device: device)
            trainer = Trainer(run, corpus, corpus)
            for batch in itertools.islice(trainer.batches(), 3):
                trainer.step(batch)
            row = trainer.evaluate()
            trainer.save()
            trainer.load()
            trainer.step(next(trainer.batches()))
            results.append((row, {name: tensor.detach().cpu() for name, tensor in trainer.parameters.items()}))
    return results


def check_equal(results: list[tuple[Row, dict[str, Tensor]]]) -> None:
    (row, weights), (other_row, other_weights) = results
    assert row == pytest.approx(other_row)
    for name, weight in weights.items():
        torch.testing.assert_close(weight, other_weights[name])


@pytest.mark.usefixtures("plain_training")
@pytest.mark.parametrize("samples", [0, 5])
def test_training_equals_that_on_the_processor(samples: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("nn.backbones.recurrent", "nn.backbones.backbone"):  # draw the masks of other devices on both
        monkeypatch.setattr(f"factorcell.{module}.dropout_mask", bernoulli)
    options = {"samples": samples, "batch_tokens": 30}
    drop: dict[str, Any] = {f"dropout_{kind}": 0.2 for kind in ("recurrent", "input", "output")}
    check_equal(train_on_both(lambda folder: make_run(folder, training=options, **drop), tmp_path, monkeypatch))


@pytest.mark.usefixtures("plain_training")
def test_transformer_is_trained_and_learns_users_as_on_the_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `transformers` starts a cache with `torch.tensor`, which is not dispatched as an operation.
    def initialize(layer: Any, keys: Tensor, values: Tensor) -> None:
        layer.device, layer.is_initialized = keys.device, True
        layer.keys, layer.values = keys[..., :0, :], values[..., :0, :]

    monkeypatch.setattr("transformers.cache_utils.DynamicLayer.lazy_initialization", initialize)
    base = write_pretrained(tmp_path / "base", [row["text"] for row in ROWS])
    options = {"base": str(base), "prefix_vectors": 2, "max_tokens": 40, "batch_tokens": 30}
    columns = {"context": ("city",), "user": "stars", "min_context_count": 1, "min_user_count": 1}
    sizes = {"rank": 2, "context_size": 3, "variable_size": 2, "adapt": ("factor", "concat", "scale")}
    config = Config.of(**{**options, **columns, **sizes, "output_bias": ("low_rank",)})
    corpus = prepare(ROWS, config)
    learned: list[Any] = []

    def make(folder: Path) -> Run:
        return Run.create(folder, config, corpus.tokenizer, corpus.schema)

    check_equal(train_on_both(make, tmp_path, monkeypatch))
    rows = [{"text": "the sea", "stars": "new", "time": time, "city": "Oslo"} for time in range(3)]
    for device in (torch.device("cpu"), DEVICE):
        torch.manual_seed(1)
        run = make(tmp_path / f"{device} users")
        with torch.no_grad():  # the users of an untrained model change nothing
            for parameter in run.model.parameters():
                if parameter.requires_grad:  # all runs share the frozen weights
                    parameter.add_(0.1 * torch.randn_like(parameter))
        streams = read_streams(rows, config, user_column="stars", time_column="time", context_columns=("city",))
        with FakeDevice() if device == DEVICE else nullcontext():
            run = move(run) if device == DEVICE else run
            learned.append(progressive_sums(Learner(run, LearningRule(rate=0.1), "group"), streams))
    np.testing.assert_allclose(learned[0], learned[1], rtol=1e-4)


@pytest.mark.parametrize(
    ("backbone", "device", "precision"),
    [
        (RecurrentOptions(), "cuda", "float32"),
        (HuggingFaceOptions(architecture="llama"), "cuda", "float32"),
        (HuggingFaceOptions(base="./model"), "cuda", "bfloat16"),
    ],
)
def test_device_and_precision_follow_from_the_backbone(
    backbone: Any, device: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def choose(name: str, number_type: str = "auto") -> tuple[str, str]:
        chosen_device = devices.find_device(name)
        return chosen_device.type, devices.find_precision(number_type, chosen_device, backbone)

    assert choose("auto") == choose("cpu") == ("cpu", "float32")
    assert choose("cpu", "bfloat16") == ("cpu", "bfloat16")
    with pytest.raises(UserError, match="needs a GPU"):
        choose("cuda")
    monkeypatch.setattr(devices, "has_gpu", lambda: True)
    assert choose("auto") == (device, precision)
    assert choose("cpu") == ("cpu", "float32")
    assert choose("cuda")[0] == "cuda"
    assert choose("cuda", "float32") == ("cuda", "float32")


def test_batches_of_a_plan_are_those_of_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MIN_GPU_STEPS", 1)
    options: dict[str, Any] = {
        "data": {"context": ["city", "stars"], "min_context_count": 1},
        "tokenizer": {"min_count": 1},
    }
    corpus = prepare(ROWS, Config.from_dict(options))
    on_cpu = plan(options, corpus, corpus).training
    monkeypatch.setattr(devices, "has_gpu", lambda: True)
    on_gpu = plan(options, corpus, corpus).training
    assert on_gpu.batch_tokens > on_cpu.batch_tokens
    assert on_gpu == replace(on_cpu, batch_tokens=on_gpu.batch_tokens)
