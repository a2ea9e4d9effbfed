"""Weights under which the best hypotheses of n-best lists are most likely.

    sum_u log p(best of u),    p(h) = exp(w . x(h)) / sum_h' exp(w . x(h'))

This is concave in w; it is maximized by Newton's method.

Shapes: U utterances, H hypotheses of the longest list (shorter ones are padded with copies of their first), F features.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]

ROUNDS = 50
RIDGE = 1e-3  # of weights in standard deviations, so that perfectly separated lists have a maximum too


def padded(lists: Sequence[NDArray[np.generic]]) -> NDArray[np.generic]:
    """Return lists (H_u, ...) as one array (U, H, ...), padded with copies of their first rows."""
    longest = max(len(one) for one in lists)
    return np.stack([np.concatenate([one, np.repeat(one[:1], longest - len(one), axis=0)]) for one in lists])


def deviations(features: Floats) -> Floats:
    """Return the standard deviation of each feature (F,) within lists; 1 if it does not vary."""
    spread: Floats = np.sqrt(features.var(axis=1).mean(axis=0))
    return np.where(spread > 0, spread, 1.0)


def log_shares(features: Floats, real: NDArray[np.bool_], weights: Floats) -> Floats:
    """Return log p (U, H) of each hypothesis among the `real` ones (U, H) of its list, -infinity for the others."""
    totals = np.where(real, features @ weights, -np.inf)
    totals = totals - totals.max(axis=1, keepdims=True)
    shares: Floats = totals - np.log(np.exp(totals).sum(axis=1, keepdims=True))
    return shares


def likeliest(features: Floats, real: NDArray[np.bool_], errors: Ids) -> tuple[Floats, float]:
    """Return weights (F,) that make the hypotheses with fewest errors most likely, and their log p in nats per list.

    If several have the fewest, the mean of their log p counts, which keeps the sum concave.
    """
    scale = deviations(features)
    scaled = features / scale
    fewest = np.where(real, errors, np.iinfo(np.int64).max).min(axis=1, keepdims=True)
    wanted = (errors == fewest) & real
    wanted = wanted / wanted.sum(axis=1, keepdims=True)
    target = np.einsum("uh,uhf->uf", wanted, scaled)

    def value(weights: Floats) -> float:
        shares = np.where(wanted > 0, log_shares(scaled, real, weights), 0.0)
        return float((wanted * shares).sum() / len(scaled) - RIDGE / 2 * weights @ weights)

    weights = np.zeros(scaled.shape[2])
    now = value(weights)
    for _ in range(ROUNDS):
        shares = np.exp(log_shares(scaled, real, weights))
        mean = np.einsum("uh,uhf->uf", shares, scaled)
        slope = (target - mean).mean(axis=0) - RIDGE * weights
        centred = scaled - mean[:, None]
        bend = np.einsum("uh,uhf,uhg->fg", shares, centred, centred) / len(scaled) + RIDGE * np.eye(len(weights))
        step, length = np.linalg.solve(bend, slope), 1.0
        while value(weights + length * step) < now and length > 1e-9:
            length /= 2
        weights, before, now = weights + length * step, now, value(weights + length * step)
        if now - before < 1e-12:
            break
    return weights / scale, now
