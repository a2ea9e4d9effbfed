"""Estimate before training how much each context column lowers the perplexity.

    gain = 1 - exp(-MEMORY I(v; text) / T)          the relative reduction of the perplexity

T is the mean number of targets of a text. A classifier of held-out texts gives a lower bound of the mutual information
I(v; text) of a value v and its text: the mean of log q(v | text) - log p(v). If a column depends on another column u,
it adds the mean of log q(v | text, u) - log p(v | u), with q(v | text, u) ~ q(v | text) p(v | u) / p(v).
Shapes: B texts, K values (label K is a missing value).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from factorcell.config import Config
from factorcell.data.columns.declarations import parse_column
from factorcell.data.columns.rows import ResultRows
from factorcell.data.columns.schema import UNKNOWN_VALUE, ContextSchema, Variable
from factorcell.data.corpus import Corpus, is_empty_text
from factorcell.data.preparation import prepare
from factorcell.data.tables.chunks import Table
from factorcell.data.tables.tables import open_table
from factorcell.errors import UserError
from factorcell.evaluation.bayes_rule import apply_temperature, fit_temperature
from factorcell.evaluation.linear_classifier import MAX_VALUES, LinearClassifier
from factorcell.io.progress import progress_bar
from factorcell.options import limits
from factorcell.options.limits import ADVICE_ROWS

# Gain of a trained model, relative to that of an ideal model that remembers the text (docs/results/training.md).
MEMORY = 1.5
MIN_TEXTS = 15  # without empty texts
MAX_VOCABULARY = 20_000  # tokens
HELD_OUT, MAX_HELD_OUT = 0.1, 6000  # share and maximum number of held-out texts; half are tune, half test texts
MAX_LINEAR_TEXTS = 20_000  # training texts of the linear classifier
PAIR_PSEUDO_COUNT = 1.0  # of the frequency of a value in the texts of another column's value
BINS = 10  # number of quantile ranges of a numeric column
MIN_GAIN = 0.005  # minimum gain of a column that is worth training with
MAX_RARE_SHARE = 0.5  # if a larger share of texts has rare values, the gain of the column cannot be estimated
MIN_ADDED_SHARE = 0.25  # minimum gain of a column in addition to another column, as a share of its gain alone

Row = dict[str, Any]
Ids = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LabelColumn:
    """A context column whose values have the labels 0 to K - 1; the label K stands for a missing value.

    `labels` (B,) has the label of each text. `rare` is the number of rare values, which share label 0.
    """

    name: str
    kind: str
    values: tuple[str, ...]
    labels: Ids
    rare: int = 0

    @property
    def first_label(self) -> int:
        """The label of the first frequent value."""
        return int(self.kind == "category" and self.values[:1] == (UNKNOWN_VALUE,))


class Split(NamedTuple):
    """A corpus, and the indices of its train, tune and test texts."""

    corpus: Corpus
    train: Ids
    tune: Ids
    test: Ids


class Estimate(NamedTuple):
    """The row of estimates for a column, and what the test texts say about its value."""

    column: LabelColumn
    row: Row
    log_posterior: Floats
    log_prior: Floats


@dataclass(frozen=True)
class Advice:
    """The result of `advise`.

    Attributes:
        columns: A row of estimates for each column, the best column first, with the `advice` and the reason (`why`).
        gain: The expected gain of all columns together.
        text_count: The number of texts that were read.
        row_count: The number of rows of the table.
        test_count: The number of held-out texts from which the gains are estimated.
        targets_per_text: The mean number of targets of a text.
        unit: The unit of the targets, such as "word"; the gains are those of models that predict it.
    """

    columns: ResultRows
    gain: float
    text_count: int
    row_count: int
    test_count: int
    targets_per_text: float
    unit: str


def advise(source: Any, config: Config, *, rows: int = ADVICE_ROWS, seed: int = 0) -> Advice:
    """Estimate how much each context column lowers the perplexity.

    Args:
        source: A table.
        config: The context columns, and the options for reading the table.
        rows: The maximum number of rows to read, drawn at random.
        seed: The seed of all draws.

    Returns:
        The estimates and the advice for each column, and the expected gain of all columns together.

    Raises:
        UserError: The config has no context column, or the table has too few rows.
    """
    rows, seed = limits.check(rows=rows, seed=seed)
    data = config.data
    if not data.columns:
        raise UserError("expected at least one context column; specify it with --context NAME")
    if data.prompt_history:
        raise UserError("prompt_history: expected categories, numbers or times, got earlier texts; omit the option")
    config = config.with_options(max_vocabulary=min(config.tokenizer.max_vocabulary, MAX_VOCABULARY), time="")
    names = list(dict.fromkeys([data.text, *(parse_column(text).name for text in data.columns)]))
    table, row_count = sample(source, names, rows, seed)
    corpus = prepare(table, config)
    corpus = corpus.select(np.flatnonzero(~is_empty_text(corpus)))
    if len(corpus) < MIN_TEXTS:
        raise UserError(f"{table.name}: expected at least {MIN_TEXTS} rows with a text, got {len(corpus)}")
    held_out = min(MAX_HELD_OUT, max(4, int(HELD_OUT * len(corpus))))
    tune, test, train = np.split(np.random.default_rng(seed).permutation(len(corpus)), [held_out // 2, held_out])
    split, targets_per_text = Split(corpus, train, tune, test), corpus.target_count / len(corpus)
    columns = label_columns(corpus)
    with progress_bar(columns, desc="estimating", unit="columns") as bar:
        estimates = [_estimate(split, column, targets_per_text) for column in bar]
    estimates.sort(key=lambda estimate: -estimate.row["gain"])
    nats = 0.0
    for count, estimate in enumerate(estimates):
        added = _added_information(split, estimate, estimates[:count])
        nats += added
        estimate.row["added"] = expected_gain(added / targets_per_text)
        estimate.row["advice"], estimate.row["why"] = recommend(estimate.row)
    rows_of_columns = ResultRows([estimate.row for estimate in estimates])
    gain = expected_gain(nats / targets_per_text)
    return Advice(rows_of_columns, gain, len(corpus), row_count, len(test), targets_per_text, corpus.tokenizer.unit)


def expected_gain(nats: float) -> float:
    """Return the gain of a trained model from the nats per target that an ideal model gains."""
    return float(1 - np.exp(-MEMORY * nats))


def sample(source: Any, columns: Sequence[str], rows: int = ADVICE_ROWS, seed: int = 0) -> tuple[Table, int]:
    """Draw at most `rows` rows of a table uniformly, in their order; also return the number of rows of the source."""
    table, generator, keys, row_count = open_table(source), np.random.default_rng(seed), np.zeros(0), 0
    selected: dict[str, list[Any]] = {name: [] for name in columns}
    for chunk in table.chunks(columns):
        chunk_keys = generator.random(len(chunk[columns[0]]))
        row_count += len(chunk_keys)
        keys = np.append(keys, chunk_keys)
        is_low = keys <= np.partition(keys, rows - 1)[rows - 1] if len(keys) > rows else np.ones(len(keys), dtype=bool)
        keys = keys[is_low]
        selected = {name: list(compress(selected[name] + list(chunk[name]), is_low)) for name in selected}
    name = table.name if row_count <= rows else f"sample of {table.name} ({rows:,} of {row_count:,} rows)"
    return replace(open_table(selected), name=name), row_count


def label_columns(corpus: Corpus) -> list[LabelColumn]:
    """Return the context columns of a corpus with a label for each text.

    Numbers are binned. A column of texts or lists is represented by the most frequent word of each cell, so its
    estimated gain is a lower bound.
    """
    schema, columns = corpus.schema, []
    for variable in schema.variables:
        if variable.kind == "category":
            ids = corpus.categories[:, schema.categories.index(variable)].astype(np.int64)
            values = variable.values[: MAX_VALUES + 1]
            ids = np.where(ids >= len(values), 0, ids)  # further values count as rare
            labels = np.where(ids < 0, len(values), ids)
            rare_count = variable.rare_count + len(variable.values) - len(values)
            columns.append(LabelColumn(variable.name, "category", values, labels, rare_count))
        elif variable in schema.numbers:
            columns.append(_bin_numbers(variable, corpus.numbers[:, schema.numbers.index(variable)]))
        elif variable.kind == "text":
            words, values = corpus.words[schema.texts.index(variable)], variable.values[:MAX_VALUES]
            labels = np.full(len(corpus), len(values), np.int64)  # ids of words are in order of decreasing frequency
            np.minimum.at(labels, np.repeat(np.arange(len(corpus)), np.diff(words.offsets)), words.values)
            columns.append(LabelColumn(variable.name, "text", values, labels))
        else:
            expected = f"expected a category, a number, a time or a text, got a variable of kind {variable.kind}"
            raise UserError(f"{variable.name}: {expected}; leave the column out")
    return columns


def _bin_numbers(variable: Variable, numbers: NDArray[np.float32]) -> LabelColumn:
    """Label a numeric column with its quantile ranges, or with its distinct values if there are at most `BINS`."""
    present_numbers = numbers[~np.isnan(numbers)]
    edges = np.unique(present_numbers)
    if len(edges) > BINS:
        edges = np.unique(np.quantile(present_numbers, np.linspace(0, 1, BINS + 1)[:-1]))
    labels = np.where(np.isnan(numbers), len(edges), np.searchsorted(edges, numbers, side="right") - 1)
    return LabelColumn(variable.name, variable.kind, tuple(f"from {edge:.4g}" for edge in edges), labels)


def _estimate(split: Split, column: LabelColumn, targets_per_text: float) -> Estimate:
    size = len(column.values)
    counts = np.bincount(column.labels[split.train], minlength=size + 1)[:size]
    log_prior = np.log((counts + 0.5) / (counts + 0.5).sum())
    tune_labels, test_labels = column.labels[split.tune], column.labels[split.test]
    tune, test = np.zeros((len(split.tune), size)), np.zeros((len(split.test), size))
    if size > 1:
        tune, test = _log_posteriors(split, column)
    is_labelled = tune_labels < size
    temperature = fit_temperature(tune[is_labelled], tune_labels[is_labelled], log_prior)
    log_posterior = apply_temperature(test, temperature, log_prior)
    information = _information(log_posterior, log_prior, test_labels)
    nats = max(0.0, float(information.mean()))
    frequent_counts = counts[column.first_label :]
    row = {
        "column": column.name,
        "kind": column.kind,
        "values": len(frequent_counts),
        "rare_values": column.rare,
        "texts_per_value": float(np.median(frequent_counts)) if len(frequent_counts) else 0.0,
        "rare": float(counts[: column.first_label].sum() / max(1, counts.sum())),
        "missing": float((column.labels == size).mean()),
        "entropy": float(-(np.exp(log_prior) * log_prior).sum()),
        "information": nats,
        "gain": expected_gain(nats / targets_per_text),
        "is_significant": bool(nats > 2 * information.std() / math.sqrt(len(information))),
    }
    return Estimate(column, row, log_posterior, log_prior)


def _information(log_posterior: Floats, log_prior: Floats, labels: Ids) -> Floats:
    """Return log posterior (B, K) minus log prior (K,) or (B, K) of the true values, 0 for missing values (B,)."""
    rows = np.flatnonzero(labels < log_posterior.shape[1])
    information = np.zeros(len(labels))
    information[rows] = (log_posterior - log_prior)[rows, labels[rows]]
    return information


def _log_posteriors(split: Split, column: LabelColumn) -> tuple[Floats, Floats]:
    """Return the log posteriors (B, K) of a linear classifier for the tune and the test texts."""
    # Category v + 1 is the value v, because category 0 is the unknown value, and -1 a missing one.
    counts = (0, *([1] * len(column.values)))
    schema = ContextSchema((Variable("value", "category", values=("", *column.values), counts=counts),))
    categories = np.where(column.labels == len(column.values), -1, column.labels + 1).astype(np.int32)[:, None]
    nothing: Any = {"numbers": split.corpus.numbers[:, :0], "vectors": (), "words": (), "prompts": ()}
    corpus = replace(split.corpus, schema=schema, categories=categories, **nothing)
    classifier = LinearClassifier.fit(corpus.select(split.train[:MAX_LINEAR_TEXTS]), "value")
    return classifier.log_probs(corpus.select(split.tune)), classifier.log_probs(corpus.select(split.test))


def _added_information(split: Split, estimate: Estimate, stronger: Sequence[Estimate]) -> float:
    """Return the nats per text of a column in addition to that stronger column that leaves the least of it."""
    added: list[float] = [estimate.row["information"]]
    labels, size = estimate.column.labels, len(estimate.column.values)
    for other in stronger:
        other_labels = other.column.labels
        pairs = np.zeros((len(other.column.values) + 1, size + 1))
        np.add.at(pairs, (other_labels[split.train], labels[split.train]), 1)
        pairs = pairs[:, :size] + PAIR_PSEUDO_COUNT * np.exp(estimate.log_prior)
        log_prior = np.log(pairs / pairs.sum(1, keepdims=True))[other_labels[split.test]]
        log_posterior = log_softmax(estimate.log_posterior + log_prior - estimate.log_prior, axis=1)
        added.append(float(_information(log_posterior, log_prior, labels[split.test]).mean()))
    return max(0.0, min(added))


def recommend(row: Row) -> tuple[str, str]:
    """Return the advice on a column ("use" or "leave out") and the reason for it."""
    gain_text = f"{row['gain']:.1%}"
    if row["rare"] > MAX_RARE_SHARE and not row["is_significant"]:
        reason = f"{row['rare']:.1%} of the texts have one of {row['rare_values']:,} rare values"
        return "leave out", f"too few rows per value to estimate the gain: {reason}"
    if row["values"] < 2:
        return "leave out", "fewer than two values have enough texts"
    if not row["is_significant"]:
        return "leave out", f"an expected gain of {gain_text} is not statistically significant"
    if row["gain"] < MIN_GAIN:
        return "leave out", f"an expected gain of {gain_text} is small"
    if row["added"] < MIN_ADDED_SHARE * row["gain"]:
        added = f"the column alone has an expected gain of {gain_text}, but it adds only {row['added']:.1%}"
        return "leave out", f"redundant with a stronger column: {added}"
    return "use", f"expected gain {gain_text}"
