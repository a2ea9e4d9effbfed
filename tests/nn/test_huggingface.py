"""Tests of models with a Transformer backbone, against the models of `transformers` with the same weights."""

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from factorcell.config import Config
from factorcell.data.columns.context import Context
from factorcell.data.corpus import Corpus
from factorcell.data.preparation import prepare
from factorcell.errors import UserError
from factorcell.generation.generate import GenerationOptions, generate
from factorcell.io import pretrained
from factorcell.nn.backbones.huggingface import HuggingFaceBackbone
from factorcell.nn.language_model import LanguageModel
from factorcell.runs import summary
from factorcell.runs.run import Run
from factorcell.training.fit import train_run
from tests.checkpoints import checkpoints_every_step, interrupted_before_step
from tests.small_runs import as_any

frequent_checkpoints = checkpoints_every_step()

H = 16
SIZES: dict[str, Any] = {"hidden_size": H, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 30}
ROWS = [
    {"text": text, "city": city}
    for text, city in [("abcab", "Oslo"), ("ba", "Rome"), ("", "Oslo"), ("bcbcbca", "Rome"), ("cc", "Oslo")] * 3
]


def base_model(name: str) -> Any:
    """Return a small model of `transformers` with random weights."""
    torch.manual_seed(1)
    if name == "gpt2":
        config: Any = transformers.GPT2Config(n_embd=H, n_layer=2, n_head=2, vocab_size=30, n_positions=32)
    elif name == "llama":  # with the embeddings as output layer, and keys that two heads share
        config = transformers.LlamaConfig(
            **SIZES, num_key_value_heads=1, intermediate_size=24, max_position_embeddings=32, tie_word_embeddings=True
        )
    elif name == "phi":  # with a bias of the output layer
        config = transformers.PhiConfig(**SIZES, intermediate_size=24, max_position_embeddings=32)
    else:  # with an output layer of its own, and biases
        config = transformers.Qwen2Config(
            **SIZES, num_key_value_heads=2, intermediate_size=24, max_position_embeddings=32
        )
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.3)
    return model.eval()


@pytest.fixture(autouse=True)
def characters_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept a tokenizer of characters, because the small bases of these tests have no tokenizer."""
    monkeypatch.setattr("factorcell.training.fit.check_tokenizer", lambda config: None)


@pytest.fixture(params=["gpt2", "llama", "qwen2"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a folder with a pretrained model."""
    folder: Path = tmp_path / request.param
    base_model(request.param).save_pretrained(folder)
    return folder


def make_config(base: Path | str, **options: Any) -> Config:
    sizes = {"context_size": 3, "variable_size": 3, "rank": 2, "min_count": 1, "max_tokens": 28}
    training = {"min_context_count": 1, "epochs": 2.0, "batch_tokens": 30}
    precisions = {"precision": "float32"}
    config = Config.of(context=("city",), backbone="huggingface", tokenizer="char", base=str(base))
    return config.with_options(**{**sizes, **training, **precisions, **options})


def make_run(folder: Path, config: Config) -> tuple[Run, Corpus]:
    corpus = prepare(ROWS, config)
    return Run.create(folder, config, corpus.tokenizer, corpus.schema), corpus


def randomize(run: Run) -> None:
    """Set all parameters of a run, except those of a frozen base, to random numbers."""
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in run.model.own_parameters().values():
            parameter.normal_(0, 0.3)


def test_untrained_model_equals_its_base(base: Path, tmp_path: Path) -> None:
    run, corpus = make_run(tmp_path / "run", make_config(base))
    original = transformers.AutoModelForCausalLM.from_pretrained(base).eval()
    start = run.tokenizer.specials.start
    for index in range(5):
        batch = corpus.batch(np.array([index]))
        with torch.no_grad():
            logits = original(input_ids=batch.tokens[:, :-1]).logits[..., : len(run.tokenizer)]
            logits[..., start] = -torch.inf  # the start token is never predicted
            expected = torch.nn.functional.cross_entropy(logits[0], batch.tokens[0, 1:], reduction="none")
            torch.testing.assert_close(run.model(batch)[0], expected, atol=1e-5, rtol=1e-5)


def test_a_training_has_no_other_dropout_than_that_of_the_options(tmp_path: Path) -> None:
    """The configs of GPT-2 and OPT have dropout rates of 0.1."""
    base_model("gpt2").save_pretrained(tmp_path / "base")
    new = Config.of(architecture="gpt2", hidden_size=16, layers=2, tokenizer="char", context=("city",), min_count=1)
    for name, config in (("new", new.with_options(min_context_count=1)), ("based", make_config(tmp_path / "base"))):
        run, corpus = make_run(tmp_path / name, config)
        batch = corpus.batch(np.arange(5))
        expected = run.model(batch)
        assert torch.equal(run.model.train()(batch), expected), name


def test_vectors_of_an_untrained_model_equal_those_of_its_base_bit_for_bit(base: Path, tmp_path: Path) -> None:
    run, corpus = make_run(tmp_path / "run", make_config(base))
    original = transformers.AutoModelForCausalLM.from_pretrained(base).eval()
    batch = corpus.batch(np.array([3]))
    with torch.no_grad():
        expected = original.base_model(input_ids=batch.tokens[:, :-1]).last_hidden_state
        conditioning = run.model.condition(batch.context)
        inputs = run.model.embedding[batch.tokens[:, :-1]]
        vectors, _ = run.model.backbone(inputs, conditioning.conditions, conditioning.start)
    assert torch.equal(vectors, expected)


def test_batches_steps_and_folded_weights_give_the_same_nats(base: Path, tmp_path: Path) -> None:
    run, corpus = make_run(tmp_path / "run", make_config(base, prefix_vectors=2, adapt=("concat", "scale", "factor")))
    randomize(run)
    with torch.no_grad():
        batch = corpus.batch(np.arange(5))
        nats = run.model(batch)
        for row in range(5):
            alone = corpus.batch(np.array([row]))
            torch.testing.assert_close(nats[row, : alone.lengths[0]], run.model(alone)[0], atol=1e-4, rtol=1e-4)
            conditioning = run.model.condition(alone.context)
            conditions = as_any(conditioning.conditions)
            folded = replace(conditions, shifts=as_any(run.model.backbone).maps.fold(conditions.shifts))
            with_folded = run.model(alone, replace(conditioning, conditions=folded))
            torch.testing.assert_close(with_folded, run.model(alone), atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(run.model(alone, conditioning), run.model(alone), atol=1e-4, rtol=1e-4)
            state, stepwise = conditioning.start, []
            for token, target in zip(alone.tokens[0, :-1], alone.tokens[0, 1:], strict=True):
                log_probs, state = run.model.step(token[None], conditioning, state)
                stepwise.append(-log_probs[0, target])
            torch.testing.assert_close(torch.stack(stepwise), run.model(alone)[0], atol=1e-4, rtol=1e-4)


def test_only_adapters_are_trained_and_stored(base: Path, tmp_path: Path) -> None:
    config = make_config(base)
    run = train_run(ROWS, ROWS, config, tmp_path / "run")
    assert not any("base." in name and "adapters" not in name for name in run.model.saved_tensors())
    assert "embedding" not in run.model.saved_tensors()
    opened = Run.open(tmp_path / "run")
    assert opened.config.backbone.base_digest == pretrained.find_source(str(base)).digest()  # type: ignore[attr-defined]
    assert np.array_equal(opened.nats(opened.prepare(ROWS)), run.nats(run.prepare(ROWS)))
    original = transformers.AutoModelForCausalLM.from_pretrained(base)
    assert torch.equal(opened.model.embedding, original.get_input_embeddings().weight[: len(run.tokenizer)])
    untrained, _ = make_run(tmp_path / "untrained", config)
    corpus = run.prepare(ROWS)
    assert run.nats(corpus).mean() < untrained.nats(corpus).mean()


@pytest.mark.parametrize("options", [{}, {"train_base": True}, {"samples": 5}])
def test_resumed_training_equals_an_uninterrupted_one(options: dict[str, Any], tmp_path: Path) -> None:
    base_model("qwen2").save_pretrained(tmp_path / "base")
    config = make_config(tmp_path / "base", **options)
    whole = train_run(ROWS, ROWS, config, tmp_path / "whole")
    with interrupted_before_step(2):
        train_run(ROWS, ROWS, config, tmp_path / "resumed")
    resumed = train_run(ROWS, ROWS, config, tmp_path / "resumed", resume=True)
    for name, tensor in whole.model.saved_tensors().items():
        assert torch.equal(tensor, resumed.model.saved_tensors()[name]), name


def test_trained_base_is_stored(tmp_path: Path) -> None:
    base_model("llama").save_pretrained(tmp_path / "base")
    run = train_run(ROWS, ROWS, make_config(tmp_path / "base", train_base=True), tmp_path / "run")
    assert "embedding" in run.model.saved_tensors()
    original = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base").get_input_embeddings().weight
    opened = Run.open(tmp_path / "run")
    assert not torch.equal(opened.model.embedding, original[: len(run.tokenizer)])
    assert np.array_equal(opened.nats(opened.prepare(ROWS)), run.nats(run.prepare(ROWS)))


def test_texts_without_contexts_share_one_change_of_each_map(tmp_path: Path) -> None:
    base_model("llama").save_pretrained(tmp_path / "llama")
    run, corpus = make_run(tmp_path / "run", make_config(tmp_path / "llama", context=(), adapt=()))
    randomize(run)
    context = corpus.context(np.arange(len(corpus)))
    conditions = as_any(run.model.condition(context).select(torch.tensor([3, 0, 3])).conditions)
    assert {shift.context_count() for shift in conditions.shifts} == {1}
    each = as_any(run.model.backbone).maps.condition(torch.ones(len(corpus), 1))
    conditioning = replace(
        run.model.condition(context), conditions=replace(conditions, shifts=each, are_shifts_shared=False)
    )
    with torch.no_grad():
        batch = corpus.batch(np.arange(len(corpus)))
        torch.testing.assert_close(run.model(batch), run.model(batch, conditioning))


def test_unadapted_model_with_a_frozen_base_trains_a_shared_change(tmp_path: Path) -> None:
    base_model("llama").save_pretrained(tmp_path / "base")
    run, corpus = make_run(tmp_path / "run", make_config(tmp_path / "base", adapt=(), output_bias=()))
    assert not run.model.is_adapted
    randomize(run)
    names = {name.split(".adapters.")[1].split(".")[0] for name in run.model.own_parameters() if "adapters" in name}
    assert names == {"shared_left", "shared_right"}
    batch = corpus.batch(np.arange(2))
    swapped = run.model(batch, run.model.condition(batch.context.select(torch.tensor([1, 0]))))
    torch.testing.assert_close(run.model(batch), swapped)


def test_the_summary_names_the_shared_lora_of_a_frozen_base(base: Path, tmp_path: Path) -> None:
    for rank, expected in ((32, True), (0, False)):
        run, _ = make_run(tmp_path / str(rank), make_config(base, shared_rank=rank))
        assert ("shared_rank 32" in dict(summary.model_facts(run))["model"]) == expected


def test_gradients_equal_finite_differences(base: Path, tmp_path: Path) -> None:
    run, corpus = make_run(tmp_path / "run", make_config(base, prefix_vectors=1, adapt=("concat", "scale", "factor")))
    randomize(run)
    model, batch = run.model.double(), corpus.batch(np.arange(4))

    def loss() -> Tensor:
        backbone = model.backbone
        assert isinstance(backbone, HuggingFaceBackbone)
        conditioning = model.condition(Context(batch.context.categories, batch.context.numbers.double()))
        inputs = model.embedding[batch.tokens[:, :-1]]
        vectors, _ = backbone(inputs, conditioning.conditions, conditioning.start, batch.lengths)
        squares: Tensor = vectors.double() ** 2 * batch.mask()[..., None]
        return squares.sum()

    torch.autograd.backward(loss())
    torch.manual_seed(3)
    for name, parameter in model.own_parameters().items():
        if parameter.grad is None or not name.startswith(("backbone", "encoder")):
            continue
        direction = torch.randn_like(parameter)
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.add_(direction, alpha=sign * 1e-3)
                values.append(loss())
                parameter.sub_(direction, alpha=sign * 1e-3)
        expected = (values[0] - values[1]) / 2e-3
        torch.testing.assert_close((parameter.grad * direction).sum(), expected, atol=1e-3, rtol=2e-2, msg=name)


def test_threads_with_different_contexts_do_not_disturb_each_other(tmp_path: Path) -> None:
    base_model("llama").save_pretrained(tmp_path / "base")
    run, corpus = make_run(tmp_path / "run", make_config(tmp_path / "base"))
    randomize(run)
    batches = [corpus.batch(np.array([index])) for index in (0, 1)]
    with torch.no_grad():
        expected = [run.model(batch) for batch in batches]
        results: list[list[Tensor]] = [[], []]
        barrier = threading.Barrier(2)

        def score(index: int) -> None:
            barrier.wait()
            with torch.no_grad():
                results[index] += [run.model(batches[index]) for _ in range(20)]

        threads = [threading.Thread(target=score, args=(index,)) for index in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for index in (0, 1):
        assert len(results[index]) == 20
        assert all(torch.equal(result, expected[index]) for result in results[index])


def test_search_tree_stores_each_token_once(tmp_path: Path) -> None:
    base_model("llama").save_pretrained(tmp_path / "base")
    run, corpus = make_run(tmp_path / "run", make_config(tmp_path / "base"))
    context = corpus.batch(np.array([0])).context
    conditioning = run.model.condition(context)
    with torch.no_grad():
        state: Any = conditioning.start
        for token in (1, 4, 5):
            _, state = run.model.step(torch.tensor([token]), conditioning, state)
        tree = state.reserve(40)
        tree.put(0, state)
        for first in range(1, 31, 3):  # thirty children of the prefix, in tenths
            parents = tree.select(torch.tensor([0, 0, 0]))
            _, children = run.model.step(torch.tensor([3, 4, 5]), conditioning, parents)
            tree.put(first, children)
        assert tree.stored_tokens == 3 + 30
        log_probs, _ = run.model.step(torch.tensor([4]), conditioning, tree.select(torch.tensor([30])))
        _, child = run.model.step(torch.tensor([5]), conditioning, state)
        expected, _ = run.model.step(torch.tensor([4]), conditioning, child)
    torch.testing.assert_close(log_probs, expected)


def test_a_base_in_bfloat16_predicts_nearly_as_in_float32(base: Path, tmp_path: Path) -> None:
    runs = {}
    for precision in ("float32", "bfloat16"):
        runs[precision], corpus = make_run(tmp_path / precision, make_config(base, precision=precision))
        randomize(runs[precision])
    nats = {precision: run.nats(corpus) for precision, run in runs.items()}
    assert not np.array_equal(nats["float32"], nats["bfloat16"])
    np.testing.assert_allclose(nats["float32"], nats["bfloat16"], atol=0.15)
    backbone = runs["bfloat16"].model.backbone
    assert isinstance(backbone, HuggingFaceBackbone)
    assert {parameter.dtype for parameter in backbone.base.parameters()} == {torch.bfloat16, torch.float32}
    automatic, _ = make_run(tmp_path / "auto", make_config(base, precision="auto"))
    assert automatic.config.to_dict()["backbone"]["base_precision"] in ("float32", "bfloat16")


def write_bert(folder: Path) -> None:
    transformers.BertModel(
        transformers.BertConfig(hidden_size=H, num_hidden_layers=1, num_attention_heads=2, vocab_size=30)
    ).save_pretrained(folder)


def test_unusable_bases_give_one_clear_line(tmp_path: Path) -> None:
    base_model("llama").save_pretrained(tmp_path / "base")
    config = make_config(tmp_path / "base")
    run, corpus = make_run(tmp_path / "run", config)
    run.save_weights({})

    def error_of(base: str) -> str:
        with pytest.raises(UserError) as caught:
            Run.create(tmp_path / "new", make_config(base), corpus.tokenizer, corpus.schema)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "base 'lama'" in error_of("lama")
    assert "no such file or folder" in error_of(str(tmp_path / "absent" / "folder"))
    assert "not on this machine" in error_of("nobody/absent-model") or "downloaded" in error_of("nobody/absent-model")
    write_bert(tmp_path / "bert")
    assert "causal" in error_of(str(tmp_path / "bert"))
    (tmp_path / "empty").mkdir()
    assert "config.json" in error_of(str(tmp_path / "empty"))
    (tmp_path / "damaged.gguf").write_bytes(b"GGUF" + bytes(20))
    assert "damaged.gguf" in error_of(str(tmp_path / "damaged.gguf"))
    weights = tmp_path / "base" / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match="SHA-256"):
        Run.open(tmp_path / "run")
    weights.write_bytes(content[: len(content) // 2])
    assert "cannot be loaded" in error_of(str(tmp_path / "base"))
    weights.unlink()
    with pytest.raises(UserError, match="expected weights"):
        Run.open(tmp_path / "run")


def test_code_of_a_base_is_not_executed(tmp_path: Path) -> None:
    folder, marker = tmp_path / "base", tmp_path / "executed"
    folder.mkdir()
    code = f"open({str(marker)!r}, 'w').close()\nfrom transformers import LlamaConfig as Odd\n"
    (folder / "odd.py").write_text(code, encoding="utf-8")
    config = {"model_type": "odd", "auto_map": {"AutoConfig": "odd.Odd"}}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.input", lambda question: "yes")
        with pytest.raises(UserError, match="cannot be read"):
            pretrained.read_config(pretrained.find_source(str(folder)))
    assert not marker.exists()


def test_texts_beyond_the_positions_of_the_base_are_refused(tmp_path: Path) -> None:
    base_model("gpt2").save_pretrained(tmp_path / "base")
    make_run(tmp_path / "run", make_config(tmp_path / "base", max_tokens=30, prefix_vectors=2))
    for options, limit in (({}, 32), ({"prefix_vectors": 2}, 30), ({"adapt": ("prefix",)}, 31)):
        with pytest.raises(UserError, match=f"max_tokens: expected at most {limit}"):
            make_run(tmp_path / "long", make_config(tmp_path / "base", max_tokens=40, **options))
    run, _ = make_run(tmp_path / "short", make_config(tmp_path / "base"))
    with pytest.raises(UserError, match="can read 31 tokens after the prompt, expected at least 40"):
        list(generate(run, {"city": "Oslo"}, options=GenerationOptions(max_tokens=40, min_tokens=40)))


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "qwen2", "gemma", "mistral"])
def test_new_models_have_the_requested_sizes(architecture: str) -> None:
    config = Config.of(architecture=architecture, layers=3, hidden_size=32)
    model = LanguageModel(config, 12, prepare([{"text": "a"}], Config.of(tokenizer="char", min_count=1)).schema)
    backbone = model.backbone
    assert isinstance(backbone, HuggingFaceBackbone)
    assert backbone.size == 32
    assert backbone.base.config.num_hidden_layers == 3
    assert backbone.base.config.num_attention_heads == 1
    assert model.embedding.shape == (12, 32)


def test_odd_sizes_of_new_models_are_refused() -> None:
    with pytest.raises(UserError, match="even number"):
        LanguageModel(Config.of(architecture="llama", hidden_size=31), 12, prepare(ROWS, Config.of()).schema)
    with pytest.raises(UserError, match="target_modules"):
        LanguageModel(Config.of(architecture="llama", target_modules=("query",)), 12, prepare(ROWS, Config.of()).schema)
