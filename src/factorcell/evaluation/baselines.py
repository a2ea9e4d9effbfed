"""Baseline text classifiers: naive Bayes, logistic regression on hashed n-grams, and fastText.

A classifier predicts the value v of one column for each text. All classifiers read the token ids of a corpus, and
therefore the same tokens as a language model with the same vocabulary. Naive Bayes is a generative classifier with one
unigram model per value:

    p(v | text) ~ p(v) prod_t p(w_t | v),    p(w | v) = (c_v(w) + 0.5) / sum_w' (c_v(w') + 0.5)

The sign ~ means "proportional to", w_t are the tokens of the text, and c_v(w) is the count of token w in the training
texts with value v. The other two classifiers learn p(v | text) from n-gram features; the logistic regression can also
read other columns.

The n-grams have by default up to 2 tokens, or up to 5 characters.

Shapes: B texts, K values, V vocabulary, N features of the texts, U distinct rows of weights of these features.
"""

import importlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from factorcell import limits
from factorcell.choices import PRIORS
from factorcell.config import Config, UserError, check_choice
from factorcell.data.cache import prepare
from factorcell.data.columns import check_columns, parse_column, with_context
from factorcell.data.corpus import Corpus, target_ids, target_offsets
from factorcell.data.tables import table_name
from factorcell.data.tokenizer import Tokenizer
from factorcell.evaluation.bayes_rule import Classification, apply_bayes_rule, to_log_prior
from factorcell.evaluation.conditional_prior import fit_prior
from factorcell.evaluation.linear_features import (
    Features,
    Ids,
    context_features,
    informative_variables,
    select_variables,
    sizes_of_features,
)
from factorcell.evaluation.number_ranges import NumberRanges
from factorcell.extras import missing_package_error
from factorcell.model.scoring import Tally
from factorcell.progress import progress_bar

WORD_ORDER, CHARACTER_ORDER = 2, 5  # default maximum lengths of n-grams of words or pieces, and of characters
SMOOTHING = 0.5  # added to every count of naive Bayes
EPOCHS, BATCH_SIZE = 3, 64  # linear model: passes over the training texts, and texts per step
HELD_OUT_SHARE = 0.1  # linear model: share of the training texts that decide whether it reads ranges of numbers
LEARNING_RATE = 0.5  # linear model: initial learning rate, which decays linearly to 0
MAX_READ_NGRAMS = 200_000_000  # linear model: n-grams in all passes; a random part of larger tables is read
MAX_BUCKETS = 1 << 20  # linear model: maximum number of hash buckets
MAX_ELEMENTS = 1 << 25  # maximum size of the linear model's weights (buckets * values) and of naive Bayes' arrays

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
    if not (_labels(test) >= 0).any():
        hint = "the classifier cannot be evaluated"
        raise UserError(f"{table_name(test_source)}: no text has a value of {target} that occurs in training; {hint}")
    return train, test


def classify_with_naive_bayes(train: Corpus, test: Corpus, *, priors: str = "training") -> tuple[Classification, Tally]:
    """Classify the texts of `test` by Bayes' rule over smoothed unigram models of `train`.

    `priors` is "training" (the frequencies of the values in training) or "uniform". The returned `Tally` has the nats
    and the number of targets of the test texts, given their true values.
    """
    check_choice("priors", priors, PRIORS)
    value_names, train_labels, vocabulary_size = _value_names(train), _labels(train), len(train.tokenizer)
    target_labels = np.repeat(train_labels, train.lengths)
    pair_ids = target_labels * vocabulary_size + target_ids(train)  # one id for each pair of a value and a token
    flat_counts = np.bincount(pair_ids[target_labels >= 0], minlength=len(value_names) * vocabulary_size)
    counts = flat_counts.reshape(len(value_names), vocabulary_size) + SMOOTHING
    counts[:, train.tokenizer.specials.start] = 0  # the start token is never predicted
    log_probs = np.log(np.where(counts > 0, counts, 1.0)).T - np.log(counts.sum(1))  # (V, K)
    log_likelihoods = np.zeros((len(test), len(value_names)))
    test_tokens, starts = target_ids(test), target_offsets(test)
    for block in np.array_split(np.arange(len(test)), 1 + len(test_tokens) * len(value_names) // MAX_ELEMENTS):
        first_text, last_text = block[0], block[-1]
        target_span = slice(starts[first_text], starts[last_text + 1])
        log_likelihoods[block] = np.add.reduceat(log_probs[test_tokens[target_span]], starts[block] - target_span.start)
    true_labels = _labels(test)
    labelled_texts = np.flatnonzero(true_labels >= 0)
    tally = Tally(
        -float(log_likelihoods[labelled_texts, true_labels[labelled_texts]].sum()),
        int(test.lengths[labelled_texts].sum()),
    )
    true_values = [value_names[label] if label >= 0 else None for label in true_labels]
    result = apply_bayes_rule(value_names, log_likelihoods, true_values, truncated=test.truncated)
    if priors == "training":
        result = result.with_log_prior(to_log_prior(np.bincount(train_labels[train_labels >= 0])), priors)
    return result, tally


def default_order(corpus: Corpus) -> int:
    """Return the default maximum length of the n-grams of a classifier."""
    return CHARACTER_ORDER if corpus.tokenizer.is_character_level else WORD_ORDER


def _describe_inputs(order: int, corpus: Corpus, columns: Sequence[str] = ()) -> str:
    return ", ".join((f"n-grams of up to {order} {corpus.tokenizer.unit}s", *columns))


class LinearClassifier:
    """Logistic regression on n-grams of 1 to `order` tokens and on other columns, trained with Adagrad.

    By default, the order is `default_order`.

    The features of the tokens are the counts of hash buckets of n-grams in a text, divided by the square root of the
    number of its n-grams. The context variables after the target, which is the first variable, have the features of
    `context_features`, except those that are the same for all training texts. Numbers also have the features of their
    ranges (`number_ranges`) if a conditional prior would have them. The classifier learns the frequent values of the
    target.

    Attributes:
        order: The largest number of tokens of an n-gram.
        names: The frequent values of the target.
        columns: The columns that it reads in addition to the texts.
        inputs: What it reads, as text.
    """

    def __init__(self, train: Corpus, *, order: int | None = None, seed: int = 0) -> None:
        order, seed = limits.check(order=order, seed=seed)
        order = default_order(train) if order is None else order
        self.order, self.names = order, _value_names(train)
        variables = informative_variables(train)
        self.columns = tuple(dict.fromkeys(variable.source_column for variable in variables))
        self.inputs = _describe_inputs(order, train, self.columns)
        self.variables = (train.schema.categories[0].name, *(variable.name for variable in variables))
        train = select_variables(train, self.variables)
        labels = torch.from_numpy(_labels(train))
        max_buckets = MAX_ELEMENTS // len(self.names)
        self.bucket_count = min(MAX_BUCKETS, 1 << max_buckets.bit_length() - 1)  # a power of two
        self.ranges = _find_ranges(train)
        schema = train.schema if self.ranges is None else self.ranges.extend(train.schema)
        self.context_rows = min(sum(sizes_of_features(schema)), max_buckets)
        row_count = self.bucket_count + self.context_rows
        self.weights, sums_of_squared_gradients = torch.zeros(2, row_count, len(self.names))
        features, generator = self._features(train), np.random.default_rng(seed)
        labelled_texts = np.flatnonzero(labels.numpy() >= 0)
        max_texts = MAX_READ_NGRAMS * len(train) // (EPOCHS * self.order * len(train.tokens))
        if len(labelled_texts) > max_texts:
            labelled_texts = np.random.default_rng(seed).permutation(labelled_texts)[:max_texts]
        batches = [batch for _ in range(EPOCHS) for batch in _split_into_batches(generator.permutation(labelled_texts))]
        for step, batch in enumerate(progress_bar(batches, desc="training classifier", unit="steps")):
            rows, *inputs = features.take(batch)
            row_weights = F.embedding(rows, self.weights).requires_grad_()
            (gradient,) = torch.autograd.grad(
                F.cross_entropy(_logits(row_weights, *inputs), labels[batch]), row_weights
            )
            sums_of_squared_gradients[rows] += gradient**2
            learning_rate = LEARNING_RATE * (1 - step / len(batches))
            self.weights[rows] -= learning_rate * gradient / (sums_of_squared_gradients[rows].sqrt() + 1e-8)

    def __call__(self, test: Corpus) -> Classification:
        """Classify the texts of `test`, which have the context variables of the training texts."""
        test = select_variables(test, self.variables)
        features, log_posteriors = self._features(test), []
        for batch in _split_into_batches(np.arange(len(test))):
            rows, *inputs = features.take(batch)
            logits = _logits(F.embedding(rows, self.weights), *inputs)
            log_posteriors.append(F.log_softmax(logits.double(), dim=1))
        return _classification(self.names, torch.cat(log_posteriors).numpy(), test)

    def _features(self, corpus: Corpus) -> "Features":
        parts = []
        corpus = corpus if self.ranges is None else self.ranges.add_to(corpus)
        for texts, rows, values in context_features(corpus):
            parts.append((texts, self.bucket_count + rows % self.context_rows, values))
        return Features(corpus, self.order, self.bucket_count, parts)


def _find_ranges(train: Corpus) -> NumberRanges | None:
    """Return the ranges of the numbers, if a prior with them predicts the target of held-out texts better."""
    if not train.schema.numbers:
        return None
    prior = fit_prior(train.schema.categories[0].name, *train.split(HELD_OUT_SHARE, seed=0))
    return None if prior.ranges is None else NumberRanges.of(train)


def _split_into_batches(texts: Ids) -> list[Ids]:
    return np.array_split(texts, range(BATCH_SIZE, len(texts), BATCH_SIZE))


def _logits(weights: Tensor, positions: Tensor, values: Tensor, starts: Tensor) -> Tensor:
    """Return the logits (B, K) of texts from the `weights` (U, K) of their features.

    `positions` (N,), `values` (N,) and `starts` (B,) are results of `Features.take`.
    """
    return F.embedding_bag(positions, weights, starts, mode="sum", per_sample_weights=values)


class FastTextClassifier:
    """The fastText classifier with n-grams of up to `order` tokens, 10 dimensions and 5 passes (Joulin et al. 2017).

    By default, the order is `default_order`.
    """

    def __init__(self, train: Corpus, *, order: int | None = None, seed: int = 0) -> None:
        order, seed = limits.check(order=order, seed=seed)
        self.order = default_order(train) if order is None else order
        self.columns, self.inputs = (), _describe_inputs(self.order, train)
        try:
            library = importlib.import_module("fasttext")
        except ImportError:
            raise missing_package_error("the classifier fastText", "fasttext-community", "fasttext") from None
        self.names, labels = _value_names(train), _labels(train)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "train.txt"
            labelled_texts = zip(labels, _token_lines(train), strict=True)
            lines = (f"__label__{label} {text}\n" for label, text in labelled_texts if label >= 0)
            path.write_text("".join(lines), encoding="utf-8")
            self.model = library.train_supervised(
                input=str(path),
                dim=10,
                lr=0.5,
                epoch=5,
                wordNgrams=self.order,
                thread=1,
                seed=seed % (1 << 31),
                verbose=0,
            )

    def __call__(self, test: Corpus) -> Classification:
        """Classify the texts of `test`; a value that fastText does not return has probability 0."""
        log_posterior = np.full((len(test), len(self.names)), -np.inf)
        all_labels, all_probabilities = self.model.predict(_token_lines(test), k=-1)
        for row, (labels, probabilities) in enumerate(zip(all_labels, all_probabilities, strict=True)):
            columns = [int(label.removeprefix("__label__")) for label in labels]
            log_posterior[row, columns] = np.log(probabilities)
        return _classification(self.names, log_posterior, test)


def _token_lines(corpus: Corpus) -> list[str]:
    """Return a line for each text with the ids of its tokens, separated by spaces."""
    return [" ".join(map(str, text.tolist())) for text in np.split(corpus.tokens, corpus.offsets[1:-1])]


def _value_names(corpus: Corpus) -> tuple[str, ...]:
    """Return the frequent values (K) of the target column, without the unknown value."""
    return corpus.schema.categories[0].values[1:]


def _labels(corpus: Corpus) -> Ids:
    """Return the index of each text's value in `_value_names` (B,), -1 for a rare or missing value."""
    return np.maximum(corpus.categories[:, 0].astype(np.int64) - 1, -1)


def _classification(names: tuple[str, ...], log_posterior: Floats, test: Corpus) -> Classification:
    """Return a classification by a discriminative model from its log posteriors (B, K)."""
    is_distractor = np.zeros(len(test), dtype=bool)
    return Classification(
        names=names,
        log_posterior=log_posterior,
        truth=_labels(test),
        is_distractor=is_distractor,
        truncated=test.truncated,
    )
