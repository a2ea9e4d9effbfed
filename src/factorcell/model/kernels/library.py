"""The compiled kernels of native/, if there are any: which instruction set runs, and how arrays are handed over.

The C++ is built at installation where there is a compiler. It knows nothing of PyTorch: it gets addresses of float
arrays, so that one build serves many versions of PyTorch. FACTORCELL_KERNEL names an instruction set, or `off` (plain
PyTorch everywhere), or `triton` (the GPU kernels, on a processor interpreted).
"""

import ctypes
import logging
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from factorcell.config import choose

LIBRARY = Path(__file__).with_name("_kernels.so")  # as setup.py names it; it depends on no version of Python

VARIANTS = ("plain", "avx2", "avx512", "avx512_bf16")  # instruction sets, in the order of the library's own numbers

MALLOC = {"M_TRIM_THRESHOLD": (-1, 1 << 30), "M_TOP_PAD": (-2, 64 << 20), "M_MMAP_THRESHOLD": (-3, 32 << 20)}

log = logging.getLogger(__name__)


@cache
def library() -> ctypes.CDLL | None:
    """The compiled code, or none, which is logged once."""
    if LIBRARY.exists():
        try:
            loaded = ctypes.CDLL(str(LIBRARY))
        except OSError as error:
            log.warning("%s cannot be loaded (%s): all runs in plain PyTorch", LIBRARY, error)
            return None
        loaded.factorcell_packed.restype = ctypes.c_int64
        loaded.factorcell_recurrence_pack.restype = ctypes.c_int64
        return loaded
    log.warning(
        "no compiled kernels (they are built at installation where there is a C++ compiler): all runs in PyTorch"
    )
    return None


def variant() -> str | None:
    """The instruction set that the compiled code is to use, or none."""
    wanted = os.environ.get("FACTORCELL_KERNEL", "")
    compiled = None if wanted in ("off", "triton") else library()
    if compiled is None:
        return None
    here = VARIANTS[: compiled.factorcell_best() + 1]
    return choose("FACTORCELL_KERNEL", wanted, ["off", "triton", *here]) if wanted else here[-1]


def chosen() -> tuple[ctypes.CDLL, int]:
    """The compiled code and the number of its instruction set, where there is any."""
    compiled, name = library(), variant()
    assert compiled is not None
    assert name is not None
    return compiled, VARIANTS.index(name)


def usable(*arrays: Tensor) -> bool:
    """Whether the compiled code can take `arrays`: floats on the processor, or what autocast made of them."""
    kinds = (torch.float32, torch.bfloat16)
    return all(a.device.type == "cpu" and a.dtype in kinds for a in arrays) and variant() is not None


@cache
def keep_memory() -> None:
    """From here on this process keeps what it frees, up to 1 GB, for its next step.

    By default glibc gives large arrays back to the system, which zeroes their pages anew: up to a third of the time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in MALLOC.values():
            mallopt(option, value)


def precision(name: str, device: torch.device) -> AbstractContextManager[Any]:
    """Within it, products on `device` are of numbers of the type `name`, float32 or bfloat16; sums are floats."""
    return torch.autocast(device.type, torch.bfloat16) if name == "bfloat16" else nullcontext()


def halved(device: torch.device) -> bool:
    """Whether products on `device` are to be of bfloat16 numbers."""
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


def half() -> bool:
    """Whether the compiled code is to multiply bfloat16 numbers: where that is asked for, if the processor has them."""
    return halved(torch.device("cpu")) and variant() == VARIANTS[-1]


def product(a: Tensor, b: Tensor, short: bool) -> Tensor:
    """The matrix product of two arrays of floats, of bfloat16 numbers if `short`; floats either way."""
    return (a.bfloat16() @ b.bfloat16()).float() if short else a @ b


def dense(**arrays: Tensor | None) -> dict[str, Tensor | None]:
    """Arrays as the compiled code wants them: floats (lengths: whole numbers) without gaps."""
    return {
        name: array
        if array is None
        else (array if array.dtype == torch.long else array.to(torch.float32, copy=False)).contiguous()
        for name, array in arrays.items()
    }


def addresses(names: tuple[str, ...], arrays: Mapping[str, Tensor | None]) -> list[int | None]:
    """Where the arrays lie, in the order of `names`; none for those that are not given."""
    assert not arrays.keys() - set(names)
    for array in arrays.values():
        assert array is None or (array.is_contiguous() and array.dtype in (torch.float32, torch.bfloat16, torch.long))
    return [array.data_ptr() if (array := arrays.get(name)) is not None else None for name in names]


def structure(sizes: tuple[str, ...], arrays: tuple[str, ...]) -> list[tuple[str, type]]:
    """The fields of a structure of native/kernels.h."""
    return [*((name, ctypes.c_int64) for name in sizes), *((name, ctypes.c_void_p) for name in arrays)]
