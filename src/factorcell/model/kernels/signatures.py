"""What every compiled function takes, in tables that are held against its arguments before each call.

Compiled code believes what it is told: a length beyond the end or an id that is in no table would be a write into
somebody else's memory. So nothing reaches it but through `Signature.arguments`, or `Signature.addresses` for what is
used many times. A wrong argument is a mistake of the program: `ValueError` names it, what it is, and what is valid.

Shapes are written in the letters of native/kernels.h: "B T 3H" has B rows of T rows of three times H numbers.
"""

import ctypes
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

CPU = torch.device("cpu")
FEW = 100  # whole numbers that are compared faster one by one
LARGEST = 2**31 - 1  # of every size: compiled code counts in 64 bits, but numbers tokens and hypotheses in 32
KINDS = {
    "float": (torch.float32,),
    "bfloat16": (torch.bfloat16,),
    "double": (torch.float64,),
    "int32": (torch.int32,),
    "int64": (torch.int64,),
    "either": (torch.float32, torch.bfloat16),
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

    Of the type "half" are numbers of bfloat16 where products are, and floats elsewhere. `upto`: ids and lengths are at
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

    def expected(self, sizes: Mapping[str, int]) -> "Expected":
        """What is valid where the letters stand for `sizes`."""
        kind = self.kind if self.kind != "half" else "bfloat16" if sizes["half"] else "float"
        most = sizes[self.upto] if self.upto else sizes[self.below] - 1 if self.below else None
        return Expected(KINDS[kind], tuple(times * sizes[letter] for times, letter in self.parts), most)


class Expected(NamedTuple):
    """The types that an array may have, its shape, and the largest whole number in it, if there is a bound."""

    kinds: tuple[torch.dtype, ...]
    shape: tuple[int, ...]
    most: int | None


NOTHING = Expected((), (), None)  # for an array that no table has


class Signature:
    """A structure of native/kernels.h: `numbers`, `pointers` that are no arrays, and `arrays`, in their order there.

    Or the arrays of a GPU's kernel, which makes them dense itself. `needed` names arrays that must be given, by the
    case that needs them; all others may be missing. `doubles` are numbers at the front of the structure.
    """

    def __init__(
        self,
        name: str,
        numbers: Mapping[str, Number],
        arrays: Mapping[str, Array],
        needed: Mapping[str, str],
        pointers: Sequence[str] = (),
        doubles: Sequence[str] = (),
        dense: bool = True,
    ) -> None:
        self.name, self.numbers, self.arrays, self.dense = name, dict(numbers), dict(arrays), dense
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
        device: torch.device = CPU,
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
            kinds, shape, most = expected.get(name, NOTHING)
            if (
                not isinstance(array, Tensor)
                or array.dtype not in kinds
                or array.shape != shape
                or array.layout != torch.strided
                or not (array.is_contiguous() or not self.dense)
                or array.device != device
            ):
                names = " or ".join(str(kind).removeprefix("torch.") for kind in kinds)
                valid = f"{names} {shape}, dense, on {device}: ({self._shape(name)})"
                raise ValueError(f"{self.name}: {name} is {_described(array)}; valid is {valid}")
            if most is not None:
                self._check_inside(name, array, most)
            found[name] = array.data_ptr()
        return list(found.values())

    def arguments(
        self, numbers: tuple[int, ...], arrays: Mapping[str, Tensor | None], *cases: str, packed: int = 0
    ) -> Any:
        """The structure, filled; the arrays must outlive it. `packed` is the size of the array of that name."""
        return self.structure(*numbers, *self.addresses(self.expected(numbers, (("packed", packed),)), arrays, *cases))

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
        """What is valid for each array, where the structure has those `numbers`, and letters beside them `others`."""
        sizes = {**self.sizes(numbers), **dict(others)}
        return {name: one.expected(sizes) for name, one in self.arrays.items()}

    def _shape(self, name: str) -> str:
        if name not in self.arrays:
            raise ValueError(f"{self.name}: there is no {name}; valid are {', '.join(self.arrays)}")
        return self.arrays[name].shape

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
    """What an argument is, in words."""
    if not isinstance(array, Tensor):
        return f"a {type(array).__name__}"
    dense = "dense" if array.layout == torch.strided and array.is_contiguous() else "not dense"
    return f"{str(array.dtype).removeprefix('torch.')} {tuple(array.shape)}, {dense}, on {array.device}"


FLAG, THREADS, NEXT = Number(most=1), Number(least=1, most=1 << 16), Number(most=0)
SHARED = {"threads": THREADS, "half": FLAG, "next": NEXT}

RECURRENCE = Signature(
    "recurrence",
    {
        "sequences": Number("B", 1),
        "steps": Number("T", 1),
        "hidden": Number("H", 1),
        "rank": Number("R"),
        **SHARED,
    },
    {
        "given": Array("B T 3H", "half"),
        "bias": Array("B 3H"),
        "given_reduced": Array("B T R"),
        "weight": Array("H 3H"),
        "packed": Array("packed"),
        "left": Array("B H R"),
        "right": Array("B R 3H"),
        "keep": Array("T B H"),
        "norm": Array("8 H"),
        "scale": Array("B 3H"),
        "feed": Array("B H"),
        "first_hidden": Array("B H"),
        "first_memory": Array("B H"),
        "lengths": Array("B", "int64", upto="T"),
        "outputs": Array("B T H"),
        "last_hidden": Array("B H"),
        "last_memory": Array("B H"),
        "memories": Array("B T H"),
        "gates": Array("B T 3H"),
        "reduced": Array("B T R"),
        "inverse": Array("B T 3"),
        "outputs_gradient": Array("B T H"),
        "last_hidden_gradient": Array("B H"),
        "last_memory_gradient": Array("B H"),
        "given_gradient": Array("B T 3H", "half"),
        "bias_gradient": Array("B 3H"),
        "reduced_gradient": Array("B T R"),
        "first_hidden_gradient": Array("B H"),
        "first_memory_gradient": Array("B H"),
        "norm_gradient": Array("B 8 H"),
    },
    {
        "packing": "weight",
        "forward": "given bias weight first_hidden first_memory outputs last_hidden last_memory",
        "forward of a rank": "left right",
        "forward with normalisation": "norm",
        "backward": (
            "weight first_memory outputs memories gates"
            " given_gradient bias_gradient first_hidden_gradient first_memory_gradient"
        ),
        "backward of a rank": "left right reduced_gradient",
        "backward with normalisation": "norm inverse norm_gradient",
    },
)

SOFTMAX = Signature(
    "softmax",
    {
        "rows": Number("N"),
        "size": Number("V", 1),
        "width": Number("D", 1),
        "texts": Number("C", 1),
        "parts": Number(least=1, most=1 << 17),
        **SHARED,
    },
    {
        "values": Array("N D"),
        "table": Array("V D"),
        "bias": Array("C V"),
        "packed": Array("packed"),
        "result": Array("N"),
        "logits": Array("N V"),
        "targets": Array("N", "int64", upto="V"),
        "scale": Array("N"),
        "values_gradient": Array("N D"),
        "table_gradient": Array("V D"),
        "bias_gradient": Array("C V"),
    },
    {"sums": "values table bias packed result", "gradients": "values table bias packed result targets scale"},
)

ROWS = Signature(
    "rows",
    {"rows": Number("U"), "size": Number("V"), "width": Number("D"), "threads": THREADS, "next": NEXT},
    {
        "index": Array("U", "int64", below="V"),
        "table": Array("V D"),
        "first": Array("V D"),
        "second": Array("V D"),
        "columns": Array("U 5"),
        "gradient": Array("U D"),
        "constants": Array("6"),
    },
    {"catching up": "index table first second columns", "a step": "index table first second gradient constants"},
)

# The compiled search. Letters beside those of native/kernels.h: G columns of all gates, W tokens up to a whole panel,
# P columns of a panel; pV, pE, pG, pR: panels of so many columns; wR: words of two rows; sH: short words of H rows, and
# what stands beside them in a panel.
MODEL = Signature(
    "model",
    {},
    {
        "embedding": Array("V E"),
        "inputs": Array("pG E P"),
        "weight": Array("pG H P"),
        "short_weight": Array("pG sH P", "int32"),
        "norm": Array("8 H"),
        "projection": Array("pE H P"),
        "table": Array("pV E P"),
    },
    {"a model": "embedding inputs weight projection table", "short products": "short_weight"},
)

SEARCH = Signature(
    "search",
    {
        "requests": Number(least=1),
        "size": Number("V", 1),
        "width": Number("E", 1),
        "hidden": Number("H", 1),
        "rank": Number("R"),
        "end": Number(below="V"),
        "threads": THREADS,
        "batch": Number(least=1),
        "growth": Number(least=1),
        "products": Number(most=2),
        "next": NEXT,
    },
    {},
    {},
    pointers=["request", *MODEL.arrays],
    doubles=["margin"],
)

CONTEXT = Signature(
    "context",
    {},
    {
        "gate_bias": Array("G"),
        "left_inputs": Array("pR E P"),
        "left": Array("pR H P"),
        "right": Array("pG R P"),
        "short_left": Array("pR sH P", "int32"),
        "short_right": Array("pG wR P", "int32"),
        "bias": Array("W"),
    },
    {"a context": "gate_bias bias", "a rank": "left_inputs left right", "a short rank": "short_left short_right"},
)

# S: 2H + V numbers of what is after a token; K: completions that there is room for; L: tokens of each, or those given.
REQUEST = Signature(
    "request",
    {
        "k": Number(least=1),
        "most": Number("L"),
        "empty": FLAG,
        "rows": Number(most=LARGEST - 1),
        "waiting": Number(),
        "count": NEXT,
        "expanded": NEXT,
    },
    {
        "start": Array("S"),
        "scores": Array("K", "double"),
        "lengths": Array("K", "int32"),
        "tokens": Array("K L", "int32"),
        "given": Array("L", "int64", below="V"),
        "after": Array("L S"),
    },
    {"a search": "start scores lengths tokens", "following": "start given after"},
    pointers=list(CONTEXT.arrays),
    doubles=["seconds", "lost"],
)

GPU_RECURRENCE = Signature(
    "recurrence on a GPU",
    {"sequences": Number("B", 1), "steps": Number("T", 1), "hidden": Number("H", 1), "rank": Number("R")},
    {
        "given": Array("B T 3H", "either"),
        "given_reduced": Array("B T R", "either"),
        "weight": Array("H 3H", "either"),
        "turned": Array("B R H", "either"),
        "right": Array("B R 3H", "either"),
        "keep": Array("T B H", "either"),
        "hidden": Array("B H", "either"),
        "memory": Array("B H", "either"),
        "lengths": Array("B", "int64"),  # that a length is inside is the kernel's to see: to ask it would be to wait
        "of_outputs": Array("B T H", "either"),
        "of_last": Array("B H", "either"),
        "memories": Array("B T H"),
        "gates": Array("B T 3H", "either"),
    },
    {"forward": "given weight hidden memory", "backward": "of_outputs of_last weight memory memories gates"}
    | {"a rank": "turned right"},
    dense=False,
)

GPU_SOFTMAX = Signature(
    "softmax on a GPU",
    {"rows": Number("N", 1), "size": Number("V", 1), "width": Number("D", 1)},
    {
        "values": Array("N D", "either"),
        "table": Array("V D", "either"),
        "bias": Array("V", "either"),
        "targets": Array("N", "int64"),  # one that is none of them has nats of NaN
    },
    {"nats": "values table bias targets"},
    dense=False,
)
