"""Search for completions in compiled code, which returns the same completions as `PlainEngine` in less time.

    [i, f, o] = b + [x, h] W + ([x, h] L) R        log p(next token) = log softmax(U P h' + a)

These are the gates i, f and o (H each) of the coupled cell (TACL 2018, equation 8) for the embedding x (E) of a token
and the hidden state h (H) before it. h' is the hidden state after the token, U (V, E) the embedding table and P (E, H)
the projection. The matrices W, U and P belong to the model; the bias b (3H), the low-rank change L R and the softmax
bias a (V) belong to the context.

A `PackedModel` is built once per model and a `PackedContext` once per context. Threads can share both, because each
call has its own working memory. `PlainEngine` searches the models that cannot be packed.

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
    MAX_ROWS,
    MAX_WAITING,
    Completion,
    Ids,
    PlainEngine,
    SearchRequest,
    SearchResult,
    Stop,
    common_prefix_length,
)
from factorcell.data.context import Context
from factorcell.model.kernels import library
from factorcell.model.kernels.signatures import REQUEST, SEARCH
from factorcell.model.language_model import LanguageModel
from factorcell.model.packing import PRODUCT_TYPES, PackedContext, PackedModel
from factorcell.model.precision import FLOAT32

BATCH = 16  # initial number of hypotheses that are expanded at once
# Nats by which the rounding errors of any two texts of a search differ at most, in 99 of 100 searches, for each type of
# products. The search therefore also retains texts that are this much worse than the k-th one, and scores them again.
MARGIN = {"float32": 0.0, "bfloat16": 0.05}


@dataclass(frozen=True)
class PackedPrefix:
    """A typed prefix in one context, in the form that the compiled search reads.

    Attributes:
        context: The packed context.
        ids: The tokens of the prefix.
        rows: A row (2H + V) after the start token and after each token of the prefix: the hidden state (H), the memory
            of the cell (H) and the log probabilities of the next token (V), computed in float32.
    """

    context: PackedContext
    ids: Ids
    rows: tuple[Tensor, ...]


class CompiledEngine:
    """Reads a typed prefix and searches for its completions in compiled code, with a model that can be packed."""

    def __init__(self, model: LanguageModel, packed: PackedModel) -> None:
        library.retain_freed_memory()
        self.model, self.packed = model, packed

    def begin(self, context: Context, override: Mapping[str, Tensor] | None = None) -> PackedPrefix:
        """Return the search state of an empty prefix in one context.

        Args:
            context: The context.
            override: Context variable -> vector that replaces its own, as in `LanguageModel.condition`.
        """
        with torch.autocast("cpu", enabled=False):  # in float32: this runs only once per context
            packed = self.packed.pack_context(self.model, self.model.condition(context, override))
        start = torch.zeros(self.packed.layout.state_values)
        return PackedPrefix(packed, (), self._read(packed, start, [self.packed.specials.start]))

    def type(self, prefix_state: PackedPrefix, ids: Sequence[int]) -> PackedPrefix:
        """Return the search state of the prefix `ids`; the model reads only tokens after the common beginning."""
        common = common_prefix_length(prefix_state.ids, ids)  # rows after these tokens are reused
        rows = self._read(prefix_state.context, prefix_state.rows[common], ids[common:])
        return PackedPrefix(prefix_state.context, tuple(ids), (*prefix_state.rows[: common + 1], *rows))

    def search(
        self,
        requests: Sequence[SearchRequest],
        deadline: float | None = None,
        threads: int = 1,
        *,
        batch: int = BATCH,
        max_rows: int = MAX_ROWS,
        max_waiting: int = MAX_WAITING,
    ) -> list[SearchResult]:
        """Return the most probable completions of each request.

        The compiled code does not call `accept` of the request. If `accept` rejects so many completions that fewer than
        k remain, the search is repeated for twice as many.

        Args:
            requests: The requests, each answered by one thread.
            deadline: When to end, as a value of `time.monotonic()`.
            threads: Number of threads.
            batch: Initial number of hypotheses that are expanded at once.
            max_rows: Maximum number of expanded hypotheses per request.
            max_waiting: Maximum number of waiting hypotheses per request.
        """
        seconds = math.inf if deadline is None else deadline - time.monotonic()
        calls = {
            index: _Call(self.packed, request, request.k, seconds, max_rows, max_waiting)
            for index, request in enumerate(requests)
        }
        results: dict[int, SearchResult] = {}
        while calls:
            stops = [call.request.stop for call in calls.values()]
            _run(self.packed, [call.structure for call in calls.values()], threads, batch, stops=stops)
            results |= {index: call.result(results.get(index)) for index, call in calls.items()}
            calls = {index: more for index, call in calls.items() if (more := call.next_call(results[index]))}
        return [_filter_above(request.min_log_prob, results[index]) for index, request in enumerate(requests)]

    def _read(self, context: PackedContext, start: Tensor, tokens: Sequence[int]) -> tuple[Tensor, ...]:
        """Read `tokens` after the row `start` (2H + V); return the row after each token."""
        if not tokens:
            return ()
        counts = (1, len(tokens), 0, 0, 0, 0, 0)
        states = torch.empty(len(tokens), len(start))
        arrays = {"start": start, "input_tokens": torch.tensor(tokens), "states": states}
        addresses = _addresses(self.packed, context, counts, 0, arrays, "reading")
        _run(self.packed, [REQUEST.structure(0.0, 0.0, *counts, *addresses)], following=True)
        return states.unbind()


class _Call:
    """A call of the compiled search for the `k` best completions of a request, before `accept` is applied."""

    def __init__(
        self, packed: PackedModel, request: SearchRequest, k: int, seconds: float, max_rows: int, max_waiting: int
    ) -> None:
        self.packed, self.request, self.k = packed, request, k
        self.max_rows, self.max_waiting = max_rows, max_waiting
        counts = (k, request.max_tokens, int(request.accept(())), max_rows, max_waiting, 0, 0)
        max_completions = min(k, max_rows + 1)  # the prefix and each expanded hypothesis yield at most one completion
        REQUEST.sizes(counts)
        self.arrays = {
            "scores": torch.empty(max_completions, dtype=torch.double),
            "lengths": torch.empty(max_completions, dtype=torch.int32),
            "tokens": torch.empty(max_completions, request.max_tokens, dtype=torch.int32),
        }
        arrays = {**self.arrays, "start": request.prefix_state.rows[-1]}
        addresses = _addresses(packed, request.prefix_state.context, counts, max_completions, arrays, "a search")
        self.structure = REQUEST.structure(seconds, 0.0, *counts, *addresses)

    def result(self, previous: SearchResult | None) -> SearchResult:
        """Return the best accepted completions; if time ran out and `previous` has more, return those of `previous`."""
        rows = zip(*(array[: self.structure.count].tolist() for array in self.arrays.values()), strict=True)
        completions = [Completion(tuple(ids[:length]), score) for score, length, ids in rows]
        distinct: dict[Hashable, Completion] = {}
        for completion in sorted(completions, key=lambda entry: (-entry.log_probability, entry.ids)):
            if self.request.accept(completion.ids):
                distinct.setdefault(self.request.duplicate_key(completion.ids), completion)
        best = list(distinct.values())[: self.request.k]
        expanded = self.structure.expanded + (previous.rows if previous else 0)
        if previous and len(previous.completions) > len(best):
            return replace(previous, rows=expanded)
        min_score = best[-1].log_probability if len(best) == self.request.k else -math.inf
        return SearchResult(tuple(best), expanded, self.structure.lost_score > min_score)

    def next_call(self, result: SearchResult) -> "_Call | None":
        """Return a call for twice as many completions if too few were accepted and more may exist, otherwise None."""
        structure = self.structure
        if len(result.completions) == self.request.k or structure.count < self.k or structure.seconds <= 0:
            return None
        return _Call(self.packed, self.request, 2 * self.k, structure.seconds, self.max_rows, self.max_waiting)


def _filter_above(min_log_prob: float, result: SearchResult) -> SearchResult:
    above = (completion for completion in result.completions if completion.log_probability > min_log_prob)
    return replace(result, completions=tuple(above))


def new_engine(model: LanguageModel, products: str) -> CompiledEngine | PlainEngine:
    """Return the compiled search of `model`, or the search in PyTorch if the model cannot be packed.

    Args:
        model: The model.
        products: The numeric type of products, `float32` or `bfloat16`; processors without instructions for bfloat16
            use float32.
    """
    packed = PackedModel.from_model(model, products if library.has_bfloat16() else FLOAT32)
    return PlainEngine(model) if packed is None else CompiledEngine(model, packed)


def _addresses(
    packed: PackedModel,
    context: PackedContext,
    counts: tuple[int, ...],
    max_completions: int,
    arrays: Mapping[str, Tensor],
    case: str,
) -> list[int | None]:
    """Return the memory addresses of a packed context and of the `arrays` of a request.

    The request asks for at most `max_completions` completions.

    `counts` are the sizes of the request in the order of `REQUEST`; `case` says what the request is for.

    Raises:
        ValueError: The context or an array does not have the sizes of the model.
    """
    layout = packed.layout
    if context.layout != layout:
        raise ValueError(f"request: expected a context packed for {layout}, got {context.layout}")
    letters = ("K", max_completions), ("V", layout.vocabulary_size), ("S", layout.state_values)
    return [*context.addresses, *REQUEST.checked_addresses(REQUEST.expected(counts, letters), arrays, case)]


def _run(
    packed: PackedModel,
    requests: Sequence[Any],
    threads: int = 1,
    batch: int = 1,
    *,
    following: bool = False,
    stops: Sequence[Stop | None] = (),
) -> None:
    """Call the compiled code, which writes its results into `requests`.

    With `following`, it reads the tokens of each request one after the other instead of searching. Each of `stops`, if
    not None, can end the search of its request early.
    """
    layout, array = packed.layout, (REQUEST.structure * len(requests))(*requests)
    numbers = (
        len(requests),
        *layout.dimensions,
        packed.specials.end,
        min(threads, len(requests)),
        batch,
        GROWTH,
        PRODUCT_TYPES.index(layout.products),
        0,
    )
    SEARCH.sizes(numbers)
    arguments = SEARCH.structure(MARGIN[layout.products], *numbers, ctypes.addressof(array), *packed.addresses)
    with ExitStack() as stack:
        for index, stop in enumerate(stops):
            if stop is not None:
                stack.enter_context(stop.callback(partial(setattr, array[index], "seconds", 0.0)))
        library.call("search", arguments, library.VARIANTS.index(layout.variant), following)
    for request, answered in zip(requests, array, strict=True):
        for name in ("seconds", "lost_score", "count", "expanded"):
            setattr(request, name, getattr(answered, name))
