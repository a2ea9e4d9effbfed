"""Tests of context adapters for models of `transformers`, against the models themselves, single texts and PEFT."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from torch import Tensor
from torch.utils._pytree import tree_map

from factorcell import UserError
from factorcell.hf import ContextConfig, ContextModel, get_context_model
from factorcell.nn.backbones.adapted_modules import Projection
from tests.fake_device import DEVICE, FakeDevice

ROWS = [
    {"text": text, "city": city, "age": age}
    for text, city, age in [("abc", "Oslo", 3.0), ("ba", "Rome", 5.0), ("cab", "Oslo", 9.0), ("bb", "Bern", 1.0)] * 3
]
CONTEXTS = [{"city": row["city"], "age": row["age"]} for row in ROWS[:4]]
SCHEMA = ContextConfig(["city", "age"], min_count=1).fit(ROWS).schema
SIZES: dict[str, Any] = {"vocab_size": 30, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
LAYERS: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


def new_base(name: str) -> Any:
    """Return a small model of `transformers` with random weights, the same in each call."""
    torch.manual_seed(1)
    configs: dict[str, Any] = {
        "gpt2": transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=64, **SIZES),
        "llama": transformers.LlamaConfig(num_key_value_heads=1, tie_word_embeddings=True, **LAYERS, **SIZES),
        "qwen2": transformers.Qwen2Config(num_key_value_heads=2, **LAYERS, **SIZES),
    }
    model = transformers.AutoModelForCausalLM.from_config(configs[name])
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.3)
    return model.eval()


def new_model(name: str = "llama", **options: Any) -> ContextModel:
    """Return a model with context adapters whose trained parameters are random numbers."""
    settings = {"rank": 2, "adapt": ("factor", "concat", "scale"), **options}
    model = get_context_model(new_base(name), ContextConfig(**settings, schema=SCHEMA))
    torch.manual_seed(2)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.normal_(0, 0.3)
    return model.eval()


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(3, 30, (4, 7), generator=torch.Generator().manual_seed(3))


def gradients(model: ContextModel) -> dict[str, Tensor]:
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen2"])
def test_model_equals_its_base_bit_for_bit_before_training(name: str, tokens: Tensor) -> None:
    config = ContextConfig(adapt=("factor", "concat", "scale"), schema=SCHEMA)
    model = get_context_model(new_base(name), config)
    for context in (None, CONTEXTS[0], CONTEXTS):
        assert torch.equal(model(tokens, context=context).logits, new_base(name)(tokens).logits)


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen2"])
def test_model_equals_its_base_in_bfloat16_bit_for_bit_before_training(name: str, tokens: Tensor) -> None:
    config = ContextConfig(adapt=("factor", "concat"), schema=SCHEMA)
    model = get_context_model(new_base(name).to(torch.bfloat16), config)
    expected = new_base(name).to(torch.bfloat16)(tokens).logits
    for context in (None, CONTEXTS):
        assert torch.equal(model(tokens, context=context).logits, expected)
    with model.disable_adapter():
        assert torch.equal(model(tokens).logits, expected)


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen2"])
def test_each_row_has_the_weights_of_its_context(name: str, tokens: Tensor) -> None:
    model = new_model(name)
    logits = model(tokens, context=CONTEXTS).logits
    for row, context in enumerate(CONTEXTS):
        alone = model(tokens[row : row + 1], context=context).logits[0]
        torch.testing.assert_close(logits[row], alone, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(logits, model(tokens, context=CONTEXTS[::-1]).logits, atol=1e-2)


def test_all_forms_of_a_context_are_read_alike(tokens: Tensor) -> None:
    model = new_model()
    expected = model(tokens, context=CONTEXTS).logits
    contexts = model.read_contexts(ROWS[:4])  # with a further column
    for context in (
        contexts,
        model.context_vectors(CONTEXTS),
        {"city": ["Oslo", "Rome", "Oslo", "Bern"], "age": [3, 5, 9, 1]},
    ):
        assert torch.equal(model(tokens, context=context).logits, expected)


def test_no_context_is_the_expected_context(tokens: Tensor) -> None:
    model = new_model()
    expected = model(tokens, context={"city": None, "age": None}).logits
    assert torch.equal(model(tokens).logits, expected)
    assert torch.equal(model(tokens, context={}).logits, expected)


@pytest.mark.parametrize("options", [{"num_beams": 3}, {"num_beams": 2, "num_return_sequences": 2}, {}])
def test_generated_rows_equal_those_generated_alone(options: dict[str, Any], tokens: Tensor) -> None:
    model = new_model()
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "eos_token_id": None, **options}
    together = model.generate(tokens, context=CONTEXTS, **options)
    alone = [model.generate(tokens[row : row + 1], context=CONTEXTS[row], **options) for row in range(4)]
    assert torch.equal(together, torch.cat(alone))
    assert torch.equal(together, model.generate(input_ids=tokens, context=CONTEXTS, **options))


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen2"])
@pytest.mark.parametrize("options", [{}, {"num_beams": 2}, {"shared_rank": 0}])
def test_texts_in_more_contexts_than_basis_tensors_equal_those_without_a_cache(
    name: str, options: dict[str, Any], tokens: Tensor
) -> None:
    beams = {"num_beams": options["num_beams"]} if "num_beams" in options else {}
    model = new_model(name, **({} if beams else options))
    contexts = torch.randn(12, 8, generator=torch.Generator().manual_seed(5))
    settings: dict[str, Any] = {"max_new_tokens": 44, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    prompts = tokens.repeat(3, 1)
    texts = model.generate(prompts, context=contexts, **settings, **beams)
    assert torch.equal(texts, model.generate(prompts, context=contexts, use_cache=False, **settings, **beams))
    logits = model(texts[:, :-1], context=contexts).logits
    if not beams:
        assert torch.equal(logits[:, 6:].argmax(2), texts[:, 7:])


def test_generation_follows_the_generation_config_of_the_model(tokens: Tensor) -> None:
    model = new_model()
    options: dict[str, Any] = {"max_new_tokens": 3, "num_beams": 2, "eos_token_id": None, "pad_token_id": 0}
    expected = model.generate(tokens, context=CONTEXTS, **options)
    model.generation_config = transformers.GenerationConfig(**options)
    assert torch.equal(model.generate(tokens, context=CONTEXTS), expected)


def test_samples_of_a_row_have_its_context(tokens: Tensor) -> None:
    model, same = new_model(), tokens[:1].expand(4, -1)
    options: dict[str, Any] = {"do_sample": True, "top_k": 1, "max_new_tokens": 1, "eos_token_id": None}
    samples = model.generate(same, context=CONTEXTS, num_return_sequences=3, **options)
    with torch.no_grad():
        best = model(same, context=CONTEXTS).logits[:, -1].argmax(1)
    assert len(set(best.tolist())) > 1
    assert torch.equal(samples[:, -1], best.repeat_interleave(3))


def test_disabled_adapters_give_the_base_in_this_thread_only(tokens: Tensor) -> None:
    model, base = new_model(), new_base("llama")
    expected = model(tokens, context=CONTEXTS).logits
    with model.disable_adapter():
        torch.testing.assert_close(model(tokens, context=CONTEXTS).logits, base(tokens).logits)
        with ThreadPoolExecutor(1) as pool:
            assert torch.equal(pool.submit(lambda: model(tokens, context=CONTEXTS).logits).result(), expected)
    assert torch.equal(model(tokens, context=CONTEXTS).logits, expected)


def test_threads_with_different_contexts_do_not_affect_each_other(tokens: Tensor) -> None:
    model = new_model()
    expected = [model(tokens, context=context).logits for context in CONTEXTS]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda context: model(tokens, context=context).logits, CONTEXTS * 5))
    assert all(torch.equal(result, expected[index % 4]) for index, result in enumerate(results))


def test_an_error_in_a_pass_leaves_no_context_behind(tokens: Tensor) -> None:
    model = new_model()
    with pytest.raises(IndexError):
        model(tokens + 1000, context=CONTEXTS)
    with pytest.raises(UserError, match="not its base or a part of it"):
        model.base(tokens)


def test_gradients_equal_finite_differences(tokens: Tensor) -> None:
    model = new_model("gpt2").double()  # the norms of Llama are computed in float32

    def loss() -> Tensor:  # the loss of `transformers` is of float32
        logits = model(tokens, context=CONTEXTS).logits[:, :-1]
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    torch.autograd.backward(loss())
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            assert parameter.grad is None
            continue
        index = tuple(size // 2 for size in parameter.shape)
        losses = []
        for step in (1e-5, -2e-5):
            with torch.no_grad():
                parameter[index] += step
                losses.append(float(loss()))
        with torch.no_grad():
            parameter[index] += 1e-5
        assert float(parameter.grad[index]) == pytest.approx((losses[0] - losses[1]) / 2e-5, rel=1e-4, abs=1e-8), name  # type: ignore[index]


def test_gradient_checkpointing_gives_the_same_gradients_from_another_thread(tokens: Tensor) -> None:
    model = new_model().train()
    model(tokens, context=CONTEXTS, labels=tokens).loss.backward()
    expected = gradients(model)
    model.zero_grad()
    model.activation_checkpointing_enable()
    loss = model(tokens, context=CONTEXTS, labels=tokens, use_cache=False).loss
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    assert all(torch.equal(gradient, expected[name]) for name, gradient in gradients(model).items())
    with pytest.raises(UserError, match=r"^use_reentrant: expected False.*got True"):
        model.gradient_checkpointing_enable({"use_reentrant": True})


def test_autocast_computes_the_change_of_each_context_in_bfloat16(tokens: Tensor) -> None:
    model = new_model().requires_grad_(False)
    for context in (CONTEXTS, CONTEXTS[0]):
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(tokens, context=context).logits
        expected = model(tokens, context=context).logits
        change = expected - new_base("llama")(tokens).logits.detach()
        assert float((logits - expected).norm()) < 0.05 * float(change.norm())


def test_compiled_model_has_one_graph_and_the_same_logits(tokens: Tensor) -> None:
    model = new_model()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for contexts in (CONTEXTS, CONTEXTS[::-1]):
        vectors = model.context_vectors(contexts).detach()
        logits = compiled(tokens, context=vectors, use_cache=False).logits
        torch.testing.assert_close(logits, model(tokens, context=contexts).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # PyTorch reads it where a graph ends
def test_compiled_model_reads_contexts_outside_of_its_graph(tokens: Tensor) -> None:
    model = new_model()
    logits = torch.compile(model, backend="eager")(tokens, context=CONTEXTS, use_cache=False).logits
    torch.testing.assert_close(logits, model(tokens, context=CONTEXTS).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")  # PEFT reads this deprecated attribute
def test_without_variables_the_adapters_are_a_lora_of_peft(tokens: Tensor) -> None:
    model = get_context_model(new_base("llama"), ContextConfig(rank=2, shared_rank=3, alpha=6))
    names = sorted({projection.path.rpartition(".")[2] for projection in model.maps.projections})
    lora = peft.get_peft_model(new_base("llama"), peft.LoraConfig(r=5, lora_alpha=15, target_modules=names))
    torch.manual_seed(4)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.normal_(0, 0.3)
    for projection, shift in zip(model.maps.projections, model.maps.condition(torch.ones(1, 1)), strict=True):
        layer = lora.get_submodule(f"base_model.model.{projection.path}")
        factors = shift.low_rank_factors()
        assert factors is not None
        layer.lora_A["default"].weight.data = factors[0].detach().T.clone()  # type: ignore[index, union-attr]
        layer.lora_B["default"].weight.data = factors[1].detach().T.clone()  # type: ignore[index, union-attr]
    torch.testing.assert_close(model(tokens).logits, lora(tokens).logits, atol=1e-5, rtol=1e-5)
    assert model.get_nb_trainable_parameters()[0] == lora.get_nb_trainable_parameters()[0]


def test_trained_parameters_are_printed_as_by_peft(capsys: pytest.CaptureFixture[str]) -> None:
    model = new_model()
    trained, total = model.get_nb_trainable_parameters()
    assert total - trained == sum(parameter.numel() for parameter in new_base("llama").parameters())
    model.print_trainable_parameters()
    assert capsys.readouterr().out.startswith(f"trainable params: {trained:,} || all params: {total:,} || trainable%: ")


def test_saved_adapters_give_the_same_logits_with_the_base(tmp_path: Path, tokens: Tensor) -> None:
    model = new_model(target_modules=["q_proj", "v_proj"])
    model.save_pretrained(tmp_path)
    model.save_pretrained(tmp_path)  # a second time, as in a training
    opened = ContextModel.from_pretrained(new_base("llama"), tmp_path)
    assert opened.context_config == model.context_config
    assert opened.schema == model.schema
    assert torch.equal(opened(tokens, context=CONTEXTS).logits, model(tokens, context=CONTEXTS).logits)
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(sizes) == {"context_config.json", "context_model.safetensors", "schema.json"}
    assert not any("weight" in name and "adapters" not in name for name in model.state_dict() if "base." in name)


@pytest.mark.filterwarnings("ignore:.*has no place for a bias")
@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen2"])
def test_merged_model_is_a_plain_model(name: str, tokens: Tensor) -> None:
    model = new_model(name)
    expected = model(tokens, context=CONTEXTS[1]).logits
    merged = model.merge_and_unload(CONTEXTS[1])
    assert not any(isinstance(module, Projection) for module in merged.modules())
    assert {type(module) for module in merged.modules()} == {type(module) for module in new_base(name).modules()}
    torch.testing.assert_close(merged(tokens).logits, expected, atol=1e-5, rtol=1e-5)


def test_bfloat16_base_has_float32_adapters(tokens: Tensor) -> None:
    model = get_context_model(new_base("llama").bfloat16(), ContextConfig(schema=SCHEMA))
    logits = model(tokens, context=CONTEXTS, labels=tokens)
    assert torch.equal(logits.logits, new_base("llama").bfloat16()(tokens).logits)
    logits.loss.backward()
    assert {gradient.dtype for gradient in gradients(model).values()} == {torch.float32}


def test_a_model_in_float16_trains_and_generates(tokens: Tensor) -> None:
    model = new_model()
    expected = model(tokens, context=CONTEXTS).logits
    output = model.half()(tokens, context=CONTEXTS, labels=tokens)
    assert output.logits.dtype == torch.float16
    torch.testing.assert_close(output.logits.float(), expected, atol=0.03, rtol=0.03)
    output.loss.backward()
    assert set(gradients(model)) == model.trained_names
    assert all(gradient.isfinite().all() for gradient in gradients(model).values())
    for contexts in (CONTEXTS, CONTEXTS[0]):
        assert model.generate(tokens, context=contexts, max_new_tokens=2, eos_token_id=None).shape == (4, 9)


def test_copy_of_a_model_is_independent(tokens: Tensor) -> None:
    model = new_model()
    expected = model(tokens, context=CONTEXTS).logits
    copied = copy.deepcopy(model)
    for parameter in copied.parameters():
        parameter.data.zero_()
    assert torch.equal(model(tokens, context=CONTEXTS).logits, expected)


def send_inputs(module: torch.nn.Module, source: torch.device, target: torch.device) -> None:
    """Let `module`, on `target`, read inputs from `source` and return outputs to it, as `accelerate` does."""

    def moved(values: Any, device: torch.device) -> Any:
        return tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, values)

    module.register_forward_pre_hook(
        lambda _, arguments, options: (moved(arguments, target), moved(options, target)), with_kwargs=True
    )
    module.register_forward_hook(lambda _, arguments, outputs: moved(outputs, source))


@pytest.mark.parametrize("name", ["gpt2", "qwen2"])
def test_adapters_of_a_divided_model_are_on_the_devices_of_their_maps(name: str, tokens: Tensor) -> None:
    processor = new_model(name)
    expected = processor(tokens, context=CONTEXTS).logits
    state = processor.state_dict()
    with FakeDevice():
        base = new_base(name)
        base.config.use_cache = False
        layer = base.transformer.h[1] if name == "gpt2" else base.model.layers[1]
        layer.to(DEVICE)
        send_inputs(layer, torch.device("cpu"), DEVICE)
        model = get_context_model(base, processor.context_config).eval()
        devices = {projection.weight.device for projection in model.maps.projections}
        assert devices == {DEVICE, torch.device("cpu")}
        for projection in model.maps.projections:
            assert {tensor.device for tensor in projection.parameters()} == {projection.weight.device}
        assert model.encoder is not None
        assert {parameter.device for parameter in model.encoder.parameters()} == {torch.device("cpu")}
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                if parameter.requires_grad:
                    parameter.copy_(state[parameter_name])
            torch.testing.assert_close(model(tokens, context=CONTEXTS).logits, expected, atol=1e-5, rtol=1e-5)
            shared = processor(tokens, context=CONTEXTS[0]).logits
            torch.testing.assert_close(model(tokens, context=CONTEXTS[0]).logits, shared, atol=1e-5, rtol=1e-5)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        model(tokens, context=CONTEXTS, labels=tokens).loss.backward()
        assert all(parameter.grad is not None and parameter.grad.device == parameter.device for parameter in trained)


def test_an_adapted_output_layer_may_be_on_another_device_than_the_layers_before_it(tokens: Tensor) -> None:
    processor = new_model("qwen2", target_modules=["q_proj", "lm_head"])
    expected, state = processor(tokens, context=CONTEXTS).logits, processor.state_dict()
    with FakeDevice():
        base = new_base("qwen2")
        base.lm_head.to(DEVICE)
        model = get_context_model(base, processor.context_config).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.requires_grad:
                    parameter.copy_(state[name])
            logits = model(tokens, context=CONTEXTS).logits
        assert logits.device == DEVICE
        torch.testing.assert_close(logits.to("cpu"), expected, atol=1e-5, rtol=1e-5)


class HalfLinear(torch.nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * super().forward(x)


def test_a_module_that_computes_something_else_than_a_linear_map_is_not_adapted(tokens: Tensor) -> None:
    base = new_base("llama")
    base.model.layers[0].mlp.up_proj.__class__ = HalfLinear
    logits = base(tokens).logits
    model = get_context_model(base, ContextConfig(schema=SCHEMA))
    torch.testing.assert_close(model(tokens).logits, logits, rtol=0, atol=0)
    assert isinstance(base.model.layers[0].mlp.up_proj, HalfLinear)


def test_unloaded_model_is_the_base(tokens: Tensor) -> None:
    plain = new_model().unload()
    torch.testing.assert_close(plain(tokens).logits, new_base("llama")(tokens).logits, rtol=0, atol=0)
    assert not any(isinstance(module, Projection) for module in plain.modules())


def test_adapters_are_stored_also_if_they_are_frozen_or_in_another_module(tmp_path: Path, tokens: Tensor) -> None:
    model = new_model().requires_grad_(False)
    model.save_pretrained(tmp_path)
    opened = ContextModel.from_pretrained(new_base("llama"), tmp_path).eval()
    torch.testing.assert_close(opened(tokens, context=CONTEXTS).logits, model(tokens, context=CONTEXTS).logits)
    whole = torch.nn.ModuleDict({"first": torch.nn.Linear(1, 1), "last": new_model()})
    state = whole.state_dict()
    assert whole.load_state_dict(state).missing_keys == []
    del state["first.weight"], state["last.encoder.joint.bias"]
    missing = whole.load_state_dict(state, strict=False).missing_keys
    assert sorted(missing) == ["first.weight", "last.encoder.joint.bias"]


def test_trainer_shifts_the_labels_of_a_smoothed_loss(tmp_path: Path, tokens: Tensor) -> None:
    """With almost no smoothing, the loss is that of the model; the Trainer shifts labels for names that it knows."""
    model = new_model()
    arguments = transformers.TrainingArguments(str(tmp_path), label_smoothing_factor=1e-9, use_cpu=True, report_to=[])
    loss = transformers.Trainer(model, arguments).compute_loss(
        model, {"input_ids": tokens, "labels": tokens.clone(), "context": CONTEXTS}
    )
    torch.testing.assert_close(loss, model(tokens, labels=tokens, context=CONTEXTS).loss, atol=1e-5, rtol=1e-5)


def new_unusual_base(kind: str) -> Any:
    """Return a model whose layers are the model itself, or are in a wrapper."""
    if kind == "PEFT":
        return peft.get_peft_model(new_base("llama"), peft.LoraConfig(target_modules=["q_proj"], r=2))
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "vocab_size": 30}
    torch.manual_seed(1)
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, decoder_start_token_id=0)).eval()


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # of PEFT
@pytest.mark.parametrize("kind", ["T5", "PEFT"])
def test_adapters_of_unusual_bases_are_saved(kind: str, tokens: Tensor, tmp_path: Path) -> None:
    model = get_context_model(new_unusual_base(kind), ContextConfig(schema=SCHEMA))
    options: dict[str, Any] = {"decoder_input_ids": tokens} if kind == "T5" else {}
    start = model(tokens, context={}, **options).logits
    torch.testing.assert_close(start, new_unusual_base(kind)(tokens, **options).logits)
    with torch.no_grad():
        for parameter in model.maps.projections[0].group.adapters.parameters():
            parameter.normal_(0, 0.3)
    changed = model(tokens, context={}, **options).logits
    assert not torch.allclose(changed, start)
    model.save_pretrained(tmp_path)
    loaded = ContextModel.from_pretrained(new_unusual_base(kind), tmp_path)
    torch.testing.assert_close(loaded.eval()(tokens, context={}, **options).logits, changed)
    assert len(model.maps.projections) == len(loaded.maps.projections)
    assert not any("lm_head" in projection.path for projection in model.maps.projections)


@pytest.mark.parametrize("is_merged", [True, False])
def test_plain_models_train_after_checkpointing_with_adapters(is_merged: bool, tokens: Tensor) -> None:
    model = new_model(adapt=("factor",))
    model.gradient_checkpointing_enable()
    plain = model.merge_and_unload(CONTEXTS[0]) if is_merged else model.unload()
    plain.requires_grad_(True).train()(tokens, labels=tokens, use_cache=False).loss.backward()
    assert all(parameter.grad is not None for parameter in plain.parameters())
