"""The linear baseline of a run, and its log-linear combination with the language model.

The linear baseline is a logistic regression on hashed n-grams (`baselines.LinearClassifier`) that is trained on the
training table of the run. The combination is a logistic regression on three log probabilities:

    p(v | text, o) ~ p(text | v, o)^a  p(v | o)^b  q(v | text)^c

p(text | v, o) is the likelihood of the language model for value v and the other context values o, p(v | o) the prior,
and q(v | text) the posterior of the linear baseline. The weights a, b and c minimize the nats of the true values of
development texts, with the penalty (a^2 + b^2 + c^2) / 2.

Shapes: B texts, K candidates.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from factorcell.config import UserError
from factorcell.data.corpus import Corpus
from factorcell.data.tables import table_name
from factorcell.evaluation.baselines import LinearClassifier, with_only_target
from factorcell.evaluation.bayes_rule import normalize
from factorcell.model.run import Run, training_facts

Floats = NDArray[np.float64]


def relative_path(source: Any, folder: Path) -> str | None:
    """Return the path of a training table relative to the folder of a run; None for tables in memory."""
    if not isinstance(source, (str, Path)):
        return None
    try:
        return os.path.relpath(Path(source).resolve(), folder.resolve())
    except ValueError:  # Windows: the two are on different drives
        return str(Path(source).resolve())


def training_table(run: Run) -> Path | None:
    """Return the training table of a run; None if the run did not record a file, or the file does not exist."""
    recorded_path = training_facts(run.folder).get("path")
    path = run.folder / recorded_path if isinstance(recorded_path, str) else None
    return path.resolve() if path is not None and path.exists() else None


def fit_linear_baseline(run: Run, train: Any, target: str, progress: bool = False) -> LinearClassifier:
    """Train the linear baseline on a table, with the vocabulary and the values of a run.

    Raises:
        UserError: Fewer than two values of the target occur in the table.
    """
    others = tuple(other.name for other in run.schema.variables if other.name != target)
    corpus = run.prepare(train, unknown="group", optional=others, progress=progress, report_counts=False)
    labelled = with_only_target(corpus, target)
    if len(np.unique(labelled.categories[labelled.categories > 0])) < 2:
        raise UserError(f"{table_name(train)}: expected texts with at least two values of {target}, got fewer")
    return LinearClassifier(labelled, progress=progress)


def linear_log_posterior(classifier: LinearClassifier, corpus: Corpus, target: str, names: tuple[str, ...]) -> Floats:
    """Return log q(candidate | text) (B, K) for the candidates `names`."""
    result = classifier(with_only_target(corpus, target))
    return normalize(result.log_posterior[:, [result.names.index(name) for name in names]])


@dataclass(frozen=True)
class CombinationWeights:
    """The exponents of the three probabilities: `likelihood` (a), `prior` (b) and `linear` (c)."""

    likelihood: float
    prior: float
    linear: float

    @classmethod
    def fit(cls, log_probs: Floats, truth: NDArray[np.int64]) -> "CombinationWeights":
        """Fit the weights to the log probabilities (3, B, K) of texts with the true candidates `truth` (B,)."""
        features, labels = torch.from_numpy(np.moveaxis(log_probs, 0, -1)), torch.from_numpy(truth)
        weights = torch.full((len(log_probs),), 1 / len(log_probs), dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.LBFGS([weights], max_iter=200, tolerance_change=1e-12, line_search_fn="strong_wolfe")

        def mean_loss() -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(features @ weights, labels) + weights.square().sum() / (2 * len(labels))
            torch.autograd.backward(loss)
            return loss

        with torch.enable_grad():
            optimizer.step(mean_loss)  # type: ignore[no-untyped-call]
        return cls(*weights.tolist())

    def combine(self, log_probs: Floats) -> Floats:
        """Return the log posterior (B, K) from the three log probabilities (3, B, K)."""
        return normalize(np.tensordot([self.likelihood, self.prior, self.linear], log_probs, axes=1))
