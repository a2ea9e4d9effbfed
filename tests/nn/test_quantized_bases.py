"""Tests of context adapters in bases with weights of 8 and 4 bits, of bitsandbytes and torchao."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from factorcell import UserError
from factorcell.adapters.adapters import AdaptedLinear
from factorcell.hf import ContextCollator, ContextConfig, ContextModel, get_context_model
from factorcell.nn.backbones.adapted_modules import AdaptedModules, QuantizedProjection
from factorcell.nn.backbones.backbone import BackboneSizes
from tests.nn.test_context_model import CONTEXTS, ROWS, SCHEMA, gradients

# Each has an own kind of weights: maps of an own class, or tensors of an own class.
LIBRARIES = ("bitsandbytes-8", "bitsandbytes-4", "torchao-8", "torchao-4")
KINDS = ("own", *(pytest.param(name, marks=pytest.mark.slow) for name in LIBRARIES))
LAYERS: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}


class EightBitLinear(torch.nn.Linear):
    """A map with quantized weights and a method of its own, as libraries for quantization have."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.weight.data = self.weight.data.to(torch.float8_e4m3fn)

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, self.weight.to(x.dtype), self.bias)


@pytest.fixture
def tokens() -> Tensor:
    return torch.arange(3, 27).view(4, 6)


@torch.no_grad()  # with gradients, bitsandbytes computes products in another way
def logits_of(model: Any, tokens: Tensor, **context: Any) -> Tensor:
    logits: Tensor = model(tokens, **context).logits
    return logits


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def quantization(kind: str) -> Any:
    """Return the options of transformers with which a base is loaded."""
    if kind.startswith("bitsandbytes"):
        return transformers.BitsAndBytesConfig(load_in_8bit=kind.endswith("8"), load_in_4bit=kind.endswith("4"))
    from torchao.quantization import Int8WeightOnlyConfig, IntxWeightOnlyConfig, PerGroup

    int4 = torch.int4  # type: ignore[attr-defined]
    four_bits = IntxWeightOnlyConfig(weight_dtype=int4, granularity=PerGroup(32))
    return transformers.TorchAoConfig(Int8WeightOnlyConfig() if kind.endswith("8") else four_bits)


def new_base(kind: str, folder: Path) -> Any:
    """Return a small base with random weights, the same in each call, all of whose layers are quantized."""
    torch.manual_seed(1)
    plain = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=30, attention_bias=True, **LAYERS))
    if kind == "own":
        for parent in list(plain.model.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, torch.nn.Linear):
                    quantized = EightBitLinear(child.in_features, child.out_features).requires_grad_(False)
                    setattr(parent, name, quantized)
        return plain.eval()
    plain.save_pretrained(folder / "base")
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder / "base", quantization_config=quantization(kind), device_map="cpu"
    ).eval()


def new_model(kind: str, folder: Path, **options: Any) -> ContextModel:
    """Return a model whose adapters have random numbers."""
    settings = {"rank": 2, "adapt": ("factor", "concat", "scale"), **options}
    model = get_context_model(new_base(kind, folder), ContextConfig(**settings, schema=SCHEMA))
    torch.manual_seed(2)
    for name, values in model.named_parameters():
        if name in model.trained_names:
            values.data.normal_(0, 0.1)
    return model


def test_adapters_add_their_change_to_the_product_of_the_base(kind: str, tmp_path: Path, tokens: Tensor) -> None:
    base = new_base(kind, tmp_path)
    expected = logits_of(base, tokens)
    model = get_context_model(base, ContextConfig(schema=SCHEMA))
    assert len(model.maps.projections) == 14
    assert all(isinstance(projection, QuantizedProjection) for projection in model.maps.projections)
    assert torch.equal(logits_of(model, tokens, context=CONTEXTS), expected)

    model = new_model(kind, tmp_path)
    projection: Any = model.maps.projections[0]
    shift: Any = model.maps.condition(torch.randn(4, 9))[0]
    inputs, bias = torch.randn(4, 6, 64), projection.linear.bias
    low_rank = inputs @ shift.shared_left @ shift.shared_right + inputs @ shift.left @ shift.right
    scaled = shift.scale[:, None] * (projection.linear(inputs) - bias + 2 * low_rank)
    exact = scaled + shift.bias[:, None] + bias
    result = AdaptedLinear.forward(projection, inputs, shift)
    torch.testing.assert_close(result, exact, atol=1e-4, rtol=1e-4)


def test_each_text_has_the_weights_of_its_context(kind: str, tmp_path: Path, tokens: Tensor) -> None:
    model = new_model(kind, tmp_path)
    single = [logits_of(model, tokens[row : row + 1], context=CONTEXTS[row]) for row in range(4)]
    torch.testing.assert_close(logits_of(model, tokens, context=CONTEXTS), torch.cat(single), atol=1e-3, rtol=1e-3)
    generated = model.generate(tokens, context=CONTEXTS[1], max_new_tokens=3)
    for step in range(6, 9):
        logits = logits_of(model, generated[:, :step], context=CONTEXTS[1])[:, -1]
        chosen = logits.gather(1, generated[:, step : step + 1])[:, 0]
        assert (chosen >= logits.max(1).values - 1e-2).all()


def test_training_changes_only_the_adapters_which_are_saved(kind: str, tmp_path: Path, tokens: Tensor) -> None:
    model = new_model(kind, tmp_path, lora_dropout=0.1).train()
    model.activation_checkpointing_enable()
    optimizer = torch.optim.AdamW([values for values in model.parameters() if values.requires_grad], lr=0.01)
    losses = []
    for _ in range(20):
        loss = model(tokens, context=CONTEXTS, labels=tokens, use_cache=False).loss
        loss.backward()
        losses.append(loss.item())
        assert set(gradients(model)) == model.trained_names
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < 0.8 * losses[0]
    model.eval().save_pretrained(tmp_path / "adapters")
    opened = ContextModel.from_pretrained(new_base(kind, tmp_path), tmp_path / "adapters").eval()
    assert set(opened.state_dict()) == opened.trained_names
    assert torch.equal(logits_of(opened, tokens, context=CONTEXTS), logits_of(model, tokens, context=CONTEXTS))


def test_autocast_computes_the_change_of_each_context(kind: str, tmp_path: Path, tokens: Tensor) -> None:
    model = new_model(kind, tmp_path)
    exact = model(tokens, context=CONTEXTS).logits
    with torch.autocast("cpu", torch.bfloat16):
        rounded = model(tokens, context=CONTEXTS).logits
    torch.testing.assert_close(rounded.float(), exact, atol=0.2, rtol=0.2)


def test_the_trainer_trains_a_quantized_base(kind: str, tmp_path: Path) -> None:
    model = new_model(kind, tmp_path)
    arguments = transformers.TrainingArguments(
        str(tmp_path / "out"), max_steps=3, remove_unused_columns=False, report_to=[], use_cpu=True, disable_tqdm=True
    )
    rows = [{**row, "input_ids": [3, 4, 5], "labels": [3, 4, 5]} for row in ROWS]
    collator = ContextCollator(transformers.default_data_collator, SCHEMA)
    trainer = transformers.Trainer(model, arguments, train_dataset=rows, data_collator=collator)
    assert trainer.train().global_step == 3


def test_a_quantized_base_is_not_merged(kind: str, tmp_path: Path, tokens: Tensor) -> None:
    model = new_model(kind, tmp_path)
    expected = logits_of(new_base(kind, tmp_path), tokens)
    with pytest.raises(UserError, match=r"model\.layers\.0\..*: expected .* to merge, got quantized weights") as error:
        model.merge_and_unload(CONTEXTS[0])
    assert "\n" not in str(error.value)
    assert torch.equal(logits_of(model.unload(), tokens), expected)


def test_quantized_modules_are_not_trained(kind: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"modules_to_save: expected .* not quantized, got mlp"):
        new_model(kind, tmp_path, target_modules=["q_proj"], modules_to_save=["mlp"])


def test_maps_with_floating_point_numbers_next_to_quantized_ones_are_adapted(tokens: Tensor, tmp_path: Path) -> None:
    base = new_base("own", tmp_path)
    base.model.layers[0].self_attn.k_proj = torch.nn.Linear(64, 64)
    base = base.bfloat16()
    for part in base.modules():
        if isinstance(part, EightBitLinear):
            part.weight.data = part.weight.data.to(torch.float8_e4m3fn)
    expected = base(tokens).logits
    model = get_context_model(base, ContextConfig(schema=SCHEMA))
    assert sum(not projection.is_quantized for projection in model.maps.projections) == 1
    assert torch.equal(model(tokens, context=CONTEXTS).logits, expected)


def test_a_mixed_module_has_its_own_types() -> None:
    layer = torch.nn.ModuleDict({"a": EightBitLinear(4, 4), "b": torch.nn.Linear(4, 4)})
    maps = AdaptedModules(layer, BackboneSizes(0, 3, ("factor",), 1))
    assert [projection.is_quantized for projection in maps.projections] == [True, False]
