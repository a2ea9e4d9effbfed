"""Choice between float32 and bfloat16 products by measurement.

bfloat16 instructions are not always faster: on one Xeon they take twice as long as float32. The work at hand is
therefore timed with both precisions in turns, and bfloat16 is chosen if it is faster by a clear margin.
"""

import time
from collections.abc import Callable

import torch

from factorcell.model.kernels import library

AUTO, FLOAT32, BFLOAT16 = "auto", "float32", "bfloat16"
MIN_SPEEDUP = 1.15  # from which bfloat16 is chosen: smaller differences may be noise
REPETITIONS = 3  # of each timing; the shortest counts, because other processes can only add time
MIN_SECONDS = 0.004  # shorter work is not worth a choice


def is_supported(device: torch.device) -> bool:
    """Return whether `device` has instructions for bfloat16 products."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    return library.has_bfloat16()


def measure_speedup(
    work: Callable[[str], object], device: torch.device, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return the time of `work` in float32 divided by its time in bfloat16, or 1 if it is not measured.

    Args:
        work: Called with the name of a precision; must return only when its results are computed, on a GPU too.
        device: Where `work` computes.
        clock: Returns seconds.
    """
    if not is_supported(device):
        return 1.0
    for name in (FLOAT32, BFLOAT16):  # the first call is slower
        work(name)
    best = {FLOAT32: float("inf"), BFLOAT16: float("inf")}
    for _ in range(REPETITIONS):
        for name in best:
            start = clock()
            work(name)
            best[name] = min(best[name], clock() - start)
        if best[FLOAT32] < MIN_SECONDS:
            return 1.0
    return best[FLOAT32] / max(best[BFLOAT16], 1e-9)


def choose_precision(speedup: float) -> str:
    """Return the precision to use if bfloat16 is `speedup` times as fast."""
    return BFLOAT16 if speedup >= MIN_SPEEDUP else FLOAT32


def describe_speedup(speedup: float) -> list[str]:
    """Describe the measurement in one line; return no line if nothing was measured."""
    if speedup == 1.0:
        return []
    name = choose_precision(speedup)
    return [f"products of {name} (bfloat16 is {speedup:.1f} times as fast here); use --precision to choose"]
