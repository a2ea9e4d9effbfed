"""Estimate how much each context column can lower the perplexity, without training a language model.

Two n-gram models (`conditional_ngram`) are compared on held-out texts:

    nothing    -log p(w | h)       predicts token w from the preceding tokens h
    knowing    -log p(w | h, v)    also reads the value v of the column

An ideal model infers v from all preceding tokens of a text. Knowing v before the first token lowers its nats per target
by I(v; text) / T <= H(v) / T, where I is the mutual information and H the entropy. Therefore, if a few words reveal the
value, the column is worth little, however different the texts of the values are. A classifier gives a lower bound of
I(v; text): the mean of log p(v | text) - log p(v) over held-out texts.

A trained language model remembers less of the text than the ideal model, and more than the n-gram models. Its gain is
expected to lie between `least`, the gain from this bound, and `most`, the gain of *knowing* over *nothing*. Gains are
relative reductions of the perplexity.

Shapes: B texts, T targets, V vocabulary, K values (label K is a missing value), C columns.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell import limits
from factorcell.choices import ADVICE_ROWS
from factorcell.config import Config, UserError
from factorcell.data.cache import prepare, report_truncated
from factorcell.data.columns import parse_column
from factorcell.data.corpus import Corpus
from factorcell.data.schema import UNKNOWN_VALUE, ContextSchema, Variable
from factorcell.data.tables import IN_MEMORY, table_name
from factorcell.evaluation import baselines
from factorcell.evaluation.advice.conditional_ngram import (
    ValueNGram,
    exponents,
    posterior,
    tilted_log_probs,
)
from factorcell.evaluation.advice.sample import Ids, LabelColumn, Split, label_columns, sample
from factorcell.evaluation.bayes_rule import apply_temperature
from factorcell.progress import progress_bar

MIN_ROWS = 20
MAX_VOCABULARY = 20_000  # tokens
PREFIX_LENGTHS = (5, 10, 20)  # numbers of tokens after which the value is predicted
LIKELIHOOD_EXPONENTS = (1.0, 0.7, 0.5, 0.35, 0.25, 0.18)  # below 1, because tokens are not independent evidence
MAX_CLASSES, MAX_CLASSIFIER_TEXTS = 50, 20_000  # values and training texts of the linear classifier
SHARE = 0.35  # expected gain = least + SHARE * (most - least), from trained models (docs/advice.md)
MIN_BIAS_GAIN, MIN_ADAPTER_GAIN = 0.005, 0.02  # minimum gains for a softmax bias and for an adapted recurrent layer
MAX_RARE_SHARE = 0.5  # if a larger share of texts has rare values, the gain of the column cannot be estimated
MIN_ADDED_SHARE = 0.25  # minimum gain of a column in addition to stronger columns, as a share of its gain alone

Row = dict[str, Any]
Floats = NDArray[np.float64]


def advise(source: Any, config: Config, *, rows: int = ADVICE_ROWS, seed: int = 0, progress: bool = False) -> Row:
    """Estimate how much each context column can lower the perplexity.

    Args:
        source: A table.
        config: The context columns, and the options for reading the table.
        rows: The maximum number of rows to read, drawn at random.
        seed: The seed of all draws.
        progress: Whether to show a progress bar.

    Returns:
        A row with six entries. `columns` has a row of estimates for each column, the best column first, with the
        `advice` and the reason for it (`why`). `all` has the estimates for all columns together. `rows` is the number
        of rows that were read, `of` the number of rows in the table, `targets` the number of targets in the rows read,
        and `tokens_per_text` the mean number of targets per text.

    Raises:
        UserError: The config has no context column, or the table has too few rows.
    """
    limits.check(rows=rows, seed=seed)
    data = config.data
    if not data.columns:
        raise UserError("expected at least one context column; specify it by --context NAME")
    config = config.with_options(max_vocabulary=min(config.tokenizer.max_vocabulary, MAX_VOCABULARY))
    names = list(dict.fromkeys([data.text, *(parse_column(text)[0] for text in data.columns)]))
    table, total = sample(source, names, rows, seed)
    try:
        corpus = prepare(table, config, progress=progress, report_truncation=False)
    except UserError as error:
        sampled = "" if total <= rows else f", of {rows:,} rows drawn,"
        name = f"{table_name(source)}{sampled}"
        raise error.with_message(error.message.replace(IN_MEMORY, name, 1)) from None
    report_truncated(corpus.truncated, table_name(source), data.max_tokens)
    if len(corpus) < MIN_ROWS:
        raise UserError(f"{table_name(source)}: expected at least {MIN_ROWS} rows, got {len(corpus)}")
    columns = label_columns(corpus)
    split = Split.from_corpus(corpus, config, max(len(column.values) for column in columns), seed, progress)
    bar = progress_bar(columns, desc="estimating", unit="columns", show=progress)
    estimates = [(column, *_estimate(split, column, seed)) for column in bar]
    estimates.sort(key=lambda item: -item[1]["most"])
    column_rows = [row for _, row, _ in estimates]
    combined = _estimate_combined(split, [(column, model) for column, _, model in estimates], column_rows)
    for row in column_rows:
        row["advice"], row["why"] = recommend(row)
    return {
        "rows": len(corpus),
        "of": total,
        "targets": corpus.target_count,
        "tokens_per_text": corpus.target_count / len(corpus),
        "columns": column_rows,
        "all": combined,
    }


def _estimate(split: Split, column: LabelColumn, seed: int) -> tuple[Row, ValueNGram]:
    """Return the row of estimates for one column, and the n-gram model that is conditioned on the column."""
    train_labels, tune_labels, test_labels = split.labels(column)
    model = ValueNGram(split.model, split.train, train_labels, len(column.values))
    model.fit_prior(split.tune, tune_labels)
    ratios = model.ratios()
    model.beta = float(exponents(split.model, split.tune, [ratios], [tune_labels])[0])
    log_probs = tilted_log_probs(split.model, split.tune, [ratios], [tune_labels], np.array([model.beta]))
    model.fit_longer(split.tune, tune_labels, np.exp(log_probs))
    counts = np.bincount(train_labels[train_labels < len(column.values)], minlength=len(column.values))
    prior = np.log((counts + 0.5) / (counts + 0.5).sum())
    _, tune_log_probs = model.log_probs(split.tune)
    posteriors = [posterior(tune_log_probs, split.tune, prior, exponent) for exponent in LIKELIHOOD_EXPONENTS]
    exponent = _best_exponent(posteriors, prior, tune_labels)
    bias_log_probs, test_log_probs = model.log_probs(split.test)
    by_prefix = [posterior(test_log_probs, split.test, prior, exponent, n) for n in (*PREFIX_LENGTHS, None)]
    classifiers = [_classifier_row("n-grams", by_prefix, test_labels, _information(by_prefix[-1], prior, test_labels))]
    classifiers += _linear_classifier_rows(split, column, prior, seed)
    best = max(classifiers, key=lambda row: row["information"])
    values, targets = split.test.repeat_per_target(test_labels), np.arange(len(split.test.targets))
    gains = test_log_probs[targets, values] - split.baseline
    targets_per_text = len(targets) / max(1, int((test_labels < len(prior)).sum()))  # over texts with a value
    most = max(0.0, _gain(gains.mean()))  # a negative gain is noise
    least, entropy = min(_gain(best["information"] / targets_per_text), most), float(-(np.exp(prior) * prior).sum())
    row = {
        "column": column.name,
        "kind": column.kind,
        **_value_counts(column, counts),
        "perplexity_nothing": _exp(-split.baseline.mean()),
        "perplexity_knowing": _exp(-test_log_probs[targets, values].mean()),
        "most": most,
        "most_error": _error(gains, split.test.starts),
        "most_by_bias": min(max(0.0, _gain((bias_log_probs[targets, values] - split.test.base).mean())), most),
        "entropy": entropy,
        **best,
        "majority": float(counts.max() / max(1, counts.sum())),
        "least": least,
        "expected": expected(least, most),
    }
    return row, model


def _best_exponent(posteriors: Sequence[Floats], prior: Floats, labels: Ids) -> float:
    """Return the exponent of `LIKELIHOOD_EXPONENTS` whose posterior has the most information about the value.

    `posteriors` are the log posteriors (B, K) of the tune texts for each exponent.
    """
    information = [_information(log_posterior, prior, labels) for log_posterior in posteriors]
    return LIKELIHOOD_EXPONENTS[information.index(max(information))]


def _classifier_row(name: str, by_prefix: Sequence[Floats], labels: Ids, information: float) -> Row:
    """Return a row with the information of a classifier, and with its accuracy after each prefix length.

    `by_prefix` are the log posteriors (B, K) given the first tokens of each text, for each length.
    """
    lengths = (*PREFIX_LENGTHS, "all")
    accuracies = {
        f"accuracy_{length}": _accuracy(log_posterior, labels)
        for length, log_posterior in zip(lengths, by_prefix, strict=True)
    }
    return {"judge": name, "information": max(0.0, information), **accuracies}


def _linear_classifier_rows(split: Split, column: LabelColumn, prior: Floats, seed: int) -> list[Row]:
    """Return a list with the row of the linear classifier; it is empty if the column has too few or too many values."""
    if not 2 <= len(column.values) <= MAX_CLASSES:
        return []
    _, tune_labels, test_labels = split.labels(column)
    variable = Variable("value", "category", values=("", *column.values), counts=(0, *([1] * len(column.values))))

    def select(rows: Ids) -> Corpus:
        ids = np.where(column.labels == len(column.values), -1, column.labels + 1)[rows, None].astype(np.int32)
        return replace(split.corpus.select(rows), categories=ids, schema=ContextSchema((variable,)))

    train_rows, tune_rows, test_rows = split.rows
    classifier = baselines.LinearClassifier(select(train_rows[:MAX_CLASSIFIER_TEXTS]), seed=seed)
    tune_posterior, test_texts = classifier(select(tune_rows)).log_posterior, select(test_rows)
    prefixes = [*(test_texts.truncate(length) for length in PREFIX_LENGTHS), test_texts]
    by_prefix = [classifier(texts).log_posterior for texts in prefixes]
    tempered = [apply_temperature(exponent * tune_posterior, 1.0) for exponent in LIKELIHOOD_EXPONENTS]
    exponent = _best_exponent(tempered, prior, tune_labels)
    information = _information(apply_temperature(exponent * by_prefix[-1], 1.0), prior, test_labels)
    return [_classifier_row("linear", by_prefix, test_labels, information)]


def _information(log_posterior: Floats, prior: Floats, labels: Ids) -> float:
    """Return the mean of log posterior (B, K) minus log prior (K,) over true values, in nats.

    On average, it is at most the mutual information I(v; text).
    """
    known = np.flatnonzero(labels < len(prior))
    return float((log_posterior[known, labels[known]] - prior[labels[known]]).mean()) if len(known) else 0.0


def _accuracy(log_posterior: Floats, labels: Ids) -> float:
    known = labels < log_posterior.shape[1]
    return float((log_posterior.argmax(1) == labels)[known].mean()) if known.any() else math.nan


def _value_counts(column: LabelColumn, counts: Ids) -> Row:
    """Return the numbers of values and the shares of rare and missing values."""
    has_rare = column.values[0] == UNKNOWN_VALUE
    rare = counts[0] if has_rare else 0
    frequent = counts[1:] if has_rare else counts
    missing = float((column.labels == len(column.values)).mean())
    return {
        "values": len(frequent),
        "rare_values": column.rare,
        "texts_per_value": float(np.median(frequent)) if len(frequent) else 0.0,
        "rare": float(rare / max(1, counts.sum())),
        "missing": missing,
    }


def _estimate_combined(split: Split, models: Sequence[tuple[LabelColumn, ValueNGram]], rows: Sequence[Row]) -> Row:
    """Return the estimates for all columns together; set `added` in each of `rows`.

    `added` is the gain of a column in addition to the stronger columns, which precede it. The joint model multiplies
    the ratios r_v(w) of all columns, with refitted exponents, and then applies the counts of each column for longer
    histories (`conditional_ngram`).
    """
    previous = _nats(rows[0]["most"])
    rows[0]["added"] = rows[0]["most"]
    all_tune_labels, all_test_labels = zip(*(split.labels(column)[1:] for column, _ in models), strict=True)
    for count in range(2, len(rows) + 1):
        strongest = [model for _, model in models[:count]]
        ratios = [model.ratios() for model in strongest]
        beta = exponents(split.model, split.tune, ratios, all_tune_labels[:count])
        tune_probabilities = np.exp(tilted_log_probs(split.model, split.tune, ratios, all_tune_labels[:count], beta))
        test_probabilities = np.exp(tilted_log_probs(split.model, split.test, ratios, all_test_labels[:count], beta))
        for model, tune_labels, test_labels in zip(strongest, all_tune_labels, all_test_labels, strict=False):
            tune_probabilities = model.fit_longer(split.tune, tune_labels, tune_probabilities)
            test_probabilities = model.apply_longer(split.test, test_labels, test_probabilities)
        nats = float((np.log(test_probabilities) - split.baseline).mean())
        rows[count - 1]["added"] = min(_gain(nats - previous), rows[count - 1]["most"])
        previous = nats
    single = sum(_nats(row["most"]) for row in rows)
    least_nats = [_nats(row["least"]) for row in rows]
    overlap = min(1.0, max(0.0, previous) / single) if single > 0 else 0.0
    most = max(0.0, _gain(previous))
    least = min(most, _gain(max(overlap * sum(least_nats), *least_nats)))
    names = [row["column"] for row in rows]
    return {"columns": names, "least": least, "expected": expected(least, most), "most": most}


def _exp(nats: float) -> float:
    return float(np.exp(nats))


def _gain(nats: float) -> float:
    """Return the relative reduction of the perplexity from a reduction of `nats` per target."""
    return float(1 - np.exp(-nats))


def _nats(gain: float) -> float:
    """Return the reduction in nats per target from the relative reduction of the perplexity."""
    return -math.log1p(-gain)


def _error(gains: Floats, starts: Ids) -> float:
    """Return the standard error of the mean of `gains` (T,), which are correlated within texts."""
    sums, sizes = np.add.reduceat(gains, starts[:-1]), np.diff(starts)
    residuals = sums - gains.mean() * sizes
    return float(np.sqrt((residuals**2).sum()) / sizes.sum())


def expected(least: float, most: float) -> float:
    """Return the gain that a trained model is expected to have, by a rule of thumb."""
    return least + SHARE * (most - least)


def recommend(row: Row) -> tuple[str, str]:
    """Return the advice on a column ("use", "softmax bias" or "leave out") and the reason for it."""
    gain, most = f"{row['expected']:.1%}", f"{row['most']:.1%}"
    is_insignificant = row["most"] < max(MIN_BIAS_GAIN, 2 * row["most_error"])
    if row["rare"] > MAX_RARE_SHARE and is_insignificant:
        rare = f"{row['rare']:.1%} of the texts have one of {row['rare_values']:,} rare values"
        return "leave out", f"too few rows per value to estimate the gain: {rare}"
    if row["values"] < 2:
        return "leave out", "fewer than two values have enough texts"
    if is_insignificant:
        return "leave out", f"the gain of at most {most} is not statistically significant"
    if row["added"] < min(MIN_ADDED_SHARE * row["most"], MIN_ADAPTER_GAIN):
        added = f"{max(0.0, row['added']):.1%}"
        return "leave out", f"redundant with stronger columns: of its gain of {most} it adds {added} to theirs"
    if row["expected"] < MIN_BIAS_GAIN:
        share = f"{row['information'] / row['entropy']:.0%}"
        return "leave out", f"expected gain {gain}: the text itself reveals {share} of the information in the value"
    is_mostly_bias = row["most_by_bias"] > 0.8 * row["most"]
    if row["expected"] < MIN_ADAPTER_GAIN and is_mostly_bias:
        return "softmax bias", f"expected gain {gain}, nearly all from the frequencies of single tokens"
    source = "mostly from the frequencies of single tokens" if is_mostly_bias else "also from sequences of tokens"
    return "use", f"expected gain {gain}, {source}"
