"""`PlainEngine` in one compiled call: the same completions, many times as fast.

    [i, f, o] = b + [x, h] W + ([x, h] L) R        log p(v | x, h) = log softmax(E P h + a)

A `PackedModel` is made once for a model, a `PackedContext` (b, L, R and a) once for a context. Any thread may read
both, and a call has work memory of its own. A model that cannot be packed has the plain search.

Shapes: V vocabulary, E embedding, H hidden, R rank.
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

BATCH = 16  # hypotheses expanded at once, at first
# Nats by which the errors of short products differ from text to text, at most but for one search in a hundred.
MARGIN = {"float32": 0.0, "bfloat16": 0.05}


@dataclass(frozen=True)
class PackedPrefix:
    """What is typed, in a context: `after` the start token and each of `ids` a row (2H + V).

    A row is h, m and the log probabilities of the next token, always by products of floats.
    """

    context: PackedContext
    ids: Ids
    rows: tuple[Tensor, ...]


class CompiledEngine:
    """Types and searches in compiled code, with a `model` that can be `packed`."""

    def __init__(self, model: LanguageModel, packed: PackedModel) -> None:
        library.retain_freed_memory()
        self.model, self.packed = model, packed

    def begin(self, context: Context, override: Mapping[str, Tensor] | None = None) -> PackedPrefix:
        """Return the state before anything is typed, in one context; `override` as in `LanguageModel.condition`."""
        with torch.autocast("cpu", enabled=False):  # what is computed once is computed by floats
            packed = self.packed.context(self.model, self.model.condition(context, override))
        start = torch.zeros(self.packed.layout.state_values)
        return PackedPrefix(packed, (), self._follow(packed, start, [self.packed.specials.start]))

    def type(self, typed: PackedPrefix, ids: Sequence[int]) -> PackedPrefix:
        """Return the state for `ids`, reusing the common prefix and running the model on the rest."""
        kept = common_prefix_length(typed.ids, ids)
        more = self._follow(typed.context, typed.rows[kept], ids[kept:])
        return PackedPrefix(typed.context, tuple(ids), (*typed.rows[: kept + 1], *more))

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
        """Return the completions of each request, as `PlainEngine.search`, each found by one of `threads`.

        A completion that is not accepted is found like any other: where too few remain, more are asked for, from the
        start.
        """
        left = math.inf if deadline is None else deadline - time.monotonic()
        calls = {
            place: _Call(self.packed, one, one.k, left, max_rows, max_waiting) for place, one in enumerate(requests)
        }
        found: dict[int, SearchResult] = {}
        while calls:
            stops = [call.wanted.stop for call in calls.values()]
            _run(self.packed, [call.request for call in calls.values()], threads, batch, stops=stops)
            found |= {place: call.result(found.get(place)) for place, call in calls.items()}
            calls = {place: more for place, call in calls.items() if (more := call.again(found[place])) is not None}
        return [_above(one.min_log_prob, found[place]) for place, one in enumerate(requests)]

    def _follow(self, context: PackedContext, start: Tensor, tokens: Sequence[int]) -> tuple[Tensor, ...]:
        """Return rows (2H + V) after each of `tokens`, the first of which follows `start` (2H + V)."""
        if not tokens:
            return ()
        counts = (1, len(tokens), 0, 0, 0, 0, 0)
        arrays = {"start": start, "given": torch.tensor(tokens), "after": torch.empty(len(tokens), len(start))}
        addresses = _addresses(self.packed, context, counts, 0, arrays, "following")
        _run(self.packed, [REQUEST.structure(0.0, 0.0, *counts, *addresses)], following=True)
        return arrays["after"].unbind()


class _Call:
    """The compiled request for the `k` best completions of what is `wanted`, accepted or not."""

    def __init__(
        self, packed: PackedModel, wanted: SearchRequest, k: int, seconds: float, rows: int, waiting: int
    ) -> None:
        self.packed, self.wanted, self.k, self.rows, self.waiting = packed, wanted, k, rows, waiting
        counts = (k, wanted.max_tokens, int(wanted.accept(())), rows, waiting, 0, 0)
        room = min(k, rows + 1)  # each of those expanded ends once, and what is typed
        REQUEST.sizes(counts)
        self.arrays = {
            "scores": torch.empty(room, dtype=torch.double),
            "lengths": torch.empty(room, dtype=torch.int32),
            "tokens": torch.empty(room, wanted.max_tokens, dtype=torch.int32),
        }
        arrays = {**self.arrays, "start": wanted.prefix_state.rows[-1]}
        addresses = _addresses(packed, wanted.prefix_state.context, counts, room, arrays, "a search")
        self.request = REQUEST.structure(seconds, 0.0, *counts, *addresses)

    def result(self, before: SearchResult | None) -> SearchResult:
        """Return the best that are accepted, or those of `before` where time was too short to find as many again."""
        rows = zip(*(array[: self.request.count].tolist() for array in self.arrays.values()), strict=True)
        every = [Completion(tuple(ids[:length]), score) for score, length, ids in rows]
        forms: dict[Hashable, Completion] = {}
        for one in sorted(every, key=lambda one: (-one.log_probability, one.ids)):
            if self.wanted.accept(one.ids):
                forms.setdefault(self.wanted.duplicate_key(one.ids), one)
        best = list(forms.values())[: self.wanted.k]
        expanded = self.request.expanded + (before.rows if before else 0)
        if before and len(before.completions) > len(best):
            return replace(before, rows=expanded)
        least = best[-1].log_probability if len(best) == self.wanted.k else -math.inf
        return SearchResult(tuple(best), expanded, self.request.lost > least)

    def again(self, found: SearchResult) -> "_Call | None":
        """Return the call for twice as many, where too few were accepted and there may be more."""
        request = self.request
        if len(found.completions) == self.wanted.k or request.count < self.k or request.seconds <= 0:
            return None
        return _Call(self.packed, self.wanted, 2 * self.k, request.seconds, self.rows, self.waiting)


def _above(least: float, found: SearchResult) -> SearchResult:
    return replace(found, completions=tuple(one for one in found.completions if one.log_probability > least))


def new_engine(model: LanguageModel, products: str) -> CompiledEngine | PlainEngine:
    """Return the compiled search of `model` where there is one, with `products` of that precision, or the plain one.

    Short numbers are multiplied where the processor has instructions for them, and floats elsewhere.
    """
    packed = PackedModel.from_model(model, products if library.has_bfloat16() else FLOAT32)
    return PlainEngine(model) if packed is None else CompiledEngine(model, packed)


def _addresses(
    packed: PackedModel,
    context: PackedContext,
    counts: tuple[int, ...],
    room: int,
    arrays: Mapping[str, Tensor],
    case: str,
) -> list[int | None]:
    """Return the addresses of a context and of the `arrays` of a request with room for so many completions.

    Raises:
        ValueError: They do not belong to the model.
    """
    layout = packed.layout
    if context.layout != layout:
        raise ValueError(f"request: the context is packed for {context.layout}; valid is {layout}")
    letters = ("K", room), ("V", layout.vocabulary_size), ("S", layout.state_values)
    return [*context.addresses, *REQUEST.addresses(REQUEST.expected(counts, letters), arrays, case)]


def _run(
    packed: PackedModel,
    requests: Sequence[Any],
    threads: int = 1,
    batch: int = 1,
    *,
    following: bool = False,
    stops: Sequence[Stop | None] = (),
) -> None:
    """Call the compiled code, which writes its results into the requests. Each of `stops` ends one of them."""
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
        for place, stop in enumerate(stops):
            if stop is not None:
                stack.enter_context(stop.callback(partial(setattr, array[place], "seconds", 0.0)))
        library.call("search", arguments, library.VARIANTS.index(layout.variant), following)
    for request, done in zip(requests, array, strict=True):
        for name in ("seconds", "lost", "count", "expanded"):
            setattr(request, name, getattr(done, name))
