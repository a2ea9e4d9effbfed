"""Shared parts of the GPU kernels: the import of Triton, when to use them, and the product of two tiles.

Triton is optional (`pip install 'factorcell[gpu]'`). With TRITON_INTERPRET=1 it runs kernels on the processor, a
program at a time: slow, but the same code, so that tests need no GPU.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

try:
    import triton as triton
    import triton.language

    tl = triton.language
except ImportError:  # kernels are then plain functions that nothing calls
    triton = tl = None

DTYPES = (torch.float32, torch.bfloat16)
INTERPRETED = triton is not None and triton.knobs.runtime.interpret
# Launch options of every kernel. Fused multiply-adds are Triton's default, which newer versions want named.
OPTIONS = {"enable_fp_fusion": True}

log = logging.getLogger(__name__)


def kernel(function: Callable[..., Any]) -> Any:
    """Compiled by Triton at its first launch, or interpreted; without Triton the function as it is."""
    return function if triton is None else triton.jit(function)


@cache
def _installed() -> bool:
    if triton is None:
        log.warning("Triton is not installed (pip install 'factorcell[gpu]'): the GPU runs plain PyTorch")
    return triton is not None


@cache
def _refused(dtypes: tuple[torch.dtype, ...]) -> bool:
    names = ", ".join(sorted({str(dtype).removeprefix("torch.") for dtype in dtypes}))
    log.warning("the GPU kernels take float32 or bfloat16 and one of them at a time, not %s: plain PyTorch", names)
    return True


def usable(*arrays: Tensor) -> bool:
    """Whether kernels can take `arrays`: on one GPU, of one type in `DTYPES`, and not empty.

    On the processor only where it is asked for, by FACTORCELL_KERNEL=triton, and Triton interprets.
    """
    first, wanted = arrays[0], os.environ.get("FACTORCELL_KERNEL")
    here = first.is_cuda or (INTERPRETED and wanted == "triton" and first.device.type == "cpu")
    if not here or wanted == "off" or any(x.device != first.device for x in arrays):
        return False
    if not _installed() or any(x.numel() == 0 for x in arrays):
        return False
    fits = first.dtype in DTYPES and all(x.dtype == first.dtype for x in arrays)
    return fits or not _refused(tuple(x.dtype for x in arrays))


def on(array: Tensor) -> Any:
    """A block in which launches go to the GPU of `array`, if it is on one."""
    return torch.cuda.device_of(array)  # type: ignore[no-untyped-call]


def processor_count(device: torch.device) -> int:
    """How many programs the device runs at once; the interpreter pretends to have four."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def precision() -> str:
    """How products of float32 are made: as PyTorch's own setting has it; bfloat16 always has its tensor cores.

    tf32x3 is three products on tensor cores for nearly the precision of float32; ieee stands for the interpreter.
    """
    if INTERPRETED:
        return "ieee"
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def next_power_of_two(size: int) -> int:
    """The smallest power of two that is not below `size`: tiles have no other sizes."""
    return 1 << (max(size, 1) - 1).bit_length()


@kernel
def product(a, b, total, PRECISION: tl.constexpr):  # type: ignore[name-defined, no-untyped-def]  # noqa: N803
    """`total` (M, N) plus `a` (M, K) times `b` (K, N), summed in float32."""
    if PRECISION == "ieee":  # the interpreter multiplies the bits of bfloat16, not its values
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, total, input_precision=PRECISION)
