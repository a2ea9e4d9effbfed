"""Weights of a linear mixture, p(token) = sum_k w_k p_k(token), that maximize the likelihood of targets.

Expectation maximization (EM) fits them, with a prior that keeps the weights of few targets near other weights:

    r_nk = w_k p_k(n) / sum_j w_j p_j(n)        w_k <- (sum_n r_nk + prior_k) / (N + sum_j prior_j)

w_k is the weight of model k, p_k(n) the probability of target n in model k, r_nk the share of model k in the mixture's
probability of target n, and prior_k the number of targets that the prior adds for model k.
No iteration of EM decreases the posterior probability of the weights. The logarithm of this probability is concave, so
it has a single maximum.

Shapes: N targets, M models, G groups of targets.
"""

import numpy as np
from numpy.typing import NDArray

PRIOR_TARGETS = 100.0  # sum of prior_k: for the weights of a part of the targets, all targets count as much as 100
MAX_ITERATIONS = 10_000  # of EM
MIN_IMPROVEMENT = 1e-7  # nats per target; EM ends after an iteration that improves the log posterior by less

Array = NDArray[np.float64]


def fit_weights_by_group(nats: Array, groups: NDArray[np.int64], group_count: int) -> Array:
    """Return the weights (G, M) of each group of targets, kept near the weights of all targets by a prior.

    Args:
        nats: The nats of each target in each model (N, M).
        groups: The group of each target (N,).
        group_count: The number of groups, G. The weights of a group without targets are those of all targets.
    """
    prior = PRIOR_TARGETS * fit_weights(nats)
    return np.stack([fit_weights(nats[groups == group], prior) for group in range(group_count)])


def fit_weights(nats: Array, prior: Array | None = None) -> Array:
    """Return the weights (M,) that maximize the likelihood of N targets.

    Args:
        nats: The nats of each target in each model (N, M).
        prior: The number of targets that are added for each model (M,). If there are neither targets nor a prior, all
            weights are equal.
    """
    target_count, model_count = nats.shape
    prior = np.zeros(model_count) if prior is None else prior
    total = target_count + prior.sum()
    weights = np.full(model_count, 1 / model_count)
    # The likelihoods of each target are scaled to a maximum of 1; the weights do not depend on the scale.
    likelihoods = np.exp(nats.min(axis=1, keepdims=True) - nats)
    has_prior = prior > 0  # excludes 0 log 0 from the sum below
    previous_objective = -np.inf
    for _ in range(MAX_ITERATIONS if total else 0):
        joint = likelihoods * weights
        mixed = joint.sum(axis=1, keepdims=True)
        log_prior = (prior[has_prior] * np.log(weights[has_prior])).sum()
        objective = (np.log(mixed).sum() + log_prior) / total
        if objective - previous_objective < MIN_IMPROVEMENT:
            break
        shares = joint / mixed  # r_nk
        previous_objective, weights = objective, (shares.sum(axis=0) + prior) / total
    normalized: Array = weights / weights.sum()
    return normalized
