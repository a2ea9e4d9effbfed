"""Fit the weights under which the best hypotheses of n-best lists are most likely.

    maximize  1/U sum_u log p(best hypotheses of u) - RIDGE / 2 |w|^2,    p(h) = exp(w . x(h)) / sum_h' exp(w . x(h'))

x(h) (F,) are the features of hypothesis h, scaled to unit standard deviation, and w (F,) are the weights. The best
hypotheses of an utterance u are those with the fewest word errors. The objective is concave in w; Newton's method
maximizes it.

Shapes: U utterances, H hypotheses of the longest list (shorter lists are padded with copies of their first hypothesis),
F features.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]

MAX_STEPS = 50  # of Newton's method
RIDGE = 1e-3  # penalty on the scaled weights, which keeps them finite for perfectly separated lists


def pad_lists(lists: Sequence[NDArray[np.generic]]) -> NDArray[np.generic]:
    """Stack U arrays (H_u, ...) as one array (U, H, ...); shorter ones are padded with copies of their first row."""
    longest = max(map(len, lists))
    return np.stack([np.concatenate([rows, np.repeat(rows[:1], longest - len(rows), axis=0)]) for rows in lists])


def deviations(features: Floats) -> Floats:
    """Return the standard deviation (F,) of each feature within lists, or 1 for a constant feature.

    `features` (U, H, F) are the features of all hypotheses.
    """
    result: Floats = np.sqrt(features.var(axis=1).mean(axis=0))
    return np.where(result > 0, result, 1.0)


def list_log_probs(features: Floats, is_real: NDArray[np.bool_], weights: Floats) -> Floats:
    """Return log p (U, H) of each hypothesis within its list.

    `is_real` (U, H) is false for padding, for which log p is minus infinity.
    """
    totals = np.where(is_real, features @ weights, -np.inf)
    totals = totals - totals.max(axis=1, keepdims=True)
    log_probs: Floats = totals - np.log(np.exp(totals).sum(axis=1, keepdims=True))
    return log_probs


def maximize_likelihood(features: Floats, is_real: NDArray[np.bool_], errors: Ids) -> tuple[Floats, float]:
    """Return the weights (F,) that make the best hypotheses of each list most likely, and their objective in nats.

    `errors` (U, H) are the word errors. If several hypotheses of a list have the fewest errors, the mean of their log p
    is maximized, which is concave.
    """
    scales = deviations(features)
    scaled_features = features / scales
    fewest_errors = np.where(is_real, errors, np.iinfo(np.int64).max).min(axis=1, keepdims=True)
    is_best = (errors == fewest_errors) & is_real
    shares = is_best / is_best.sum(axis=1, keepdims=True)  # (U, H): equal for the best hypotheses of a list, else 0
    mean_features_of_best = np.einsum("uh,uhf->uf", shares, scaled_features)

    def objective(weights: Floats) -> float:
        log_probs = np.where(shares > 0, list_log_probs(scaled_features, is_real, weights), 0.0)
        return float((shares * log_probs).sum() / len(scaled_features) - RIDGE / 2 * weights @ weights)

    weights = np.zeros(scaled_features.shape[2])
    value = objective(weights)
    for _ in range(MAX_STEPS):
        probabilities = np.exp(list_log_probs(scaled_features, is_real, weights))
        mean_features = np.einsum("uh,uhf->uf", probabilities, scaled_features)
        gradient = (mean_features_of_best - mean_features).mean(axis=0) - RIDGE * weights
        centred_features = scaled_features - mean_features[:, None]
        hessian = np.einsum("uh,uhf,uhg->fg", probabilities, centred_features, centred_features) / len(scaled_features)
        hessian += RIDGE * np.eye(len(weights))
        step = np.linalg.solve(hessian, gradient)
        step_share = 1.0  # halved until the step does not lower the objective
        while objective(weights + step_share * step) < value and step_share > 1e-9:
            step_share /= 2
        weights = weights + step_share * step
        previous_value, value = value, objective(weights)
        if value - previous_value < 1e-12:
            break
    return weights / scales, value
