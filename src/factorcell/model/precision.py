"""Which numbers are multiplied faster here: floats, or those of bfloat16, half as long.

That a processor has instructions for bfloat16 does not mean that they are faster: on one Xeon they take twice as long.
So the work at hand is done with both, in turns, and bfloat16 is chosen where it saves a good part of the time.
"""

import time
from collections.abc import Callable

import torch

from factorcell.model.kernels import library

AUTO, FLOAT32, BFLOAT16 = "auto", "float32", "bfloat16"
WORTH = 1.15  # times as fast, from which on bfloat16 is chosen: less may be noise
TIMES = 3  # that both are measured; the best of each counts, as neighbours can only make it slower
LITTLE = 0.004  # seconds, of work too small to matter


def is_supported(device: torch.device) -> bool:
    """Whether `device` multiplies bfloat16 numbers by instructions of its own."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    return library.has_bfloat16()


def measure_speedup(
    work: Callable[[str], object], device: torch.device, clock: Callable[[], float] = time.perf_counter
) -> float:
    """How many times as fast `work`, called with the name of a precision, is by bfloat16; 1 where it is not measured.

    It returns once its results are there, also those of a GPU. Seconds are those of `clock`.
    """
    if not is_supported(device):
        return 1.0
    for name in (FLOAT32, BFLOAT16):  # the first time is slower
        work(name)
    best = {FLOAT32: float("inf"), BFLOAT16: float("inf")}
    for _ in range(TIMES):
        for name in best:
            begun = clock()
            work(name)
            best[name] = min(best[name], clock() - begun)
        if best[FLOAT32] < LITTLE:
            return 1.0
    return best[FLOAT32] / max(best[BFLOAT16], 1e-9)


def choose_precision(gained: float) -> str:
    """Return the precision to use if bfloat16 is `gained` times as fast."""
    return BFLOAT16 if gained >= WORTH else FLOAT32


def describe_speedup(gained: float) -> list[str]:
    """Describe the measurement in one line; no line if nothing was measured."""
    if gained == 1.0:
        return []
    name = choose_precision(gained)
    return [f"products of {name} (bfloat16 is {gained:.1f} times as fast here); --precision chooses"]
