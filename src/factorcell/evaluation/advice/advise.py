"""What is a context column worth? Estimates without training, each exact for the counts that it is based on.

Two readers of held-out texts are compared, with the n-gram models of `conditional_ngram`:

    nothing    -log p(w | h)       knows the words before
    knowing    -log p(w | h, v)    knows the value too

The gain of a perfect reader from the value is I(v; text) / T nats per target, at most H(v) / T: a value that a few
words reveal is worth little, however different its texts are. The held-out posterior of a classifier bounds I(v; text)
from below. A language model is between a perfect reader and one that sees only the last words, so its gain is expected
between `least`, from that bound, and `most`, that of knowing over nothing.

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
from factorcell.data.tables import COLUMNS_IN_MEMORY, table_name
from factorcell.evaluation import baselines
from factorcell.evaluation.advice.conditional_ngram import (
    ValueNGram,
    exponents,
    posterior,
    tilted,
)
from factorcell.evaluation.advice.sample import Ids, LabelColumn, Split, columns_of, sample
from factorcell.evaluation.bayes_rule import apply_temperature
from factorcell.progress import progress_bar

LEAST = 20  # minimal number of rows
VOCABULARY = 20_000  # maximal number of tokens
FIRST = (5, 10, 20)  # numbers of tokens after which the value is guessed
COOL = (1.0, 0.7, 0.5, 0.35, 0.25, 0.18)  # exponents of a likelihood that counts words as if they were independent
CLASSES, LEARNED = 50, 20_000  # maximal numbers of values and of training texts for the linear classifier
SHARE = 0.35  # of the way from least to most, where trained models were found (docs/advice.md)
WORTH, PLENTY = 0.005, 0.02  # gains from which a column is worth a softmax bias, and an adapted recurrent layer
SCARCE = 0.5  # share of texts with rare values from which a column without a gain was not seen enough
NEW = 0.25  # share of its gain that a column must add to stronger ones

Row = dict[str, Any]
Floats = NDArray[np.float64]


def advise(source: Any, config: Config, *, rows: int = ADVICE_ROWS, seed: int = 0, progress: bool = False) -> Row:
    """Estimate how much each context column of `config` can lower the perplexity, from at most `rows` of a table.

    `columns` has a row of estimates for each column, the best first, with `advice` and `why`; `all` those of all
    columns together. `UserError` if no column is given or there are too few rows.
    """
    limits.check(rows=rows, seed=seed)
    data = config.data
    if not data.columns:
        raise UserError("no context column to judge; name one by --context NAME")
    config = config.with_options(max_vocabulary=min(config.tokenizer.max_vocabulary, VOCABULARY))
    names = list(dict.fromkeys([data.text, *(parse_column(text)[0] for text in data.columns)]))
    table, total = sample(source, names, rows, seed)
    try:
        corpus = prepare(table, config, progress=progress, report_truncation=False)
    except UserError as error:
        drawn = "" if total <= rows else f", of {rows:,} rows drawn,"
        raise error.with_message(error.message.replace(COLUMNS_IN_MEMORY, f"{table_name(source)}{drawn}", 1)) from None
    report_truncated(corpus.truncated, table_name(source), data.max_tokens)
    if len(corpus) < LEAST:
        raise UserError(f"{len(corpus)} rows are too few to judge a column; {LEAST} are the least")
    columns = columns_of(corpus)
    split = Split.of(corpus, config, max(len(column.values) for column in columns), seed, progress)
    bar = progress_bar(columns, desc="judging", unit="columns", show=progress)
    judged = [(column, *_judge(split, column, seed)) for column in bar]
    judged.sort(key=lambda item: -item[1]["most"])
    found = [row for _, row, _ in judged]
    together = _together(split, [(column, model) for column, _, model in judged], found)
    for row in found:
        row["advice"], row["why"] = recommend(row)
    return {
        "rows": len(corpus),
        "of": total,
        "targets": corpus.target_count,
        "tokens_per_text": corpus.target_count / len(corpus),
        "columns": found,
        "all": together,
    }


def _judge(split: Split, column: LabelColumn, seed: int) -> tuple[Row, ValueNGram]:
    """Return the estimates for one column, and its fitted model."""
    train, tune, test = split.labels(column)
    model = ValueNGram(split.model, split.train, train, len(column.values))
    model.fit_prior(split.tune, tune)
    ratios = model.ratios()
    model.beta = float(exponents(split.model, split.tune, [ratios], [tune])[0])
    by_bias = tilted(split.model, split.tune, [ratios], [tune], np.array([model.beta]))
    model.fit_longer(split.tune, tune, np.exp(by_bias))
    counts = np.bincount(train[train < len(column.values)], minlength=len(column.values))
    prior = np.log((counts + 0.5) / (counts + 0.5).sum())
    _, tuned = model.logs(split.tune)
    exponent = _best_exponent([posterior(tuned, split.tune, prior, c) for c in COOL], prior, tune)
    first, every = model.logs(split.test)
    after = [posterior(every, split.test, prior, exponent, n) for n in (*FIRST, None)]
    guesses = [_guesses("n-grams", after, test, _information(after[-1], prior, test))]
    guesses += _linear(split, column, prior, seed)
    best = max(guesses, key=lambda row: row["information"])
    known, own = split.test.each(test), np.arange(len(split.test.wanted))
    gains = every[own, known] - split.nothing
    length = len(own) / max(1, int((test < len(prior)).sum()))  # targets per value
    most = max(0.0, _gain(gains.mean()))  # below 0 it is noise
    least, entropy = min(_gain(best["information"] / length), most), float(-(np.exp(prior) * prior).sum())
    row = {
        "column": column.name,
        "kind": column.kind,
        **_described(column, counts),
        "perplexity_nothing": _exp(-split.nothing.mean()),
        "perplexity_knowing": _exp(-every[own, known].mean()),
        "most": most,
        "most_error": _error(gains, split.test.starts),
        "most_by_bias": min(max(0.0, _gain((first[own, known] - split.test.base).mean())), most),
        "entropy": entropy,
        **best,
        "majority": float(counts.max() / max(1, counts.sum())),
        "least": least,
        "expected": expected(least, most),
    }
    return row, model


def _best_exponent(posteriors: Sequence[Floats], prior: Floats, labels: Ids) -> float:
    """Return the exponent of `COOL` whose posterior (B, K) of the tune texts has most information about the value."""
    information = [_information(logs, prior, labels) for logs in posteriors]
    return COOL[information.index(max(information))]


def _guesses(judge: str, after: Sequence[Floats], labels: Ids, information: float) -> Row:
    """Return the accuracies of posteriors (B, K) after the first tokens of a text, and last after all."""
    accuracies = {f"accuracy_{n}": _accuracy(logs, labels) for n, logs in zip((*FIRST, "all"), after, strict=True)}
    return {"judge": judge, "information": max(0.0, information), **accuracies}


def _linear(split: Split, column: LabelColumn, prior: Floats, seed: int) -> list[Row]:
    if not 2 <= len(column.values) <= CLASSES:
        return []
    _, tune, test = split.labels(column)
    known = Variable("value", "category", values=("", *column.values), counts=(0, *([1] * len(column.values))))

    def part(rows: Ids) -> Corpus:
        ids = np.where(column.labels == len(column.values), -1, column.labels + 1)[rows, None].astype(np.int32)
        return replace(split.corpus.select(rows), categories=ids, schema=ContextSchema((known,)))

    judge, unread = baselines.Linear(part(split.rows[0][:LEARNED]), seed=seed), part(split.rows[2])
    fitted = judge(part(split.rows[1])).log_posterior
    after = [judge(text).log_posterior for text in (*(unread.truncate(first) for first in FIRST), unread)]
    exponent = _best_exponent([apply_temperature(c * fitted, 1.0) for c in COOL], prior, tune)
    return [_guesses("linear", after, test, _information(apply_temperature(exponent * after[-1], 1.0), prior, test))]


def _information(logs: Floats, prior: Floats, labels: Ids) -> float:
    """Return the nats that a posterior `logs` (B, K) has about the value beyond the prior: at most I(v; text)."""
    known = np.flatnonzero(labels < len(prior))
    return float((logs[known, labels[known]] - prior[labels[known]]).mean()) if len(known) else 0.0


def _accuracy(logs: Floats, labels: Ids) -> float:
    known = labels < logs.shape[1]
    return float((logs.argmax(1) == labels)[known].mean()) if known.any() else math.nan


def _described(column: LabelColumn, counts: Ids) -> Row:
    rare = counts[0] if column.values[0] == UNKNOWN_VALUE else 0
    named = counts[1:] if column.values[0] == UNKNOWN_VALUE else counts
    missing = float((column.labels == len(column.values)).mean())
    return {
        "values": len(named),
        "rare_values": column.rare,
        "texts_per_value": float(np.median(named)) if len(named) else 0.0,
        "rare": float(rare / max(1, counts.sum())),
        "missing": missing,
    }


def _together(split: Split, models: Sequence[tuple[LabelColumn, ValueNGram]], rows: Sequence[Row]) -> Row:
    """Return the estimates for all columns together; add to each row what its column adds to the stronger ones.

    The ratios of columns are multiplied, with exponents fitted anew; then the longer histories of each are applied.
    """
    gained = _nats(rows[0]["most"])
    rows[0]["added"] = rows[0]["most"]
    tunes, tests = zip(*(split.labels(column)[1:] for column, _ in models), strict=True)
    for count in range(2, len(rows) + 1):
        some = [model for _, model in models[:count]]
        tables = [model.ratios() for model in some]
        beta = exponents(split.model, split.tune, tables, tunes[:count])
        tune = np.exp(tilted(split.model, split.tune, tables, tunes[:count], beta))
        test = np.exp(tilted(split.model, split.test, tables, tests[:count], beta))
        for model, fits, judges in zip(some, tunes, tests, strict=False):
            tune = model.fit_longer(split.tune, fits, tune)
            test = model.lengthen(split.test, judges, test)
        nats = float((np.log(test) - split.nothing).mean())
        rows[count - 1]["added"] = min(_gain(nats - gained), rows[count - 1]["most"])
        gained = nats
    alone = sum(_nats(row["most"]) for row in rows)
    known = [_nats(row["least"]) for row in rows]
    overlap = min(1.0, max(0.0, gained) / alone) if alone > 0 else 0.0
    most = max(0.0, _gain(gained))
    least = min(most, _gain(max(overlap * sum(known), *known)))
    names = [row["column"] for row in rows]
    return {"columns": names, "least": least, "expected": expected(least, most), "most": most}


def _exp(nats: float) -> float:
    return float(np.exp(nats))


def _gain(nats: float) -> float:
    """Return the relative reduction of the perplexity if every target costs `nats` less."""
    return float(1 - np.exp(-nats))


def _nats(gain: float) -> float:
    return -math.log1p(-gain)


def _error(gains: Floats, starts: Ids) -> float:
    sums, sizes = np.add.reduceat(gains, starts[:-1]), np.diff(starts)
    left = sums - gains.mean() * sizes
    return float(np.sqrt((left**2).sum()) / sizes.sum())


def expected(least: float, most: float) -> float:
    return least + SHARE * (most - least)


def recommend(row: Row) -> tuple[str, str]:
    """Return the advice on a column, "use", "softmax bias" or "leave out", and the reason."""
    gain, most = f"{row['expected']:.1%}", f"{row['most']:.1%}"
    if row["rare"] > SCARCE and row["most"] < max(WORTH, 2 * row["most_error"]):
        rare = f"{row['rare']:.1%} of the texts have one of {row['rare_values']:,} rare values"
        return "leave out", f"too few rows of each value were read to tell what it saves: {rare}"
    if row["values"] < 2:
        return "leave out", "it has not two values with enough texts each, so it says nothing"
    if row["most"] < max(WORTH, 2 * row["most_error"]):
        return "leave out", f"it saves at most {most}, no more than chance"
    if row["added"] < min(NEW * row["most"], PLENTY):
        return "leave out", f"stronger columns say the same: of {most} it adds {max(0.0, row['added']):.1%} to them"
    if row["expected"] < WORTH:
        share = f"{row['information'] / row['entropy']:.0%} of it can be read off the text"
        return "leave out", f"it saves about {gain}, for {share}"
    by_bias = row["most_by_bias"] > 0.8 * row["most"]
    if row["expected"] < PLENTY and by_bias:
        return "softmax bias", f"about {gain}, nearly all of it which words are frequent, not what follows what"
    return "use", f"about {gain}, {'mostly by frequent words' if by_bias else 'and what follows what changes too'}"
