"""The compiled kernels of native/, if there are any: which instruction set runs, and how arrays are handed over.

The C++ is built at installation where there is a compiler. It knows nothing of PyTorch: it gets addresses of float
arrays, so that one build serves many versions of PyTorch. FACTORCELL_KERNEL names an instruction set, or `off` (plain
PyTorch everywhere), or `triton` (the GPU kernels, on a processor interpreted).
"""

import ctypes
import logging
import os
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from factorcell.config import choose

LIBRARY = Path(__file__).with_name("_kernels.so")  # as setup.py names it; it depends on no version of Python

# Instruction sets, in the order of the library's own numbers, and floats of a vector of each.
LANES = {"plain": 4, "avx2": 8, "avx512": 16, "avx512_bf16": 16, "amx": 16}
VARIANTS = tuple(LANES)
WITH_SHORT = ("avx512_bf16", "amx")  # those that multiply bfloat16 numbers

FLOATS = (torch.float32, torch.bfloat16)  # what a caller may hand over: numbers, or what autocast made of them

MALLOC = {"M_TRIM_THRESHOLD": (-1, 1 << 30), "M_TOP_PAD": (-2, 64 << 20), "M_MMAP_THRESHOLD": (-3, 32 << 20)}

log = logging.getLogger(__name__)


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled code if there is any; log once if there is none."""
    if LIBRARY.exists():
        try:
            loaded = ctypes.CDLL(str(LIBRARY))
        except OSError as error:
            log.warning("%s cannot be loaded (%s): all runs in plain PyTorch", LIBRARY, error)
            return None
        loaded.factorcell_packed_table.restype = ctypes.c_int64
        loaded.factorcell_packed_weight.restype = ctypes.c_int64
        loaded.factorcell_softmax_room.restype = ctypes.c_int64
        return loaded
    log.warning(
        "no compiled kernels (they are built at installation where there is a C++ compiler): all runs in PyTorch"
    )
    return None


def variant() -> str | None:
    """Return the name of the instruction set that the compiled code uses; None if it is missing or switched off."""
    wanted = os.environ.get("FACTORCELL_KERNEL", "")
    compiled = None if wanted in ("off", "triton") else library()
    if compiled is None:
        return None
    here = VARIANTS[: compiled.factorcell_best() + 1]
    return choose("FACTORCELL_KERNEL", wanted, ["off", "triton", *here]) if wanted else here[-1]


def instruction_set() -> int:
    """The number of the instruction set that the compiled code is to use; `ValueError` where it is not to be used."""
    name = variant()
    if name is None:
        raise ValueError("the compiled kernels are missing or switched off; ask `usable` first")
    return VARIANTS.index(name)


def usable(*arrays: Tensor) -> bool:
    """Whether the compiled code can take `arrays`: floats on the processor, or what autocast made of them."""
    return all(a.device.type == "cpu" and a.dtype in FLOATS for a in arrays) and variant() is not None


@cache
def retain_freed_memory() -> None:
    """From here on this process keeps what it frees, up to 1 GB, for its next step.

    By default glibc gives large arrays back to the system, which zeroes their pages anew: up to a third of the time.
    """
    if os.name == "nt":
        return  # there is no glibc, nor a library without a name
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in MALLOC.values():
            mallopt(option, value)


def precision(name: str, device: torch.device) -> AbstractContextManager[Any]:
    """Within it, products on `device` are of numbers of the type `name`; sums are floats.

    It is float32 or bfloat16; auto is float32, where nobody has found out what is faster.
    """
    return torch.autocast(device.type, torch.bfloat16) if name == "bfloat16" else nullcontext()


def autocasts_to_bfloat16(device: torch.device) -> bool:
    """Whether products on `device` are to be of bfloat16 numbers."""
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


def half() -> bool:
    """Whether the compiled code is to multiply bfloat16 numbers: where that is asked for, if the processor has them."""
    return autocasts_to_bfloat16(torch.device("cpu")) and has_bfloat16()


def has_bfloat16() -> bool:
    """Whether the compiled code multiplies bfloat16 numbers by instructions of the processor."""
    return variant() in WITH_SHORT


def product(a: Tensor, b: Tensor, short: bool) -> Tensor:
    """The matrix product of two arrays of floats, of bfloat16 numbers if `short`; floats either way."""
    return (a.bfloat16() @ b.bfloat16()).float() if short else a @ b


def converted(array: Tensor, kind: torch.dtype) -> Tensor:
    """Return a contiguous array for the compiled code, floats converted to type `kind`."""
    return (array.to(kind) if array.dtype in FLOATS else array).contiguous()


def dense(**arrays: Tensor | None) -> dict[str, Tensor | None]:
    """Arrays `converted` to floats."""
    return {name: None if array is None else converted(array, torch.float32) for name, array in arrays.items()}


def threads(jobs: int) -> int:
    """Return the number of threads for a number of jobs: at most one per job, and at most as many as PyTorch uses."""
    return max(1, min(torch.get_num_threads(), jobs))


def call(function: str, arguments: ctypes.Structure, number: int, *ways: bool) -> None:
    """Run a compiled function, in the instruction set of that number, on arguments of its `Signature`.

    `ways` say which of the things that it does. `MemoryError` where the work memory that it needs is not to be had.
    """
    compiled = require_library()
    if not 0 <= number <= (best := compiled.factorcell_best()):
        raise ValueError(f"{function}: instruction set {number}; valid are 0 to {best} here")
    if getattr(compiled, f"factorcell_{function}")(ctypes.byref(arguments), *map(int, ways), number):
        raise MemoryError(f"not enough memory for the compiled {function}")


def require_library() -> ctypes.CDLL:
    """The compiled code; `ValueError` where there is none, which `usable` tells."""
    compiled = library()
    if compiled is None:
        raise ValueError("there are no compiled kernels here; ask `usable` first")
    return compiled
