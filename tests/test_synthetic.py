"""The exact perplexity of the synthetic dialects, compared with brute force and with samples."""

import itertools
import math

import numpy as np
import pytest

from tests.synthetic import NAMES, Dialects, dialects, two_dialects


def tiny() -> Dialects:
    """Return two dialects of two words and short texts, so that nearly all texts can be enumerated."""
    start = np.array([[0.7, 0.3], [0.1, 0.9]])
    moves = np.array([[[0.2, 0.1, 0.7], [0.3, 0.0, 0.7]], [[0.0, 0.4, 0.6], [0.1, 0.1, 0.8]]])
    return Dialects(("a", "b"), NAMES, start, moves)


def ratio_and_error(chains: Dialects, rows: list[dict[str, str]]) -> tuple[float, float]:
    """Return the nats per target of a sample, and the standard error of this ratio."""
    nats = np.array([chains.nats(row["text"])[chains.names.index(row["dialect"])] for row in rows])
    targets = np.array([len(row["text"].split()) + 1 for row in rows])
    ratio = nats.sum() / targets.sum()
    error = math.sqrt(float(((nats - ratio * targets) ** 2).sum())) / float(targets.sum())
    return float(ratio), error


def test_the_expectation_equals_the_sum_over_all_texts() -> None:
    chains = tiny()
    mass, nats, targets = np.zeros(2), np.zeros(2), np.zeros(2)
    for length in range(1, 14):
        for words in itertools.product("ab", repeat=length):
            cost = chains.nats(" ".join(words))
            probability = np.exp(-cost)
            mass += probability
            nats += probability * np.where(probability > 0, cost, 0)
            targets += probability * (length + 1)
    np.testing.assert_allclose(mass, 1, atol=1e-6)
    np.testing.assert_allclose(chains.expectation(), (nats, targets), atol=2e-5)
    assert chains.perplexity() == pytest.approx(math.exp(nats.sum() / targets.sum()), abs=1e-4)


def test_the_sample_mean_approaches_the_true_perplexity() -> None:
    chains = dialects()
    rows, perplexity = two_dialects(6000, seed=1)
    ratio, error = ratio_and_error(chains, rows)
    assert error < 0.01
    assert abs(ratio - math.log(perplexity)) < 4 * error
    # The sample is large enough to detect errors: a missing end token, or swapped dialects.
    nats, targets = chains.expectation()
    assert abs(ratio - nats.sum() / (targets - 1).sum()) > 4 * error
    swapped = Dialects(chains.words, NAMES, chains.start[::-1], chains.moves[::-1])
    assert ratio_and_error(swapped, rows)[0] - ratio > 4 * error
