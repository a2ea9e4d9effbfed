"""The recurrence of `Cell.forward` (coupled cell) in one compiled call per direction.

    z = input_reduced[t] + g L      [i, f, o] = input_gates[t] + b + s (W g) + z R        g = h feed
    f = sigmoid(f + 1)              m = f m + (1 - f) tanh(i) keep[t]                     h = tanh(m) sigmoid(o)

W multiplies the hidden state h; L R is its low-rank change, and s a factor on its product. b is the bias, and i, f, o
are the gates. feed and keep are dropout factors. Layer normalization replaces each x of i, f, o and the m inside the
tanh by gain (x - mean) / deviation + shift. If the compiled code is missing, `Cell` runs a loop in Python instead,
which has the same results and takes several times as long. Variables `of_x` are gradients of the loss with respect to
x.

Shapes: B texts, T steps, H hidden, R rank.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from factorcell.nn.kernels import library
from factorcell.nn.kernels.signatures import RECURRENCE


@dataclass(frozen=True)
class PackedWeight:
    """W (H, 3H) in the memory layouts that the compiled passes read, which saves each call the time of packing it.

    The layouts depend on the `instruction_set`, and on whether products are in bfloat16.
    """

    forward: Tensor
    backward: Tensor
    instruction_set: int
    is_bfloat16: bool

    @classmethod
    def of(cls, weight: Tensor) -> "PackedWeight":
        """Pack W for the current instruction set and precision."""
        instruction_set, is_bfloat16 = library.instruction_set(), library.uses_bfloat16()
        dense_weight = weight.detach().float().contiguous()
        numbers = {"sequences": 1, "steps": 1, "hidden": len(dense_weight), "threads": 1, "half": int(is_bfloat16)}

        def pack(*, backward: bool) -> Tensor:
            packed = torch.empty(_packed_size(numbers, instruction_set, backward))
            arrays = {"weight": dense_weight, "packed": packed}
            arguments = RECURRENCE.checked_arguments(numbers, arrays, len(packed))
            library.call("recurrence_pack", arguments, instruction_set, backward)
            return packed

        return cls(pack(backward=False), pack(backward=True), instruction_set, is_bfloat16)


@dataclass(frozen=True, kw_only=True)
class RecurrenceInputs:
    """Arguments of the recurrence."""

    input_gates: Tensor  # what the inputs contribute to the gates (B, T, 3H)
    bias: Tensor  # b (B, 3H)
    input_reduced: Tensor | None = None  # what the inputs contribute to z (B, T, R)
    weight: Tensor  # W (H, 3H)
    left: Tensor | None = None  # L (B, H, R)
    right: Tensor | None = None  # R (B, R, 3H)
    keep: Tensor | None = None  # dropout factors (T, B, H) on the candidate tanh(i)
    norm: Tensor | None = None  # layer normalization (8, H): gains of i, f, o and m, then their shifts
    scale: Tensor | None = None  # s (B, 3H), a factor on the product with W
    feed: Tensor | None = None  # dropout factors (B, H) on h in the products with W and L
    hidden: Tensor  # first h (B, H)
    memory: Tensor  # first m (B, H)
    # steps of each text (B,); after them the state of the text does not change and its outputs are zero
    lengths: Tensor | None = None
    packed: PackedWeight | None = None  # the packed form of `weight`, to save the time of packing it in every call

    def to(self, dtype: torch.dtype) -> "RecurrenceInputs":
        """Return these arguments with all arrays except `lengths` converted to `dtype`."""
        arrays = ((name, getattr(self, name)) for name in ARRAY_FIELDS)
        return replace(self, **{name: x.to(dtype) for name, x in arrays if x is not None and x.dtype != torch.long})

    def arrays(self) -> tuple[Tensor | None, ...]:
        """Return all fields except `packed`, in their order."""
        return tuple(getattr(self, name) for name in ARRAY_FIELDS)


ARRAY_FIELDS = tuple(field.name for field in fields(RecurrenceInputs) if field.name != "packed")
# The backward pass does not read the arrays before `weight`, the contributions of the inputs and the bias.
WEIGHT_INDEX = ARRAY_FIELDS.index("weight")
LEADING_ARGUMENTS = 4  # arguments of `_Recurrence.forward` after `ctx` and before the arrays; they have no gradients


def supports(inputs: RecurrenceInputs) -> bool:
    """Whether `run` supports `inputs`: float arrays on the CPU that are not empty, with one W for all texts."""
    is_weight_shared = inputs.weight.dim() == 2
    return is_weight_shared and inputs.input_gates.numel() > 0 and library.supports(inputs.input_gates, inputs.weight)


def run(inputs: RecurrenceInputs) -> tuple[Tensor, Tensor, Tensor]:
    """Run the recurrence; return hidden states (B, T, H), the last hidden state (B, H) and the last memory (B, H).

    Within autocast, products are computed in bfloat16 if the processor supports it.
    """
    arrays = inputs.arrays()
    needs_backward = torch.is_grad_enabled() and any(array is not None and array.requires_grad for array in arrays)
    instruction_set, is_bfloat16, packed = library.instruction_set(), library.uses_bfloat16(), inputs.packed
    packed_forms: tuple[Tensor | None, Tensor | None] = (None, None)
    # A weight that was packed for another instruction set or precision is packed again.
    if packed is not None and (packed.instruction_set, packed.is_bfloat16) == (instruction_set, is_bfloat16):
        packed_forms = (packed.forward, packed.backward)
    result: tuple[Tensor, Tensor, Tensor] = _Recurrence.apply(
        needs_backward, is_bfloat16, instruction_set, packed_forms, *arrays
    )  # type: ignore[no-untyped-call]
    return result


def _packed_size(numbers: Mapping[str, int], instruction_set: int, backward: bool) -> int:
    """Return the number of floats of a packed W."""
    structure = RECURRENCE.checked_arguments(numbers, {})
    return library.size_of("packed_weight", structure, instruction_set, backward)


def _call(
    inputs: Mapping[str, Tensor | None],
    results: Mapping[str, Tensor],
    *,
    packed: Tensor | None,
    is_bfloat16: bool,
    instruction_set: int,
    backward: bool,
) -> tuple[Tensor, ...]:
    """Compute `results`, of which the first is (B, T, .), in compiled code from `inputs`."""
    half = torch.bfloat16 if is_bfloat16 else torch.float32
    arrays: dict[str, Tensor | None] = {"packed": packed}
    for name, array in inputs.items():
        dtype = half if name in ("input_gates", "left", "right") else torch.float32
        compiled_name = f"first_{name}" if name in ("hidden", "memory") else name
        arrays[compiled_name] = None if array is None else library.convert_array(array, dtype)
    arrays |= {name: array if array.numel() else None for name, array in results.items()}
    (batch, steps, _), left = next(iter(results.values())).shape, inputs["left"]
    numbers = {"sequences": batch, "steps": steps, "hidden": len(cast(Tensor, inputs["weight"]))}
    numbers |= {"rank": 0 if left is None else left.shape[2], "half": int(is_bfloat16)}
    numbers["threads"] = library.thread_count(batch)
    packed_size = 0 if packed is None else _packed_size(numbers, instruction_set, backward)
    library.call("recurrence", RECURRENCE.checked_arguments(numbers, arrays, packed_size), instruction_set, backward)
    return tuple(results.values())


def _forward(inputs: Mapping[str, Tensor | None], needs_backward: bool, **options: Any) -> tuple[Tensor, ...]:
    """Return h (B, T, H), the last h and m (B, H), then m, the gates, z, and 1 / deviation for the backward pass.

    Arrays for the backward pass have the shape (B, T, width), or (B, 0, width) without `needs_backward`.
    """
    weight, left = cast(Tensor, inputs["weight"]), inputs["left"]
    batch, steps, _ = cast(Tensor, inputs["input_gates"]).shape
    hidden, rank, saved_steps = len(weight), 0 if left is None else left.shape[2], steps if needs_backward else 0
    results = {"outputs": weight.new_empty(batch, steps, hidden)}
    results |= {name: weight.new_empty(batch, hidden) for name in ("last_hidden", "last_memory")}
    widths = {"memories": hidden, "gates": 3 * hidden, "reduced": rank, "inverse": 0 if inputs["norm"] is None else 3}
    results |= {name: weight.new_empty(batch, saved_steps, width) for name, width in widths.items()}
    return _call(inputs, results, backward=False, **options)


def _backward(inputs: Mapping[str, Tensor | None], **options: Any) -> tuple[Tensor, ...]:
    """Return gradients of the gates (B, T, 3H), b (B, 3H), z (B, T, R), the first h and m (B, H), and `norm` (B, 8, H).

    `inputs` are arrays of `RecurrenceInputs` from `weight` on, the results of `_forward`, and gradients of its outputs.
    """
    gates, left = cast(Tensor, inputs["gates"]), inputs["left"]
    batch, steps, columns = gates.shape
    hidden, rank = columns // 3, 0 if left is None else left.shape[2]
    dtype = torch.bfloat16 if options["is_bfloat16"] else torch.float32
    results = {
        "input_gates_gradient": torch.empty_like(gates, dtype=dtype),
        "bias_gradient": gates.new_empty(batch, columns),
        "reduced_gradient": gates.new_empty(batch, steps, rank),
        "first_hidden_gradient": gates.new_empty(batch, hidden),
        "first_memory_gradient": gates.new_empty(batch, hidden),
        "norm_gradient": gates.new_empty(batch, 0 if inputs["norm"] is None else 8, hidden),
    }
    return _call(inputs, results, backward=True, **options)


class _Recurrence(torch.autograd.Function):
    """The autograd function of the recurrence; products over all steps give the gradients of W, L and R."""

    @staticmethod
    def forward(
        ctx: Any,
        needs_backward: bool,
        is_bfloat16: bool,
        instruction_set: int,
        packed: tuple[Tensor | None, Tensor | None],
        *arrays: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        inputs = dict(zip(ARRAY_FIELDS, arrays, strict=True))
        packed_forward, packed_backward = packed
        options = {"is_bfloat16": is_bfloat16, "instruction_set": instruction_set}
        results = _forward(inputs, needs_backward, packed=packed_forward, **options)
        outputs, last_hidden, last_memory, *saved = results
        ctx.save_for_backward(*arrays[WEIGHT_INDEX:], outputs, *saved, packed_backward)
        ctx.set_materialize_grads(False)
        ctx.options = options
        ctx.dtype, ctx.has_reduced = cast(Tensor, inputs["input_gates"]).dtype, inputs["input_reduced"] is not None
        return outputs, last_hidden, last_memory

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        *arrays, outputs, memories, gates, reduced, inverse, packed = ctx.saved_tensors
        weight, left, right, _, norm, scale, feed, hidden, *_ = arrays
        inputs = dict(zip(ARRAY_FIELDS[WEIGHT_INDEX:], arrays, strict=True))
        inputs |= {"outputs": outputs, "memories": memories, "gates": gates}
        inputs["inverse"] = None if norm is None else inverse
        gradient_names = ("outputs_gradient", "last_hidden_gradient", "last_memory_gradient")
        inputs |= dict(zip(gradient_names, gradients, strict=True))
        of_gates, of_bias, of_reduced, of_hidden, of_memory, of_norm = _backward(inputs, packed=packed, **ctx.options)
        is_bfloat16 = ctx.options["is_bfloat16"]
        previous_hidden = torch.cat([hidden[:, None], outputs[:, :-1]], dim=1)
        if feed is not None:
            previous_hidden = previous_hidden * feed[:, None]
        of_product, of_scale = of_gates, None
        if scale is not None:
            products = library.product(previous_hidden.flatten(0, 1), weight, is_bfloat16).view_as(of_gates)
            of_scale = (of_gates * products).sum(1)
            of_product = (of_gates * scale[:, None]).to(of_gates.dtype)
        of_weight = None
        if ctx.needs_input_grad[LEADING_ARGUMENTS + WEIGHT_INDEX]:  # not in online learning, where W is fixed
            of_weight = library.product(previous_hidden.flatten(0, 1).T, of_product.flatten(0, 1), is_bfloat16)
        of_left = None if left is None else (previous_hidden.transpose(1, 2) @ of_reduced).to(left.dtype)
        of_right = None if right is None else (reduced.transpose(1, 2).to(of_gates.dtype) @ of_gates).to(right.dtype)
        array_gradients = {
            "input_gates": of_gates.to(ctx.dtype),
            "bias": of_bias,
            "input_reduced": of_reduced if ctx.has_reduced else None,
            "weight": of_weight,
            "left": of_left,
            "right": of_right,
            "norm": None if norm is None else of_norm.sum(0),
            "scale": of_scale,
            "hidden": of_hidden,
            "memory": of_memory,
        }
        return *(None,) * LEADING_ARGUMENTS, *(array_gradients.get(name) for name in ARRAY_FIELDS)
