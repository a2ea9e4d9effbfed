"""The recurrence of `Cell.forward` in one compiled call, forward and backward: the same values, several times as fast.

    z = given_reduced[t] + g L        [i, f, o] = given[t] + b + s (W g) + z R        g = h feed
    f = sigmoid(f + 1)       m = f m + (1 - f) tanh(i) keep[t]       h = tanh(m) sigmoid(o)

With layer normalisation i, f, o and, inside its tanh, m become gain (x - mean) / deviation + shift. Where the compiled
code is missing `Cell` runs its plain loop.

Shapes: B texts, T steps, H hidden, R rank.
"""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from factorcell.model.kernels import library
from factorcell.model.kernels.signature import dimensions
from factorcell.model.kernels.signatures import RECURRENCE


@dataclass(frozen=True)
class PackedWeight:
    """W (H, 3H) as the compiled code reads it, `there` and `back`: worth it where it reads few texts at a time.

    For the instruction set of that `number`, and products of bfloat16 if `half`.
    """

    forward: Tensor
    backward: Tensor
    number: int
    half: bool

    @classmethod
    def of(cls, weight: Tensor) -> "PackedWeight":
        """W as it is now, for the kernels and the precision that are chosen now."""
        number, half = library.instruction_set(), library.half()
        dense = weight.detach().float().contiguous()
        numbers = (1, 1, dimensions("weight", dense, 2)[0], 0, 1, int(half), 0)

        def made(back: bool) -> Tensor:
            to = torch.empty(_packed_size(numbers, back, number))
            arrays = {"weight": dense, "packed": to}
            arguments = RECURRENCE.arguments(numbers, arrays, "packing", packed=len(to))
            library.call("recurrence_pack", arguments, number, back)
            return to

        return cls(made(False), made(True), number, half)


@dataclass(frozen=True)
class RecurrenceInputs:
    """Arguments of the recurrence.

    `given` (B, T, 3H): the inputs' share of the gates; `bias` (B, 3H); `given_reduced` (B, T, R): their share of z;
    `weight` (H, 3H), `left` (B, H, R), `right` (B, R, 3H); `keep` (T, B, H): a factor on the candidate; `norm` (8, H):
    gains of i, f, o, m, then their shifts; `scale` (B, 3H): a factor on the product of W; `feed` (B, H): one on h where
    it is fed back; `hidden` and `memory` (B, H): the first state; `lengths` (B,): after them a text's state stands
    still, and its outputs are zero. `packed` is W once more, if there is reason.
    """

    given: Tensor
    bias: Tensor
    given_reduced: Tensor | None
    weight: Tensor
    left: Tensor | None
    right: Tensor | None
    keep: Tensor | None
    norm: Tensor | None
    scale: Tensor | None
    feed: Tensor | None
    hidden: Tensor
    memory: Tensor
    lengths: Tensor | None
    packed: PackedWeight | None = None

    def to(self, kind: torch.dtype) -> "RecurrenceInputs":
        """Return these arguments with all numbers except lengths converted to type `kind`."""
        arrays = {name: getattr(self, name) for name in ARRAY_FIELDS}
        numbers = {name: a.to(kind) for name, a in arrays.items() if a is not None and a.dtype != torch.long}
        return replace(self, **numbers)

    def arrays(self) -> tuple[Tensor | None, ...]:
        """All of them, in this order, but for `packed`."""
        return tuple(getattr(self, name) for name in ARRAY_FIELDS)


ARRAY_FIELDS = tuple(field.name for field in fields(RecurrenceInputs) if field.name != "packed")


def usable(inputs: RecurrenceInputs) -> bool:
    """Whether `run` can do it: floats on the processor, one W for all texts, and something to do."""
    return inputs.weight.dim() == 2 and inputs.given.numel() > 0 and library.usable(inputs.given, inputs.weight)


def run(inputs: RecurrenceInputs) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states (B, T, H), the last one and the last memory (B, H); products are of bfloat16 within autocast."""
    arrays = inputs.arrays()
    learning = torch.is_grad_enabled() and any(array is not None and array.requires_grad for array in arrays)
    number, half, packed = library.instruction_set(), library.half(), inputs.packed
    fits = packed is not None and (packed.number, packed.half) == (number, half)
    both = (packed.forward, packed.backward) if packed is not None and fits else (None, None)
    result: tuple[Tensor, Tensor, Tensor] = _Recurrence.apply(learning, half, number, both, *arrays)  # type: ignore[no-untyped-call]
    return result


def _call(backward: bool, half: bool, number: int, rank: int, arrays: Mapping[str, Tensor | None]) -> None:
    first = "gates" if backward else "given"
    batch, steps, width = dimensions(first, cast(Tensor, arrays[first]), 3)
    numbers = (batch, steps, width // 3, rank, library.threads(batch), int(half), 0)
    packed = _packed_size(numbers, backward, number) if arrays.get("packed") is not None else 0
    way = "backward" if backward else "forward"
    cases = [way] + [f"{way} of a rank"] * (rank > 0) + [f"{way} with normalisation"] * (arrays.get("norm") is not None)
    library.call("recurrence", RECURRENCE.arguments(numbers, arrays, *cases, packed=packed), number, backward)


def _packed_size(numbers: tuple[int, ...], backward: bool, number: int) -> int:
    arguments = RECURRENCE.arguments(numbers, {})
    size: int = library.require_library().factorcell_packed_weight(ctypes.byref(arguments), int(backward), number)
    return size


def _rank(left: Tensor | None) -> int:
    return 0 if left is None else dimensions("left", left, 3)[2]


def _converted(half: bool, arrays: Mapping[str, Tensor | None]) -> dict[str, Tensor | None]:
    """Name and convert arrays as the compiled code expects them."""
    names = {"hidden": "first_hidden", "memory": "first_memory"}
    short = ("given", "left", "right") if half else ()
    kinds = {name: torch.bfloat16 if name in short else torch.float32 for name in arrays}
    return {names.get(n, n): None if a is None else library.converted(a, kinds[n]) for n, a in arrays.items()}


def _forward(
    x: Mapping[str, Tensor | None], learning: bool, half: bool, number: int, packed: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Run forward on the arrays of `Inputs`.

    Returns:
        h (B, T, H), the last h and m (B, H), and for the backward pass m, the gates, z and 1 / deviation (B, T, .).
    """
    weight, rank = cast(Tensor, x["weight"]), _rank(x["left"])
    batch, steps, _ = dimensions("given", cast(Tensor, x["given"]), 3)
    size, kept = dimensions("weight", weight, 2)[0], steps if learning else 0
    made = {"outputs": weight.new_empty(batch, steps, size)}
    made |= {name: weight.new_empty(batch, size) for name in ("last_hidden", "last_memory")}
    widths = {"memories": size, "gates": 3 * size, "reduced": rank, "inverse": 0 if x["norm"] is None else 3}
    made |= {name: weight.new_empty(batch, kept, width) for name, width in widths.items()}
    wanted = {name: array if array.numel() else None for name, array in made.items()}
    _call(False, half, number, rank, {**_converted(half, x), "packed": packed, **wanted})
    return tuple(made.values())


def _backward(
    x: Mapping[str, Tensor | None], half: bool, number: int, packed: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Run backward on arrays of `Inputs` from `weight` on, those kept by `_forward`, and gradients of its results.

    Returns:
        Gradients of the gates (B, T, 3H), b (B, 3H), z (B, T, R), the first h and m (B, H), `norm` of a text (B, 8, H).
    """
    weight, gates, rank = cast(Tensor, x["weight"]), cast(Tensor, x["gates"]), _rank(x["left"])
    batch, steps, size = *gates.shape[:2], weight.shape[0]
    made = {
        "given_gradient": torch.empty_like(gates, dtype=torch.bfloat16 if half else torch.float32),
        "bias_gradient": gates.new_empty(batch, 3 * size),
        "reduced_gradient": gates.new_empty(batch, steps, rank),
        "first_hidden_gradient": gates.new_empty(batch, size),
        "first_memory_gradient": gates.new_empty(batch, size),
        "norm_gradient": gates.new_empty(batch, 0 if x["norm"] is None else 8, size),
    }
    wanted = {name: array if array.numel() else None for name, array in made.items()}
    _call(True, half, number, rank, {**_converted(half, x), "packed": packed, **wanted})
    return tuple(made.values())


class _Recurrence(torch.autograd.Function):
    """The kernel goes back through time; sums over all steps are plain products afterwards."""

    @staticmethod
    def forward(
        ctx: Any,
        learning: bool,
        half: bool,
        number: int,
        packed: tuple[Tensor | None, Tensor | None],
        *arrays: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        given = cast(Tensor, arrays[0])
        named = dict(zip(ARRAY_FIELDS, arrays, strict=True))
        outputs, last_hidden, last_memory, *saved = _forward(named, learning, half, number, packed[0])
        ctx.save_for_backward(*arrays[3:], outputs, *saved, packed[1])
        ctx.set_materialize_grads(False)
        ctx.half, ctx.number, ctx.kind, ctx.reduced = half, number, given.dtype, arrays[2] is not None
        return outputs, last_hidden, last_memory

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        *taken, outputs, memories, gates, reduced, inverse, packed = ctx.saved_tensors
        weight, left, right, _, norm, scale, feed, hidden, *_ = taken
        x = dict(zip(ARRAY_FIELDS[3:], taken, strict=True))
        x |= {
            "outputs": outputs,
            "memories": memories,
            "gates": gates,
            "inverse": inverse if norm is not None else None,
        }
        x |= dict(zip(("outputs_gradient", "last_hidden_gradient", "last_memory_gradient"), gradients, strict=True))
        made = _backward(x, ctx.half, ctx.number, packed)
        of_given, of_bias, of_reduced, of_hidden, of_memory, of_norm = made
        before = torch.cat([hidden[:, None], outputs[:, :-1]], dim=1)
        before = before if feed is None else before * feed[:, None]
        of_product, of_scale = of_given, None
        if scale is not None:
            products = library.product(before.flatten(0, 1), weight, ctx.half).view_as(of_given)
            of_scale = (of_given * products).sum(1)
            of_product = (of_given * scale[:, None]).to(of_given.dtype)
        flat = before.flatten(0, 1).T, of_product.flatten(0, 1)
        return (
            *(None,) * 4,
            of_given.to(ctx.kind),
            of_bias,
            of_reduced if ctx.reduced else None,
            library.product(*flat, ctx.half) if ctx.needs_input_grad[7] else None,  # online learning has W fixed
            None if left is None else (before.transpose(1, 2) @ of_reduced).to(left.dtype),
            None if right is None else (reduced.transpose(1, 2).to(of_given.dtype) @ of_given).to(right.dtype),
            None,
            None if norm is None else of_norm.sum(0),
            of_scale,
            None,
            of_hidden,
            of_memory,
            None,
        )
