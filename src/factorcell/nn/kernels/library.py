"""Access to the compiled kernels of native/: loading the library, selecting an instruction set, and making calls.

The code receives addresses of arrays, so one build works with many versions of PyTorch. The environment variable
FACTORCELL_KERNEL selects an instruction set, `off` for plain PyTorch, or `triton` for the GPU kernels, interpreted on a
CPU.
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

from factorcell.errors import UserError, check_choice

LIBRARY = Path(__file__).with_name("_kernels.so")  # setup.py uses this name for every version of Python

# Instruction sets in the order of their numbers in the compiled code, with the number of floats per vector.
LANES = {"plain": 4, "avx2": 8, "avx512": 16, "avx512_bf16": 16, "amx": 16}
VARIANTS = tuple(LANES)
BFLOAT16_VARIANTS = ("avx512_bf16", "amx")  # instruction sets that multiply bfloat16

FLOATS = (torch.float32, torch.bfloat16)  # accepted element types; bfloat16 arrays come from autocast

MALLOC = ((-1, 1 << 30), (-2, 64 << 20), (-3, 32 << 20))  # options of mallopt (trim, pad, mmap) and values in bytes

log = logging.getLogger(__name__)


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled code; if it is missing, log a warning once and return None."""
    try:
        loaded = ctypes.CDLL(str(LIBRARY))
    except OSError as error:  # the installation builds the library only if there is a C++ compiler
        log.warning("no compiled kernels (%s); using plain PyTorch, which is slower", error)
        return None
    for name in ("packed_table", "packed_weight", "softmax_room", "shown"):  # sizes in floats, and a number of texts
        getattr(loaded, f"factorcell_{name}").restype = ctypes.c_int64
    return loaded


def required() -> ctypes.CDLL:
    """Return the compiled code, also if its kernels are disabled; raise a `UserError` if it is missing."""
    if (loaded := library()) is None:
        raise UserError(
            "no compiled code: online learning and blends need it; install a C++ compiler, and then this package again"
        )
    return loaded


def variant() -> str | None:
    """Return the name of the instruction set that the compiled code uses; None if that code is missing or disabled."""
    setting = os.environ.get("FACTORCELL_KERNEL", "")
    compiled = None if setting in ("off", "triton") else library()
    if compiled is None:
        return None
    supported = VARIANTS[: compiled.factorcell_best() + 1]  # in ascending order
    return check_choice("FACTORCELL_KERNEL", setting, ["off", "triton", *supported]) if setting else supported[-1]


def instruction_set() -> int:
    """Return the number of the instruction set that the compiled code uses; call `supports` first."""
    return VARIANTS.index(variant() or "")


def supports(*arrays: Tensor) -> bool:
    """Whether the compiled code is enabled and supports `arrays`: float32 or bfloat16 on the CPU."""
    are_supported = all(array.device.type == "cpu" and array.dtype in FLOATS for array in arrays)
    return are_supported and variant() is not None


@cache
def retain_freed_memory() -> None:
    """Let this process keep up to 1 GB of freed memory for its next step.

    By default glibc returns the memory of large arrays to the system, which fills it with zeros before each new use.
    Filling takes up to a third of the time of a training step.
    """
    if os.name == "nt":
        return  # Windows has no glibc, and cannot open the process itself as a library
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        for option, value in MALLOC:
            mallopt(option, value)


def precision(name: str, device: torch.device) -> AbstractContextManager[Any]:
    """Return a context manager in which products on `device` multiply float32 or bfloat16 numbers."""
    return torch.autocast(device.type, torch.bfloat16) if name == "bfloat16" else nullcontext()


def autocasts_to_bfloat16(device: torch.device) -> bool:
    """Whether matrix products on `device` currently multiply bfloat16 numbers."""
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


def uses_bfloat16() -> bool:
    """Whether the compiled code currently multiplies bfloat16: autocast is on and the processor supports it."""
    return autocasts_to_bfloat16(torch.device("cpu")) and has_bfloat16()


def has_bfloat16() -> bool:
    """Whether the instruction set of the compiled code can multiply bfloat16 numbers."""
    return variant() in BFLOAT16_VARIANTS


def product(left: Tensor, right: Tensor, is_bfloat16: bool) -> Tensor:
    """Return the matrix product of two float32 arrays in float32; if `is_bfloat16`, convert them to bfloat16 first."""
    return (left.bfloat16() @ right.bfloat16()).float() if is_bfloat16 else left @ right


def convert_array(array: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `array` as a contiguous array for the compiled code, with floats converted to `dtype`."""
    return (array.to(dtype) if array.dtype in FLOATS else array).contiguous()


def dense_arrays(**arrays: Tensor | None) -> dict[str, Tensor | None]:
    """Return `arrays` by name as contiguous arrays for the compiled code, with floats converted to float32."""
    return {name: None if array is None else convert_array(array, torch.float32) for name, array in arrays.items()}


def thread_count(jobs: int) -> int:
    """Return the number of threads for `jobs` jobs: at most one per job, and at most as many as PyTorch uses."""
    return max(1, min(torch.get_num_threads(), jobs))


def call(function: str, arguments: ctypes.Structure, instruction_set: int, *flags: bool) -> None:
    """Call a compiled function with checked `arguments`; raise a `MemoryError` if it cannot allocate memory."""
    if size_of(function, arguments, instruction_set, *flags):
        raise MemoryError(f"not enough memory for the compiled {function}")


def size_of(function: str, arguments: ctypes.Structure, instruction_set: int, *flags: bool) -> int:
    """Return the result of a compiled function that computes the size of an array in floats."""
    result: int = getattr(library(), f"factorcell_{function}")(
        ctypes.byref(arguments), *map(int, flags), instruction_set
    )
    return result
