"""The recurrence of `Cell.forward` in one compiled call, forward and backward: the same values, several times as fast.

    [i, f, o] = given[t] + W h + L R h
    f = sigmoid(f + 1)       m = f m + (1 - f) tanh(i) keep[t]       h = tanh(m) sigmoid(o)

The C++ in native/ is built at installation where there is a compiler. It knows nothing of PyTorch: it gets addresses of
float arrays, through a registered operator. Where it is missing, or FACTORCELL_KERNEL=off, `Cell` runs its plain loop.

Shapes: B texts, T steps, H hidden, R rank.
"""

import ctypes
import importlib.machinery
import logging
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from factorcell.config import choose

VARIANTS = ("plain", "avx2", "avx512")  # instruction sets, in the order of the library's own numbers
SIZES = ("sequences", "steps", "hidden", "rank", "threads", "next")
ARRAYS = (
    "given", "weight", "left", "right", "keep", "first_hidden", "first_memory",
    "outputs", "memories", "gates", "reduced",
    "outputs_gradient", "last_memory_gradient", "given_gradient", "reduced_gradient", "first_hidden_gradient",
    "first_memory_gradient",
)  # fmt: skip

log = logging.getLogger(__name__)


class _Arguments(ctypes.Structure):
    """`struct Recurrence` of native/recurrence.h."""

    _fields_ = (*((name, ctypes.c_int64) for name in SIZES), *((name, ctypes.c_void_p) for name in ARRAYS))


@cache
def library() -> ctypes.CDLL | None:
    """The compiled code, or none, which is logged once."""
    here = Path(__file__).parent
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = here / f"_recurrence{suffix}"
        if path.exists():
            try:
                return ctypes.CDLL(str(path))
            except OSError as error:
                log.warning("%s cannot be loaded (%s): the recurrence runs in plain PyTorch", path, error)
                return None
    log.warning(
        "no compiled recurrence (built at installation where there is a C++ compiler): it runs in plain PyTorch"
    )
    return None


def variant() -> str | None:
    """The instruction set that the compiled code is to use, or none; FACTORCELL_KERNEL names one, or `off`."""
    wanted = os.environ.get("FACTORCELL_KERNEL", "")
    compiled = None if wanted == "off" else library()
    if compiled is None:
        return None
    here = VARIANTS[: compiled.factorcell_best() + 1]
    return choose("FACTORCELL_KERNEL", wanted, ["off", *here]) if wanted else here[-1]


def usable(given: Tensor, matrix: Tensor) -> bool:
    """Whether `run` can do it: floats on the processor, one W for all texts, and something to do."""
    plain = given.device.type == "cpu" and given.dtype == torch.float32 and matrix.dim() == 2
    return plain and given.numel() > 0 and variant() is not None


def run(
    given: Tensor,
    weight: Tensor,
    left: Tensor | None,
    right: Tensor | None,
    keep: Tensor | None,
    hidden: Tensor,
    memory: Tensor,
) -> tuple[Tensor, Tensor]:
    """`given` (B, T, 3H), W (H, 3H), L (B, H, R), R (B, R, 3H), `keep` (T, B, H), a state -> h (B, T, H), last m."""
    number = VARIANTS.index(variant() or "plain")
    outputs, memories, _, _ = _forward(given, weight, left, right, keep, hidden, memory, number)
    return outputs, memories[:, -1]


def _call(backward: bool, number: int, arrays: Mapping[str, Tensor | None]) -> None:
    """Hand the arrays over by their addresses; all are dense and of floats."""
    outputs, left, compiled = arrays["outputs"], arrays["left"], library()
    assert outputs is not None
    assert compiled is not None
    for array in arrays.values():
        assert array is None or (array.is_contiguous() and array.dtype == torch.float32)
    sizes = (*outputs.shape, 0 if left is None else left.shape[2], torch.get_num_threads(), 0)
    addresses = [array.data_ptr() if (array := arrays.get(name)) is not None else None for name in ARRAYS]
    compiled.factorcell_recurrence(ctypes.byref(_Arguments(*sizes, *addresses)), int(backward), number)


def _dense(**arrays: Tensor | None) -> dict[str, Tensor | None]:
    return {name: None if array is None else array.contiguous() for name, array in arrays.items()}


def _outputs(given: Tensor, weight: Tensor, left: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Room for h (B, T, H), m (B, T, H), the gates (B, T, 3H) and h L (B, T, R)."""
    batch, steps = given.shape[:2]
    sizes = (weight.shape[0], weight.shape[0], weight.shape[1], 0 if left is None else left.shape[2])
    hidden, memory, gates, reduced = (given.new_empty(batch, steps, size) for size in sizes)
    return hidden, memory, gates, reduced


@torch.library.custom_op("factorcell::recurrence", mutates_args=())
def _forward(
    given: Tensor,
    weight: Tensor,
    left: Tensor | None,
    right: Tensor | None,
    keep: Tensor | None,
    hidden: Tensor,
    memory: Tensor,
    number: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """h (B, T, H), m (B, T, H), gates (B, T, 3H), and h L before each step (B, T, R); only the first two learn."""
    outputs, memories, gates, reduced = _outputs(given, weight, left)
    made = {"outputs": outputs, "memories": memories, "gates": gates, "reduced": reduced}
    taken = _dense(given=given, weight=weight, left=left, right=right, keep=keep)
    _call(False, number, {**taken, **_dense(first_hidden=hidden, first_memory=memory), **made})
    return outputs, memories, gates, reduced


@_forward.register_fake
def _(given: Tensor, weight: Tensor, left: Tensor | None, *_: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _outputs(given, weight, left)


@torch.library.custom_op("factorcell::recurrence_backward", mutates_args=())
def _backward(
    outputs_gradient: Tensor,
    last_memory_gradient: Tensor,
    weight: Tensor,
    left: Tensor | None,
    right: Tensor | None,
    keep: Tensor | None,
    hidden: Tensor,
    memory: Tensor,
    outputs: Tensor,
    memories: Tensor,
    gates: Tensor,
    number: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the gates (B, T, 3H), of h L (B, T, R), of the first h and the first m (B, H)."""
    of_given = torch.empty_like(gates)
    of_reduced = gates.new_empty(*gates.shape[:2], 0 if left is None else left.shape[2])
    of_hidden, of_memory = gates.new_empty(hidden.shape), gates.new_empty(memory.shape)
    made = {
        "given_gradient": of_given,
        "reduced_gradient": of_reduced,
        "first_hidden_gradient": of_hidden,
        "first_memory_gradient": of_memory,
    }
    taken = _dense(weight=weight, left=left, right=right, keep=keep, first_hidden=hidden, first_memory=memory)
    saved = _dense(outputs=outputs, memories=memories, gates=gates)
    given = _dense(outputs_gradient=outputs_gradient, last_memory_gradient=last_memory_gradient)
    _call(True, number, {**taken, **saved, **given, **made})
    return of_given, of_reduced, of_hidden, of_memory


@_backward.register_fake
def _(*given: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    left, hidden, memory, gates = given[3], given[6], given[7], given[10]
    of_reduced = gates.new_empty((*gates.shape[:2], 0 if left is None else left.shape[2]))
    return torch.empty_like(gates), of_reduced, torch.empty_like(hidden), torch.empty_like(memory)


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, weight, left, right, keep, hidden, memory, number = inputs
    ctx.save_for_backward(weight, left, right, keep, hidden, memory, *output)
    ctx.mark_non_differentiable(*output[2:])
    ctx.number = number


def _differentiate(ctx: Any, of_outputs: Tensor, of_memories: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    """The kernel goes back through time; what is a sum over all steps are plain products afterwards."""
    weight, left, right, keep, hidden, memory, outputs, memories, gates, reduced = ctx.saved_tensors
    of_given, of_reduced, of_hidden, of_memory = _backward(
        of_outputs, of_memories[:, -1], weight, left, right, keep, hidden, memory, outputs, memories, gates, ctx.number
    )
    before = torch.cat([hidden[:, None], outputs[:, :-1]], dim=1)
    of_weight = before.flatten(0, 1).T @ of_given.flatten(0, 1)
    of_left = None if left is None else before.transpose(1, 2) @ of_reduced
    of_right = None if right is None else reduced.transpose(1, 2) @ of_given
    return of_given, of_weight, of_left, of_right, None, of_hidden, of_memory, None


_forward.register_autograd(_differentiate, setup_context=_keep_for_backward)
