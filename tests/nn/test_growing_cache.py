"""Tests of the cache with free columns, against the cache of `transformers` that copies all tokens."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

from factorcell.nn.backbones.attention_cache import CacheState
from factorcell.nn.backbones.growing_cache import GrowingLayer, growing_caches
from tests.nn.test_context_model import new_base
from tests.nn.test_huggingface import base_model, make_config, make_run, randomize

CHANGES: dict[str, Any] = {
    "nothing": lambda layer: None,
    "order": lambda layer: layer.reorder_cache(torch.tensor([2, 0, 0])),
    "selection": lambda layer: layer.batch_select_indices(torch.tensor([1, 0])),
    "repetition": lambda layer: layer.batch_repeat_interleave(2),
    "removal": lambda layer: layer.crop(-2),
}


@pytest.mark.parametrize("change", list(CHANGES))
@pytest.mark.parametrize("is_inference", [False, True])
def test_layer_equals_that_of_transformers(change: str, is_inference: bool) -> None:
    growing, copying = GrowingLayer(), DynamicLayer()
    torch.manual_seed(0)
    with torch.inference_mode() if is_inference else torch.no_grad():
        for step in range(60):
            count = len(growing.keys) if step else 3
            keys, values = torch.randn(2, count, 2, 1 + (step % 7 == 0), 4)
            results = growing.update(keys, values)
            for result, expected in zip(results, copying.update(keys, values), strict=True):
                assert torch.equal(result, expected)
            former = [(result, result.clone()) for result in results]
            if step in (5, 20) and change != "nothing":
                for layer in (growing, copying):
                    CHANGES[change](layer)
            if change != "removal":  # removed tokens are replaced
                assert all(torch.equal(*pair) for pair in former)


def test_a_token_is_added_without_a_copy_and_gradients_need_one() -> None:
    layer, token = GrowingLayer(), torch.randn(1, 2, 1, 4)
    with torch.no_grad():
        places = [layer.update(token, token)[0].data_ptr() for _ in range(30)]
    assert len(set(places[1:])) == 1
    first = layer.update(token.requires_grad_(), token)[0]
    second = layer.update(token, token)[0]
    (first.square().sum() + second.sum()).backward()
    torch.testing.assert_close(token.grad, 2 * token + 2)


def test_generation_uses_growing_layers_once() -> None:
    model = new_base("llama")
    tokens = torch.arange(3, 13).view(2, 5)
    options: dict[str, Any] = {"max_new_tokens": 4, "return_dict_in_generate": True}
    with growing_caches(model):
        result = model.generate(tokens, **options)
        assert {type(layer) for layer in result.cache.layers} == {GrowingLayer}
        offloaded = torch.nn.Module()
        hook = next(iter(model._forward_pre_hooks.values()))
        cache = DynamicCache()
        cache.layers, cache.offloading = [DynamicLayer()], True
        hook(offloaded, (), {"cache": cache})
        assert type(cache.layers[0]) is DynamicLayer, "a GPU does not keep the tokens of such a cache"
    plain = model.generate(tokens, **options)
    assert {type(layer) for layer in plain.cache.layers} == {DynamicLayer}
    assert torch.equal(result.sequences, plain.sequences)


def test_a_cache_of_growing_layers_can_be_emptied() -> None:
    model, cache = new_base("llama"), DynamicCache()
    tokens = torch.arange(3, 13).view(2, 5)
    with growing_caches(model):
        expected = model.generate(tokens, max_new_tokens=4, cache=cache)
        cache.reset()
        assert torch.equal(model.generate(tokens, max_new_tokens=4, cache=cache), expected)


def test_two_texts_that_continue_one_state_do_not_disturb_each_other(tmp_path: Path) -> None:
    """A state grows in place for the first text that continues it, and is copied for the second one."""
    base_model("llama").save_pretrained(tmp_path / "base")
    run, _ = make_run(tmp_path / "run", make_config(tmp_path / "base"))
    randomize(run)
    contexts = run.read(["", ""], [{"city": "Oslo"}, {"city": "Rome"}]).context(np.array([0, 1]))
    conditioning = run.model.condition(contexts)
    state: Any = None

    def read(tokens: Tensor, before: Any) -> tuple[Tensor, CacheState]:
        with torch.inference_mode():
            return run.model.step(tokens, conditioning, before)  # type: ignore[return-value]

    for token in (0, 3, 4, 5):
        _, state = read(torch.tensor([token, 3]), state)
    results = [read(torch.tensor([token, 4]), state)[0] for token in (3, 4, 3)]
    assert torch.equal(results[0], results[2])
    assert not torch.allclose(results[0], results[1])
