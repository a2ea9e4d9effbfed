"""Checks of the arguments of compiled functions, before each call.

Compiled code does not check its arguments: with a wrong length or an id outside a table it would access other memory.
Therefore callers pass all arguments through `Signature.checked_arguments`, or through `Signature.checked_addresses` if
they use the same arrays many times. A wrong argument is a bug of the caller and raises a `ValueError`, which names the
argument, its value, and the valid values.

Shapes are strings of the letters of native/kernels.h: "B T 3H" means an array of B x T x (3 times H) numbers.
"""

import ctypes
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

CPU = torch.device("cpu")
SMALL_ARRAY = 100  # smaller arrays of integers are checked faster in Python than by PyTorch
# Requirements of an array: its element type, its shape, and the largest integer in it (None: no limit).
Expected = tuple[torch.dtype, list[int], int | None]
MAX_SIZE = 2**31 - 1  # largest valid size, because compiled code stores ids of tokens and hypotheses in 32 bits
DTYPES = {
    "float": torch.float32,
    "bfloat16": torch.bfloat16,
    "double": torch.float64,
    "int32": torch.int32,
    "int64": torch.int64,
}


@dataclass(frozen=True)
class Number:
    """An integer field of a structure.

    Args:
        letter: The letter that stands for the number in shapes; empty if the number is not a size.
        low: The smallest valid value.
        high: The largest valid value.
        below: The letter of a size that the number must be smaller than.
    """

    letter: str = ""
    low: int = 0
    high: int = MAX_SIZE
    below: str = ""


@dataclass(frozen=True)
class Array:
    """A dense array field of a structure.

    Args:
        shape: The dimensions in letters, such as "B T 3H".
        element: The element type, a key of `DTYPES`, or "half": bfloat16 if products are in bfloat16, else float.
        upto: The letter of the size that is the largest valid integer in the array.
        below: The letter of the size that all integers in the array must be less than.
    """

    shape: str
    element: str = "float"
    upto: str = ""
    below: str = ""

    @cached_property
    def dimensions(self) -> list[tuple[int, str]]:
        """The factor and the letter of each dimension: 3 and "H" for 3H, 8 and "" for 8."""
        dimensions = []
        for dimension in self.shape.split():
            letter = dimension.lstrip(string.digits)
            dimensions.append((int(dimension.removesuffix(letter) or 1), letter))
        return dimensions

    def expected(self, sizes: Mapping[str, int]) -> Expected:
        """Return what the array must have if the letters stand for `sizes`."""
        element = self.element
        if element == "half":
            element = "bfloat16" if sizes["half"] else "float"
        largest = None
        if self.upto:
            largest = sizes[self.upto]
        elif self.below:
            largest = sizes[self.below] - 1
        shape = [factor * sizes[letter] if letter else factor for factor, letter in self.dimensions]
        return DTYPES[element], shape, largest


class Signature:
    """A C structure of native/kernels.h: its fields and their valid values.

    Args:
        name: The name that error messages use.
        numbers: The integer fields, in the order of the structure.
        arrays: The array fields, in the order of the structure.
        required: For each case, such as "forward", the names of the arrays that it requires; all others may be missing.
        pointers: The pointer fields between numbers and arrays, which are not checked.
        doubles: The float fields, at the front of the structure.
    """

    def __init__(
        self,
        name: str,
        numbers: Mapping[str, Number],
        arrays: Mapping[str, Array],
        required: Mapping[str, str],
        pointers: Sequence[str] = (),
        doubles: Sequence[str] = (),
    ) -> None:
        self.name, self.numbers, self.arrays = name, dict(numbers), dict(arrays)
        self.required = {case: names.split() for case, names in required.items()}
        fields: list[tuple[str, Any]] = [(name, ctypes.c_double) for name in doubles]
        fields += [(name, ctypes.c_int64) for name in numbers]
        fields += [(name, ctypes.c_void_p) for name in (*pointers, *arrays)]
        self.structure: Any = type(f"_{name.title()}", (ctypes.Structure,), {"_fields_": fields})

    def checked_addresses(
        self, sizes: Mapping[str, int], arrays: Mapping[str, Tensor | None], *cases: str
    ) -> list[int | None]:
        """Return the addresses of `arrays` in the order of the structure.

        Args:
            sizes: The size for which each letter stands.
            arrays: The array fields by name.
            *cases: The cases whose required arrays must be present.

        Raises:
            ValueError: An array does not have its shape or type, or is missing although a case requires it.
        """
        for case in cases:
            for name in self.required[case]:
                if arrays.get(name) is None:
                    raise ValueError(f"{self.name}: {name} is missing; {case} requires it")
        addresses: dict[str, int | None] = dict.fromkeys(self.arrays)
        for name, array in arrays.items():
            if array is None:
                continue
            dtype, shape, largest = self.arrays[name].expected(sizes)
            if (
                not isinstance(array, Tensor)
                or array.dtype != dtype
                or list(array.shape) != shape
                or array.layout != torch.strided
                or not array.is_contiguous()
                or array.device != CPU
            ):
                valid = f"{_dtype_name(dtype)} {tuple(shape)}, dense, on {CPU}: ({self.arrays[name].shape})"
                raise ValueError(f"{self.name}: {name} is {_describe(array)}; expected {valid}")
            if largest is not None:
                self._check_range(name, array, largest)
            addresses[name] = array.data_ptr()
        return list(addresses.values())

    def checked_arguments(
        self,
        numbers: tuple[int, ...],
        arrays: Mapping[str, Tensor | None],
        *cases: str,
        packed: int = 0,
        doubles: tuple[float, ...] = (),
    ) -> Any:
        """Check all values and return the structure; the caller must keep the arrays alive while it uses the structure.

        Args:
            numbers: The integer fields, in the order of the structure.
            arrays: The array fields by name.
            *cases: The cases whose required arrays must be present.
            packed: The valid length of the array `packed`.
            doubles: The float fields, in the order of the structure.

        Raises:
            ValueError: A value is invalid, or a required array is missing.
        """
        sizes = self.sizes(numbers) | {"packed": packed}
        return self.structure(*doubles, *numbers, *self.checked_addresses(sizes, arrays, *cases))

    def sizes(self, numbers: tuple[int, ...]) -> dict[str, int]:
        """Check the integer fields and return their values by letter, or by name if they have no letter.

        Raises:
            ValueError: A number is out of its range.
        """
        sizes: dict[str, int] = {}
        for value, (name, number) in zip(numbers, self.numbers.items(), strict=True):
            largest = sizes[number.below] - 1 if number.below else number.high
            if not number.low <= value <= largest:
                raise ValueError(f"{self.name}: {name} is {value}; expected {number.low} to {largest}")
            sizes[number.letter or name] = value
        return sizes

    def _check_range(self, name: str, array: Tensor, largest: int) -> None:
        """Raise `ValueError` unless all integers in `array` are from 0 to `largest`."""
        # `torch.aminmax` returns the smallest and the largest integer; of a small array, all integers are listed.
        values = array.tolist() if array.numel() < SMALL_ARRAY else torch.aminmax(array)
        lowest_value, highest_value = (int(min(values)), int(max(values))) if len(values) else (0, 0)
        if lowest_value < 0 or highest_value > largest:
            invalid_value = lowest_value if lowest_value < 0 else highest_value
            raise ValueError(f"{self.name}: {name} contains {invalid_value}; expected 0 to {largest}")


def checked_shape(name: str, array: Tensor, dimensions: int) -> torch.Size:
    """Return the shape of `array`; raise `ValueError` with this `name` unless it has this number of `dimensions`."""
    if not isinstance(array, Tensor) or array.dim() != dimensions:
        raise ValueError(f"{name} is {_describe(array)}; expected {dimensions} dimensions")
    return array.shape


def _describe(array: Any) -> str:
    if not isinstance(array, Tensor):
        return f"a {type(array).__name__}"
    density = "dense" if array.layout == torch.strided and array.is_contiguous() else "not dense"
    return f"{_dtype_name(array.dtype)} {tuple(array.shape)}, {density}, on {array.device}"


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
