"""The recurrence of `Cell.forward` in one compiled call, forward and backward.

    z = input_reduced[t] + g L      [i, f, o] = input_gates[t] + b + s (W g) + z R        g = h feed
    f = sigmoid(f + 1)              m = f m + (1 - f) tanh(i) keep[t]                     h = tanh(m) sigmoid(o)

With layer normalization i, f, o and, inside its tanh, m become gain (x - mean) / deviation + shift. If the compiled
code is missing, `Cell` runs a plain loop with the same results, which is several times slower.
Variables `of_x` are gradients of x.

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
    """W (H, 3H) in the layouts of the `forward` and the `backward` pass; this saves time if batches are small.

    `number` is the instruction set of the layout; `half` means bfloat16.
    """

    forward: Tensor
    backward: Tensor
    number: int
    half: bool

    @classmethod
    def of(cls, weight: Tensor) -> "PackedWeight":
        """Pack a copy of W for the current instruction set and precision."""
        number, half = library.instruction_set(), library.half()
        dense = weight.detach().float().contiguous()
        numbers = (1, 1, dimensions("weight", dense, 2)[0], 0, 1, int(half), 0)

        def pack(backward: bool) -> Tensor:
            packed = torch.empty(_packed_size(numbers, backward, number))
            arrays = {"weight": dense, "packed": packed}
            arguments = RECURRENCE.arguments(numbers, arrays, "packing", packed=len(packed))
            library.call("recurrence_pack", arguments, number, backward)
            return packed

        return cls(pack(False), pack(True), number, half)


@dataclass(frozen=True)
class RecurrenceInputs:
    """Arguments of the recurrence.

    Args:
        input_gates: Contribution of the inputs to the gates (B, T, 3H).
        bias: b (B, 3H).
        input_reduced: Contribution of the inputs to z (B, T, R).
        weight: W (H, 3H).
        left: L (B, H, R).
        right: R (B, R, 3H).
        keep: Factor on the candidate (T, B, H), for dropout.
        norm: Layer normalization (8, H): gains of i, f, o and m, then their shifts.
        scale: s (B, 3H), a factor on the product with W.
        feed: Factor on h (B, H) where it enters the products, for dropout.
        hidden: First h (B, H).
        memory: First m (B, H).
        lengths: Steps of each text (B,); after them its state does not change and its outputs are zero.
        packed: W in packed form, if that saves time.
    """

    input_gates: Tensor
    bias: Tensor
    input_reduced: Tensor | None
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

    def to(self, dtype: torch.dtype) -> "RecurrenceInputs":
        """Return these arguments with all arrays except `lengths` converted to `dtype`."""
        arrays = {name: getattr(self, name) for name in ARRAY_FIELDS}
        numbers = {name: a.to(dtype) for name, a in arrays.items() if a is not None and a.dtype != torch.long}
        return replace(self, **numbers)

    def arrays(self) -> tuple[Tensor | None, ...]:
        """Return all fields except `packed`, in their order."""
        return tuple(getattr(self, name) for name in ARRAY_FIELDS)


ARRAY_FIELDS = tuple(field.name for field in fields(RecurrenceInputs) if field.name != "packed")


def usable(inputs: RecurrenceInputs) -> bool:
    """Whether `run` supports `inputs`: floats on the processor, one W for all texts, and not empty."""
    is_shared = inputs.weight.dim() == 2
    return is_shared and inputs.input_gates.numel() > 0 and library.usable(inputs.input_gates, inputs.weight)


def run(inputs: RecurrenceInputs) -> tuple[Tensor, Tensor, Tensor]:
    """Run the recurrence; products are in bfloat16 within autocast.

    Returns:
        Hidden states (B, T, H), the last hidden state (B, H) and the last memory (B, H).
    """
    arrays = inputs.arrays()
    needs_backward = torch.is_grad_enabled() and any(array is not None and array.requires_grad for array in arrays)
    number, half, packed = library.instruction_set(), library.half(), inputs.packed
    fits = packed is not None and (packed.number, packed.half) == (number, half)
    packed_forms = (packed.forward, packed.backward) if packed is not None and fits else (None, None)
    result: tuple[Tensor, Tensor, Tensor] = _Recurrence.apply(needs_backward, half, number, packed_forms, *arrays)  # type: ignore[no-untyped-call]
    return result


def _call(backward: bool, half: bool, number: int, rank: int, arrays: Mapping[str, Tensor | None]) -> None:
    first = "gates" if backward else "input_gates"
    batch, steps, width = dimensions(first, cast(Tensor, arrays[first]), 3)
    numbers = (batch, steps, width // 3, rank, library.threads(batch), int(half), 0)
    packed = _packed_size(numbers, backward, number) if arrays.get("packed") is not None else 0
    direction = "backward" if backward else "forward"
    cases = [direction] + [f"{direction} of a rank"] * (rank > 0)
    cases += [f"{direction} with normalization"] * (arrays.get("norm") is not None)
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
    short = ("input_gates", "left", "right") if half else ()
    dtypes = {name: torch.bfloat16 if name in short else torch.float32 for name in arrays}
    return {names.get(n, n): None if a is None else library.converted(a, dtypes[n]) for n, a in arrays.items()}


def _forward(
    x: Mapping[str, Tensor | None], needs_backward: bool, half: bool, number: int, packed: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Run forward on the arrays of `RecurrenceInputs`; store what the backward pass needs if `needs_backward`.

    Returns:
        h (B, T, H), the last h and m (B, H), and for the backward pass m, the gates, z and 1 / deviation (B, T, .).
    """
    weight, rank = cast(Tensor, x["weight"]), _rank(x["left"])
    batch, steps, _ = dimensions("input_gates", cast(Tensor, x["input_gates"]), 3)
    size, saved_steps = dimensions("weight", weight, 2)[0], steps if needs_backward else 0
    results = {"outputs": weight.new_empty(batch, steps, size)}
    results |= {name: weight.new_empty(batch, size) for name in ("last_hidden", "last_memory")}
    widths = {"memories": size, "gates": 3 * size, "reduced": rank, "inverse": 0 if x["norm"] is None else 3}
    results |= {name: weight.new_empty(batch, saved_steps, width) for name, width in widths.items()}
    arrays = {name: array if array.numel() else None for name, array in results.items()}
    _call(False, half, number, rank, {**_converted(half, x), "packed": packed, **arrays})
    return tuple(results.values())


def _backward(
    x: Mapping[str, Tensor | None], half: bool, number: int, packed: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Run backward on the arrays of `RecurrenceInputs` from `weight` on, the results of `_forward` and their gradients.

    Returns:
        Gradients of the gates (B, T, 3H), b (B, 3H), z (B, T, R), the first h and m (B, H), `norm` of a text (B, 8, H).
    """
    weight, gates, rank = cast(Tensor, x["weight"]), cast(Tensor, x["gates"]), _rank(x["left"])
    batch, steps, size = *gates.shape[:2], weight.shape[0]
    results = {
        "input_gates_gradient": torch.empty_like(gates, dtype=torch.bfloat16 if half else torch.float32),
        "bias_gradient": gates.new_empty(batch, 3 * size),
        "reduced_gradient": gates.new_empty(batch, steps, rank),
        "first_hidden_gradient": gates.new_empty(batch, size),
        "first_memory_gradient": gates.new_empty(batch, size),
        "norm_gradient": gates.new_empty(batch, 0 if x["norm"] is None else 8, size),
    }
    arrays = {name: array if array.numel() else None for name, array in results.items()}
    _call(True, half, number, rank, {**_converted(half, x), "packed": packed, **arrays})
    return tuple(results.values())


class _Recurrence(torch.autograd.Function):
    """The recurrence with its backward pass: the kernel goes back through time, plain products sum over all steps."""

    @staticmethod
    def forward(
        ctx: Any,
        needs_backward: bool,
        half: bool,
        number: int,
        packed: tuple[Tensor | None, Tensor | None],
        *arrays: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        input_gates = cast(Tensor, arrays[0])
        x = dict(zip(ARRAY_FIELDS, arrays, strict=True))
        outputs, last_hidden, last_memory, *saved = _forward(x, needs_backward, half, number, packed[0])
        ctx.save_for_backward(*arrays[3:], outputs, *saved, packed[1])
        ctx.set_materialize_grads(False)
        ctx.half, ctx.number, ctx.dtype, ctx.has_reduced = half, number, input_gates.dtype, arrays[2] is not None
        return outputs, last_hidden, last_memory

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        *arrays, outputs, memories, gates, reduced, inverse, packed = ctx.saved_tensors
        weight, left, right, _, norm, scale, feed, hidden, *_ = arrays
        x = dict(zip(ARRAY_FIELDS[3:], arrays, strict=True))
        x |= {
            "outputs": outputs,
            "memories": memories,
            "gates": gates,
            "inverse": inverse if norm is not None else None,
        }
        x |= dict(zip(("outputs_gradient", "last_hidden_gradient", "last_memory_gradient"), gradients, strict=True))
        of_gates, of_bias, of_reduced, of_hidden, of_memory, of_norm = _backward(x, ctx.half, ctx.number, packed)
        before = torch.cat([hidden[:, None], outputs[:, :-1]], dim=1)
        before = before if feed is None else before * feed[:, None]
        of_product, of_scale = of_gates, None
        if scale is not None:
            products = library.product(before.flatten(0, 1), weight, ctx.half).view_as(of_gates)
            of_scale = (of_gates * products).sum(1)
            of_product = (of_gates * scale[:, None]).to(of_gates.dtype)
        flat = before.flatten(0, 1).T, of_product.flatten(0, 1)
        return (
            *(None,) * 4,
            of_gates.to(ctx.dtype),
            of_bias,
            of_reduced if ctx.has_reduced else None,
            library.product(*flat, ctx.half) if ctx.needs_input_grad[7] else None,  # W is fixed in online learning
            None if left is None else (before.transpose(1, 2) @ of_reduced).to(left.dtype),
            None if right is None else (reduced.transpose(1, 2).to(of_gates.dtype) @ of_gates).to(right.dtype),
            None,
            None if norm is None else of_norm.sum(0),
            of_scale,
            None,
            of_hidden,
            of_memory,
            None,
        )
