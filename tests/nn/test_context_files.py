"""Files of context adapters: tensors of the base that are trained with them, and the check of the base."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from factorcell.hf import ContextConfig, ContextModel, get_context_model
from tests.findings import expected_finding, no_findings
from tests.nn.test_context_model import CONTEXTS, SCHEMA, new_base, new_model

TRAINED: dict[str, list[str]] = {
    "nothing": [],
    "the embeddings": ["model.embed_tokens.weight"],
    "the output layer": ["lm_head.weight"],
    "both tables and a norm": ["model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"],
    "an adapted map": ["model.layers.0.mlp.up_proj.weight"],
    "biases": ["model.layers.1.self_attn.q_proj.bias"],
}


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(3, 30, (4, 7), generator=torch.Generator().manual_seed(3))


@pytest.fixture(autouse=True)
def no_notices() -> Iterator[None]:
    with no_findings():
        yield


def train(model: ContextModel, names: list[str], tokens: Tensor) -> None:
    """Change the adapters and the tensors `names` of the base in two steps."""
    for name in names:
        model.base.get_parameter(name).requires_grad_()
    optimizer = torch.optim.SGD([value for value in model.parameters() if value.requires_grad], lr=0.1)
    for _ in range(2):
        model(tokens, labels=tokens, context=CONTEXTS).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("has_duplicates", [True, False])  # of tied tensors
def test_a_complete_state_makes_no_tensor_of_the_base_trainable(has_duplicates: bool) -> None:
    model, names = new_model(), set(new_model().trained_names)
    parameters = model.named_parameters(remove_duplicate=not has_duplicates)
    model.load_state_dict({name: values.detach().clone() for name, values in parameters}, strict=has_duplicates)
    assert {name for name, values in model.named_parameters() if values.requires_grad} == names == model.trained_names


def stored(folder: Path) -> dict[str, Tensor]:
    return safetensors.torch.load_file(folder / "context_model.safetensors")


def assert_same_tensors(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert set(actual) == set(expected)
    assert all(torch.equal(actual[name], value) for name, value in expected.items())


def save(model: ContextModel, folder: Path, tokens: Tensor) -> None:
    model.save_pretrained(folder)


def save_frozen(model: ContextModel, folder: Path, tokens: Tensor) -> None:
    model.requires_grad_(False).save_pretrained(folder)


def save_state(model: ContextModel, folder: Path, tokens: Tensor) -> None:
    model.save_pretrained(folder, state_dict=model.state_dict())


def save_after_a_checkpoint(model: ContextModel, folder: Path, tokens: Tensor) -> None:
    """Save a new model that has loaded the file of a checkpoint, as a `Trainer` that resumes does."""
    resumed = get_context_model(new_like(model), model.context_config)
    missing, unexpected = resumed.load_state_dict(model.state_dict(), strict=False)
    assert not missing
    assert not unexpected
    resumed.save_pretrained(folder)


def new_like(model: ContextModel) -> Any:
    return new_base(model.config.model_type)


WAYS: list[Callable[[ContextModel, Path, Tensor], None]] = [save, save_frozen, save_state, save_after_a_checkpoint]


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])  # with and without tied tables
@pytest.mark.parametrize("trained", list(TRAINED))
@pytest.mark.parametrize("way", WAYS)
def test_saved_tensors_stay_trained_and_are_saved_again(
    way: Callable[[ContextModel, Path, Tensor], None], trained: str, architecture: str, tmp_path: Path, tokens: Tensor
) -> None:
    names = [name for name in TRAINED[trained] if name in dict(new_base(architecture).named_parameters())]
    model = get_context_model(new_base(architecture), ContextConfig(rank=2, schema=SCHEMA))
    train(model, names, tokens)
    model.save_pretrained(tmp_path / "first")
    expected = stored(tmp_path / "first")
    assert {name for name in expected if name.removeprefix("base.") in names} == {f"base.{name}" for name in names}
    opened = ContextModel.from_pretrained(new_base(architecture), tmp_path / "first")
    trainable = {name for name, value in opened.named_parameters() if value.requires_grad}
    assert trainable == set(expected)
    way(opened, tmp_path / "second", tokens)
    assert_same_tensors(stored(tmp_path / "second"), expected)
    again = ContextModel.from_pretrained(new_base(architecture), tmp_path / "second")
    assert torch.equal(again(tokens, context=CONTEXTS).logits, model(tokens, context=CONTEXTS).logits)
    train(again, [], tokens)
    again.requires_grad_(False).save_pretrained(tmp_path / "second")
    changed = stored(tmp_path / "second")
    assert set(changed) == set(expected)
    assert all(not torch.equal(changed[name], expected[name]) for name in expected if name.startswith("base.model."))


def test_a_tensor_that_was_saved_is_saved_again_after_it_was_frozen(tmp_path: Path, tokens: Tensor) -> None:
    model = get_context_model(new_base("qwen2"), ContextConfig(schema=SCHEMA))
    train(model, ["lm_head.weight"], tokens)
    model.state_dict()  # as a checkpoint of `Trainer`
    model.requires_grad_(False).save_pretrained(tmp_path)
    assert "base.lm_head.weight" in stored(tmp_path)


def resized(base: Any, rows: int = 34) -> Any:
    base.resize_token_embeddings(rows, mean_resizing=False)
    return base


def test_embeddings_of_new_tokens_are_saved_and_loaded_without_a_notice(tmp_path: Path) -> None:
    tokens = torch.randint(28, 34, (4, 7))
    model = get_context_model(resized(new_base("llama")), ContextConfig(schema=SCHEMA))
    train(model, ["model.embed_tokens.weight"], tokens)
    for folder in (tmp_path / "first", tmp_path / "second"):
        model.save_pretrained(folder)
        opened = ContextModel.from_pretrained(resized(new_base("llama")), folder)
        assert torch.equal(opened(tokens, context=CONTEXTS).logits, model(tokens, context=CONTEXTS).logits)
        model = opened


def add(values: Tensor, place: tuple[int, ...]) -> None:
    with torch.no_grad():
        values[place] += 0.1


@pytest.mark.parametrize(
    ("saved", "opened", "is_reported"),
    [
        ("HuggingFaceTB/SmolLM2-135M", "./models/SmolLM2-135M", False),
        ("HuggingFaceTB/SmolLM2-135M", "HuggingFaceTB/SmolLM2-135M-Instruct", True),
        ("", "models/base", False),
        ("models/base", "", False),
    ],
)
def test_a_base_of_another_name_is_reported(saved: str, opened: str, is_reported: bool, tmp_path: Path) -> None:
    model, base = new_model(), new_base("llama")
    model.base.name_or_path, base.name_or_path = saved, opened
    model.save_pretrained(tmp_path)
    with expected_finding("other base") if is_reported else no_findings():
        ContextModel.from_pretrained(base, tmp_path)


def test_a_tensor_of_the_base_that_is_stored_may_differ(tmp_path: Path, tokens: Tensor) -> None:
    model = get_context_model(new_base("qwen2"), ContextConfig(schema=SCHEMA))
    train(model, ["lm_head.weight"], tokens)
    model.save_pretrained(tmp_path)
    other = new_base("qwen2")
    add(other.lm_head.weight, (3, 3))
    ContextModel.from_pretrained(other, tmp_path)
