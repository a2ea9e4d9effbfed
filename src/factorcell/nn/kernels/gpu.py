"""Shared parts of the GPU kernels: the import of Triton, the check of their arguments, and the product of two tiles.

Triton is optional (extra `gpu`). With TRITON_INTERPRET=1, Triton interprets the kernels on the CPU.
This is slow, but lets tests run the same code without a GPU.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from factorcell.io.extras import install_command

try:
    import triton as triton
    import triton.language

    tl = triton.language
except ImportError:  # the kernels are then plain functions that nothing calls
    triton = tl = None

DTYPES = (torch.float32, torch.bfloat16)
IS_INTERPRETED = triton is not None and triton.knobs.runtime.interpret
# Launch options of every kernel: fused multiply-adds, the default that newer versions of Triton require to be explicit.
OPTIONS = {"enable_fp_fusion": True}

log = logging.getLogger(__name__)


def kernel(function: Callable[..., Any]) -> Any:
    """Decorate a kernel: Triton compiles it at its first launch, or interprets it; without Triton return `function`."""
    return function if triton is None else triton.jit(function)


@cache
def _is_triton_installed() -> bool:
    if triton is None:
        log.warning("Triton is not installed (%s): the GPU runs plain PyTorch", install_command("gpu"))
    return triton is not None


@cache
def _warn_of_dtypes(dtypes: tuple[torch.dtype, ...]) -> None:
    names = ", ".join(sorted({str(dtype).removeprefix("torch.") for dtype in dtypes}))
    log.warning("the GPU kernels expect only float32 or only bfloat16, got %s: using plain PyTorch", names)


def supports(*arrays: Tensor) -> bool:
    """Whether the kernels support `arrays`: not empty, on one GPU, and all float32 or all bfloat16.

    Arrays on the CPU are supported only with FACTORCELL_KERNEL=triton and TRITON_INTERPRET=1.
    """
    first, setting = arrays[0], os.environ.get("FACTORCELL_KERNEL")
    is_interpreted = IS_INTERPRETED and setting == "triton" and first.device.type == "cpu"
    is_enabled = setting != "off" and (first.is_cuda or is_interpreted)
    if not is_enabled or any(array.device != first.device for array in arrays):
        return False
    if not _is_triton_installed() or any(array.numel() == 0 for array in arrays):
        return False
    if first.dtype in DTYPES and all(array.dtype == first.dtype for array in arrays):
        return True
    _warn_of_dtypes(tuple(array.dtype for array in arrays))
    return False


def on(array: Tensor) -> Any:
    """Return a context manager in which kernels are launched on the GPU of `array`, if `array` is on a GPU."""
    return torch.cuda.device_of(array)  # type: ignore[no-untyped-call]


def processor_count(device: torch.device) -> int:
    """Return the number of multiprocessors of the device; 4 for the interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def precision() -> str:
    """Return how the kernels compute float32 products, according to `torch.get_float32_matmul_precision`.

    With tf32x3, a product is computed as three products on tensor cores and has nearly the precision of float32. The
    interpreter computes ieee products, in float32. Products in bfloat16 always use tensor cores.
    """
    if IS_INTERPRETED:
        return "ieee"
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def next_power_of_two(size: int) -> int:
    """Return the smallest power of two that is at least `size`; the sizes of tiles are powers of two."""
    return 1 << (max(size, 1) - 1).bit_length()


@kernel
def product(a, b, total, PRECISION: tl.constexpr):  # type: ignore[name-defined, no-untyped-def]  # noqa: N803
    """Return `total` (M, N) plus `a` (M, K) times `b` (K, N), summed in float32."""
    if (
        PRECISION == "ieee"
    ):  # the interpreter would multiply the bit patterns of bfloat16 numbers instead of the numbers
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, total, input_precision=PRECISION)


@kernel
def tanh(x):  # type: ignore[no-untyped-def]
    """Return the hyperbolic tangent."""
    return 2 * tl.sigmoid(2 * x) - 1
