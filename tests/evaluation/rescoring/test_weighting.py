"""Fitted weights of n-best lists against a slow objective."""

import numpy as np
import pytest
from numpy.typing import NDArray

from factorcell.evaluation.rescoring.rescore import RIDGE, deviations, maximize_likelihood, pad_lists

Floats = NDArray[np.float64]


def make_lists(
    seed: int, utterances: int = 12, hypotheses: int = 6, features: int = 3
) -> tuple[Floats, NDArray[np.int64]]:
    """Return random features, rounded so that some are equal, and errors that correlate with the first feature."""
    random = np.random.default_rng(seed)
    values = random.normal(size=(utterances, hypotheses, features)).round(1)
    errors = np.maximum(0, np.round(2 - values[..., 0] + random.normal(0, 0.7, (utterances, hypotheses))))
    return values, errors.astype(np.int64)


def test_shorter_lists_are_padded_with_their_first_row() -> None:
    lists = [np.arange(6.0).reshape(3, 2), np.array([[7.0, 8.0]])]
    padded = pad_lists(lists)
    assert padded.shape == (2, 3, 2)
    assert padded[1].tolist() == [[7.0, 8.0]] * 3


def objective(features: Floats, is_real: NDArray[np.bool_], errors: NDArray[np.int64], weights: Floats) -> float:
    """Return the mean log p of the best hypotheses of each list, minus the ridge penalty, list by list."""
    total = 0.0
    for u in range(len(features)):
        indices = [h for h in range(features.shape[1]) if is_real[u, h]]
        logs = features[u, indices] @ weights
        logs = logs - np.log(np.exp(logs).sum())
        best = [k for k, h in enumerate(indices) if errors[u, h] == min(errors[u, indices])]
        total += float(np.mean(logs[best]))
    scaled = weights * deviations(features)
    return total / len(features) - RIDGE / 2 * float(scaled @ scaled)


def test_the_likelihood_has_its_maximum_at_the_fitted_weights() -> None:
    features, errors = make_lists(3, utterances=30)
    is_real = np.ones(errors.shape, dtype=bool)
    is_real[::3, 4:] = False
    weights, value = maximize_likelihood(features, is_real, errors)
    assert value == pytest.approx(objective(features, is_real, errors, weights))
    for direction in (*np.eye(3), *np.random.default_rng(0).normal(size=(5, 3))):
        for size in (-0.05, 0.05, -1.0, 1.0):
            assert objective(features, is_real, errors, weights + size * direction) < value


def test_perfectly_separated_lists_have_finite_weights() -> None:
    features = np.array([[[5.0], [0.0]], [[3.0], [-3.0]]])
    weights, _ = maximize_likelihood(features, np.ones((2, 2), dtype=bool), np.array([[0, 1], [0, 2]]))
    assert 0 < weights[0] < 100
