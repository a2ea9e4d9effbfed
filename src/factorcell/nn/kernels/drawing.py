"""Choice of the next tokens of many texts in one compiled call: sampled tokens, or the most probable tokens.

The call does not return logits. `generation/writing.py` specifies sampling and constraints, and implements them in
PyTorch.

Shapes: N texts, V vocabulary, D size of a vector, C contexts, S tokens per text, M forbidden pairs of text and token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from factorcell.nn.kernels import library
from factorcell.nn.kernels.signatures import DRAWING, SOFTMAX


@dataclass(frozen=True)
class PackedTable:
    """A table (V, D) in the memory layout of an `instruction_set`; `size` is V, and `width` is D."""

    packed: Tensor
    size: int
    width: int
    is_bfloat16: bool
    instruction_set: int

    @classmethod
    def of(cls, table: Tensor) -> "PackedTable":
        """Pack a copy of `table` for the current instruction set and precision."""
        size, width = table.shape
        is_bfloat16, instruction_set = library.uses_bfloat16(), library.instruction_set()
        numbers = {"size": size, "width": width, "texts": 1, "parts": 1, "half": int(is_bfloat16)}
        numbers["threads"] = library.thread_count(size)
        packed = torch.empty(library.size_of("packed_table", SOFTMAX.checked_arguments(numbers, {}), instruction_set))
        arrays = {**library.dense_arrays(table=table), "packed": packed}
        library.call("softmax_pack", SOFTMAX.checked_arguments(numbers, arrays, len(packed)), instruction_set)
        return cls(packed, size, width, is_bfloat16, instruction_set)


@dataclass(frozen=True)
class ForbiddenTokens:
    """Tokens that a text must not continue with.

    The tokens in `banned` are forbidden in every text. Token `tokens[i]` (M,) is forbidden in the text with the index
    `rows[i]` (M,); `rows` is sorted. A text in which every token is forbidden continues with the token `end`.
    """

    banned: Sequence[int]
    rows: Tensor
    tokens: Tensor
    end: int


@dataclass(frozen=True)
class SampleRequest:
    """A request for S sampled tokens per text.

    `places` (N, S) are uniform random numbers in [0, 1). Each number selects the token at this share of the cumulative
    sum of weights; the weight of a token is probability ** (1 / `temperature`). Only the `top_k` most probable tokens
    (0: all) can be sampled. `top_p` restricts them further, to the smallest set of most probable tokens whose weights
    sum to at least the share `top_p` of the weights of these `top_k` tokens.
    """

    places: Tensor
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def select(self, rows: Tensor) -> "SampleRequest":
        """Return the request for the texts of `rows` (N',)."""
        return replace(self, places=self.places[rows])


@dataclass(frozen=True)
class TopRequest:
    """A request for the `count` most probable tokens per text, in order of descending probability."""

    count: int

    def select(self, rows: Tensor) -> "TopRequest":
        """Return the request for the texts of `rows` (N',)."""
        return self


TokenRequest = SampleRequest | TopRequest


def next_tokens(
    values: Tensor, table: PackedTable, bias: Tensor, context: Tensor, forbidden: ForbiddenTokens, request: TokenRequest
) -> tuple[Tensor, Tensor]:
    """Choose the next tokens of each text.

    The logits of a text are its row of `values` (N, D) times the table, plus the row of `bias` (C, V) that `context`
    (N,) selects.

    Returns:
        Tokens (N, S), and their log probabilities (N, S) under the model without constraints. If a text allows fewer
        than S tokens, the others are `forbidden.end` with a log probability of -inf.
    """
    arrays = library.dense_arrays(values=values, bias=bias)
    doubles, top_k = {"temperature": 1.0, "top_p": 1.0}, 0
    if isinstance(request, SampleRequest):
        count, top_k, arrays["places"] = request.places.shape[1], request.top_k, request.places
        doubles = {"temperature": request.temperature, "top_p": request.top_p}
    else:
        count = min(request.count, table.size)
    banned = torch.tensor(forbidden.banned, dtype=torch.int64)
    tokens, log_probs = torch.empty(len(values), count, dtype=torch.int64), torch.empty(len(values), count)
    numbers = {"texts": len(values), "size": table.size, "width": table.width, "contexts": len(bias), "count": count}
    numbers |= {"banned_count": len(banned), "forbidden_count": len(forbidden.tokens), "end": forbidden.end}
    numbers |= {"top_k": top_k, "threads": library.thread_count(len(values)), "half": int(table.is_bfloat16)}
    arrays |= {"packed": table.packed, "context": context, "banned": banned, "forbidden": forbidden.tokens}
    arrays["ends"] = torch.bincount(forbidden.rows, minlength=len(values)).cumsum(0)
    arrays |= {"tokens": tokens, "log_probs": log_probs}
    arguments = DRAWING.checked_arguments(numbers, arrays, len(table.packed), **doubles)
    library.call("drawing", arguments, table.instruction_set)
    return tokens, log_probs
