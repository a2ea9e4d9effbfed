"""Search for completions in compiled code, which returns the same completions as `PlainEngine` in less time.

    [i, f, o] = b + [x, h] W + ([x, h] L) R        log p(next token) = log softmax(U P h' + a)

The first equation computes the gates i, f and o (H each) of the coupled cell (TACL 2018, equation 8) from the embedding
x (E) of a token and the hidden state h (H) before it. In the second equation, h' is the hidden state after the token,
U (V, E) the embedding table and P (E, H) the projection. The matrices W, U and P belong to the model. The bias b (3H),
the low-rank change L R and the softmax bias a (V) belong to the context.

A `PackedModel` is built once per model and a `PackedContext` once per context. Threads can share both, because each
call has its own working memory. `PlainEngine` serves the models that cannot be packed.

Shapes: V vocabulary, E embedding, H hidden state, R rank.
"""

import ctypes
import math
import time
from collections.abc import Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from factorcell.completion.search import (
    GROWTH,
    MAX_EXPANDED,
    MAX_WAITING,
    Completion,
    Ids,
    PlainEngine,
    SearchRequest,
    SearchResult,
    Stop,
    common_prefix_length,
)
from factorcell.data.columns.context import Context
from factorcell.ngram.mixture import Predictor
from factorcell.nn.devices import FLOAT32
from factorcell.nn.kernels import library
from factorcell.nn.kernels.signatures import REQUEST, SEARCH
from factorcell.nn.language_model import LanguageModel
from factorcell.nn.packing import PRODUCT_TYPES, PackedContext, PackedModel

INITIAL_BATCH_SIZE = 16  # initial number of hypotheses that are expanded at once
# Type of products -> nats. In 99 of 100 searches, the rounding errors of any two texts differ by at most this much.
# The search therefore also retains texts whose scores are below that of the k-th text by this much or less, and scores
# them again in float32.
MARGIN = {"float32": 0.0, "bfloat16": 0.05}


@dataclass(frozen=True)
class PackedPrefix:
    """A typed prefix in one context, in the form that the compiled search reads.

    Attributes:
        context: The packed context.
        ids: The tokens of the prefix.
        states: A vector (2H + V) for the start token and for each token of the prefix: the hidden state (H) and the
            memory of the cell (H) after the token, and the log probabilities of the next token (V), all in float32.
    """

    context: PackedContext
    ids: Ids
    states: tuple[Tensor, ...]


class CompiledEngine:
    """Reads a typed prefix and searches for its completions in compiled code, with a model that can be packed."""

    def __init__(self, model: LanguageModel, packed: PackedModel) -> None:
        library.retain_freed_memory()
        self.model, self.packed = model, packed

    def begin(self, context: Context, override: Mapping[str, Tensor] | None = None) -> PackedPrefix:
        """Return the search state of an empty prefix in one context.

        Args:
            context: The context.
            override: Context variable -> vector that replaces that of the context, as in `LanguageModel.condition`.
        """
        with torch.autocast("cpu", enabled=False):  # in float32: this runs only once per context
            conditioning = self.model.condition(context, override)
            packed = self.packed.pack_context(self.model, conditioning)
        start = self.packed.pack_start(conditioning)
        return PackedPrefix(packed, (), self._read(packed, start, [self.packed.specials.start]))

    def read_prefix(self, prefix_state: PackedPrefix, ids: Sequence[int]) -> PackedPrefix:
        """Return the search state of the prefix `ids`; reuse the states of tokens shared with `prefix_state`."""
        common_length = common_prefix_length(prefix_state.ids, ids)
        common_states = prefix_state.states[: common_length + 1]
        new_states = self._read(prefix_state.context, common_states[-1], ids[common_length:])
        return PackedPrefix(prefix_state.context, tuple(ids), (*common_states, *new_states))

    def search(
        self,
        requests: Sequence[SearchRequest],
        deadline: float | None = None,
        threads: int = 1,
        *,
        initial_batch_size: int = INITIAL_BATCH_SIZE,
        max_expanded: int = MAX_EXPANDED,
        max_waiting: int = MAX_WAITING,
    ) -> list[SearchResult]:
        """Return the most probable completions of each request.

        The compiled code does not call the function `text_of` of the request. If this function rejects so many
        completions that fewer than k remain, the search runs again for twice as many completions.

        Args:
            requests: The requests, each answered by one thread.
            deadline: When to end all searches, as a value of `time.monotonic()`.
            threads: Number of threads.
            initial_batch_size: Initial number of hypotheses that are expanded at once.
            max_expanded: Maximum number of expanded hypotheses per request.
            max_waiting: Maximum number of waiting hypotheses per request.
        """
        seconds = math.inf if deadline is None else deadline - time.monotonic()
        calls = {
            index: _Call(self.packed, request, request.k, seconds, max_expanded, max_waiting)
            for index, request in enumerate(requests)
        }
        results: dict[int, SearchResult] = {}
        while calls:
            stops = [call.request.stop for call in calls.values()]
            _run_compiled_code(
                self.packed, [call.structure for call in calls.values()], threads, initial_batch_size, stops=stops
            )
            results |= {index: call.result(results.get(index)) for index, call in calls.items()}
            next_calls = {index: call.next_call(results[index]) for index, call in calls.items()}
            calls = {index: call for index, call in next_calls.items() if call is not None}
        return [_retain_above(request.min_log_prob, results[index]) for index, request in enumerate(requests)]

    def _read(self, context: PackedContext, start: Tensor, tokens: Sequence[int]) -> tuple[Tensor, ...]:
        """Read `tokens` from the state `start` (2H + V); return the state after each token."""
        if not tokens:
            return ()
        numbers = {"k": 1, "max_tokens": len(tokens)}
        states = torch.empty(len(tokens), len(start))
        arrays = {"start": start, "input_tokens": torch.tensor(tokens), "states": states}
        request = _checked_request(self.packed, context, numbers, REQUEST.sizes(numbers), arrays)
        _run_compiled_code(self.packed, [request], is_reading=True)
        return states.unbind()


class _Call:
    """A call of the compiled search for the `k` best completions, from which `result` removes those not accepted."""

    def __init__(
        self, packed: PackedModel, request: SearchRequest, k: int, seconds: float, max_expanded: int, max_waiting: int
    ) -> None:
        self.packed, self.request, self.k = packed, request, k
        self.max_expanded, self.max_waiting = max_expanded, max_waiting
        numbers = {
            "k": k,
            "max_tokens": request.max_tokens,
            "allow_empty": int(request.text_of(()) is not None),
            "max_rows": max_expanded,
            "max_waiting": max_waiting,
        }
        sizes = REQUEST.sizes(numbers)  # raises an error for an invalid number before memory is allocated
        # The prefix and each expanded hypothesis yield at most one completion.
        max_completions = min(k, max_expanded + 1)
        self.arrays = {
            "scores": torch.empty(max_completions, dtype=torch.double),
            "lengths": torch.empty(max_completions, dtype=torch.int32),
            "tokens": torch.empty(max_completions, request.max_tokens, dtype=torch.int32),
        }
        arrays = {**self.arrays, "start": request.prefix_state.states[-1]}
        sizes["K"] = max_completions
        context = request.prefix_state.context
        self.structure = _checked_request(packed, context, numbers, sizes, arrays, seconds)

    def result(self, previous: SearchResult | None) -> SearchResult:
        """Return the best accepted completions; return those of the `previous` call if there are more of them."""
        entries = zip(*(array[: self.structure.count].tolist() for array in self.arrays.values()), strict=True)
        ranked = sorted((-score, tuple(ids[:length])) for score, length, ids in entries)
        distinct: dict[Hashable, Completion] = {}
        for negative_score, ids in ranked:
            text = self.request.text_of(ids)
            if text is not None and text not in distinct:
                distinct[text] = Completion(ids, -negative_score, text)
        best = list(distinct.values())[: self.request.k]
        expanded_count = self.structure.expanded + (previous.expanded_count if previous else 0)
        if previous and len(previous.completions) > len(best):
            return replace(previous, expanded_count=expanded_count)
        min_score = best[-1].log_probability if len(best) == self.request.k else -math.inf
        return SearchResult(tuple(best), expanded_count, is_cut=self.structure.lost_score > min_score)

    def next_call(self, result: SearchResult) -> "_Call | None":
        """Return a call for twice as many completions; None if enough were accepted or no more can be found."""
        structure = self.structure
        if len(result.completions) == self.request.k or structure.count < self.k or structure.seconds <= 0:
            return None
        return _Call(self.packed, self.request, 2 * self.k, structure.seconds, self.max_expanded, self.max_waiting)


def _retain_above(min_log_prob: float, result: SearchResult) -> SearchResult:
    """Return the result with only those completions whose log probability exceeds `min_log_prob`."""
    above = (completion for completion in result.completions if completion.log_probability > min_log_prob)
    return replace(result, completions=tuple(above))


def new_engine(model: Predictor, products: str) -> CompiledEngine | PlainEngine:
    """Return the compiled search of `model`, or the search in PyTorch if the model cannot be packed.

    Args:
        model: The model.
        products: The numeric type of products, `float32` or `bfloat16`. A processor without instructions for bfloat16
            uses float32.
    """
    if not isinstance(model, LanguageModel):
        return PlainEngine(model)
    packed = PackedModel.from_model(model, products if library.has_bfloat16() else FLOAT32)
    return PlainEngine(model) if packed is None else CompiledEngine(model, packed)


def _checked_request(
    packed: PackedModel,
    context: PackedContext,
    numbers: Mapping[str, int],
    sizes: Mapping[str, int],
    arrays: Mapping[str, Tensor],
    seconds: float = 0.0,
) -> Any:
    """Return the structure of a request, with the memory addresses of a packed context and of the `arrays`.

    Args:
        packed: The packed model.
        context: The packed context.
        numbers: The integer fields.
        sizes: The sizes of the request; for a search also K, the number of completions that the arrays can hold.
        arrays: The arrays by the names of `REQUEST`.
        seconds: The longest duration of a search.

    Raises:
        ValueError: The context or an array does not have the sizes of the model.
    """
    layout = packed.layout
    if context.layout != layout:
        raise ValueError(f"request: expected a context packed for {layout}, got {context.layout}")
    all_sizes = {**sizes, "V": layout.vocabulary_size, "S": layout.state_values}
    addresses = REQUEST.checked_addresses(all_sizes, arrays)
    return REQUEST.structure(seconds=seconds, **numbers, **context.addresses, **addresses)


def _run_compiled_code(
    packed: PackedModel,
    requests: Sequence[Any],
    threads: int = 1,
    initial_batch_size: int = 1,
    *,
    is_reading: bool = False,
    stops: Sequence[Stop | None] = (),
) -> None:
    """Call the compiled code, which writes its results into the structures `requests`.

    Args:
        packed: The packed model.
        requests: The structures of the requests.
        threads: Maximum number of threads.
        initial_batch_size: Initial number of hypotheses that are expanded at once.
        is_reading: Whether to read the tokens of each request one after the other instead of searching.
        stops: For each request, a flag that ends its search early, or None.
    """
    layout, copies = packed.layout, (REQUEST.structure * len(requests))(*requests)
    numbers = {
        "requests": len(requests),
        "size": layout.vocabulary_size,
        "width": layout.embedding_size,
        "hidden": layout.hidden_size,
        "rank": layout.rank,
        "end": packed.specials.end,
        "threads": min(threads, len(requests)),
        "batch": initial_batch_size,
        "growth": GROWTH,
        "products": PRODUCT_TYPES.index(layout.products),
    }
    SEARCH.sizes(numbers)
    pointers = {"request": ctypes.addressof(copies), **packed.addresses}
    arguments = SEARCH.structure(margin=MARGIN[layout.products], **numbers, **pointers)
    with ExitStack() as stack:
        for index, stop in enumerate(stops):
            if stop is not None:  # a request with no seconds left ends
                stack.enter_context(stop.on_set(partial(setattr, copies[index], "seconds", 0.0)))
        library.call("search", arguments, library.VARIANTS.index(layout.variant), is_reading)
    for request, copy in zip(requests, copies, strict=True):
        for name in ("seconds", "lost_score", "count", "expanded"):
            setattr(request, name, getattr(copy, name))
