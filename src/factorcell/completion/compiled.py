"""Search for completions in compiled code, which returns the same completions as `PlainEngine` in less time.

    [i, f, o] = b + [x, h] W + ([x, h] L) R        log p(next token) = log softmax(U P h' + a)

The first equation computes the gates i, f and o (H each) of the coupled cell (TACL 2018, equation 8) from the embedding
x (E) of a token and the hidden state h (H) before it. In the second equation, h' is the hidden state after the token,
U (V, E) the embedding table and P (E, H) the projection. The matrices W, U and P belong to the model. The bias b (3H),
the low-rank change L R and the softmax bias a (V) belong to the context.

Threads can share a `PackedModel` and a `PackedContext`, because each call has its own working memory. `PlainEngine`
serves the models that cannot be packed.

Shapes: V vocabulary, E embedding, H hidden state, R rank.
"""

import ctypes
import math
import time
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from factorcell.completion.search import GROWTH, Completion, PlainEngine, PrefixState, SearchRequest, SearchResult, Stop
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


class CompiledEngine:
    """Reads a typed prefix and searches for its completions in compiled code, with a model that can be packed.

    The states of a `PrefixState` are vectors (2H + V) in float32: the hidden state (H) and the memory of the cell (H)
    after a token, and the log probabilities of the next token (V).
    """

    def __init__(self, model: LanguageModel, packed: PackedModel) -> None:
        library.retain_freed_memory()
        self.model, self.packed = model, packed

    def begin(self, context: Context, override: Mapping[str, Tensor] | None = None) -> PrefixState:
        """Return the search state of an empty prefix in one context, with the arguments of `PlainEngine.begin`."""
        with torch.autocast("cpu", enabled=False):  # in float32: this runs only once per context
            conditioning = self.model.condition(context, override)
            packed = self.packed.pack_context(self.model, conditioning)
        start = self.packed.pack_start(conditioning)
        return PrefixState(packed, (), self._read_tokens(packed, start, [self.packed.specials.start]))

    def read_prefix(self, prefix_state: PrefixState, ids: Sequence[int]) -> PrefixState:
        """Return the search state of the prefix `ids`; reuse the states of tokens shared with `prefix_state`."""
        return prefix_state.read(ids, self._read_tokens)

    def search(self, request: SearchRequest) -> SearchResult:
        """Return the most probable completions of a request.

        The compiled code does not call `request.text_of`. If it rejects so many completions that fewer than k remain,
        the search runs again for twice as many.
        """
        k, seconds, expanded_count = request.k, request.deadline - time.monotonic(), 0
        distinct: dict[Hashable, Completion] = {}  # of all searches: the time of the last one may end early
        while True:
            # The prefix and each expanded hypothesis yield at most one completion.
            max_completions = min(k, request.max_expanded + 1)
            arrays = {
                "scores": torch.empty(max_completions, dtype=torch.double),
                "lengths": torch.empty(max_completions, dtype=torch.int32),
                "tokens": torch.empty(max_completions, request.max_tokens, dtype=torch.int32),
            }
            structure = self._call(
                request.prefix_state.conditioning,
                {**arrays, "start": request.prefix_state.states[-1]},
                seconds=seconds,
                batch_size=INITIAL_BATCH_SIZE,
                stop=request.stop,
                k=k,
                max_tokens=request.max_tokens,
                allow_empty=int(request.text_of(()) is not None),
                max_rows=request.max_expanded,
                max_waiting=request.max_waiting,
            )
            expanded_count += structure.expanded
            entries = zip(*(array[: structure.count].tolist() for array in arrays.values()), strict=True)
            for negative_score, ids in sorted((-score, tuple(ids[:length])) for score, length, ids in entries):
                text = request.text_of(ids)
                if text is not None and (text not in distinct or -negative_score > distinct[text].log_probability):
                    distinct[text] = Completion(ids, -negative_score, text)
            best = sorted(distinct.values(), key=lambda entry: (-entry.log_probability, entry.ids))[: request.k]
            min_score = best[-1].log_probability if len(best) == request.k else -math.inf
            is_cut = structure.lost_score > min_score
            if len(best) == request.k or structure.count < k or structure.seconds <= 0:
                above = tuple(entry for entry in best if entry.log_probability > request.min_log_prob)
                return SearchResult(above, expanded_count, is_cut)
            k, seconds = 2 * k, structure.seconds

    def _read_tokens(self, context: PackedContext, start: Tensor, tokens: Sequence[int]) -> tuple[Tensor, ...]:
        """Read `tokens` from the state `start` (2H + V); return the state after each token."""
        if not tokens:
            return ()
        states = torch.empty(len(tokens), len(start))
        arrays = {"start": start, "input_tokens": torch.tensor(tokens), "states": states}
        self._call(context, arrays, is_reading=True, k=1, max_tokens=len(tokens))
        return states.unbind()

    def _call(
        self,
        context: PackedContext,
        arrays: Mapping[str, Tensor],
        *,
        is_reading: bool = False,
        seconds: float = 0.0,
        batch_size: int = 1,
        stop: Stop | None = None,
        **numbers: int,
    ) -> Any:
        """Call the compiled code, and return the structure of the request, which contains numbers of the result.

        The code reads tokens one after the other (`is_reading`), or searches for at most `seconds`. The `arrays` and
        `numbers` are fields of `REQUEST`; the code writes into some of the arrays.
        """
        packed, layout = self.packed, self.packed.layout
        if context.layout != layout:
            raise ValueError(f"request: expected a context packed for {layout}, got {context.layout}")
        # The state after a token is h, m, and the log probabilities of the next token.
        state_values = 2 * layout.hidden_size + layout.vocabulary_size
        sizes = REQUEST.sizes(numbers) | {"V": layout.vocabulary_size, "S": state_values}
        sizes["K"] = len(arrays.get("scores", ()))
        addresses = REQUEST.checked_addresses(sizes, arrays)
        structure = REQUEST.structure(seconds=seconds, **numbers, **context.addresses, **addresses)
        if stop is not None:
            stop.watch(structure)
        search_numbers = {
            "requests": 1,
            "size": layout.vocabulary_size,
            "width": layout.embedding_size,
            "hidden": layout.hidden_size,
            "rank": layout.rank,
            "end": packed.specials.end,
            "threads": 1,
            "batch": batch_size,
            "growth": GROWTH,
            "products": PRODUCT_TYPES.index(layout.products),
        }
        SEARCH.sizes(search_numbers)  # raises an error for an invalid number
        pointers = {"request": ctypes.addressof(structure), **packed.addresses}
        arguments = SEARCH.structure(margin=MARGIN[layout.products], **search_numbers, **pointers)
        library.call("search", arguments, library.VARIANTS.index(layout.variant), is_reading)
        return structure


def new_engine(model: Predictor, products: str) -> CompiledEngine | PlainEngine:
    """Return the compiled search of `model`, with `products` of this type, or else the search in PyTorch."""
    if not isinstance(model, LanguageModel):
        return PlainEngine(model)
    packed = PackedModel.from_model(model, products if library.has_bfloat16() else FLOAT32)
    return PlainEngine(model) if packed is None else CompiledEngine(model, packed)
