"""Forward and backward of one adapted layer: the compiled recurrence, the plain loop and `nn.LSTM`, side by side.

    python benchmarks/recurrence.py --threads 2 --repeats 9 --out recurrence.jsonl

All of it in one process, in random order, medians. The limit is that of the fastest matrix product measured in the same
run (fp32, as PyTorch's library does it, which on some processors is not the processor's own limit). One JSON object a
measurement, with the machine's description, and a table.
"""

import argparse
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from factorcell import recurrence
from factorcell.cells import Cell

SHAPES = {
    "words": {"batch": 100, "steps": 40, "embedding": 200, "hidden": 240, "rank": 12},
    "characters": {"batch": 48, "steps": 60, "embedding": 24, "hidden": 600, "rank": 60},
    "agnews": {"batch": 25, "steps": 59, "embedding": 150, "hidden": 110, "rank": 12},
}
CONTEXT = 30


def layer(shape: dict[str, int], adapt: tuple[str, ...], kernel: str) -> Callable[[], None]:
    """A step of training of one `Cell` under `kernel`."""
    cell = Cell(shape["embedding"], shape["hidden"], CONTEXT, shape["rank"], adapt, 0.0)
    inputs = torch.randn(shape["batch"], shape["steps"], shape["embedding"], requires_grad=True)
    vector = torch.randn(shape["batch"], CONTEXT, requires_grad=True)
    gradient = torch.randn(shape["batch"], shape["steps"], shape["hidden"])

    def once() -> None:
        os.environ["FACTORCELL_KERNEL"] = kernel
        cell.zero_grad()
        hidden, _ = cell(inputs, cell.adapt(vector))
        hidden.backward(gradient)

    return once


def library(shape: dict[str, int]) -> Callable[[], None]:
    """The same of PyTorch's LSTM: four gates, no adapters."""
    lstm = torch.nn.LSTM(shape["embedding"], shape["hidden"], batch_first=True)
    inputs = torch.randn(shape["batch"], shape["steps"], shape["embedding"], requires_grad=True)
    gradient = torch.randn(shape["batch"], shape["steps"], shape["hidden"])

    def once() -> None:
        lstm.zero_grad()
        hidden, _ = lstm(inputs)
        hidden.backward(gradient)

    return once


def product() -> Callable[[], None]:
    """A large matrix product: 2 * 2048^3 operations."""
    a, b, result = (torch.randn(2048, 2048) for _ in range(3))

    def once() -> None:
        torch.mm(a, b, out=result)

    return once


def operations(shape: dict[str, int], rank: int) -> float:
    """Floating-point operations a token, forward and backward: three products of W and of L and R."""
    inputs, gates = shape["embedding"] + shape["hidden"], 3 * shape["hidden"]
    return 3.0 * 2 * (inputs * gates + rank * (inputs + gates))


def measure(shape: dict[str, int], repeats: int) -> dict[str, float]:
    """Median seconds of each contender, in random order."""
    os.environ.pop("FACTORCELL_KERNEL", None)
    contenders = {
        "plain loop": layer(shape, ("concat", "factor"), "off"),
        "nn.LSTM, no adapters": library(shape),
        **{f"compiled, {name}": layer(shape, ("concat", "factor"), name) for name in _variants()},
        "compiled, no adapters": layer(shape, ("concat",), ""),
        "matrix product": product(),
    }
    order = [name for name in contenders for _ in range(repeats)]
    random.Random(0).shuffle(order)
    for once in contenders.values():
        once()
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for name in order:
        began = time.perf_counter()
        contenders[name]()
        times[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in times.items()}


def _variants() -> list[str]:
    best = recurrence.variant()
    return [] if best is None else list(recurrence.VARIANTS[: recurrence.VARIANTS.index(best) + 1])


def rows(name: str, shape: dict[str, int], seconds: dict[str, float]) -> list[dict[str, Any]]:
    """What was measured, as ratios and as a share of the limit."""
    tokens, limit = shape["batch"] * shape["steps"], 2 * 2048.0**3 / seconds.pop("matrix product")
    result = []
    for contender, spent in seconds.items():
        rank = 0 if "no adapters" in contender else shape["rank"]
        result.append(
            {
                "shape": name,
                "what": contender,
                "milliseconds": round(spent * 1e3, 2),
                "tokens_per_second": round(tokens / spent),
                "times_plain_loop": round(seconds["plain loop"] / spent, 2),
                "times_lstm": round(seconds["nn.LSTM, no adapters"] / spent, 2),
                "share_of_product": round(tokens * operations(shape, rank) / spent / limit, 2),
                "product_gflops": round(limit / 1e9),
            }
        )
    return result


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--out", type=Path, help="JSON lines")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    about = {**machine, "threads": given.threads, "torch": torch.__version__, "kernel": recurrence.variant()}
    print(json.dumps(about))
    for name in given.shapes:
        measured = rows(name, SHAPES[name], measure(SHAPES[name], given.repeats))
        print(f"\n{name}: {SHAPES[name]}")
        print(f"{'':26}{'ms':>9}{'tokens/s':>11}{'x loop':>8}{'x LSTM':>8}{'of product':>12}")
        for row in measured:
            shares = f"{row['times_plain_loop']:8.2f}{row['times_lstm']:8.2f}{row['share_of_product']:12.0%}"
            print(f"{row['what']:26}{row['milliseconds']:9.1f}{row['tokens_per_second']:11,}{shares}")
            if given.out:
                with given.out.open("a") as file:
                    file.write(json.dumps({**row, **about}) + "\n")


if __name__ == "__main__":
    main()
