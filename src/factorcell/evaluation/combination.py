"""The linear baseline of a run, and its log-linear combination with the language model.

The linear baseline is a logistic regression (`baselines.LinearClassifier`) that is trained on the training table of the
run. It reads those columns of the run that both tables have. The combination is a logistic regression on log
probabilities:

    p(v | text, o) ~ p(text | v, o)^a  p(v | o)^b  q(v | text, o)^c

p(text | v, o) is the likelihood of the language model for value v and the other context values o, p(v | o) the prior,
and q(v | text, o) the posterior of the linear baseline. The weights a, b and c minimize the nats of the true values of
development texts, with the penalty (a^2 + b^2 + c^2) / 2. A uniform prior has no weight.

Shapes: B texts, K candidates.
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from factorcell.config import UserError
from factorcell.data.corpus import Corpus
from factorcell.data.tables import open_table, table_name
from factorcell.evaluation.baselines import LinearClassifier
from factorcell.evaluation.bayes_rule import normalize
from factorcell.evaluation.linear_features import select_variables
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


@dataclass(frozen=True)
class LinearBaseline:
    """A linear classifier that reads the texts and the other context columns of a run."""

    classifier: LinearClassifier

    @classmethod
    def fit(cls, run: Run, train: Any, target: str, columns: Collection[str]) -> "LinearBaseline":
        """Train the classifier on a table, with the vocabulary and the values of a run.

        It reads the context columns of the run that are in `columns` and in the table, without that of the target.
        Rare values are read as in training.

        Raises:
            UserError: Fewer than two values of the target occur in the table.
        """
        columns = set(columns).intersection(open_table(train).columns)
        others = [variable for variable in run.schema.variables if variable.name != target]
        read, omitted = (
            tuple(variable.name for variable in others if (variable.source_column in columns) == is_read)
            for is_read in (True, False)
        )
        corpus = run.prepare(train, unknown="group", optional=omitted)
        labelled = select_variables(corpus, (target, *read))
        if len(np.unique(labelled.categories[:, 0][labelled.categories[:, 0] > 0])) < 2:
            raise UserError(f"{table_name(train)}: expected texts with at least two values of {target}, got fewer")
        return cls(LinearClassifier(labelled))

    @property
    def name(self) -> str:
        """The name of the classifier, with what it reads."""
        return f"linear baseline (reads {self.classifier.inputs})"

    def log_posterior(self, corpus: Corpus, names: tuple[str, ...]) -> Floats:
        """Return log q(candidate | text, o) (B, K) for the candidates `names`."""
        result = self.classifier(corpus)
        return normalize(result.log_posterior[:, [result.names.index(name) for name in names]])


def fit_combination(log_probs: Mapping[str, Floats], truth: NDArray[np.int64]) -> dict[str, float]:
    """Return the weight of each log probability (B, K) of texts with the true candidates `truth` (B,)."""
    features, labels = torch.from_numpy(np.stack(list(log_probs.values()), axis=-1)), torch.from_numpy(truth)
    weights = torch.full((len(log_probs),), 1 / len(log_probs), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=200, tolerance_change=1e-12, line_search_fn="strong_wolfe")

    def mean_loss() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(features @ weights, labels) + weights.square().sum() / (2 * len(labels))
        torch.autograd.backward(loss)
        return loss

    with torch.enable_grad():
        optimizer.step(mean_loss)  # type: ignore[no-untyped-call]
    return dict(zip(log_probs, weights.tolist(), strict=True))


def weighted_posterior(weights: Mapping[str, float], log_probs: Mapping[str, Floats]) -> Floats:
    """Return the log posterior (B, K) that is proportional to the weighted sum of log probabilities (B, K)."""
    return normalize(sum((weight * log_probs[name] for name, weight in weights.items()), np.zeros(1)))
