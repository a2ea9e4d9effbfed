"""Tests of the options of context adapters that have their names in PEFT, against PEFT."""

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from torch import Tensor

from factorcell import UserError
from factorcell.hf import ContextConfig, ContextModel, get_context_model
from tests.nn.test_context_model import CONTEXTS, LAYERS, SCHEMA, SIZES, gradients, new_base, new_model

# PEFT reads an attribute that transformers has replaced, and advises about tied weights.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing"),
    pytest.mark.filterwarnings("ignore:.*tie_word_embeddings"),
]
MIDDLE = r".*\.1\.(self_attn\.[qv]_proj|mlp\.down_proj)"


@pytest.fixture
def tokens() -> Tensor:
    return torch.arange(3, 27).view(4, 6)


def new_lora(base: str = "llama", **options: Any) -> ContextModel:
    """Return adapters without context variables, with a LoRA of rank 5 and random numbers."""
    model = get_context_model(new_base(base), ContextConfig(rank=2, shared_rank=3, alpha=6, **options))
    torch.manual_seed(4)
    for values in model.maps.adapter_tensors().values():
        values.data.normal_(0, 0.3)
    return model


def peft_lora(model: ContextModel, base: Any, **options: Any) -> Any:
    """Return the LoRA of PEFT with the weights of the adapters of `model`, which have no context variables."""
    names = [projection.path for projection in model.maps.projections]
    options = {"target_modules": names, "lora_alpha": 15, **options}
    lora = peft.get_peft_model(base, peft.LoraConfig(r=5, **options))
    for projection, shift in zip(model.maps.projections, model.maps.condition(torch.ones(1, 1)), strict=True):
        layer: Any = lora.get_submodule(f"base_model.model.{projection.path}")
        factors = shift.low_rank_factors()
        assert factors is not None
        layer.lora_A["default"].weight.data = factors[0].detach().T.clone()
        layer.lora_B["default"].weight.data = factors[1].detach().T.clone()
    return lora


def reopened(model: ContextModel, base: Any, folder: Path, tokens: Tensor, **context: Any) -> ContextModel:
    """Save and open a model, and return it after a comparison."""
    model.eval().save_pretrained(folder)
    opened = ContextModel.from_pretrained(base, folder)
    assert opened.context_config == model.context_config
    assert torch.equal(opened(tokens, **context).logits, model(tokens, **context).logits)
    return opened


@pytest.mark.parametrize(
    "options",
    [
        {"target_modules": MIDDLE},
        {"target_modules": r"q_proj"},
        {"target_modules": r"lm_head|.*\.q_proj"},
        {"target_modules": ["self_attn.q_proj", "1.mlp.up_proj", "v_proj"]},
        {"target_modules": ["model.layers.0.mlp.up_proj", "lm_head"]},
        {"target_modules": ["proj"]},
        {"target_modules": ["q_proj", "mlp"]},
        {"target_modules": ["q_proj", "down_proj"], "layers_to_transform": 1},
        {"target_modules": ["q_proj", "down_proj"], "layers_to_transform": [0, 1]},
        {"target_modules": ["q_proj", "v_proj"], "modules_to_save": ["1.self_attn", "norm"]},
        {"target_modules": ["q_proj", "embed_tokens"]},
        {"target_modules": r".*(embed_tokens|v_proj)"},
    ],
)
def test_targets_are_those_of_peft(options: dict[str, Any]) -> None:
    def adapted_by_peft() -> set[str]:
        lora: Any = peft.get_peft_model(new_base("qwen2"), peft.LoraConfig(**options))
        return {name for name, part in lora.base_model.model.named_modules() if hasattr(part, "lora_A")}

    try:
        expected = adapted_by_peft()
    except ValueError:  # PEFT finds no module, or one that is not a linear map
        with pytest.raises(UserError, match="target_modules: expected "):
            get_context_model(new_base("qwen2"), ContextConfig(**options))
        return
    model = get_context_model(new_base("qwen2"), ContextConfig(**options))
    assert {projection.path for projection in model.maps.projections} == expected


def test_all_maps_of_some_layers_are_adapted(tmp_path: Path, tokens: Tensor) -> None:
    model = new_model("gpt2", layers_to_transform=1)
    assert [projection.path.partition(".1.")[0] for projection in model.maps.projections] == ["transformer.h"] * 4
    opened = reopened(model, new_base("gpt2"), tmp_path, tokens, context=CONTEXTS)
    assert opened.context_config.layers_to_transform == (1,)


def test_rank_stabilized_lora_is_that_of_peft(tmp_path: Path, tokens: Tensor) -> None:
    model = new_lora(use_rslora=True)
    lora = peft_lora(model, new_base("llama"), use_rslora=True, lora_alpha=6 * (5 / 2) ** 0.5)
    torch.testing.assert_close(model(tokens).logits, lora(tokens).logits, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(model(tokens).logits, new_lora()(tokens).logits)
    reopened(model, new_base("llama"), tmp_path, tokens)


def test_dropout_is_that_of_peft_in_training_only(tmp_path: Path, tokens: Tensor) -> None:
    model = new_lora(lora_dropout=0.5)
    lora = peft_lora(model, new_base("llama"), lora_dropout=0.5)
    without = new_lora()(tokens).logits
    assert torch.equal(model(tokens).logits, without)
    results = []
    for adapted in (model.train(), lora.train()):
        torch.manual_seed(7)
        results.append(adapted(tokens).logits)
    torch.testing.assert_close(results[0], results[1], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(results[0], without)
    with model.disable_adapter():
        assert torch.equal(model(tokens).logits, new_base("llama")(tokens).logits)
    reopened(model, new_base("llama"), tmp_path, tokens)


def test_dropout_with_gradient_checkpointing_gives_the_same_gradients(tokens: Tensor) -> None:
    model = new_model(lora_dropout=0.5).train()

    def backward() -> dict[str, Tensor]:
        model.zero_grad()
        torch.manual_seed(7)
        model(tokens, context=CONTEXTS, labels=tokens, use_cache=False).loss.backward()
        return {name: gradient.clone() for name, gradient in gradients(model).items()}

    expected = backward()
    model.activation_checkpointing_enable()
    assert all(torch.equal(gradient, expected[name]) for name, gradient in backward().items())


def test_saved_modules_are_trained_as_in_peft(tmp_path: Path, tokens: Tensor) -> None:
    options: dict[str, Any] = {"target_modules": ["q_proj"], "modules_to_save": ["model.norm", "lm_head", "1.mlp"]}
    model = new_lora("qwen2", **options)
    lora = peft_lora(model, new_base("qwen2"), modules_to_save=options["modules_to_save"])
    for adapted in (model, lora):
        optimizer = torch.optim.SGD([values for values in adapted.parameters() if values.requires_grad], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            adapted(tokens, labels=tokens).loss.backward()
            # The adapters of both libraries have other shapes, so that their steps differ.
            for name, values in adapted.named_parameters():
                if "lora_" in name or "adapters" in name:
                    values.grad = None
            optimizer.step()
    torch.testing.assert_close(model(tokens).logits, lora(tokens).logits, atol=1e-4, rtol=1e-4)
    trained = {name for name in model.state_dict() if "adapters" not in name}
    assert trained == {
        "base.model.norm.weight",
        "base.lm_head.weight",
        *(f"base.model.layers.1.mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
    }
    opened = reopened(model, new_base("qwen2"), tmp_path, tokens)
    assert all(dict(opened.named_parameters())[name].requires_grad for name in trained)


def test_a_saved_output_layer_remains_tied_to_the_embeddings(tmp_path: Path, tokens: Tensor) -> None:
    model = new_model(modules_to_save=["lm_head"]).train()
    model(tokens, context=CONTEXTS, labels=tokens).loss.backward()
    table = model.get_input_embeddings().weight
    assert table is model.get_output_embeddings().weight
    table.data -= 0.1 * table.grad
    reopened(model, new_base("llama"), tmp_path, tokens, context=CONTEXTS)


@pytest.mark.parametrize("base", ["llama", "qwen2"])  # with and without tied weights
def test_the_output_layer_is_adapted_as_by_peft(base: str, tmp_path: Path, tokens: Tensor) -> None:
    model = new_lora(base, target_modules=["q_proj", "lm_head"])
    lora = peft_lora(model, new_base(base))
    expected = lora(tokens).logits
    torch.testing.assert_close(model(tokens).logits, expected, atol=1e-5, rtol=1e-5)
    is_tied = base == "llama"
    embeddings = model.get_input_embeddings().weight
    assert (model.get_output_embeddings().weight is embeddings) == is_tied
    former = embeddings.clone()
    reopened(model, new_base(base), tmp_path / "adapters", tokens)
    assert torch.equal(model.generate(tokens, max_new_tokens=4), lora.generate(tokens, max_new_tokens=4))
    merged = model.merge_and_unload()
    assert torch.equal(merged.get_input_embeddings().weight, former)
    merged.save_pretrained(tmp_path / "merged")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(loaded(tokens).logits, expected, atol=1e-5, rtol=1e-5)


def test_an_unloaded_base_has_tied_weights_again(tokens: Tensor) -> None:
    base = new_lora(target_modules=["lm_head"]).unload()
    assert base.get_output_embeddings().weight is base.get_input_embeddings().weight
    assert base.config.tie_word_embeddings
    assert torch.equal(base(tokens).logits, new_base("llama")(tokens).logits)


def test_layers_without_an_adapted_output_layer_are_refused(tokens: Tensor) -> None:
    model = new_lora(target_modules=["lm_head"])
    with pytest.raises(UserError, match="target_modules: expected no output layer"):
        model.base_model(tokens)


def read_peft(base: str, folder: Path) -> Any:
    """Return the LoRA in a folder, read by PEFT."""
    return peft.PeftModel.from_pretrained(new_base(base), folder)


@pytest.mark.filterwarnings("ignore:fan_in_fan_out")
@pytest.mark.parametrize("base", ["gpt2", "llama", "qwen2"])  # the first two have tied weights
@pytest.mark.parametrize("adapt", [("factor",), ("factor", "concat")])
def test_embeddings_are_adapted_as_by_peft(base: str, adapt: tuple[str, ...], tmp_path: Path, tokens: Tensor) -> None:
    name = "wte" if base == "gpt2" else "embed_tokens"
    targets = [name] if "concat" in adapt else [name, "c_proj" if base == "gpt2" else "q_proj", "lm_head"]
    model = new_model(base, target_modules=targets, adapt=adapt, alpha=3.0)
    reopened(model, new_base(base), tmp_path / "adapters", tokens, context=CONTEXTS)
    logits = model(tokens, context=CONTEXTS).logits
    assert not torch.allclose(logits, new_base(base)(tokens).logits, atol=0.1)
    options: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False, "num_beams": 2}
    generated = model.generate(tokens, context=CONTEXTS, **options)
    for number, context in enumerate(CONTEXTS[:2]):
        model.save_lora(tmp_path / f"lora{number}", context)
        lora = read_peft(base, tmp_path / f"lora{number}")
        for result in (lora, model):
            arguments = {} if result is lora else {"context": context}
            torch.testing.assert_close(result(tokens, **arguments).logits[number], logits[number], atol=1e-5, rtol=1e-5)
            row = result.generate(tokens[number : number + 1], **options, **arguments)
            assert torch.equal(row[0], generated[number, : row.shape[1]])
    former = model.get_output_embeddings().weight.clone()
    merged = model.merge_and_unload(CONTEXTS[1])
    assert type(merged.get_input_embeddings()) is torch.nn.Embedding
    torch.testing.assert_close(merged(tokens).logits[1], logits[1], atol=1e-5, rtol=1e-5)
    assert torch.equal(merged.get_output_embeddings().weight, former) == ("lm_head" not in targets)
    merged.save_pretrained(tmp_path / "merged")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(loaded(tokens).logits[1], logits[1], atol=1e-5, rtol=1e-5)
    if base == "qwen2":  # in tied weights, PEFT changes the output layer too
        torch.testing.assert_close(lora.merge_and_unload()(tokens).logits[1], logits[1], atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:.lora_bias=True")
def test_a_lora_of_one_context_has_the_biases_of_maps(tmp_path: Path, tokens: Tensor) -> None:
    model = new_model("llama", adapt=("factor", "concat"), layers_to_transform=1, use_rslora=True)
    model.save_lora(tmp_path, CONTEXTS[2])
    lora = read_peft("llama", tmp_path)
    expected = model(tokens, context=CONTEXTS[2]).logits
    torch.testing.assert_close(lora(tokens).logits, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "context", "message"),
    [
        ({}, CONTEXTS[0], "adapt: a LoRA cannot store the adapter scale"),
        ({"adapt": ["factor"]}, CONTEXTS, "context: expected one, got 4"),
        ({"adapt": ["factor"], "modules_to_save": ["norm"]}, {}, "base.model.norm.weight: a LoRA cannot store"),
        ({"adapt": ["concat"], "target_modules": ["q_proj", "embed_tokens"]}, {}, "model.embed_tokens: PEFT reads no"),
    ],
)
def test_what_a_lora_cannot_store_is_refused(
    options: dict[str, Any], context: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=f"^{message}") as error:
        new_model("llama", **options).save_lora(tmp_path, context)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_gradients_of_embeddings_are_the_sum_of_those_of_each_text(tokens: Tensor) -> None:
    model = new_model(target_modules=["embed_tokens"]).train()
    for row in range(4):  # L and R of one context, and not basis tensors
        text = tokens[row : row + 1]
        (model(text, labels=text, context=CONTEXTS[row]).loss / 4).backward()
    expected = gradients(model)
    model.zero_grad()
    model(tokens, labels=tokens, context=CONTEXTS).loss.backward()
    assert set(expected) == model.trained_names
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-6, rtol=1e-4)


def test_embeddings_of_tokens_that_training_does_not_read_never_change(tokens: Tensor) -> None:
    model = get_context_model(new_base("llama"), ContextConfig(target_modules=("embed_tokens",), schema=SCHEMA))
    optimizer = torch.optim.Adam([values for values in model.parameters() if values.requires_grad], lr=0.1)
    logits = new_base("llama")(tokens).logits
    assert torch.equal(model(tokens, context=CONTEXTS).logits, logits)
    for _ in range(3):
        optimizer.zero_grad()
        model(tokens[:, :3], labels=tokens[:, :3], context=CONTEXTS).loss.backward()
        optimizer.step()
    assert not torch.allclose(model(tokens, context=CONTEXTS).logits, logits, atol=0.1)
    merged, before = model.merge_and_unload(CONTEXTS[0]).get_input_embeddings().weight, new_base("llama")
    changed = (merged != before.get_input_embeddings().weight).any(dim=1).nonzero().flatten()
    assert changed.tolist() == sorted(tokens[:, :2].flatten().tolist())  # no label follows the last token


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_embeddings_with_a_factor_are_adapted(precision: torch.dtype, tokens: Tensor) -> None:
    sizes: dict[str, Any] = {"num_key_value_heads": 1, "head_dim": 8, **LAYERS, **SIZES}

    def new_gemma() -> Any:
        torch.manual_seed(1)
        return transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**sizes)).to(precision).eval()

    model = get_context_model(new_gemma(), ContextConfig(target_modules=("embed_tokens",), schema=SCHEMA))
    assert torch.equal(model(tokens, context=CONTEXTS).logits, new_gemma()(tokens).logits)
    for name, values in model.named_parameters():
        if name in model.trained_names:
            values.data.normal_(0, 0.3)
    expected = model(tokens, context=CONTEXTS[1]).logits
    assert not torch.allclose(expected, new_gemma()(tokens).logits, atol=0.1)
    tolerance = 1e-5 if precision is torch.float32 else 0.1
    merged = model.merge_and_unload(CONTEXTS[1])
    assert type(merged.get_input_embeddings()) is type(new_gemma().get_input_embeddings())
    torch.testing.assert_close(merged(tokens).logits, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_modules": "q_proj("}, r"target_modules: expected a regular expression, got 'q_proj\('"),
        ({"target_modules": "q_proj"}, "target_modules: expected paths such as model.layers.1.mlp.down_proj "),
        (
            {"target_modules": ["lm_head"], "layers_to_transform": 0},
            "target_modules: expected paths .* in these layers, got ",
        ),
        ({"target_modules": ["up_proj"], "modules_to_save": ["mlp"]}, "target_modules: expected some of .*got up_proj"),
        ({"layers_to_transform": 2}, "layers_to_transform: expected numbers from 0 to 1, got 2"),
        *[
            ({"layers_to_transform": value}, "layers_to_transform: expected numbers of layers from 0, got ")
            for value in (-1, True, "1", [], [0.5])
        ],
        ({"use_rslora": 1}, "use_rslora: expected True or False, got 1"),
        ({"lora_dropout": 1.0}, "lora_dropout is 1.0; it must be a number"),
        ({"lora_dropout": "0.1"}, "lora_dropout is '0.1'; it must be a number"),
        ({"modules_to_save": "lm_head"}, "modules_to_save: expected a list of names, got 'lm_head'"),
        ({"modules_to_save": ["head"]}, "modules_to_save: expected modules with weights .*, got head"),
        ({"modules_to_save": ["act_fn"]}, "modules_to_save: expected modules with weights .*, got act_fn"),
    ],
)
def test_wrong_options_are_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}") as error:
        get_context_model(new_base("llama"), ContextConfig(**options))
    assert "\n" not in str(error.value)
