"""The arguments of all compiled functions, and their checks before each call.

Compiled code does not check its arguments: with a wrong length or an id outside a table it would access other memory.
A `Signature` lists the fields of a structure of native/kernels.h. Shapes use the letters of that file: "B T 3H" means
an array of B x T x (3 times H) numbers, and a question mark an array that may be missing.
"""

import ctypes
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

CPU = torch.device("cpu")
MAX_NUMBER = 2**31 - 2  # largest valid number, because compiled code stores ids of tokens and hypotheses in 32 bits
DTYPES = {
    "float": torch.float32,
    "bfloat16": torch.bfloat16,
    "double": torch.float64,
    "int32": torch.int32,
    "int64": torch.int64,
}


@dataclass(frozen=True)
class Array:
    """A dense array field of a structure."""

    shape: str  # the dimensions in letters, such as "B T 3H"; with a question mark at the end, the array may be missing
    # the element type, a key of `DTYPES`, or "half": bfloat16 if products are in bfloat16, else float
    element: str = "float"
    upto: str = ""  # the letter of the size that is the largest valid integer in the array
    below: str = ""  # the letter of the size that all integers in the array must be less than

    @cached_property
    def dimensions(self) -> list[tuple[int, str]]:
        """The factor and the letter of each dimension: 3 and "H" for 3H, 8 and "" for 8."""
        parts = (re.findall(r"(\d*)(\w*)", part)[0] for part in self.shape.strip("?").split())
        return [(int(factor or 1), letter) for factor, letter in parts]


class Signature:
    """A C structure of native/kernels.h, with the sizes and types of its arrays.

    Args:
        name: The name that error messages use.
        numbers: The integer fields in the order of the structure, such as "rows=N" if N stands for it in shapes.
        arrays: The array fields, in the order of the structure.
        positive: The names of numbers that must not be 0.
        pointers: The pointer fields between numbers and arrays, which are not checked.
        doubles: The float fields, at the front of the structure.
    """

    def __init__(
        self,
        name: str,
        numbers: str,
        arrays: Mapping[str, Array],
        *,
        positive: str = "",
        pointers: tuple[str, ...] = (),
        doubles: tuple[str, ...] = (),
    ) -> None:
        self.name, self.arrays, self.positive = name, arrays, positive.split()
        # The letter in shapes that stands for each number; numbers without a letter stand for themselves.
        self.letters = {name: letter or name for name, _, letter in (part.partition("=") for part in numbers.split())}
        fields: list[tuple[str, Any]] = [(name, ctypes.c_double) for name in doubles]
        fields += [(name, ctypes.c_int64) for name in self.letters]
        fields += [(name, ctypes.c_void_p) for name in (*pointers, *arrays)]
        self.structure: Any = type(f"_{name.title()}", (ctypes.Structure,), {"_fields_": fields})

    def checked_arguments(
        self, numbers: Mapping[str, int], arrays: Mapping[str, Tensor | None], packed: int = 0, **doubles: float
    ) -> Any:
        """Return the structure of these fields; raise `ValueError` if one is invalid or missing.

        Numbers that are not among `numbers` are 0; `packed` is the valid length of the array of this name. The caller
        must keep the arrays alive while it uses the structure.
        """
        sizes = {**self.sizes(numbers), "packed": packed}
        return self.structure(**numbers, **doubles, **self.checked_addresses(sizes, arrays))

    def sizes(self, numbers: Mapping[str, int]) -> dict[str, int]:
        """Return integer fields by letter, or by name without a letter; raise `ValueError` if one is out of range."""
        sizes = {self.letters[name]: value for name, value in numbers.items()}
        for name, value in numbers.items():
            low, high = int(name in self.positive), sizes["V"] - 1 if name == "end" else MAX_NUMBER
            if not low <= value <= high:
                raise ValueError(f"{self.name}: {name} is {value}; expected {low} to {high}")
        return sizes

    def checked_addresses(self, sizes: Mapping[str, int], arrays: Mapping[str, Tensor | None]) -> dict[str, int]:
        """Return the addresses of `arrays`, whose letters stand for `sizes`; raise `ValueError` if one is invalid."""
        addresses = {}
        for name, array in arrays.items():
            field = self.arrays[name]
            shape = [factor * sizes[letter] if letter else factor for factor, letter in field.dimensions]
            if array is None:
                if not field.shape.endswith("?") and 0 not in shape:
                    raise ValueError(f"{self.name}: {name} is missing; expected {tuple(shape)} ({field.shape})")
                continue
            half = "bfloat16" if sizes.get("half") else "float"
            dtype = DTYPES[half if field.element == "half" else field.element]
            expected = (dtype, tuple(shape), CPU, True)
            actual = (array.dtype, tuple(array.shape), array.device, array.is_contiguous())
            if actual != expected:
                problem = "is {} {} on {}, contiguous: {}".format(*actual)
                raise ValueError(f"{self.name}: {name} {problem}; expected {dtype} {tuple(shape)}, {field.shape}")
            if (largest := field.upto or field.below) and array.numel():
                high = sizes[largest] - bool(field.below)
                for value in map(int, torch.aminmax(array)):
                    if not 0 <= value <= high:
                        raise ValueError(f"{self.name}: {name} contains {value}; expected 0 to {high}")
            addresses[name] = array.data_ptr()
        return addresses


RECURRENCE = Signature(
    "recurrence",
    "sequences=B steps=T hidden=H rank=R threads half next",
    {
        "input_gates": Array("B T 3H", "half"),
        "bias": Array("B 3H"),
        "input_reduced": Array("B T R?"),
        "weight": Array("H 3H"),
        "packed": Array("packed?"),
        "left": Array("B H R", "half"),
        "right": Array("B R 3H", "half"),
        "keep": Array("T B H?"),
        "norm": Array("8 H?"),
        "scale": Array("B 3H?"),
        "feed": Array("B H?"),
        "first_hidden": Array("B H"),
        "first_memory": Array("B H"),
        "lengths": Array("B?", "int64", upto="T"),
        "outputs": Array("B T H"),
        "last_hidden": Array("B H"),
        "last_memory": Array("B H"),
        "memories": Array("B T H?"),
        "gates": Array("B T 3H?"),
        "reduced": Array("B T R?"),
        "inverse": Array("B T 3?"),
        "outputs_gradient": Array("B T H?"),
        "last_hidden_gradient": Array("B H?"),
        "last_memory_gradient": Array("B H?"),
        "input_gates_gradient": Array("B T 3H", "half"),
        "bias_gradient": Array("B 3H"),
        "reduced_gradient": Array("B T R"),
        "first_hidden_gradient": Array("B H"),
        "first_memory_gradient": Array("B H"),
        "norm_gradient": Array("B 8 H?"),
    },
    positive="sequences steps hidden threads",
)

SOFTMAX = Signature(
    "softmax",
    "rows=N size=V width=D texts=C parts threads half next",
    {
        "values": Array("N D"),
        "table": Array("V D"),
        "bias": Array("C V"),
        "packed": Array("packed"),
        "result": Array("N"),
        "logits": Array("N V?"),
        "targets": Array("N", "int64", upto="V"),
        "scale": Array("N"),
        "values_gradient": Array("N D?"),
        "table_gradient": Array("V D?"),
        "bias_gradient": Array("C V?"),
    },
    positive="size width texts parts threads",
)

DRAWING = Signature(
    "drawing",
    "texts=N size=V width=D contexts=C count=S banned_count=A forbidden_count=M top_k end threads half next",
    {
        "values": Array("N D"),
        "packed": Array("packed"),
        "bias": Array("C V"),
        "context": Array("N", "int64", below="C"),
        "banned": Array("A", "int64", below="V"),
        "ends": Array("N", "int64", upto="M"),
        "forbidden": Array("M", "int64", below="V"),
        "places": Array("N S?", "double"),
        "tokens": Array("N S", "int64"),
        "log_probs": Array("N S"),
    },
    positive="size width contexts count threads",
    doubles=("temperature", "top_p"),
)

ROWS = Signature(
    "rows",
    "rows=U size=V width=D threads next",
    {
        "index": Array("U", "int64", below="V"),
        "table": Array("V D"),
        "first": Array("V D"),
        "second": Array("V D"),
        "columns": Array("U 5"),
        "gradient": Array("U D"),
        "constants": Array("6"),
    },
    positive="threads",
)

# The packed weights of a model and of a context, which `nn.packing` makes once for many calls.
MODEL = ("embedding", "inputs", "weight", "short_weight", "norm", "projection", "table")
CONTEXT = ("gate_bias", "left_inputs", "left", "right", "short_left", "short_right", "bias")

SEARCH = Signature(
    "search",
    "requests size=V width=E hidden=H rank=R end threads batch growth products next",
    {},
    positive="requests size width hidden threads batch growth",
    pointers=("request", *MODEL),
    doubles=("margin",),
)

# Letters of a request: S is the number of values in a state, 2H + V (h, m and log probabilities). K is the largest
# number of completions. L is the largest number of tokens of a completion, or the number of `input_tokens`.
REQUEST = Signature(
    "request",
    "k max_tokens=L allow_empty max_rows max_waiting count expanded",
    {
        "start": Array("S"),
        "scores": Array("K", "double"),
        "lengths": Array("K", "int32"),
        "tokens": Array("K L", "int32"),
        "input_tokens": Array("L", "int64", below="V"),
        "states": Array("L S"),
    },
    positive="k",
    pointers=CONTEXT,
    doubles=("seconds", "lost_score"),
)

LEARNING = Signature(
    "learning",
    "texts=N count=M size=V width=E inputs_and_hidden=D hidden=H rank=R context=K user=U activation threads next",
    {
        "embedding": Array("V E"),
        "weight": Array("D 3H"),
        "bias": Array("3H"),
        "norm": Array("8 H?"),
        "projection": Array("H E"),
        "joint": Array("U K?"),
        "concat": Array("K 3H?"),
        "left": Array("K D R?"),
        "right": Array("K R 3H?"),
        "context_bias": Array("K V?"),
        "user_bias": Array("U V?"),
        "tokens": Array("M", "int64", below="V"),
        "ends": Array("N", "int64", upto="M"),
        "prompts": Array("N", "int64", below="M"),
        "vectors": Array("N U"),
        "joint_bias": Array("N K?"),
        "output_bias": Array("N V"),
        "nats": Array("N", "double"),
        "gradients": Array("N U"),
    },
    positive="texts count size width hidden context user threads",
    pointers=("packed_forward", "packed_backward", "packed_table"),
)

UPDATE = Signature(
    "update",
    "size=U rows=S",
    {"gradient": Array("U"), "vector": Array("U"), "state": Array("S U")},
    positive="size",
    doubles=("rate", "max_norm"),
)

BLEND = Signature(
    "blend",
    "texts=N alternatives=A feature_count=F typed count",
    {
        "log_probs": Array("N?", "double"),
        "counts": Array("N?", "int64"),
        "shares": Array("N?", "double"),
        "ages": Array("N?", "int64"),
        "features": Array("A F", "double"),
        "typos": Array("N?", "int64"),
        "places": Array("N?", "int64"),
        "weights": Array("F?", "double"),
        "log_probabilities": Array("A?", "double"),
        "order": Array("N?", "int64"),
        "evidence": Array("N?", "double"),
        "suggestions": Array("N?", "int64"),
    },
    positive="alternatives feature_count",
    doubles=("threshold",),
)
