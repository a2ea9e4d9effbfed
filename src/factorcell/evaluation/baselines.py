"""Linear classifiers that training saves in a run folder for each category that can be a target.

The linear baseline reads the texts and the other columns. The conditional prior p(target | other context variables)
reads only the other columns; Bayes' rule over the values v of a target, for a text with other values o, needs it:

    p(v | text, o) ~ p(text | v, o) p(v | o)

Without other variables, the prior is p(v), the frequency of v in training.

Shapes: B texts, K values of the target.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.config import Config
from factorcell.data.cache import prepare
from factorcell.data.columns.columns import check_columns, with_context
from factorcell.data.columns.declarations import parse_column
from factorcell.data.columns.schema import ContextSchema, Variable
from factorcell.data.corpus import Corpus
from factorcell.data.tables.tables import table_name
from factorcell.data.tokenizers.tokenizer import Tokenizer
from factorcell.errors import UserError
from factorcell.evaluation import linear_classifier
from factorcell.evaluation.bayes_rule import Classification, to_log_prior
from factorcell.evaluation.linear_classifier import LinearClassifier, possible_targets, target_labels
from factorcell.evaluation.text_figures import Ratios, accuracy_sums
from factorcell.runs.run import Run

BASELINES, PRIORS = "linear.safetensors", "priors.safetensors"  # files of a run folder
MIN_ADVANTAGE = 0.1  # accuracy above the majority class from which the other columns are reported to predict a target

Row = dict[str, Any]
Floats = NDArray[np.float64]


def save_baselines(run: Run, train: Corpus, max_cost: float = np.inf) -> None:
    """Fit the linear baselines of a run, and save them in the run folder."""
    min_users = run.config.training.min_users
    baselines = {
        target: LinearClassifier.fit(train, target, min_users=min_users, max_cost=max_cost)
        for target in possible_targets(run)
    }
    linear_classifier.save(run.folder / BASELINES, baselines)


def load_baselines(folder: Path, schema: ContextSchema) -> dict[str, LinearClassifier]:
    """Read the linear baselines of a run folder by target."""
    return linear_classifier.load(folder / BASELINES, schema)


def missing_baseline(run: Run, target: str) -> str:
    """Return why a run has no linear baseline of a target, and how to get one."""
    size = len(run.schema.variable(target).values) - 1
    remedy = "train the run again, which fits it"
    if target not in possible_targets(run):
        remedy = (
            f"`factorcell baseline linear` trains one; training does for 2 to {linear_classifier.MAX_VALUES} values"
        )
    return f"{run.folder}: no linear baseline of {target} ({size:,} values); {remedy}"


def with_target(config: Config, target: str, context: Sequence[str] = ()) -> Config:
    """Return the options of `config` for texts, with column `target`, a category, before the columns of `context`."""
    if target in [parse_column(column).name for column in context]:
        raise UserError(f"context column {target!r}: it is the target; choose other columns")
    data = with_context(config.data, f"{target}:category", *context)
    return Config(data=data, tokenizer=config.tokenizer)


def read_train_and_test(
    train_source: Any,
    test_source: Any,
    target: str,
    config: Config,
    *,
    context: Sequence[str] = (),
    tokenizer: Tokenizer | None = None,
) -> tuple[Corpus, Corpus]:
    """Read training and test texts with the column `target`, and with the columns `context` (NAME or NAME:KIND).

    Raises:
        UserError: Fewer than two values have `min_context_count` training texts, or no test text has such a value.
    """
    config = with_target(config, target, context)
    check_columns(test_source, config.data)
    train = prepare(train_source, config, tokenizer=tokenizer, optional=(target,))
    if len(train.schema.variable(target).values) < 3:  # the first value is the unknown value
        count = config.data.min_context_count
        raise UserError(f"{target}: expected at least two values with {count} training texts each, got fewer")
    test = prepare(
        test_source, config, tokenizer=train.tokenizer, schema=train.schema, unknown="group", optional=(target,)
    )
    if not (target_labels(test, target) >= 0).any():
        hint = "the classifier cannot be evaluated"
        raise UserError(f"{table_name(test_source)}: no text has a value of {target} that occurs in training; {hint}")
    return train, test


def classify_with_linear_baseline(train: Corpus, test: Corpus) -> Classification:
    """Train a `LinearClassifier` of the first category of a corpus, and classify the texts of another corpus."""
    baseline = LinearClassifier.fit(train, train.schema.categories[0].name)
    return discriminative_classification(test, baseline.log_probs(test))


def discriminative_classification(test: Corpus, log_posterior: Floats) -> Classification:
    """Return a classification of texts by the first category of their schema, from its log posterior (B, K)."""
    target = test.schema.categories[0]
    return Classification(
        names=target.values[1:],
        log_posterior=log_posterior,
        truth=np.maximum(target_labels(test, target.name), -1),
        is_distractor=np.zeros(len(test), dtype=bool),
        truncated=test.truncated,
    )


def fit_prior(train: Corpus, target: str, max_cost: float = np.inf) -> LinearClassifier:
    """Fit the prior of a target on training texts; `max_cost` is that of `LinearClassifier.fit`."""
    return LinearClassifier.fit(train, target, reads_text=False, max_cost=max_cost)


def strong_dependence(prior: LinearClassifier, held_out: Corpus) -> Row | None:
    """Return how well the other variables of held-out texts predict a target, if they do so much better than chance.

    The row has the columns of the `target` and of the variable that alone predicts it best (`column`), the `accuracy`
    of the value with the highest prior, and that of the most frequent value in training, `majority`. It is None unless
    the difference of the two is significantly larger than `MIN_ADVANTAGE`.
    """
    labels = target_labels(held_out, prior.target.name)
    texts, labels = held_out.select(np.flatnonzero(labels >= 0)), labels[labels >= 0]
    if not len(labels):
        return None
    terms = prior.logits(texts)[1:]  # without that of the n-grams, which a prior does not read
    predictions = [sum(terms, prior.bias).argmax(1), np.full(len(labels), np.argmax(prior.target.counts[1:]))]
    everywhere = np.ones(len(labels), dtype=bool)
    ratios = Ratios.from_sums([[accuracy_sums("", predicted == labels, everywhere)] for predicted in predictions])
    assert ratios is not None  # both figures have the same texts
    advantage = ratios.difference(0, 1)
    if advantage.low is None or advantage.low <= MIN_ADVANTAGE:
        return None
    accuracies = [float(((term + prior.bias).argmax(1) == labels).mean()) for term in terms]
    column = prior.others[int(np.argmax(accuracies))].source_column
    accuracy, majority = ratios.resampled[0].tolist()
    return {"target": prior.target.source_column, "column": column, "accuracy": accuracy, "majority": majority}


def save_priors(run: Run, train: Corpus, held_out: Corpus, max_cost: float = np.inf) -> list[Row]:
    """Fit the priors of a run and save them in the run folder; return the strong dependences of held-out texts."""
    has_others = len(run.schema.embedded.variables) > 1
    targets = possible_targets(run) if has_others else []
    priors = {target: fit_prior(train, target, max_cost) for target in targets}
    linear_classifier.save(run.folder / PRIORS, priors)
    return [row for prior in priors.values() if (row := strong_dependence(prior, held_out))]


def load_priors(folder: Path, schema: ContextSchema) -> dict[str, LinearClassifier]:
    """Read the priors of a run folder by target."""
    return linear_classifier.load(folder / PRIORS, schema)


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
