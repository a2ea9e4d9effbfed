"""How far the probabilities of values can be believed, and the one number that mends them.

    p(value | text) ~ p(text | value) ** (1 / T) p(value)

A model of texts takes each word as evidence of its own, so Bayes' rule over it is mostly too sure: a temperature T
above 1 takes that back (Guo et al. 2017). The prior is no word of the text and stays as it is, so that it counts for
more where T is high. Where all values have the same prior no order of values changes, so no accuracy.

The calibration error is expected |accuracy - confidence|, over bins of the probability of the value that is predicted.

Shapes: B texts, K values.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

BINS = 15  # of the confidence, of equal width (Guo et al. 2017)
COLDEST, HOTTEST = 0.01, 100.0  # temperatures that are looked at
HALVINGS = 60


def calibration_error(probabilities: Floats, truth: NDArray[np.int64]) -> float:
    """The expected calibration error of `probabilities` (B, K), whose true values are `truth` (B,); NaN of no text."""
    if not len(truth):
        return float("nan")
    confidence, right = probabilities.max(1), probabilities.argmax(1) == truth
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    gaps = np.bincount(bins, right, BINS) - np.bincount(bins, confidence, BINS)  # times the texts of each bin
    return float(np.abs(gaps).sum() / len(truth))


def value_nats(log_posterior: Floats, truth: NDArray[np.int64]) -> float:
    """The mean nats of the true values `truth` (B,) under `log_posterior` (B, K); NaN of no text."""
    return float(-log_posterior[np.arange(len(truth)), truth].mean()) if len(truth) else float("nan")


def tempered(log_posterior: Floats, temperature: float, log_prior: Floats | None = None) -> Floats:
    """`log_posterior` (B, K) with the evidence of the texts at a temperature, and the priors (K,) as they are.

    Without priors all values have the same one.
    """
    prior = _finite(log_prior)
    flat = (log_posterior - prior) / temperature + prior
    top = flat.max(1, keepdims=True)
    return np.asarray(flat - top - np.log(np.exp(flat - top).sum(1, keepdims=True)))


def fit_temperature(log_posterior: Floats, truth: NDArray[np.int64], log_prior: Floats | None = None) -> float:
    """The temperature at which the true values `truth` (B,) have the fewest nats, from `COLDEST` to `HOTTEST`.

    Nats are convex in 1 / T; where their slope, the mean of all values' evidence less that for the true one, is zero is
    found by halving. 1 of no text.
    """
    if not len(truth):
        return 1.0
    evidence = log_posterior - _finite(log_prior)
    own = evidence[np.arange(len(truth)), truth]
    known = np.where(np.isneginf(evidence), 0.0, evidence)  # a value that cannot be has no share in the mean

    def slope(inverse: float) -> float:
        shares = np.exp(tempered(log_posterior, 1 / inverse, log_prior))
        return float(((shares * known).sum(1) - own).mean())

    low, high = 1 / HOTTEST, 1 / COLDEST
    for _ in range(HALVINGS):
        middle = np.sqrt(low * high)
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return float(1 / np.sqrt(low * high))


def _finite(log_prior: Floats | None) -> Floats:
    """Priors to divide by: 1 for a value that cannot be, whose posterior says so already."""
    return np.zeros(1) if log_prior is None else np.where(np.isneginf(log_prior), 0.0, log_prior)
