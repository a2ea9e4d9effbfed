"""Weights under which the right hypotheses of n-best lists come first; total(h) = w . x(h), the largest is chosen.

Fewest errors  E(w) = sum_u errors of the first of the largest totals of u. Along a line w + t d each hypothesis is a
               straight line in t, the chosen ones are the upper envelope, and E is constant between its corners, so the
               minimum along a line is found exactly (Och 2003, section 5). Lines are along the features and random,
               starts are the specified ones and random ones (Powell's method without change of directions).
Most likely    sum_u log p(best of u), p(h) = exp(w . x(h)) / sum_h' exp(w . x(h')): concave, by Newton's method.

Shapes: U utterances, H hypotheses of the longest list (shorter ones are padded with copies of their first, which
cannot change what is chosen), F features, K corners.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from factorcell.progress import progress_bar

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]

STARTS = 8  # random starts
LINES = 6  # random lines of each round
ROUNDS = 50
RIDGE = 1e-3  # of weights in standard deviations, so that perfectly separated lists have a maximum too


def padded(lists: Sequence[NDArray[np.generic]]) -> NDArray[np.generic]:
    """Return lists (H_u, ...) as one array (U, H, ...), padded with copies of their first rows."""
    longest = max(len(one) for one in lists)
    return np.stack([np.concatenate([one, np.repeat(one[:1], longest - len(one), axis=0)]) for one in lists])


def errors_at(features: Floats, errors: Ids, weights: Floats) -> int:
    """Return the `errors` (U, H) of the hypotheses that `weights` (F,) choose by their `features` (U, H, F)."""
    places = (features @ weights).argmax(axis=1)
    return int(np.take_along_axis(errors, places[:, None], 1).sum())


def corners(heights: Floats, slopes: Floats, errors: Ids) -> tuple[Floats, Ids]:
    """Return where the errors of the upper envelopes of heights + t slopes (U, H) change, t (K,), and errors (K + 1,).

    All envelopes are followed together from t = -infinity; a step goes to the crossing with the next steeper line.
    """
    rows = np.arange(len(heights))
    flattest = slopes == slopes.min(axis=1, keepdims=True)
    now = np.where(flattest, heights, -np.inf).argmax(axis=1)
    base, moves, changes = int(errors[rows, now].sum()), [np.zeros(0)], [np.zeros(0, np.int64)]
    while len(rows):
        here, lift = heights[rows], slopes[rows] - slopes[rows, now][:, None]
        above = here[np.arange(len(rows)), now][:, None] - here
        meets = np.divide(above, lift, out=np.full_like(above, np.inf), where=lift > 0)
        first, after = meets.min(axis=1), meets.argmin(axis=1)
        going = np.isfinite(first)
        rows, before, now, first = rows[going], now[going], after[going], first[going]
        moves.append(first)
        changes.append(errors[rows, now] - errors[rows, before])
    places, where = np.unique(np.concatenate(moves), return_inverse=True)
    change = np.bincount(where, np.concatenate(changes), len(places)).astype(np.int64)
    kept = change != 0
    return places[kept], base + np.concatenate([[0], np.cumsum(change[kept])])


def best_step(heights: Floats, slopes: Floats, errors: Ids) -> tuple[float, int]:
    """Return the t with the fewest errors along lines heights + t slopes, and their number.

    It is the middle of the widest such part; an unbounded part reaches as far beyond its corner as the corners span.
    """
    places, totals = corners(heights, slopes, errors)
    if not len(places):
        return 0.0, int(totals[0])
    reach = max(1e-6, float(places[-1] - places[0]), float(np.abs(places).max()) * 1e-3)
    ends = np.concatenate([[places[0] - reach], places, [places[-1] + reach]])
    widths = np.where(totals == totals.min(), np.diff(ends), -1.0)
    part = int(widths.argmax())
    return float(ends[part] + ends[part + 1]) / 2, int(totals[part])


def fewest_errors(
    features: Floats, errors: Ids, starts: Sequence[Floats], seed: int = 0, progress: bool = False
) -> tuple[Floats, int]:
    """Return the best weights (F,) that line searches from `starts` and random ones reach, and their errors.

    Earlier starts win ties. Features that do not vary within lists have weight 0.
    """
    random = np.random.default_rng(seed)
    scale = deviations(features)
    scaled, count = features / scale, features.shape[2]
    points = [start * scale for start in starts] + list(random.normal(size=(STARTS, count)))
    best, fewest = points[0], errors_at(scaled, errors, points[0])
    for point in progress_bar(points, desc="fitting", unit="starts", show=progress):
        reached, count_reached = _descend(scaled, errors, point, random)
        if count_reached < fewest:
            best, fewest = reached, count_reached
    return best / scale * (features.var(axis=1).max(axis=0) > 0), fewest


def _descend(features: Floats, errors: Ids, weights: Floats, random: np.random.Generator) -> tuple[Floats, int]:
    """Search along lines in rounds, until a round does not reduce the errors."""
    count = len(weights)
    fewest = errors_at(features, errors, weights)
    for _ in range(ROUNDS):
        before = fewest
        for direction in (*np.eye(count), *random.normal(size=(LINES, count))):
            step, fewer = best_step(features @ weights, features @ direction, errors)
            moved = weights + step * direction
            if fewer < fewest and errors_at(features, errors, moved) < fewest:  # rounding may separate equal totals
                weights, fewest = moved, errors_at(features, errors, moved)
        if fewest == before:
            break
    return weights, fewest


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


def share(first: Floats, second: Floats) -> float:
    """Return the s that maximizes sum log((1 - s) exp(first) + s exp(second)), both (U,)."""
    top = np.maximum(first, second)
    one, two = np.exp(first - top), np.exp(second - top)
    low, high = 0.0, 1.0
    for _ in range(60):  # the slope falls with s
        middle = (low + high) / 2
        rises = ((two - one) / ((1 - middle) * one + middle * two)).sum() > 0
        low, high = (middle, high) if rises else (low, middle)
    return (low + high) / 2
