"""Estimate how much each context column can lower the perplexity, without training a language model.

Two n-gram models (`conditional_ngram`) are compared on held-out texts:

    nothing    -log p(w | h)       predicts token w from the preceding tokens h
    knowing    -log p(w | h, v)    also reads the value v of the column

An ideal model infers v from all preceding tokens of a text. Knowing v before the first token lowers the nats per target
of this model by I(v; text) / N <= H(v) / N, where I is the mutual information, H the entropy, and N the number of
targets of a text. Therefore, if a few words reveal the value, the column lowers the perplexity little, even if the
value changes the texts a lot. A classifier gives a lower bound of I(v; text): the mean of log p(v | text) - log p(v)
over held-out texts.

A trained language model remembers less of the text than the ideal model, and more than the n-gram models. Therefore its
gain is expected to lie between `least`, the gain that follows from this lower bound, and `most`, the gain of *knowing*
over *nothing*. Gains are relative reductions of the perplexity.

Shapes: B texts, T targets, V vocabulary, K values (label K is a missing value), C columns.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.config import Config
from factorcell.data.cache import prepare
from factorcell.data.columns.columns import parse_column
from factorcell.data.columns.schema import ContextSchema, Variable
from factorcell.data.corpus import Corpus, is_empty_text
from factorcell.errors import UserError
from factorcell.evaluation.advice.conditional_ngram import (
    ValueNGram,
    compute_log_posterior,
    fit_exponents,
    tilted_log_probs,
)
from factorcell.evaluation.advice.sample import Ids, LabelColumn, Split, label_columns, sample
from factorcell.evaluation.bayes_rule import apply_temperature
from factorcell.evaluation.linear_classifier import LinearClassifier
from factorcell.io.progress import progress_bar
from factorcell.options import limits
from factorcell.options.choices import ADVICE_ROWS

MIN_ROWS, MIN_TEXTS = 20, 15  # with and without empty texts
MAX_VOCABULARY = 20_000  # tokens
PREFIX_LENGTHS = (5, 10, 20)  # numbers of tokens after which classifiers predict the value
LIKELIHOOD_EXPONENTS = (1.0, 0.7, 0.5, 0.35, 0.25, 0.18)  # below 1, because tokens are not independent evidence
MAX_CLASSES, MAX_CLASSIFIER_TEXTS = 500, 20_000  # values and training texts of the linear classifier
LINEAR = "linear"  # name of the linear classifier
SHARE = 0.35  # expected gain = least + SHARE * (most - least), measured with trained models (docs/advice.md)
MIN_BIAS_GAIN, MIN_ADAPTER_GAIN = 0.005, 0.02  # minimum gains for a softmax bias and for an adapted recurrent layer
MAX_RARE_SHARE = 0.5  # if a larger share of texts has rare values, the gain of the column cannot be estimated
MIN_ADDED_SHARE = 0.25  # minimum gain of a column in addition to stronger columns, as a share of its gain alone

Row = dict[str, Any]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ColumnEstimate:
    """The row of estimates for one column, and the n-gram model that is conditioned on the column."""

    column: LabelColumn
    row: Row
    model: ValueNGram


def advise(source: Any, config: Config, *, rows: int = ADVICE_ROWS, seed: int = 0) -> Row:
    """Estimate how much each context column can lower the perplexity.

    Args:
        source: A table.
        config: The context columns, and the options for reading the table.
        rows: The maximum number of rows to read, drawn at random.
        seed: The seed of all draws.

    Returns:
        A row with seven entries. `columns` has a row of estimates for each column, the best column first, with the
        `advice` and the reason for it (`why`). `all` has the estimates for all columns together. `rows` is the number
        of rows that were read, `of` the number of rows in the table, `targets` the number of targets in the rows read,
        and `tokens_per_text` the mean number of targets per text. The gains are those of models that predict the
        `unit`, such as "word".

    Raises:
        UserError: The config has no context column, or the table has too few rows.
    """
    rows, seed = limits.check(rows=rows, seed=seed)
    data = config.data
    if not data.columns:
        raise UserError("expected at least one context column; specify it with --context NAME")
    if data.prompt_history:
        raise UserError("prompt_history: expected categories, numbers or times, got earlier texts; omit the option")
    config = config.with_options(max_vocabulary=min(config.tokenizer.max_vocabulary, MAX_VOCABULARY))
    names = list(dict.fromkeys([data.text, *(parse_column(text)[0] for text in data.columns)]))
    table, row_count = sample(source, names, rows, seed)
    corpus = prepare(table, config)
    corpus = _drop_empty_texts(corpus, table.name)
    columns = label_columns(corpus)
    split = Split.from_corpus(corpus, config, max(len(column.values) for column in columns), seed)
    # A column has two estimates: of its gain alone, and of its gain in addition to stronger columns.
    with progress_bar(desc="estimating", unit="estimates", total=2 * len(columns) - 1) as bar:
        estimates = []
        for column in columns:
            estimates.append(_estimate(split, column))
            bar.update()
        estimates.sort(key=lambda estimate: -estimate.row["most"])
        combined = _estimate_combined(split, estimates, bar.update)
    column_rows = [estimate.row for estimate in estimates]
    for row in column_rows:
        row["advice"], row["why"] = recommend(row)
    return {
        "rows": len(corpus),
        "of": row_count,
        "targets": corpus.target_count,
        "tokens_per_text": corpus.target_count / len(corpus),
        "unit": corpus.tokenizer.unit,
        "columns": column_rows,
        "all": combined,
    }


def _drop_empty_texts(corpus: Corpus, name: str) -> Corpus:
    """Return the texts that are not empty."""
    if len(corpus) < MIN_ROWS:
        raise UserError(f"{name}: expected at least {MIN_ROWS} rows, got {len(corpus)}")
    corpus = corpus.select(np.flatnonzero(~is_empty_text(corpus)))
    if len(corpus) < MIN_TEXTS:
        raise UserError(f"{name}: expected at least {MIN_TEXTS} rows with a text, got {len(corpus)}")
    return corpus


def _fit_value_model(split: Split, column: LabelColumn) -> ValueNGram:
    """Return the n-gram model that is conditioned on one column; its parameters are fitted on the tune texts."""
    train_labels, tune_labels, _ = split.labels(column)
    model = ValueNGram(split.model, split.train, train_labels, len(column.values))
    model.fit_prior(split.tune, tune_labels)
    log_ratios = [model.log_ratios()]
    beta = fit_exponents(split.model, split.tune, log_ratios, [tune_labels])
    (model.beta,) = beta.tolist()
    log_probs = tilted_log_probs(split.model, split.tune, log_ratios, [tune_labels], beta)
    model.fit_longer(split.tune, tune_labels, np.exp(log_probs))
    return model


def _estimate(split: Split, column: LabelColumn) -> ColumnEstimate:
    """Return the estimates for one column, from the model *knowing* and from classifiers of the value."""
    train_labels, tune_labels, test_labels = split.labels(column)
    model, value_count = _fit_value_model(split, column), len(column.values)
    text_counts = np.bincount(train_labels[train_labels < value_count], minlength=value_count)  # training texts
    log_prior = np.log((text_counts + 0.5) / (text_counts + 0.5).sum())
    _, tune_log_probs = model.log_probs(split.tune)
    tune_log_posteriors = [
        compute_log_posterior(tune_log_probs, split.tune, log_prior, exponent) for exponent in LIKELIHOOD_EXPONENTS
    ]
    exponent = _best_exponent(tune_log_posteriors, log_prior, tune_labels)
    bias_log_probs, test_log_probs = model.log_probs(split.test)
    *prefix_log_posteriors, text_log_posterior = (
        compute_log_posterior(test_log_probs, split.test, log_prior, exponent, length)
        for length in (*PREFIX_LENGTHS, None)
    )
    information = _information(text_log_posterior, log_prior, test_labels)
    log_posteriors = [*prefix_log_posteriors, text_log_posterior]
    classifiers = [_classifier_row("n-grams", column, log_posteriors, test_labels, information)]
    classifiers += _linear_classifier_rows(split, column, log_prior)
    best_classifier = max(classifiers, key=lambda row: row["information"])
    true_values, target_indices = split.test.repeat_per_target(test_labels), np.arange(len(split.test.targets))
    knowing_log_probs = test_log_probs[target_indices, true_values]
    nats_gained = knowing_log_probs - split.baseline
    nats_gained_by_bias = bias_log_probs[target_indices, true_values] - split.test.base
    most = max(0.0, _gain_from_nats(nats_gained.mean()))  # a negative gain is noise
    texts_with_value = max(1, int((test_labels < value_count).sum()))
    targets_per_text = len(target_indices) / texts_with_value
    least = min(_gain_from_nats(best_classifier["information"] / targets_per_text), most)
    row = {
        "column": column.name,
        "kind": column.kind,
        "is_binned": column.is_binned,
        **_value_counts(column, text_counts),
        "perplexity_nothing": _perplexity_from_nats(-split.baseline.mean()),
        "perplexity_knowing": _perplexity_from_nats(-knowing_log_probs.mean()),
        "most": most,
        "most_error": _standard_error(nats_gained, split.test.starts),
        "most_by_bias": min(max(0.0, _gain_from_nats(nats_gained_by_bias.mean())), most),
        "entropy": float(-(np.exp(log_prior) * log_prior).sum()),
        **best_classifier,
        "classifiers": [row["judge"] for row in classifiers],
        "least": least,
        "expected": expected_gain(least, most),
    }
    return ColumnEstimate(column, row, model)


def _best_exponent(log_posteriors: Sequence[Floats], log_prior: Floats, labels: Ids) -> float:
    """Return the exponent of `LIKELIHOOD_EXPONENTS` whose posterior has the most information about the value.

    `log_posteriors` has an array (B, K) for each exponent, for the tune texts.
    """
    information = [_information(log_posterior, log_prior, labels) for log_posterior in log_posteriors]
    return LIKELIHOOD_EXPONENTS[information.index(max(information))]


def _classifier_row(
    classifier_name: str, column: LabelColumn, log_posteriors: Sequence[Floats], labels: Ids, information: float
) -> Row:
    """Return a row with the information of a classifier, and with its accuracy after each prefix length.

    `log_posteriors` has an array (B, K) for each prefix length, and one for whole texts. The accuracies leave out the
    group of rare values: a text with a rare value has no true value, and the classifier does not predict the group.
    """
    lengths, first_label = (*PREFIX_LENGTHS, "all"), int(column.has_rare_group)
    accuracies = {
        f"accuracy_{length}": _accuracy(log_posterior, labels, first_label)
        for length, log_posterior in zip(lengths, log_posteriors, strict=True)
    }
    return {"judge": classifier_name, "information": max(0.0, information), **accuracies}


def _linear_classifier_rows(split: Split, column: LabelColumn, log_prior: Floats) -> list[Row]:
    """Return a list with the row of the linear classifier, or an empty list if the number of values is unsuitable."""
    if not 2 <= len(column.values) <= MAX_CLASSES:
        return []
    _, tune_labels, test_labels = split.labels(column)
    value_count = len(column.values)
    variable = Variable("value", "category", values=("", *column.values), counts=(0, *([1] * value_count)))
    # The classifier reads the value v as category v + 1, because category 0 is the unknown value, and -1 if missing.
    categories = np.where(column.labels == value_count, -1, column.labels + 1).astype(np.int32)

    def select(rows: Ids) -> Corpus:
        """Return the texts with these indices, with the column as their only context variable."""
        texts = split.corpus.select(rows)
        return replace(
            texts,
            schema=ContextSchema((variable,)),
            categories=categories[rows, None],
            numbers=texts.numbers[:, :0],
            vectors=(),
            words=(),
            prompts=(),
        )

    train_rows, tune_rows, test_rows = split.rows
    classifier = LinearClassifier.fit(select(train_rows[:MAX_CLASSIFIER_TEXTS]), variable.name)
    tune_log_posterior, test_texts = classifier.log_probs(select(tune_rows)), select(test_rows)
    prefix_log_posteriors = [classifier.log_probs(test_texts.truncate(length)) for length in PREFIX_LENGTHS]
    test_log_posterior = classifier.log_probs(test_texts)
    tune_log_posteriors = [apply_temperature(exponent * tune_log_posterior, 1.0) for exponent in LIKELIHOOD_EXPONENTS]
    exponent = _best_exponent(tune_log_posteriors, log_prior, tune_labels)
    information = _information(apply_temperature(exponent * test_log_posterior, 1.0), log_prior, test_labels)
    log_posteriors = [*prefix_log_posteriors, test_log_posterior]
    return [_classifier_row(LINEAR, column, log_posteriors, test_labels, information)]


def _information(log_posterior: Floats, log_prior: Floats, labels: Ids) -> float:
    """Return the mean of log posterior (B, K) minus log prior (K,) over true values, in nats.

    On average, it is at most the mutual information I(v; text).
    """
    labelled = np.flatnonzero(labels < len(log_prior))
    if not len(labelled):
        return 0.0
    true_values = labels[labelled]
    return float((log_posterior[labelled, true_values] - log_prior[true_values]).mean())


def _accuracy(log_posterior: Floats, labels: Ids, first_label: int) -> float:
    """Return the accuracy of predicting the label from `first_label` on, on the texts with such a label."""
    is_labelled = (labels >= first_label) & (labels < log_posterior.shape[1])
    predictions = log_posterior[:, first_label:].argmax(1) + first_label if is_labelled.any() else labels
    return float((predictions == labels)[is_labelled].mean()) if is_labelled.any() else math.nan


def _value_counts(column: LabelColumn, counts: Ids) -> Row:
    """Return the numbers of values, and the shares of texts with rare and missing values.

    `counts` (K,) are the numbers of training texts with each value.
    """
    rare_count = counts[0] if column.has_rare_group else 0
    frequent_counts = counts[int(column.has_rare_group) :]
    missing_share = float((column.labels == len(column.values)).mean())
    return {
        "values": len(frequent_counts),
        "rare_values": column.rare,
        "texts_per_value": float(np.median(frequent_counts)) if len(frequent_counts) else 0.0,
        "rare": float(rare_count / max(1, counts.sum())),
        "majority": float(max(frequent_counts, default=math.nan) / max(1, frequent_counts.sum())),
        "missing": missing_share,
    }


def _estimate_combined(split: Split, estimates: Sequence[ColumnEstimate], after_estimate: Callable[[], Any]) -> Row:
    """Return the estimates for all columns together; set the entry `added` in the row of each column.

    `estimates` begin with the strongest column. `added` is the gain of a column in addition to the stronger columns.
    The joint model multiplies the ratios r_v(w) of all columns, with refitted exponents, and then applies the counts of
    each column for longer histories (`conditional_ngram`).
    """
    rows = [estimate.row for estimate in estimates]
    labels = [split.labels(estimate.column) for estimate in estimates]
    all_tune_labels = [tune_labels for _, tune_labels, _ in labels]
    all_test_labels = [test_labels for _, _, test_labels in labels]
    strongest = rows[0]
    strongest["added"] = strongest["most"]
    joint_nats = _nats_from_gain(strongest["most"])  # reduction per target by the columns so far
    beta = np.array([estimates[0].model.beta])
    for count, row in enumerate(rows[1:], 2):
        models = [estimate.model for estimate in estimates[:count]]
        log_ratios = [model.log_ratios() for model in models]
        beta = fit_exponents(split.model, split.tune, log_ratios, all_tune_labels[:count], beta.tolist())
        tune_log_probs = tilted_log_probs(split.model, split.tune, log_ratios, all_tune_labels[:count], beta)
        test_log_probs = tilted_log_probs(split.model, split.test, log_ratios, all_test_labels[:count], beta)
        tune_probabilities, test_probabilities = np.exp(tune_log_probs), np.exp(test_log_probs)
        for model, tune_labels, test_labels in zip(models, all_tune_labels, all_test_labels, strict=False):
            tune_probabilities = model.fit_longer(split.tune, tune_labels, tune_probabilities)
            test_probabilities = model.apply_longer(split.test, test_labels, test_probabilities)
        previous_nats, joint_nats = joint_nats, float((np.log(test_probabilities) - split.baseline).mean())
        row["added"] = min(_gain_from_nats(joint_nats - previous_nats), row["most"])
        after_estimate()
    sum_of_single_nats = sum(_nats_from_gain(row["most"]) for row in rows)
    joint_share = min(1.0, max(0.0, joint_nats) / sum_of_single_nats) if sum_of_single_nats > 0 else 0.0
    least_nats = [_nats_from_gain(row["least"]) for row in rows]
    most = max(0.0, _gain_from_nats(joint_nats))
    least = min(most, _gain_from_nats(max(joint_share * sum(least_nats), *least_nats)))
    names = [row["column"] for row in rows]
    return {"columns": names, "least": least, "expected": expected_gain(least, most), "most": most}


def _perplexity_from_nats(nats: float) -> float:
    return float(np.exp(nats))


def _gain_from_nats(nats: float) -> float:
    """Return the relative reduction of the perplexity from a reduction of `nats` per target."""
    return float(1 - np.exp(-nats))


def _nats_from_gain(gain: float) -> float:
    """Return the reduction in nats per target from the relative reduction of the perplexity."""
    return -math.log1p(-gain)


def _standard_error(gains: Floats, starts: Ids) -> float:
    """Return the standard error of the mean of `gains` (T,), which are correlated within texts."""
    sums_of_texts, target_counts = np.add.reduceat(gains, starts[:-1]), np.diff(starts)
    residuals = sums_of_texts - gains.mean() * target_counts
    return float(np.sqrt((residuals**2).sum()) / target_counts.sum())


def expected_gain(least: float, most: float) -> float:
    """Return the gain that a trained model is expected to have, by a rule of thumb."""
    return least + SHARE * (most - least)


def recommend(row: Row) -> tuple[str, str]:
    """Return the advice on a column ("use", "softmax bias" or "leave out") and the reason for it."""
    gain_text, most_text = f"{row['expected']:.1%}", f"{row['most']:.1%}"
    is_insignificant = row["most"] < max(MIN_BIAS_GAIN, 2 * row["most_error"])
    if row["rare"] > MAX_RARE_SHARE and is_insignificant:
        reason = f"{row['rare']:.1%} of the texts have one of {row['rare_values']:,} rare values"
        return "leave out", f"too few rows per value to estimate the gain: {reason}"
    if row["values"] < 2:
        return "leave out", "fewer than two values have enough texts"
    if is_insignificant:
        return "leave out", f"an estimated gain of {most_text} (max gain) is not statistically significant"
    if row["added"] < min(MIN_ADDED_SHARE * row["most"], MIN_ADAPTER_GAIN):
        added_text = f"{max(0.0, row['added']):.1%}"
        alone = f"the column alone has an estimated gain of {most_text} (max gain)"
        reason = f"{alone}, but it adds only {added_text} to the gain of these"
        return "leave out", f"redundant with stronger columns: {reason}"
    if row["expected"] < MIN_BIAS_GAIN:
        share_text = f"{row['information'] / row['entropy']:.0%}"
        reason = f"the text itself reveals {share_text} of the information in the value"
        return "leave out", f"expected gain {gain_text}: {reason}"
    is_mostly_bias = row["most_by_bias"] > 0.8 * row["most"]
    if row["expected"] < MIN_ADAPTER_GAIN and is_mostly_bias:
        return "softmax bias", f"expected gain {gain_text}, nearly all from the frequencies of single tokens"
    gain_source = "mostly from the frequencies of single tokens" if is_mostly_bias else "also from sequences of tokens"
    return "use", f"expected gain {gain_text}, {gain_source}"
