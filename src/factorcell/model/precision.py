"""Choice between float32 and bfloat16 products by measurement.

Products in bfloat16 are not always faster: on one Xeon processor they take twice as long as in float32. Therefore the
work is timed in both precisions in turn, and bfloat16 is chosen if it is at least `MIN_SPEEDUP` times as fast.
"""

import time
from collections.abc import Callable

import torch

from factorcell.model.kernels import library

AUTO, FLOAT32, BFLOAT16 = "auto", "float32", "bfloat16"
MIN_SPEEDUP = 1.15  # smallest speedup for which bfloat16 is chosen; smaller differences may be noise
REPETITIONS = 3  # timings per precision; the shortest counts, because other processes can only add time
MAX_SECONDS = 5.0  # longer work in float32 is timed once, because interruptions are short compared with it
MIN_SECONDS = 0.004  # work that takes less time in float32 is not timed further and runs in float32


def is_supported(device: torch.device) -> bool:
    """Return whether `device` has instructions for bfloat16 products."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    return library.has_bfloat16()


def measure_speedup(
    work: Callable[[str], object], device: torch.device, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return the time of `work` in float32 divided by its time in bfloat16, or 1 if the times are not measured.

    Args:
        work: Called with the name of a precision; must return only when its results are computed, on a GPU too.
        device: The device on which `work` computes.
        clock: Returns the time in seconds.
    """
    if not is_supported(device):
        return 1.0
    for precision in (FLOAT32, BFLOAT16):  # the first call is slower, so it is not timed
        work(precision)
    shortest_times = {FLOAT32: float("inf"), BFLOAT16: float("inf")}
    for _ in range(REPETITIONS):
        for precision in shortest_times:
            start = clock()
            work(precision)
            shortest_times[precision] = min(shortest_times[precision], clock() - start)
        if shortest_times[FLOAT32] < MIN_SECONDS:
            return 1.0
        if shortest_times[FLOAT32] > MAX_SECONDS:
            break
    return shortest_times[FLOAT32] / max(shortest_times[BFLOAT16], 1e-9)


def choose_precision(speedup: float) -> str:
    """Return the precision to use if bfloat16 is `speedup` times as fast."""
    return BFLOAT16 if speedup >= MIN_SPEEDUP else FLOAT32


def describe_speedup(speedup: float) -> list[str]:
    """Name the chosen precision in one line; return no line if the speedup was not measured."""
    if speedup == 1.0:
        return []
    # The factor is not shown, because it varies with the load of the machine.
    return [f"products are computed in {choose_precision(speedup)}, the faster format when tried; --precision sets it"]
