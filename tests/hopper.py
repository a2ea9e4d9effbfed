"""Compile the GPU kernels for a Hopper processor, without needing one: `python tests/hopper.py words large`.

Print a row of JSON for each kernel: the bytes of shared memory, and the instructions for products of tiles.
This needs its own process, because the tests define the same kernels for the interpreter.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from factorcell.nn.kernels import gpu, gpu_recurrence, gpu_step
from factorcell.nn.kernels.recurrence import RecurrenceInputs

PROCESSORS = 132  # of an H100
NAMES = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.int64: "*i64", torch.uint8: "*u8"}


class Compiler:
    """Replacement of a kernel that compiles it for the arguments of a launch instead of running it."""

    def __init__(self, kernel: Any, case: str) -> None:
        self.kernel, self.case = kernel, case

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self.launch

    def launch(self, *arrays: Any, **constants: Any) -> None:
        options = {name: constants.pop(name) for name in ("num_warps", *gpu.OPTIONS)}
        signature: dict[str, str] = {}
        for name, array in zip(self.kernel.arg_names, arrays, strict=False):
            if isinstance(array, Tensor):
                signature[name] = NAMES[array.dtype]
            elif array is None:
                constants[name] = None
            else:
                signature[name] = "i32"
        order = {name: index for index, name in enumerate(self.kernel.arg_names)}
        signature |= dict.fromkeys(constants, "constexpr")
        source = ASTSource(
            self.kernel,
            signature={name: signature[name] for name in order},
            constexprs={(order[name],): value for name, value in constants.items()},
            attrs={(order[name],): [["tt.divisibility", 16]] for name in order if signature[name].startswith("*")},
        )
        result = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        products = [name for name in ("wgmma.mma", "mma.sync") if name in result.asm["ptx"]]
        row = {
            "case": self.case,
            "kernel": self.kernel.__name__,
            "shared": result.metadata.shared,
            "products": products,
        }
        sys.stdout.write(json.dumps(row) + "\n")


def recurrence(batch: int, hidden: int, rank: int, kind: torch.dtype) -> None:
    """Launch both kernels for one step, with all optional arguments."""

    def new(*shape: int, kind: torch.dtype = kind) -> Tensor:
        return torch.zeros(shape, dtype=kind)

    left, right = (new(batch, hidden, rank), new(batch, rank, 3 * hidden)) if rank else (None, None)
    weight, keep, state = new(hidden, 3 * hidden), new(1, batch, hidden), new(batch, hidden)
    lengths, input_gates = new(batch, kind=torch.int64), new(batch, 1, 3 * hidden).requires_grad_()
    reduced = new(batch, 1, rank) if rank else None
    inputs = RecurrenceInputs(
        input_gates=input_gates, bias=new(batch, 3 * hidden), input_reduced=reduced, weight=weight, left=left,
        right=right, keep=keep, hidden=state, memory=state, lengths=lengths,
    )  # fmt: skip
    outputs, last = gpu_recurrence.run(inputs)
    torch.autograd.backward([outputs.sum() + last.sum()])


def step(hidden: int, kind: torch.dtype) -> None:
    """Launch both kernels of a step, with all optional arguments, and with products of the type `kind`."""
    gates, product = torch.zeros(4, 3 * hidden).requires_grad_(), torch.zeros(4, 3 * hidden, dtype=kind)
    state, keep, is_inside = torch.zeros(4, hidden), torch.zeros(4, hidden), torch.zeros(4, dtype=torch.bool)
    results = gpu_step.run(gates, product, state, state, torch.zeros(8, hidden), keep, is_inside)
    torch.autograd.backward([results[0].sum() + results[1].sum()])


CASES: dict[str, tuple[Callable[..., None], tuple[Any, ...]]] = {
    "words": (recurrence, (100, 240, 12, torch.bfloat16)),
    "words float32": (recurrence, (100, 240, 12, torch.float32)),
    "characters": (recurrence, (256, 600, 60, torch.bfloat16)),
    "small": (recurrence, (25, 110, 12, torch.bfloat16)),
    "large": (recurrence, (8192, 1000, 0, torch.bfloat16)),
    "large float32": (recurrence, (8192, 240, 60, torch.float32)),
    "high rank": (recurrence, (8192, 600, 200, torch.bfloat16)),
    "step": (step, (600, torch.bfloat16)),
    "large step": (step, (3000, torch.float32)),
}


def main() -> None:
    """Compile the cases on the command line."""
    gpu.processor_count = lambda device: PROCESSORS
    modules: dict[Any, tuple[Any, Any]] = {
        module: (module._forward_kernel, module._backward_kernel) for module in (gpu_recurrence, gpu_step)
    }
    for case in sys.argv[1:]:
        for module, (forward, backward) in modules.items():
            module._forward_kernel, module._backward_kernel = Compiler(forward, case), Compiler(backward, case)
        launch, arguments = CASES[case]
        launch(*arguments)


if __name__ == "__main__":
    main()
