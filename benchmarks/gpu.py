"""Compare the recurrence on a GPU with the plain loop and cuDNN's LSTM.

    python benchmarks/gpu.py --repeats 20 --out gpu.jsonl

Measures the forward pass, and the forward with the backward pass, in one process and in random order; figures are
medians of times by the device's own clock. The limit is the rate of a large matrix product in bfloat16. Writes one
JSON object per measurement, with the device's description. To run the same steps without a GPU, with meaningless times:

    TRITON_INTERPRET=1 python benchmarks/gpu.py --shapes tiny
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from factorcell.model.kernels import gpu, gpu_recurrence

Once = Callable[[], None]
Shape = dict[str, int]
SHAPES: dict[str, Shape] = {
    "words": {"batch": 100, "steps": 40, "embedding": 200, "hidden": 240, "rank": 12},
    "words, large": {"batch": 2048, "steps": 40, "embedding": 200, "hidden": 240, "rank": 12},
    "characters": {"batch": 256, "steps": 60, "embedding": 24, "hidden": 600, "rank": 60},
    "characters, large": {"batch": 2048, "steps": 60, "embedding": 24, "hidden": 600, "rank": 60},
    "tiny": {"batch": 3, "steps": 2, "embedding": 4, "hidden": 8, "rank": 2},
}
TYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
Recurrence = Callable[..., tuple[Tensor, Tensor]]


def loop(
    projected: Tensor,
    projected_left: Tensor | None,
    weight: Tensor,
    left: Tensor | None,
    right: Tensor | None,
    keep: None,
    hidden: Tensor,
    memory: Tensor,
) -> tuple[Tensor, Tensor]:
    """Compute `gpu_recurrence.run` one step at a time in plain PyTorch."""
    outputs = []
    for step, gates in enumerate(projected.unbind(1)):
        gates = gates + hidden @ weight
        if left is not None and right is not None and projected_left is not None:
            reduced = torch.baddbmm(projected_left[:, step, None], hidden[:, None], left)
            gates = torch.baddbmm(gates[:, None], reduced, right)[:, 0]
        candidate, forget, output = gates.chunk(3, dim=-1)
        forget = torch.sigmoid(forget + 1)
        memory = forget * memory + (1 - forget) * torch.tanh(candidate)
        hidden = torch.tanh(memory) * torch.sigmoid(output)
        outputs.append(hidden)
    return torch.stack(outputs, dim=1), memory


def layer(run: Recurrence, shape: Shape, kind: torch.dtype, device: str, backward: bool, rank: int) -> Once:
    """Return a call of one adapted layer with random L and R, including the products of the inputs."""
    batch, steps, embedding, hidden = (shape[name] for name in ("batch", "steps", "embedding", "hidden"))

    def new(*sizes: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(*sizes, device=device) * scale).to(kind).requires_grad_(backward)

    inputs, matrix = new(batch, steps, embedding), new(embedding + hidden, 3 * hidden, scale=hidden**-0.5)
    left = new(batch, embedding + hidden, rank, scale=hidden**-0.5) if rank else None
    right = new(batch, rank, 3 * hidden, scale=0.1) if rank else None
    state, gradient = torch.zeros(batch, hidden, device=device, dtype=kind), torch.ones_like(inputs[..., :1])

    def once() -> None:
        projected = inputs @ matrix[:embedding]
        reduced = None if left is None else inputs @ left[:, :embedding]
        part = None if left is None else left[:, embedding:]
        outputs, _ = run(projected, reduced, matrix[embedding:], part, right, None, state, state)
        if backward:
            outputs.backward(gradient.expand_as(outputs))

    return once


def lstm(shape: Shape, kind: torch.dtype, device: str, backward: bool) -> Once:
    """Return a call of cuDNN's LSTM: four gates, no adapters."""
    model = torch.nn.LSTM(shape["embedding"], shape["hidden"], batch_first=True).to(device, kind)
    inputs = torch.randn(shape["batch"], shape["steps"], shape["embedding"], device=device, dtype=kind)
    inputs.requires_grad_(backward)

    def once() -> None:
        with torch.set_grad_enabled(backward):
            outputs, _ = model(inputs)
        if backward:
            outputs.backward(torch.ones_like(outputs))

    return once


def contenders(shape: Shape, kind: torch.dtype, device: str, backward: bool) -> dict[str, Once]:
    """Return the functions that are compared for a shape."""
    runs: dict[str, Recurrence] = {"fused": gpu_recurrence.run, "plain loop": loop}
    return {
        **{name: layer(run, shape, kind, device, backward, shape["rank"]) for name, run in runs.items()},
        "fused, no adapters": layer(gpu_recurrence.run, shape, kind, device, backward, 0),
        "nn.LSTM, no adapters": lstm(shape, kind, device, backward),
    }


def product(size: int, device: str) -> Once:
    """Return a call of a square matrix product in bfloat16: 2 size^3 operations."""
    a, b = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
    return lambda: ignore(a @ b)


def ignore(_: Tensor) -> None:
    """Ignore a result."""


def operations(shape: Shape, backward: bool, adapters: bool) -> float:
    """Return the floating-point operations of the products; the backward pass takes twice those of the forward pass."""
    inputs, gates = shape["embedding"] + shape["hidden"], 3 * shape["hidden"]
    forward = 2.0 * shape["batch"] * shape["steps"] * inputs * gates
    forward += 2.0 * shape["batch"] * shape["steps"] * shape["rank"] * (inputs + gates) * adapters
    return forward * (3 if backward else 1)


def seconds(once: Once, device: str) -> float:
    """Return the time of one call by the device's own clock, with the caches of the previous call."""
    if device == "cpu":
        began = time.perf_counter()
        once()
        return time.perf_counter() - began
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    once()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3


def measure(name: str, kind: str, device: str, backward: bool, repeats: int) -> list[dict[str, Any]]:
    """Return medians in random order, after two calls of each, next to the rate of the matrix product."""
    shape, size = SHAPES[name], 64 if device == "cpu" else 8192
    calls = {**contenders(shape, TYPES[kind], device, backward), "product": product(size, device)}
    order = [call for call in calls for _ in range(repeats)]
    random.Random(0).shuffle(order)
    for once in calls.values():
        once()
        once()
    times: dict[str, list[float]] = {call: [] for call in calls}
    for call in order:
        times[call].append(seconds(calls[call], device))
    medians = {call: statistics.median(values) for call, values in times.items()}
    limit = 2 * size**3 / medians.pop("product")
    return [
        {
            "shape": name,
            "type": kind,
            "backward": backward,
            "what": call,
            "milliseconds": spent * 1e3,
            "times_fused": spent / medians["fused"],
            "share_of_product": operations(shape, backward, "no adapters" not in call) / spent / limit,
            "product_tflops": limit / 1e12,
        }
        for call, spent in medians.items()
    ]


def main() -> None:
    """Measure, print and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, help="shapes (default: all except tiny)")
    parser.add_argument("--types", nargs="+", choices=TYPES, default=list(TYPES))
    parser.add_argument("--out", type=Path, help="file that JSON lines are appended to")
    arguments = parser.parse_args()
    names = arguments.shapes or [name for name in SHAPES if not name.startswith("tiny")]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    is_available = device == "cuda" or (gpu.IS_INTERPRETED and all(name.startswith("tiny") for name in names))
    if gpu.triton is None or not is_available:
        print("nothing to measure: expected a GPU and Triton, or --shapes tiny with TRITON_INTERPRET=1")
        return
    about = {"device": torch.cuda.get_device_name() if device == "cuda" else "interpreter"}
    about |= {"torch": torch.__version__, "triton": gpu.triton.__version__, "cuda": torch.version.cuda}
    print(json.dumps(about))
    for name in names:
        for kind in arguments.types:
            for backward in (False, True):
                for row in measure(name, kind, device, backward, arguments.repeats):
                    what = f"{name}, {kind}, {'forward and backward' if backward else 'forward'}: {row['what']}"
                    times = f"{row['milliseconds']:10.3f} ms{row['times_fused']:8.2f} x fused"
                    print(f"{what:75}{times}{row['share_of_product']:8.1%} of product", flush=True)
                    if arguments.out:
                        with arguments.out.open("a") as file:
                            file.write(json.dumps({**row, **about}) + "\n")


if __name__ == "__main__":
    main()
