"""The next tokens of many texts in one compiled call: drawn ones or the likeliest, and no logits in between.

`generation/choosing.py` specifies draws and constraints, and has the plain implementation.

Shapes: N texts, V vocabulary, D width, C contexts, S tokens for each text.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from factorcell.model.kernels import library
from factorcell.model.kernels.signature import dimensions
from factorcell.model.kernels.signatures import DRAWING, SOFTMAX


@dataclass(frozen=True)
class PackedTable:
    """A table (V, D) as the compiled code of the instruction set `number` reads it, of `half` the bits or floats."""

    packed: Tensor
    size: int
    width: int
    half: bool
    number: int

    @classmethod
    def of(cls, table: Tensor) -> "PackedTable":
        """The table as it is now; of bfloat16 within autocast."""
        (size, width), half, number = dimensions("table", table, 2), library.half(), library.instruction_set()
        numbers = (0, size, width, 1, 1, library.threads(size), int(half), 0)
        sized = SOFTMAX.arguments(numbers, {})
        packed = torch.empty(library.require_library().factorcell_packed_table(ctypes.byref(sized), number))
        arrays = {**library.dense(table=table), "packed": packed}
        library.call("softmax_pack", SOFTMAX.arguments(numbers, arrays, "packing", packed=len(packed)), number)
        return cls(packed, size, width, half, number)


@dataclass(frozen=True)
class ForbiddenTokens:
    """Forbidden tokens: `banned` ones after every text, and `tokens` (M,) after the `texts` (M,), ascending.

    Where nothing else is left, `end` comes.
    """

    banned: Sequence[int]
    texts: Tensor
    tokens: Tensor
    end: int


@dataclass(frozen=True)
class SampleRequest:
    """Tokens drawn at `places` (N, S) in [0, 1) of the running sum of weights, probability ** (1 / `temperature`).

    Among the `top_k` likeliest (0: all), and of these the fewest that hold the share `top_p`.
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
    """The likeliest S tokens, the first of them first."""

    count: int

    def select(self, rows: Tensor) -> "TopRequest":
        """Return the request for the texts of `rows` (N',)."""
        return self


TokenRequest = SampleRequest | TopRequest


def next_tokens(
    values: Tensor, table: PackedTable, bias: Tensor, context: Tensor, barred: ForbiddenTokens, wanted: TokenRequest
) -> tuple[Tensor, Tensor]:
    """After each text S tokens (N, S), and their log probabilities under the model, whatever is barred (N, S).

    Logits are `values` (N, D) times the table, plus the row of `bias` (C, V) that `context` (N,) names. Where fewer
    tokens may come than are wanted, the others are `end`, with a log probability of -inf.
    """
    draws = (
        wanted
        if isinstance(wanted, SampleRequest)
        else SampleRequest(torch.zeros(len(values), min(wanted.count, table.size)))
    )
    count = dimensions("places", draws.places, 2)[1]
    ends = torch.bincount(barred.texts, minlength=len(values)).cumsum(0)
    banned, again = torch.tensor(barred.banned, dtype=torch.int64), barred.tokens
    tokens, logs = torch.empty(len(values), count, dtype=torch.int64), torch.empty(len(values), count)
    sizes = (len(values), table.size, table.width, len(bias), count, len(banned), len(again), draws.top_k, barred.end)
    numbers = (*sizes, library.threads(len(values)), int(table.half), 0)
    arrays = library.dense(values=values, bias=bias, packed=table.packed, logs=logs)
    arrays |= {"context": context, "banned": banned, "ends": ends, "again": again, "tokens": tokens}
    arrays["places"] = wanted.places if isinstance(wanted, SampleRequest) else None
    shares = (draws.temperature, draws.top_p)
    given = DRAWING.arguments(numbers, arrays, "next tokens", packed=len(table.packed), doubles=shares)
    library.call("drawing", given, table.number)
    return tokens, logs
