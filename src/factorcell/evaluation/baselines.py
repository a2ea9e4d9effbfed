"""The linear baseline: it classifies texts by TF-IDF features of n-grams and, if requested, by other columns.

The classifier reads the token ids of a corpus, and therefore the same tokens as a language model with the same
vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.config import Config
from factorcell.data.cache import prepare
from factorcell.data.columns.columns import check_columns, parse_column, with_context
from factorcell.data.corpus import Corpus
from factorcell.data.tables.tables import table_name
from factorcell.data.tokenizers.tokenizer import Tokenizer
from factorcell.errors import UserError
from factorcell.evaluation.bayes_rule import Classification
from factorcell.evaluation.linear_classifier import LinearClassifier, target_labels

Floats = NDArray[np.float64]


def with_target(config: Config, target: str, context: Sequence[str] = ()) -> Config:
    """Return the options of `config` for texts, with column `target`, a category, before the columns of `context`."""
    if target in [parse_column(column)[0] for column in context]:
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
