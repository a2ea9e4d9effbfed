"""Compare two builds of the compiled kernels on the layers of speed.py, alternating between them.

    python benchmarks/builds.py BEFORE.so AFTER.so --groups characters words --repeats 10

Uses one thread and measures processor milliseconds, so other work on the machine affects both builds alike. A figure
is the minimum of its repeats; the part in compiled code has its own minimum. The environment variable FACTORCELL_KERNEL
selects the instruction set, as in speed.py.
"""

import argparse
import ctypes
import os
import time
from pathlib import Path
from typing import Any

import torch
from speed import GROUPS, INSTRUCTION_SET, Work, supported_works

from factorcell.nn.kernels import library

CALL = library.call


def load_build(path: Path) -> ctypes.CDLL:
    """Load a build of the kernels as `library.library` returns it."""
    loaded = ctypes.CDLL(str(path.resolve()))
    for sized in (loaded.factorcell_packed_table, loaded.factorcell_packed_weight, loaded.factorcell_softmax_room):
        sized.restype = ctypes.c_int64
    return loaded


def measure(work: Work, loaded: ctypes.CDLL) -> tuple[float, float]:
    """Return the processor milliseconds of a work with a build, and those within its compiled code."""
    compiled_seconds = 0.0

    def call(*arguments: Any) -> None:
        nonlocal compiled_seconds
        began = time.thread_time()
        CALL(*arguments)
        compiled_seconds += time.thread_time() - began

    library.library, library.call = lambda: loaded, call  # type: ignore[assignment]
    os.environ["FACTORCELL_KERNEL"] = work.kernel or INSTRUCTION_SET
    with library.precision(work.precision, torch.device("cpu")):
        began = time.thread_time()
        work.once()
        return (time.thread_time() - began) * 1e3, compiled_seconds * 1e3


def main() -> None:
    """Measure the builds alternately and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("builds", type=Path, nargs=2, help="the library before and after")
    parser.add_argument("--groups", nargs="+", choices=("words", "characters"), default=["words", "characters"])
    parser.add_argument("--repeats", type=int, default=10)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    library.retain_freed_memory()
    loaded = [load_build(path) for path in arguments.builds]
    works = supported_works([work for name in arguments.groups for work in GROUPS[name]() if work.kernel != "off"])
    times: dict[Work, list[list[tuple[float, float]]]] = {work: [[], []] for work in works}
    for repeat in range(arguments.repeats + 1):
        for work in works:
            for build, measured in zip(loaded, times[work], strict=True):
                milliseconds = measure(work, build)
                if repeat:
                    measured.append(milliseconds)
    print("| layer | what | before | after | compiled code before | after |\n|---|---|---:|---:|---:|---:|")
    for work, of_builds in times.items():
        fastest = [min(pair[index] for pair in measured) for index in (0, 1) for measured in of_builds]
        print(f"| {work.group} | {work.what} | " + " | ".join(f"{value:.1f}" for value in fastest) + " |")


if __name__ == "__main__":
    main()
