"""How tables of what a compiled function takes are held against its arguments, before each call.

Compiled code does not check its arguments: a length beyond the end or an id outside a table would be a write into
somebody else's memory. So nothing reaches it but through `Signature.arguments`, or `Signature.addresses` for what is
used many times. A wrong argument is a mistake of the program: `ValueError` names it, what it is, and what is valid.

Shapes are written in the letters of native/kernels.h: "B T 3H" has B rows of T rows of three times H numbers.
"""

import ctypes
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

CPU = torch.device("cpu")
FEW = 100  # whole numbers that are compared faster one by one
Expected = tuple[torch.dtype, tuple[int, ...], int | None]  # of an array: type, shape, largest whole number if bounded
LARGEST = 2**31 - 1  # of every size: compiled code counts in 64 bits, but numbers tokens and hypotheses in 32
KINDS = {
    "float": torch.float32,
    "bfloat16": torch.bfloat16,
    "double": torch.float64,
    "int32": torch.int32,
    "int64": torch.int64,
}


@dataclass(frozen=True)
class Number:
    """A number of a structure: the `letter` that stands for it in shapes, and its bounds; `below`: that of a letter."""

    letter: str = ""
    least: int = 0
    most: int = LARGEST
    below: str = ""


@dataclass(frozen=True)
class Array:
    """An array of a structure, dense: its shape, its type, and which whole numbers it holds.

    Type "half" means bfloat16 if products are of bfloat16 numbers, else floats. `upto`: ids and lengths are at
    least 0 and at most the size of that letter, `below`: less than that.
    """

    shape: str
    kind: str = "float"
    upto: str = ""
    below: str = ""
    parts: tuple[tuple[int, str], ...] = field(init=False)  # of the shape: so many times what a letter stands for

    def __post_init__(self) -> None:
        found = [re.fullmatch(r"(\d*)(\D*)", part) for part in self.shape.split()]
        object.__setattr__(self, "parts", tuple((int(part[1] or 1), part[2]) for part in found if part))

    def expected(self, sizes: Mapping[str, int]) -> Expected:
        """Return type, shape and largest whole number that are valid where the letters stand for `sizes`."""
        kind = self.kind if self.kind != "half" else "bfloat16" if sizes["half"] else "float"
        most = sizes[self.upto] if self.upto else sizes[self.below] - 1 if self.below else None
        return KINDS[kind], tuple(times * sizes[letter] for times, letter in self.parts), most


class Signature:
    """A structure of native/kernels.h: `numbers`, `pointers` to other things than arrays, and `arrays`, in its order.

    `needed` names the arrays that each case requires; all others may be missing. `doubles` are numbers at the front of
    the structure.
    """

    def __init__(
        self,
        name: str,
        numbers: Mapping[str, Number],
        arrays: Mapping[str, Array],
        needed: Mapping[str, str],
        pointers: Sequence[str] = (),
        doubles: Sequence[str] = (),
    ) -> None:
        self.name, self.numbers, self.arrays = name, dict(numbers), dict(arrays)
        self.needed = {case: names.split() for case, names in needed.items()}
        fields: list[tuple[str, Any]] = [(name, ctypes.c_double) for name in doubles]
        fields += [(name, ctypes.c_int64) for name in numbers]
        fields += [(name, ctypes.c_void_p) for name in (*pointers, *arrays)]
        self.structure: Any = type(f"_{name.title()}", (ctypes.Structure,), {"_fields_": fields})

        # Calls are many, and of few sizes: what is valid for the sizes of a call is worked out once.
        self.sizes, self.expected = lru_cache(1000)(self._sizes), lru_cache(1000)(self._expected)

    def addresses(
        self,
        expected: Mapping[str, Expected],
        arrays: Mapping[str, Tensor | None],
        *cases: str,
    ) -> list[int | None]:
        """Where the arrays lie, in the order of the structure; `ValueError` for one that is wrong or missing."""
        for case in cases:
            for name in self.needed[case]:
                if arrays.get(name) is None:
                    raise ValueError(f"{self.name}: {name} is missing; {case} needs it")
        found: dict[str, int | None] = dict.fromkeys(self.arrays)
        for name, array in arrays.items():
            if array is None:
                continue
            kind, shape, most = expected[name]
            if (
                not isinstance(array, Tensor)
                or array.dtype != kind
                or array.shape != shape
                or array.layout != torch.strided
                or not array.is_contiguous()
                or array.device != CPU
            ):
                valid = f"{str(kind).removeprefix('torch.')} {shape}, dense, on {CPU}: ({self.arrays[name].shape})"
                raise ValueError(f"{self.name}: {name} is {_described(array)}; valid is {valid}")
            if most is not None:
                self._check_inside(name, array, most)
            found[name] = array.data_ptr()
        return list(found.values())

    def arguments(
        self,
        numbers: tuple[int, ...],
        arrays: Mapping[str, Tensor | None],
        *cases: str,
        packed: int = 0,
        doubles: tuple[float, ...] = (),
    ) -> Any:
        """The structure, filled; the arrays must outlive it. `packed` is the size of the array of that name."""
        expected = self.expected(numbers, (("packed", packed),))
        return self.structure(*doubles, *numbers, *self.addresses(expected, arrays, *cases))

    def _sizes(self, numbers: tuple[int, ...]) -> dict[str, int]:
        """The `numbers` of the structure, in their order, by their letters; `ValueError` for one out of bounds."""
        sizes = {"": 1}
        for value, (name, one) in zip(numbers, self.numbers.items(), strict=True):
            most = sizes[one.below] - 1 if one.below else one.most
            if not one.least <= value <= most:
                raise ValueError(f"{self.name}: {name} is {value}; valid are {one.least} to {most}")
            sizes[one.letter or name] = value
        return sizes

    def _expected(self, numbers: tuple[int, ...], others: tuple[tuple[str, int], ...]) -> dict[str, Expected]:
        sizes = {**self.sizes(numbers), **dict(others)}
        return {name: one.expected(sizes) for name, one in self.arrays.items()}

    def _check_inside(self, name: str, array: Tensor, most: int) -> None:
        few = array.tolist() if array.numel() < FEW else torch.aminmax(array)
        low, high = (int(min(few)), int(max(few))) if len(few) else (0, 0)
        if low < 0 or high > most:
            raise ValueError(f"{self.name}: {name} holds {low if low < 0 else high}; valid are 0 to {most}")


def dimensions(name: str, array: Tensor, count: int) -> torch.Size:
    """The shape of an array from which others follow; `ValueError` where it has not so many dimensions."""
    if not isinstance(array, Tensor) or array.dim() != count:
        raise ValueError(f"{name} is {_described(array)}; valid are {count} dimensions")
    return array.shape


def _described(array: Any) -> str:
    if not isinstance(array, Tensor):
        return f"a {type(array).__name__}"
    dense = "dense" if array.layout == torch.strided and array.is_contiguous() else "not dense"
    return f"{str(array.dtype).removeprefix('torch.')} {tuple(array.shape)}, {dense}, on {array.device}"
