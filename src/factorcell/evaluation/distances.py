"""How far texts are from named points, by their numeric variables.

Shapes: B texts, K points, N variables.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from factorcell.model.run import Run

EARTH_RADIUS = 6371.0088  # km

Floats = NDArray[np.float64]


def distances(here: Floats, there: Floats, variables: Sequence[str], run: Run) -> Floats:
    """Distances (B, K) of texts `here` (B, N) from points `there` (K, N): km if they are latitude and longitude."""
    if [name[:3].lower() for name in variables] == ["lat", "lon"]:
        return kilometres(here, there)
    used = [run.schema.variable(name) for name in variables]
    period = np.array([variable.period or math.inf for variable in used])
    gap = np.abs(here[:, None] - there[None]) % period
    scaled: Floats = np.minimum(gap, period - gap) / np.array([variable.deviation for variable in used])
    total: Floats = np.sqrt((scaled**2).sum(-1))
    return total


def kilometres(here: Floats, there: Floats) -> Floats:
    """Great-circle distances (B, K) of places `here` (B, 2) from those `there` (K, 2), in degrees north and east."""
    a, b = np.radians(here)[:, None], np.radians(there)[None]
    half = np.sin((a - b) / 2) ** 2
    chord = half[..., 0] + np.cos(a[..., 0]) * np.cos(b[..., 0]) * half[..., 1]
    found: Floats = 2 * EARTH_RADIUS * np.arcsin(np.sqrt(np.minimum(1.0, chord)))
    return found
