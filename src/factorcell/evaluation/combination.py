"""The linear baselines of a run, and their log-linear combination with the language model.

A linear baseline is a `LinearClassifier` that reads the texts and the other columns. Training fits one for each
category that can be a target. The combination is a logistic regression on log probabilities:

    p(v | text, o) ~ p(text | v, o)^(a / T)  p(v | o)^b  q(v | text, o)^c

p(text | v, o) is the likelihood of the language model for value v and the other context values o, T its temperature,
p(v | o) the prior, and q(v | text, o) the posterior of the linear baseline. T, and then the weights a, b and c,
minimize the nats of the true values of development texts, with the penalty (a^2 + b^2 + c^2) / 2. A uniform prior has
no weight.

Shapes: B texts, K candidates, M log probabilities.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from factorcell.data.columns.schema import ContextSchema
from factorcell.data.corpus import Corpus
from factorcell.evaluation import linear_classifier
from factorcell.evaluation.bayes_rule import normalize, value_nats
from factorcell.evaluation.linear_classifier import LinearClassifier, possible_targets
from factorcell.runs.run import Run

FILE = "linear.safetensors"

Floats = NDArray[np.float64]


def save_baselines(run: Run, train: Corpus, max_cost: float = np.inf) -> None:
    """Fit the linear baselines of a run, and save them in the run folder."""
    min_users = run.config.training.min_users
    baselines = {
        target: LinearClassifier.fit(train, target, min_users=min_users, max_cost=max_cost)
        for target in possible_targets(run)
    }
    linear_classifier.save(run.folder / FILE, baselines)


def load_baselines(folder: Path, schema: ContextSchema) -> dict[str, LinearClassifier]:
    """Read the linear baselines of a run folder by target."""
    return linear_classifier.load(folder / FILE, schema)


def missing_baseline(run: Run, target: str) -> str:
    """Return why a run has no linear baseline of a target, and how to get one."""
    size = len(run.schema.variable(target).values) - 1
    remedy = "train the run again, which fits it"
    if target not in possible_targets(run):
        remedy = (
            f"`factorcell baseline linear` trains one; training does for 2 to {linear_classifier.MAX_VALUES} values"
        )
    return f"{run.folder}: no linear baseline of {target} ({size:,} values); {remedy}"


def fit_combination(log_probs: Mapping[str, Floats], truth: NDArray[np.int64]) -> dict[str, float]:
    """Return the weight of each log probability (B, K) of texts with the true candidates `truth` (B,)."""
    from scipy.optimize import minimize

    arrays = np.stack(list(log_probs.values()), axis=-1)  # (B, K, M)

    def loss(weights: Floats) -> float:
        return value_nats(normalize(arrays @ weights), truth) + float(weights @ weights) / (2 * len(truth))

    result = minimize(loss, np.full(len(log_probs), 1 / len(log_probs)), tol=1e-8)
    return dict(zip(log_probs, result.x.tolist(), strict=True))


def weighted_posterior(weights: Mapping[str, float], log_probs: Mapping[str, Floats]) -> Floats:
    """Return the log posterior (B, K) that is proportional to the weighted sum of log probabilities (B, K)."""
    return normalize(sum((weight * log_probs[name] for name, weight in weights.items()), np.zeros(1)))
