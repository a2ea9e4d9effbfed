"""`completion.search` in one compiled call: the same completions, many times as fast.

    [i, f, o] = b + [x, h] W + ([x, h] L) R        log p(v | x, h) = log softmax(E P h + a)

A `PackedModel` is made once a model, a `PackedContext` (b, L, R and a) once a context. Both are values that any thread
may read, and a call has work memory of its own. L and R stay apart. A model that is not packed has the plain search.

Shapes: V vocabulary, E embedding, H hidden, R rank.
"""

import ctypes
import math
from collections.abc import Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from factorcell.completion.search import (
    GROWTH,
    ROWS,
    WAITING,
    Completion,
    Ids,
    PlainEngine,
    SearchRequest,
    SearchResult,
    Stop,
)
from factorcell.data.context import Context
from factorcell.model.kernels import library
from factorcell.model.kernels.signatures import REQUEST, SEARCH
from factorcell.model.language_model import LanguageModel
from factorcell.model.packing import PRODUCTS, PackedContext, PackedModel
from factorcell.model.precision import SINGLE, chosen, gain

BATCH = 16  # hypotheses expanded at once, at first
# Nats by which the errors of short products differ from text to text, at most but for one search in a hundred.
MARGIN = {"float32": 0.0, "bfloat16": 0.05}
PROBED = 1000  # rows of the searches that tell which products are the fastest


@dataclass(frozen=True)
class PackedPrefix:
    """What is typed so far, in a context: `after` the start token and each of `ids` a row (2H + V).

    A row is h, m and the log probabilities of the next token, always by products of floats.
    """

    context: PackedContext
    ids: Ids
    after: tuple[Tensor, ...]

    @classmethod
    def begin(cls, packed: PackedModel, context: PackedContext) -> "PackedPrefix":
        """Nothing typed yet."""
        start = torch.zeros(packed.layout.after)
        return cls(context, (), _follow(packed, context, start, [packed.specials.start]))

    def to(self, packed: PackedModel, ids: Sequence[int]) -> "PackedPrefix":
        """The same with `ids` typed instead: a step for every token after the first that differs."""
        kept = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(self.ids, ids, strict=False))))
        more = _follow(packed, self.context, self.after[kept], ids[kept:])
        return replace(self, ids=tuple(ids), after=(*self.after[: kept + 1], *more))


def search(
    packed: PackedModel,
    wanted: Sequence[SearchRequest[PackedPrefix]],
    *,
    batch: int = BATCH,
    rows: int = ROWS,
    waiting: int = WAITING,
    seconds: float | None = None,
    threads: int = 1,
) -> list[SearchResult]:
    """As `completion.search` for each of `wanted`, which one of `threads` does alone, within bounds of its own.

    A completion that is not accepted is found like any other: where too few remain, more are asked for, from the start.
    """
    limits = _Limits(rows, waiting, math.inf if seconds is None else seconds)
    if math.isnan(limits.seconds):
        raise ValueError("search: seconds is NaN; valid is any number, or none")
    asked = {place: _Asked(packed, one, one.k, limits) for place, one in enumerate(wanted)}
    found: dict[int, SearchResult] = {}
    while asked:
        stops = [one.wanted.stop for one in asked.values()]
        _run(packed, [one.request for one in asked.values()], threads, batch, stops=stops)
        found |= {place: one.found(found.get(place)) for place, one in asked.items()}
        asked = {place: more for place, one in asked.items() if (more := one.more(found[place])) is not None}
    return [found[place] for place in range(len(wanted))]


@dataclass(frozen=True)
class _Limits:
    """Bounds of one search: rows of the model, hypotheses that wait, seconds."""

    rows: int
    waiting: int
    seconds: float


class _Asked:
    """The `k` best completions of what is `wanted`, accepted or not: a request, and what came of it."""

    def __init__(self, packed: PackedModel, wanted: SearchRequest[PackedPrefix], k: int, limits: _Limits) -> None:
        self.packed, self.wanted, self.k, self.limits = packed, wanted, k, limits
        counts = (k, wanted.most, int(wanted.accept(())), limits.rows, limits.waiting, 0, 0)
        room = min(k, limits.rows + 1)  # each of those expanded ends once, and what is typed
        REQUEST.sizes(counts)
        self.scores, self.lengths = torch.empty(room, dtype=torch.double), torch.empty(room, dtype=torch.int32)
        self.tokens = torch.empty(room, wanted.most, dtype=torch.int32)
        arrays = {
            "scores": self.scores,
            "lengths": self.lengths,
            "tokens": self.tokens,
            "start": wanted.typed.after[-1],
        }
        addresses = _addresses(packed, wanted.typed.context, (counts, room), arrays, "a search")
        self.request = REQUEST.structure(limits.seconds, 0.0, *counts, *addresses)

    def found(self, before: SearchResult | None) -> SearchResult:
        """The best that are accepted, or those found `before` where the time was too short to find as many again."""
        arrays = (self.scores, self.lengths, self.tokens)
        rows = zip(*(array[: self.request.count].tolist() for array in arrays), strict=True)
        every = [Completion(tuple(ids[:length]), score) for score, length, ids in rows]
        accepted = [one for one in every if self.wanted.accept(one.ids)]
        forms: dict[Hashable, Completion] = {}
        for one in sorted(accepted, key=lambda one: (-one.log_probability, one.ids)):
            forms.setdefault(self.wanted.form(one.ids), one)
        best = list(forms.values())[: self.wanted.k]
        expanded = self.request.expanded + (before.rows if before else 0)
        if before and len(before.completions) > len(best):
            return replace(before, rows=expanded)
        least = best[-1].log_probability if len(best) == self.wanted.k else -math.inf
        return SearchResult(tuple(best), expanded, self.request.lost > least)

    def more(self, found: SearchResult) -> "_Asked | None":
        """What to ask for where too few were accepted and there are more to be had."""
        missing = self.wanted.k - len(found.completions)
        if missing == 0 or self.request.count < self.k or self.request.seconds <= 0:
            return None
        return _Asked(self.packed, self.wanted, 2 * self.k, replace(self.limits, seconds=self.request.seconds))


class CompiledEngine:
    """The `Engine` in compiled code, of a `model` that can be `packed`."""

    def __init__(self, model: LanguageModel, packed: PackedModel) -> None:
        library.keep_memory()
        self.model, self.packed = model, packed

    def begin(self, context: Context, override: Mapping[str, Tensor] | None = None) -> PackedPrefix:
        """Nothing typed yet, in one context; `override` as `LanguageModel.condition`."""
        with torch.autocast("cpu", enabled=False):  # what is computed once is computed by floats
            packed = self.packed.context(self.model, self.model.condition(context, override))
        return PackedPrefix.begin(self.packed, packed)

    def type(self, typed: PackedPrefix, ids: Sequence[int]) -> PackedPrefix:
        """The same with `ids` typed instead."""
        return typed.to(self.packed, ids)

    def search(
        self, wanted: Sequence[SearchRequest[PackedPrefix]], seconds: float | None, threads: int
    ) -> list[SearchResult]:
        """The completions of each."""
        every = search(self.packed, wanted, seconds=seconds, threads=threads)
        return [_above(one.least, found) for one, found in zip(wanted, every, strict=True)]


def _above(least: float, found: SearchResult) -> SearchResult:
    """What is more probable than `least` of what was found."""
    return replace(found, completions=tuple(one for one in found.completions if one.log_probability > least))


def engine(model: LanguageModel, products: str) -> CompiledEngine | PlainEngine:
    """The compiled search of `model` where there is one, or else the plain one; products of numbers of that type.

    Short numbers are multiplied where the processor has instructions for them, and floats elsewhere.
    """
    packed = PackedModel.of(model, products if library.short() else SINGLE)
    return PlainEngine(model) if packed is None else CompiledEngine(model, packed)


def fastest(model: LanguageModel, context: Context, most: int) -> CompiledEngine | PlainEngine:
    """Return the engine of the faster numbers here, for texts of at most `most` tokens in a context.

    Each searches what may follow the empty text.
    """
    engines = {products: engine(model, products) for products in PRODUCTS}

    requests: dict[str, tuple[PackedModel, SearchRequest[PackedPrefix]]] = {}
    for products, tried in engines.items():
        if isinstance(tried, PlainEngine):
            return tried
        requests[products] = tried.packed, SearchRequest(tried.begin(context), 10, most)

    def work(products: str) -> None:
        packed, request = requests[products]
        search(packed, [request], rows=PROBED)

    return engines[chosen(gain(work, torch.device("cpu")))]


def _follow(packed: PackedModel, context: PackedContext, start: Tensor, tokens: Sequence[int]) -> tuple[Tensor, ...]:
    """Rows (2H + V) after each of `tokens`, the first of which follows `start` (2H + V)."""
    if not tokens:
        return ()
    counts = (1, len(tokens), 0, 0, 0, 0, 0)
    given, after = torch.tensor(tokens), torch.empty(len(tokens), len(start))
    arrays = {"start": start, "given": given, "after": after}
    addresses = _addresses(packed, context, (counts, 0), arrays, "following")
    _run(packed, [REQUEST.structure(0.0, 0.0, *counts, *addresses)], following=True)
    return after.unbind()


def _addresses(
    packed: PackedModel,
    context: PackedContext,
    numbers: tuple[tuple[int, ...], int],
    arrays: Mapping[str, Tensor],
    case: str,
) -> list[int | None]:
    """Where a context and the `arrays` of a request lie; `ValueError` where they do not belong to the model.

    `numbers` are those of the request, and the completions that there is room for.
    """
    layout = packed.layout
    if context.layout != layout:
        raise ValueError(f"request: the context is packed for {context.layout}; valid is {layout}")
    counts, room = numbers
    letters = ("K", room), ("V", layout.size), ("S", layout.after)
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
    """Hand everything over; what comes back is in the requests. Each of `stops` ends the request of its place."""
    layout, array = packed.layout, (REQUEST.structure * len(requests))(*requests)
    numbers = (
        len(requests),
        *layout.numbers,
        packed.specials.end,
        min(threads, len(requests)),
        batch,
        GROWTH,
        PRODUCTS.index(layout.products),
        0,
    )
    SEARCH.sizes(numbers)
    arguments = SEARCH.structure(MARGIN[layout.products], *numbers, ctypes.addressof(array), *packed.addresses)
    with ExitStack() as stack:
        for place, stop in enumerate(stops):
            if stop is not None:
                stack.enter_context(stop.calling(partial(setattr, array[place], "seconds", 0.0)))
        library.call("search", arguments, library.VARIANTS.index(layout.variant), following)
    for request, done in zip(requests, array, strict=True):
        for name in ("seconds", "lost", "count", "expanded"):
            setattr(request, name, getattr(done, name))
