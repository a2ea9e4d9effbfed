"""Which numbers are multiplied faster here: floats, or those of bfloat16, half as long.

That a processor has instructions for bfloat16 does not mean that they are faster: on one Xeon they take twice as long.
So the work at hand is done with both, in turns, and bfloat16 is chosen where it saves a good part of the time.
"""

import time
from collections.abc import Callable

import torch

from factorcell.model.kernels import library

AUTO, SINGLE, HALF = "auto", "float32", "bfloat16"
WORTH = 1.15  # times as fast, from which on bfloat16 is chosen: less may be noise
TIMES = 3  # that both are measured; the best of each counts, as neighbours can only make it slower
LITTLE = 0.004  # seconds, of work too small to matter


def possible(device: torch.device) -> bool:
    """Whether `device` multiplies bfloat16 numbers by instructions of its own."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    return library.short()


def gain(work: Callable[[str], object], device: torch.device, clock: Callable[[], float] = time.perf_counter) -> float:
    """How many times as fast `work`, called with the name of a precision, is by bfloat16; 1 where it is not measured.

    It returns once its results are there, also those of a GPU. Seconds are those of `clock`.
    """
    if not possible(device):
        return 1.0
    for name in (SINGLE, HALF):  # the first time is slower
        work(name)
    best = {SINGLE: float("inf"), HALF: float("inf")}
    for _ in range(TIMES):
        for name in best:
            begun = clock()
            work(name)
            best[name] = min(best[name], clock() - begun)
        if best[SINGLE] < LITTLE:
            return 1.0
    return best[SINGLE] / max(best[HALF], 1e-9)


def chosen(gained: float) -> str:
    """Return the precision to use if bfloat16 is `gained` times as fast."""
    return HALF if gained >= WORTH else SINGLE


def told(gained: float) -> list[str]:
    """Describe the measurement in one line; no line if nothing was measured."""
    if gained == 1.0:
        return []
    name = chosen(gained)
    return [f"products of {name} (bfloat16 is {gained:.1f} times as fast here); --precision chooses"]
