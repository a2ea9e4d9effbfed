"""Measure variants of a computation side by side, in several processes one after the other.

Within a process, all variants run in turn, and the shortest time of each counts. The tables have the medians of the
processes, and ratios of two variants of the same process.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from factorcell.nn.kernels import library

Figures = dict[str, float]  # seconds of each variant, and bytes, whose names begin with "bytes"


def shortest(
    works: Mapping[str, Callable[[], object]], repetitions: int, clock: Callable[[], float] = time.perf_counter
) -> Figures:
    """Return the shortest seconds of each work, measured in turn after one call that is not measured."""
    seconds: Figures = {}
    for repetition in range(repetitions + 1):
        for name, work in works.items():
            start = clock()
            work()
            if repetition:
                seconds[name] = min(seconds.get(name, float("inf")), clock() - start)
    return seconds


def measure_in_processes(
    parser: argparse.ArgumentParser, measure: Callable[[argparse.Namespace], Figures]
) -> list[Figures]:
    """Return the figures of each process; options for their number and their threads are added to `parser`.

    The script calls itself with the option --child, which measures once, prints the figures and exits.
    """
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        torch.set_num_threads(arguments.threads)
        library.retain_freed_memory()
        print(json.dumps(measure(arguments)))
        sys.exit()
    command = [sys.executable, *sys.argv, "--child"]
    return [
        json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        for _ in range(arguments.processes)
    ]


def show(rows: Sequence[Figures], ratios: Mapping[str, tuple[str, str]]) -> None:
    """Print the median of each figure, and of the ratios, each of two figures of a process."""
    for name in rows[0]:
        value = statistics.median(row[name] for row in rows)
        print(f"{name:28} {value:12,.0f}" if name.startswith("bytes") else f"{name:28} {1000 * value:9.1f} ms")
    for name, (first, second) in ratios.items():
        print(f"{name:28} {statistics.median(row[first] / row[second] for row in rows):9.2f} times")
