"""The base of a model with context adapters: checkpointing that was set before, and files of merged models."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from factorcell import UserError
from factorcell.hf import ContextConfig, ContextModel, get_context_model
from tests.findings import expected_finding, no_findings
from tests.nn.test_context_model import CONTEXTS, LAYERS, SCHEMA, SIZES, new_base, new_model


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(3, 30, (4, 7), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_layers_of_a_base_with_checkpointing_read_their_context(use_reentrant: bool, tokens: Tensor) -> None:
    """In PEFT, a base usually gets checkpointing before its adapters."""
    losses = []
    for is_checkpointed in (False, True):
        base = new_base("llama")
        if is_checkpointed:
            base.activation_checkpointing_enable({"use_reentrant": use_reentrant})
            base.enable_input_require_grads()
        torch.manual_seed(2)
        model = get_context_model(base, ContextConfig(schema=SCHEMA)).train()
        optimizer = torch.optim.SGD([values for values in model.parameters() if values.requires_grad], lr=0.1)
        for _ in range(3):
            loss = model(tokens, context=CONTEXTS, labels=tokens, use_cache=False).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
    assert losses[:3] == losses[3:]
    assert losses[2] < losses[0]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("llama", {"adapt": ("factor", "concat")}),
        ("llama", {"adapt": ("concat",), "target_modules": ["up_proj"]}),
        ("gpt2", {"adapt": ("factor", "concat")}),
        ("qwen2", {"adapt": ("factor",)}),
    ],
)
def test_a_merged_model_is_loaded_from_its_file_with_all_biases(
    name: str, options: dict[str, Any], tokens: Tensor, tmp_path: Path
) -> None:
    model = new_model(name, **options)
    expected = model(tokens, context=CONTEXTS[1]).logits
    with no_findings():
        merged = model.merge_and_unload(CONTEXTS[1])
    merged.save_pretrained(tmp_path)
    loaded = type(merged).from_pretrained(tmp_path)
    torch.testing.assert_close(loaded(tokens).logits, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
def test_the_state_of_a_compiled_model_is_saved_and_an_incomplete_one_refused(tmp_path: Path, tokens: Tensor) -> None:
    model = new_model()
    state: dict[str, Tensor] = torch.compile(model).state_dict()  # type: ignore[attr-defined]
    assert all(name.startswith("_orig_mod.") for name in state)
    model.save_pretrained(tmp_path, state_dict=state)
    opened = ContextModel.from_pretrained(new_base("llama"), tmp_path).eval()
    assert torch.equal(opened(tokens, context=CONTEXTS).logits, model(tokens, context=CONTEXTS).logits)
    del state["_orig_mod.encoder.joint.bias"]
    with pytest.raises(UserError, match=r"state_dict: expected .* such as encoder.joint.bias, which it lacks"):
        model.save_pretrained(tmp_path, state_dict=state)


class OwnConfig(transformers.LlamaConfig):  # type: ignore[misc]
    """A type that the library does not know, such as one that comes with a model."""

    model_type = "own_llama"


class OwnModel(transformers.LlamaForCausalLM):  # type: ignore[misc]
    config_class = OwnConfig


def test_a_model_of_an_own_class_is_merged(tokens: Tensor) -> None:
    base = OwnModel(OwnConfig(num_key_value_heads=1, **LAYERS, **SIZES)).eval()
    model = get_context_model(base, ContextConfig(adapt=("factor", "concat"), schema=SCHEMA))
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.normal_(0, 0.3)
    expected = model(tokens, context=CONTEXTS[1]).logits
    merged = model.merge_and_unload(CONTEXTS[1])
    torch.testing.assert_close(merged(tokens).logits, expected, atol=1e-5, rtol=1e-5)
    assert merged.config.attention_bias


def test_a_notice_says_which_biases_a_file_would_lose() -> None:
    with no_findings():
        model = new_model().merge_and_unload(CONTEXTS[1])
    assert model.config.attention_bias
    assert model.config.mlp_bias
    with expected_finding("lost bias"):
        new_model("qwen2").merge_and_unload(CONTEXTS[1])
