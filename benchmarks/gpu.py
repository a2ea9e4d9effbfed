"""Compare layers, the softmax and training steps on a GPU with cuDNN, PyTorch and transformers.

    python benchmarks/gpu.py --minutes 3 --out gpu.jsonl      measure, and print tables
    python benchmarks/gpu.py --tables gpu.jsonl               print the tables of saved rows
    python benchmarks/gpu.py --scale 0.02 --minutes 1         small sizes, also without a GPU, to test the script

Each row is the median of repeated calls after a warm-up, by the clock of the processor, which waits for the GPU. A
contender that fails has a row with its error, and the others are measured. Parts that do not fit into the minutes are
omitted, the last ones first. A row is written as soon as it is measured. `gpu_works.py` has the contenders.
"""

import argparse
import faulthandler
import gc
import itertools
import json
import os
import platform
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gpu_works
import torch
from gpu_works import DEVICE, Case, Contender

from factorcell.nn.kernels import gpu, library

MIN_CALLS, MAX_CALLS = 3, 200
WARMUP_CALLS = 2
EXIT_SECONDS = 60  # after the minutes, a script that hangs ends itself

Row = dict[str, Any]


def device_name() -> str:
    """Return the name of the GPU, or of the processor."""
    return torch.cuda.get_device_name() if DEVICE == "cuda" else f"processor ({platform.machine()})"


def synchronize() -> None:
    """Wait until the GPU has computed everything."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def timed(once: gpu_works.Once) -> tuple[float, int]:
    """Return the seconds of a call, and its number of tokens."""
    synchronize()
    start = time.perf_counter()
    tokens = once()
    synchronize()
    return time.perf_counter() - start, tokens


def measure(contender: Contender, seconds: float) -> Row:
    """Measure whole periods for about `seconds`."""
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    once = contender.make()
    for _ in range(max(WARMUP_CALLS, contender.period)):
        once()
    synchronize()
    row: Row = {"warm_up_seconds": round(time.perf_counter() - start, 2)}
    calls: list[tuple[float, int]] = []
    while len(calls) < max(MIN_CALLS, contender.period) or (
        sum(spent for spent, _ in calls) < seconds and len(calls) < MAX_CALLS
    ):
        calls += [timed(once) for _ in range(contender.period)]
    spent, tokens = zip(*calls, strict=True)
    typical = statistics.median(spent) if contender.period == 1 else statistics.fmean(spent)
    row |= {"milliseconds": round(typical * 1e3, 3), "tokens_per_second": round(statistics.fmean(tokens) / typical)}
    if DEVICE == "cuda":
        row["memory_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
    return row


def measure_case(case: Case, seconds: float, deadline: float) -> Iterator[Row]:
    """Yield a row per contender; a row with an error if it fails or if the time is over."""
    for contender in case.contenders:
        row: Row = {"part": case.part, "case": case.name, "precision": case.precision, "what": contender.what}
        if time.perf_counter() > deadline:
            yield {**row, "error": "no time left"}
            continue
        try:
            row |= measure(contender, seconds)
        except Exception as error:  # the other contenders are still of interest
            lines = str(error).strip().splitlines() or [""]
            row["error"] = f"{type(error).__name__}: {lines[0][:200]}"
        yield row
        gc.collect()
        if DEVICE == "cuda":
            torch.cuda.empty_cache()


def measure_parts(
    names: Sequence[str], precisions: Sequence[str], scale: float, seconds: float, deadline: float
) -> Iterator[Row]:
    """Yield the rows of all parts in each precision."""
    for name, precision in itertools.product(names, precisions):
        try:
            for case in gpu_works.PARTS[name](scale, precision):
                yield from measure_case(case, seconds, deadline)
        except Exception as error:  # such as a missing package
            yield {"part": name, "case": name, "precision": precision, "what": "", "error": repr(error)[:200]}


def table(rows: Sequence[Row]) -> str:
    """Format rows as a Markdown table per part and precision, with the name of the device."""
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["device"], row["part"], row["precision"]].append(row)
    lines: list[str] = []
    for (device, part, precision), members in groups.items():
        lines += [f"### {part.capitalize()}, {precision} ({device})", ""]
        lines += ["| case | what | milliseconds | tokens per second | memory, GB |", "|---|---|---:|---:|---:|"]
        for row in members:
            if "error" in row:
                figures = [row["error"].replace("|", "/"), "", ""]
            else:
                figures = [
                    f"{row['milliseconds']:,.2f}",
                    f"{row['tokens_per_second']:,}",
                    str(row.get("memory_gb", "")),
                ]
            lines.append(f"| {' | '.join([row['case'], row['what'], *figures])} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Measure, print and write the rows, or print the tables of saved rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--seconds", type=float, default=0.4, help="time of each contender after its warm-up")
    parser.add_argument("--parts", nargs="+", choices=gpu_works.PARTS, default=list(gpu_works.PARTS))
    parser.add_argument("--precisions", nargs="+", default=["bfloat16", "float32"], choices=("bfloat16", "float32"))
    parser.add_argument("--scale", type=float, default=1.0, help="factor on all sizes; below 1 to test the script")
    parser.add_argument("--threads", type=int, default=min(8, os.cpu_count() or 1), help="threads of the processor")
    parser.add_argument("--out", type=Path, help="file that JSON lines are appended to")
    parser.add_argument("--tables", type=Path, help="print the tables of this file; measure nothing")
    arguments = parser.parse_args()
    if arguments.tables:
        print(table([json.loads(line) for line in arguments.tables.read_text(encoding="utf-8").splitlines()]))
        return
    if DEVICE == "cpu" and arguments.scale == 1:
        print("nothing to measure: expected a GPU, or --scale below 1 to test the script")
        return
    faulthandler.dump_traceback_later(60 * arguments.minutes + EXIT_SECONDS, exit=True)
    deadline = time.perf_counter() + 60 * arguments.minutes
    torch.set_num_threads(arguments.threads)
    triton = None if gpu.triton is None else gpu.triton.__version__
    about = {"device": device_name(), "torch": torch.__version__, "cuda": torch.version.cuda, "triton": triton}
    about |= {"threads": arguments.threads, "processor_kernel": library.variant()}
    print(json.dumps(about), flush=True)
    rows = []
    options = arguments.parts, arguments.precisions, arguments.scale, arguments.seconds, deadline
    for row in measure_parts(*options):
        rows.append({**row, **about})
        figure = row["error"] if "error" in row else f"{row['milliseconds']:10.2f} ms {row['tokens_per_second']:12,}/s"
        print(f"{row['part']}, {row['case']}, {row['precision']}: {row['what']:28} {figure}", flush=True)
        if arguments.out:
            with arguments.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    print(table(rows))
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
