"""Options of random size, drawn evenly: every part of each range is tried, and no two options go together by chance."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

TRIED = 1000  # draws, of which the one whose columns are least correlated is taken


def evenly(count: int, names: Sequence[str]) -> list[dict[str, float]]:
    """`count` points between 0 and 1, the same on every machine: a Latin hypercube.

    Of each name there is one number in each of `count` equal parts.
    """
    drawn = (hypercube(seed, count, len(names)) for seed in range(TRIED))
    chosen = min(drawn, key=lambda points: np.abs(np.corrcoef(points, rowvar=False) - np.eye(len(names))).max())
    return [dict(zip(names, map(float, point), strict=True)) for point in chosen]


def hypercube(seed: int, count: int, columns: int) -> NDArray[np.float64]:
    """Points of shape (count, columns)."""
    random = np.random.default_rng(seed)
    parts = np.stack([random.permutation(count) for _ in range(columns)], axis=1)
    return np.asarray((parts + random.random(parts.shape)) / count, dtype=np.float64)


def size(ends: tuple[float, float], point: float) -> float:
    """The size at a point of a range, even in its logarithm."""
    low, high = ends
    return float(low * (high / low) ** point)
