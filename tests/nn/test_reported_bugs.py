"""Bugs of adapters in other libraries, tried on context adapters: each test names the thread that reported the bug."""

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
from torch import Tensor

from factorcell import UserError
from factorcell.hf import ContextCollator, ContextConfig, ContextModel, get_context_model
from factorcell.nn.backbones.adapted_modules import target_paths
from factorcell.runs.exporting import export
from tests.nn.test_context_model import CONTEXTS, ROWS, SCHEMA, gradients, new_base, new_model
from tests.nn.test_exporting import FACTOR, random_run


@pytest.fixture
def tokens() -> Tensor:
    return torch.arange(3, 27).view(4, 6)


def trainable(model: ContextModel) -> dict[str, bool]:
    return {name: values.requires_grad for name, values in model.named_parameters()}


def test_a_saved_output_layer_is_trained_after_the_adapters_were_disabled(tmp_path: Path, tokens: Tensor) -> None:
    """huggingface/peft#3626: an output layer in `modules_to_save` got no more gradients after a change of adapters."""
    options: dict[str, Any] = {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}
    model = new_model("qwen2", **options)
    with model.disable_adapter():
        model.generate(tokens, max_new_tokens=2)
    model.save_pretrained(tmp_path)
    for trained in (model, ContextModel.from_pretrained(new_base("qwen2"), tmp_path)):
        trained.train()(tokens, labels=tokens, context=CONTEXTS).loss.backward()
        assert float(gradients(trained)["base.lm_head.weight"].abs().max()) > 0


@pytest.mark.parametrize("targets", ["all-linear", ("embed_tokens", "q_proj", "lm_head")])
def test_autocast_trains_adapters_with_their_precision(targets: Any, tokens: Tensor) -> None:
    """huggingface/peft#3601 and huggingface/trl#6914: a change that autocast had rounded was refused."""
    model = new_model(target_modules=targets).train()
    exact = model(tokens, context=CONTEXTS, labels=tokens).loss
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(tokens, context=CONTEXTS, labels=tokens).loss
    torch.testing.assert_close(loss, exact, atol=0.05, rtol=0.05)
    loss.backward()
    assert set(gradients(model)) == model.trained_names
    assert {gradient.dtype for gradient in gradients(model).values()} == {torch.float32}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_peft_applies_the_rank_of_each_exported_map(tmp_path: Path) -> None:
    """huggingface/peft#3582: patterns with the whole path of a map matched no map, without an error."""
    run = random_run(tmp_path, "llama", adapt=("factor",))
    export(run, tmp_path / "lora", context={"city": "Oslo"})
    lora = load_peft(tmp_path / "llama", tmp_path / "lora")
    ranks = {name: len(values) for name, values in lora.named_parameters() if ".lora_A." in name}
    stored = safetensors.torch.load_file(tmp_path / "lora" / "adapter_model.safetensors")
    assert ranks == {
        name.replace("lora_A.", "lora_A.default."): len(values) for name, values in stored.items() if "lora_A" in name
    }
    assert len(set(ranks.values())) == 2
    assert {part.scaling["default"] for part in lora.modules() if hasattr(part, "lora_A")} == {1.0}


def load_peft(base: Path, folder: Path) -> Any:
    import peft

    return peft.PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(base), folder)


def test_opening_and_loading_adapters_changes_no_others(tmp_path: Path) -> None:
    """huggingface/peft#3580 and #3487: adapters that were loaded froze or trained those that were loaded before."""
    new_model().save_pretrained(tmp_path)
    first = ContextModel.from_pretrained(new_base("llama"), tmp_path).requires_grad_(False)
    second = ContextModel.from_pretrained(new_base("llama"), tmp_path)
    assert not any(trainable(first).values())
    assert {name for name, is_trained in trainable(second).items() if is_trained} == second.trained_names
    first.load_state_dict(second.state_dict())
    assert not any(trainable(first).values())


@pytest.mark.parametrize("targets", [["q_proj", "gate"], ["q_proj", "embeddings"], ["1.q_proj", "v_proj"]])
def test_a_target_that_no_map_has_is_refused(targets: list[str]) -> None:
    """huggingface/peft#3554: names without a map were ignored, so that few layers were trained."""
    with pytest.raises(UserError, match=r"target_modules: expected some of .*q_proj.*, got "):
        get_context_model(new_base("llama"), ContextConfig(target_modules=tuple(targets)))


def train(model: ContextModel, out: Path) -> None:
    """Train with the `Trainer` of transformers."""
    arguments = transformers.TrainingArguments(
        str(out), max_steps=2, remove_unused_columns=False, report_to=[], use_cpu=True, disable_tqdm=True
    )
    rows = [{**row, "input_ids": [3, 4, 5], "labels": [3, 4, 5]} for row in ROWS]
    collator = ContextCollator(transformers.default_data_collator, SCHEMA)
    transformers.Trainer(model, arguments, train_dataset=rows, data_collator=collator).train()


def test_a_training_of_opened_adapters_changes_them_and_one_of_frozen_adapters_fails(tmp_path: Path) -> None:
    """huggingface/trl#6700: a training of frozen adapters wrote the same adapters without an error."""
    new_model().save_pretrained(tmp_path / "first")
    model = ContextModel.from_pretrained(new_base("llama"), tmp_path / "first")
    train(model, tmp_path / "out")
    before = safetensors.torch.load_file(tmp_path / "first" / "context_model.safetensors")
    assert not any(torch.equal(values, before[name]) for name, values in model.state_dict().items())
    with pytest.raises((RuntimeError, ValueError)):
        train(model.requires_grad_(False), tmp_path / "out")


def test_disabled_adapters_remain_frozen(tokens: Tensor) -> None:
    """huggingface/peft#3447: frozen adapters were trained after they had been disabled."""
    model = new_model().requires_grad_(False)
    with model.disable_adapter():
        model(tokens)
    assert not any(trainable(model).values())


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_an_architecture_without_names_in_gguf_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ggml-org/llama.cpp#23047: the conversion of a LoRA of a new architecture ended with a traceback."""
    run: Any = random_run(tmp_path, "llama", **FACTOR)
    monkeypatch.setattr(run.model.backbone.base.config, "model_type", "gemma4_text")
    with pytest.raises(UserError, match=r"^gguf-lora: expected a base of the architecture llama, .*, got gemma4_text"):
        export(run, tmp_path / "out", to="gguf-lora", context={"city": "Oslo"})


@pytest.mark.parametrize(
    "options",
    [
        {"target_modules": ["embed_tokens", "lm_head"]},
        {"target_modules": ["embed_tokens"]},
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]},
    ],
)
def test_a_merged_model_with_new_tokens_is_the_same_after_it_was_saved(options: Any, tmp_path: Path) -> None:
    """huggingface/transformers#45127: tied weights that had become different were tied again."""
    base = new_base("llama")
    base.resize_token_embeddings(33, mean_resizing=False)
    model = get_context_model(base, ContextConfig(adapt=("factor",), schema=SCHEMA, **options))
    torch.manual_seed(2)
    for name, values in model.named_parameters():
        if name in model.trained_names or values.requires_grad:
            values.data.normal_(0, 0.3)
    tokens = torch.arange(9, 33).view(4, 6)
    expected = model.eval()(tokens, context=CONTEXTS[0]).logits
    merged = model.merge_and_unload(CONTEXTS[0])
    torch.testing.assert_close(merged(tokens).logits, expected, atol=1e-5, rtol=1e-5)
    merged.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(loaded(tokens).logits, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # PyTorch reads it where a graph ends
@pytest.mark.parametrize("is_called", [False, True])
def test_a_compiled_base_has_the_same_adapters_as_a_plain_one(is_called: bool, tmp_path: Path, tokens: Tensor) -> None:
    """huggingface/peft#2957: the wrapper of `torch.compile` changed the names by which maps and tensors are found."""
    torch.compiler.reset()  # it compiles a function only for a limited number of models
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    plain = new_model(target_modules=r"model\.layers\.\d\.self_attn\.q_proj")
    plain.save_pretrained(tmp_path / "plain")
    base: Any = torch.compile(new_base("llama"), backend=backend)
    if is_called:
        base(tokens, use_cache=False)
    model = ContextModel.from_pretrained(base, tmp_path / "plain").eval()
    graphs.clear()
    for contexts in (CONTEXTS, CONTEXTS[::-1]):
        expected = plain(tokens, context=contexts).logits
        torch.testing.assert_close(model(tokens, context=contexts, use_cache=False).logits, expected)
    assert graphs
    model.save_pretrained(tmp_path / "compiled")
    names = ["context_model.safetensors", "context_config.json"]
    assert [(tmp_path / "compiled" / name).read_bytes() for name in names] == [
        (tmp_path / "plain" / name).read_bytes() for name in names
    ]
    assert torch.equal(
        model.merge_and_unload(CONTEXTS[0])(tokens).logits, plain.merge_and_unload(CONTEXTS[0])(tokens).logits
    )


def test_the_number_of_a_layer_is_not_that_of_an_expert() -> None:
    """huggingface/peft#3016: the number of an expert was taken for that of its layer."""
    paths = [f"model.layers.{layer}.mlp.experts.{expert}.up_proj" for layer in (0, 1) for expert in (0, 1)]
    assert target_paths(paths, ("up_proj",), [1]) == set(paths[2:])
