"""The prior of a classification, p(target | other context variables), estimated from the training texts.

Bayes' rule over the values v of a target, for a text with the values o of the other variables, needs p(v | o):

    p(v | text, o) ~ p(text | v, o) p(v | o)

The prior is a logistic regression on the other variables (`linear_classifier`). A run folder stores one for each
category that can be a target. Without other variables, the prior is p(v), the frequency of v in training.

Shapes: B texts, K values of the target.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.bootstrap import Interval
from factorcell.data.columns.schema import ContextSchema, Variable
from factorcell.data.corpus import Corpus
from factorcell.evaluation import linear_classifier
from factorcell.evaluation.bayes_rule import to_log_prior
from factorcell.evaluation.linear_classifier import LinearClassifier, possible_targets, target_labels
from factorcell.evaluation.statistics import Ratios
from factorcell.evaluation.text_figures import accuracy_sums
from factorcell.runs.run import Run

FILE = "priors.safetensors"
CONTEXT_CLASSIFIER = "other columns, without the text"  # name of the prior as a classifier

MIN_ADVANTAGE = 0.1  # accuracy above the majority class from which the other columns are reported to predict a target

Row = dict[str, Any]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Dependence:
    """How well the other context columns of held-out texts predict a target; the words of the texts are not read.

    Attributes:
        target: The column of the target.
        column: The column that alone predicts the target best.
        accuracy: The accuracy of the value with the highest prior, given all other variables.
        majority: The accuracy of always predicting the most frequent value of the training texts.
        advantage: The difference of the two accuracies, with its interval.
    """

    target: str
    column: str
    accuracy: float
    majority: float
    advantage: Interval

    @property
    def is_strong(self) -> bool:
        """Whether the advantage is significantly larger than `MIN_ADVANTAGE`."""
        return self.advantage.low is not None and self.advantage.low > MIN_ADVANTAGE

    def to_row(self) -> Row:
        """Return the fields for training.json."""
        figures = {"accuracy": self.accuracy, "majority": self.majority}
        return {"target": self.target, "column": self.column, **figures}


def fit_prior(train: Corpus, target: str, max_cost: float = np.inf) -> LinearClassifier:
    """Fit the prior of a target on training texts; `max_cost` is that of `LinearClassifier.fit`."""
    return LinearClassifier.fit(train, target, reads_text=False, max_cost=max_cost)


def measure_dependence(prior: LinearClassifier, held_out: Corpus) -> Dependence | None:
    """Measure on held-out texts how well the other variables predict the target; None without labelled texts."""
    labels = target_labels(held_out, prior.target.name)
    texts, labels = held_out.select(np.flatnonzero(labels >= 0)), labels[labels >= 0]
    if not len(labels):
        return None
    terms = prior.logits(texts)[1:]  # without that of the n-grams, which a prior does not read
    accuracies = [float(((term + prior.bias).argmax(1) == labels).mean()) for term in terms]
    predictions = [sum(terms, prior.bias).argmax(1), np.full(len(labels), np.argmax(prior.target.counts[1:]))]
    everywhere = np.ones(len(labels), dtype=bool)
    ratios = Ratios.from_sums([[accuracy_sums("", predicted == labels, everywhere)] for predicted in predictions])
    assert ratios is not None  # both figures have the same texts
    accuracy, majority = ratios.resampled[0].tolist()
    best = prior.others[int(np.argmax(accuracies))].source_column
    return Dependence(prior.target.source_column, best, accuracy, majority, ratios.difference(0, 1))


def save_priors(run: Run, train: Corpus, held_out: Corpus, max_cost: float = np.inf) -> list[Row]:
    """Fit the priors of a run and save them in the run folder; return the strong dependences of held-out texts."""
    has_others = len(run.schema.embedded.variables) > 1
    targets = possible_targets(run) if has_others else []
    priors = {target: fit_prior(train, target, max_cost) for target in targets}
    linear_classifier.save(run.folder / FILE, priors)
    dependences = [measure_dependence(prior, held_out) for prior in priors.values()]
    return [dependence.to_row() for dependence in dependences if dependence and dependence.is_strong]


def load_priors(folder: Path, schema: ContextSchema) -> dict[str, LinearClassifier]:
    """Read the priors of a run folder by target."""
    return linear_classifier.load(folder / FILE, schema)


def applicable_prior(
    priors: Mapping[str, LinearClassifier], target: str, columns: Collection[str]
) -> LinearClassifier | None:
    """Return the conditional prior of a target for texts with these context `columns`; None if they have none."""
    prior = priors.get(target)
    has_context = prior is not None and any(other.source_column in columns for other in prior.others)
    return prior if has_context else None


def training_log_prior(variable: Variable, names: Sequence[str]) -> Floats:
    """Return the log frequencies (K,) of the values `names` in training, among these values; uniform without counts."""
    counts = np.array([variable.counts_by_value[name] for name in names])
    return to_log_prior(counts if counts.any() else np.ones(len(names)))
