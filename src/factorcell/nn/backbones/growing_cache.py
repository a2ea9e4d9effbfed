"""A cache of `transformers` with free columns, so that a token is added without a copy of the tokens before it.

Shapes: N texts, A attention heads of keys, S stored tokens, T new tokens, d numbers per head.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer


class GrowingLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values of a layer, with free columns from the second update on; returned tensors remain valid."""

    def __init__(self) -> None:
        super().__init__()
        self._is_continued = False
        self._memory: dict[str, Tensor] = {}  # keys and values with free columns

    def update(self, key_states: Tensor, value_states: Tensor, *arguments: Any, **options: Any) -> tuple[Any, Any]:
        """Append T tokens, and return the keys and values (N, A, S + T, d) of all."""
        if not (self._is_continued and self.is_initialized) or torch.is_grad_enabled():
            self._is_continued = True
            updated: tuple[Any, Any] = super().update(key_states, value_states, *arguments, **options)
            return updated
        self.keys, self.values = self._append("keys", key_states), self._append("values", value_states)
        return self.keys, self.values

    def _append(self, name: str, new: Tensor) -> Tensor:
        stored, memory = getattr(self, name), self._memory.get(name)
        start, end = stored.shape[2], stored.shape[2] + new.shape[2]
        # After a selection of texts, the stored tensor is another one.
        is_own = memory is not None and memory.data_ptr() == stored.data_ptr() and len(memory) == len(stored)
        if memory is None or not is_own or end > memory.shape[2] or memory.is_inference() != new.is_inference():
            memory = self._memory[name] = stored.new_empty(*stored.shape[:2], end + max(32, end // 4), stored.shape[3])
            memory[:, :, :start] = stored
        memory[:, :, start:end] = new
        return memory[:, :, :end]


def growing_cache(stored: Iterable[tuple[Tensor, Tensor]]) -> DynamicCache:
    """Return a cache with the `stored` keys and values (N, A, S, d) of each layer."""
    cache = DynamicCache()
    cache.layer_class_to_replicate = GrowingLayer
    for keys, values in stored:
        layer = GrowingLayer()
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values
        cache.layers.append(layer)
    return cache


@contextmanager
def growing_caches(model: nn.Module) -> Iterator[None]:
    """Let `generate` of a model of `transformers` use layers that grow in place of others with all tokens."""

    def replace_layers(_: nn.Module, arguments: Any, options: Mapping[str, Any]) -> None:
        cache = options.get("cache")
        cache = getattr(cache, "self_attention_cache", cache)
        layers = [] if getattr(cache, "offloading", False) else getattr(cache, "layers", [])
        for number, layer in enumerate(layers):
            if type(layer) is DynamicLayer and not layer.is_initialized:
                layers[number] = GrowingLayer()

    hook = model.register_forward_pre_hook(replace_layers, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()
