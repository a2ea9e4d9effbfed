"""What is a context column worth? Estimates before any training, each exact for the counts that it rests on.

Three readers of held-out texts are compared, with the n-gram models of `conditional_ngram`:

    nothing    -log p(w | h)                                       knows the words before
    inferring  -log sum_v p(v | all before) p(w | h, v)            guesses the value from the text so far
    knowing    -log p(w | h, v)                                    is given the value

What a perfect reader gains from the value is I(v; text) / T nats per target, at most H(v) / T: a value that a few words
give away is worth little, however different its texts are. A classifier's held-out posterior bounds I(v; text) from
below. A language model reads less well than a perfect reader and better than one that forgets all but the last words,
so its gain is expected between `least`, exp of that bound, and `most`, knowing against nothing.

Shapes: B texts, T targets, V vocabulary, K values (and one more for missing), C columns.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell import limits
from factorcell.choices import ADVICE_ROWS
from factorcell.config import Config, UserError
from factorcell.data.cache import prepare, report_truncated
from factorcell.data.columns import parse_column
from factorcell.data.corpus import Corpus
from factorcell.data.schema import RARE, ContextSchema, Variable
from factorcell.data.tables import GIVEN, name_of
from factorcell.evaluation import baselines
from factorcell.evaluation.advice.conditional_ngram import (
    ROUNDS,
    Step,
    ValueNGram,
    exponents,
    inferred,
    normalised,
    posterior,
    tilted,
)
from factorcell.evaluation.advice.sample import Ids, LabelColumn, Split, beginnings, columns_of, sample
from factorcell.model.run import Run
from factorcell.progress import progress_bar

LEAST = 20  # rows that say anything at all
VOCABULARY = 20_000  # at most so many tokens
FIRST = (5, 10, 20)  # tokens after which the value is guessed
COOL = (1.0, 0.7, 0.5, 0.35, 0.25, 0.18)  # exponents of a likelihood that counts words as if they were independent
CLASSES, LEARNED = 50, 20_000  # the linear classifier is asked with at most so many values; texts it learns from
SHARE = 0.35  # of the way from least to most, where trained models were found (docs/advice.md)
WORTH, PLENTY = 0.005, 0.02  # gains from which a column is worth a softmax bias, and an adapted recurrent layer
SCARCE = 0.5  # share of texts with rare values, from which a column that seems to save nothing was not seen enough
NEW = 0.25  # share of its gain that a column must add to stronger ones

Row = dict[str, Any]
Floats = NDArray[np.float64]


def advise(source: Any, config: Config, *, rows: int = ADVICE_ROWS, seed: int = 0, progress: bool = False) -> Row:
    """Advice on the context columns that `config` names, from at most `rows` of the table `source`.

    In `columns` a row of figures each, the best first; all together in `all`. `UserError` where there is no column.
    """
    limits.check(rows=rows, seed=seed)
    data = config.data
    if not data.columns:
        raise UserError("no context column to judge; name one by --context NAME")
    config = config.with_options(max_vocabulary=min(config.tokenizer.max_vocabulary, VOCABULARY))
    names = list(dict.fromkeys([data.text, *(parse_column(text)[0] for text in data.columns)]))
    table, total = sample(source, names, rows, seed)
    try:
        corpus = prepare(table, config, progress=progress, report=False)
    except UserError as error:
        drawn = "" if total <= rows else f", of {rows:,} rows drawn,"
        raise error.saying(error.message.replace(GIVEN, f"{name_of(source)}{drawn}", 1)) from None
    report_truncated(corpus.truncated, name_of(source), data.max_tokens)
    if len(corpus) < LEAST:
        raise UserError(f"{len(corpus)} rows are too few to judge a column; {LEAST} are the least")
    columns = columns_of(corpus)
    split = Split.of(corpus, config, max(len(column.values) for column in columns), seed, progress)
    with progress_bar(total=_work(split, len(columns)), desc="judging", unit="targets", show=progress) as bar:
        judged = [(column, *_judge(split, column, seed, bar.update)) for column in columns]
        judged.sort(key=lambda item: -item[1]["most"])
        models = [(column, model) for column, _, model in judged]
        together = _together(split, models, [row for _, row, _ in judged], bar.update)
    found = [row for _, row, _ in judged]
    for row in found:
        row["advice"], row["why"] = recommend(row)
    size = {
        "rows": len(corpus),
        "of": total,
        "targets": corpus.targets,
        "tokens_per_text": corpus.targets / len(corpus),
    }
    return {**size, "columns": found, "all": together}


def _work(split: Split, columns: int) -> int:
    """How many targets are read to judge so many columns, each alone and then beside those before it."""
    tune, test = len(split.tune.wanted), len(split.test.wanted)
    alone, beside = (ROUNDS + 2) * tune + test, (ROUNDS + 1) * tune + test
    return columns * alone + (columns - 1) * beside


def _judge(split: Split, column: LabelColumn, seed: int, step: Step) -> tuple[Row, ValueNGram]:
    """The figures of one column, and what was counted."""
    train, tune, test = split.labels(column)
    model = ValueNGram(split.model, split.train, train, len(column.values))
    model.fit_prior(split.tune, tune)
    ratios = model.ratios()
    model.beta = float(exponents(split.model, split.tune, [ratios], [tune], step)[0])
    first = tilted(split.model, split.tune, [ratios], [tune], np.array([model.beta]), step)
    model.fit_longer(split.tune, tune, np.exp(first))
    counts = np.bincount(train[train < len(column.values)], minlength=len(column.values))
    prior = np.log((counts + 0.5) / (counts + 0.5).sum())
    guesses = _guesses(split, model, prior, (tune, test), step)
    first, every = guesses.pop("first"), guesses.pop("every")
    known, own = split.test.each(test), np.arange(len(split.test.wanted))
    gains = every[own, known] - split.nothing
    linear = _linear(split, column, prior, seed)
    told = max([guesses, linear], key=lambda row: row["information"])
    length = len(own) / max(1, int((test < len(prior)).sum()))  # targets that the value of one text is spread over
    row = {
        "column": column.name,
        "kind": column.kind,
        **_described(column, counts),
        "perplexity_nothing": _exp(-split.nothing.mean()),
        "perplexity_inferring": guesses["perplexity_inferring"],
        "perplexity_knowing": _exp(-every[own, known].mean()),
        "most": _gain(gains.mean()),
        "most_error": _error(gains, split.test.starts),
        "most_by_bias": _gain((first[own, known] - split.test.base).mean()),
        "entropy": float(-(np.exp(prior) * prior).sum()),
        **{name: told[name] for name in told if name.startswith(("information", "accuracy", "judge"))},
        "majority": float(counts.max() / max(1, counts.sum())),
        "least": _gain(told["information"] / length),
    }
    row["most"] = max(0.0, row["most"])  # below it is noise
    row["least"] = min(row["least"], row["most"])
    row["most_by_bias"] = min(max(0.0, row["most_by_bias"]), row["most"])  # a part of it
    row["bound"] = _gain(row["entropy"] / length)
    row["expected"] = expected(row["least"], row["most"])
    return row, model


def _guesses(split: Split, model: ValueNGram, prior: Floats, labels: tuple[Ids, Ids], step: Step) -> Row:
    """Bayes' rule over the value's n-gram models: what it knows of the value after the first tokens and after all.

    `labels` of the tune and the test texts.
    """
    tune, test = labels
    logs = model.logs(split.tune, step)[1]
    told = {c: _information(posterior(logs, split.tune, prior, c), prior, tune) for c in COOL}
    exponent = max(told, key=lambda c: told[c])
    first, every = model.logs(split.test, step)
    after = {str(n): posterior(every, split.test, prior, exponent, n) for n in FIRST}
    after["all"] = posterior(every, split.test, prior, exponent)
    return {
        "judge": "n-grams",
        "first": first,
        "every": every,
        "perplexity_inferring": _exp(-inferred(every, split.test, prior, exponent).mean()),
        "information": max(0.0, _information(after["all"], prior, test)),
        **{f"accuracy_{n}": _accuracy(found, test) for n, found in after.items()},
    }


def _linear(split: Split, column: LabelColumn, prior: Floats, seed: int) -> Row:
    """The same by the linear classifier of n-grams, where the values are few."""
    if not 2 <= len(column.values) <= CLASSES:
        return {"information": -1.0}
    _, tune, test = split.labels(column)
    rows = [split.rows[0][:LEARNED], *split.rows[1:]]
    known = Variable("value", "category", values=("", *column.values), counts=(0, *([1] * len(column.values))))

    def part(rows: Ids) -> Corpus:
        ids = np.where(column.labels == len(column.values), -1, column.labels + 1)[rows, None].astype(np.int32)
        return replace(split.corpus.select(rows), categories=ids, schema=ContextSchema((known,)))

    judge, unread = baselines.Linear(part(rows[0]), seed=seed), part(rows[2])
    fitted = judge(part(rows[1])).log_posterior
    after = [judge(beginnings(unread, first)).log_posterior for first in FIRST] + [judge(unread).log_posterior]
    told = {c: _information(normalised(c * fitted), prior, tune) for c in COOL}
    exponent = max(told, key=lambda c: told[c])
    return {
        "judge": "linear",
        "information": max(0.0, _information(normalised(exponent * after[-1]), prior, test)),
        **{f"accuracy_{n}": _accuracy(found, test) for n, found in zip((*FIRST, "all"), after, strict=True)},
    }


def _information(logs: Floats, prior: Floats, labels: Ids) -> float:
    """Nats that a posterior `logs` (B, K) knows of the value of a text beyond the prior: at most I(v; text)."""
    known = np.flatnonzero(labels < len(prior))
    return float((logs[known, labels[known]] - prior[labels[known]]).mean()) if len(known) else 0.0


def _accuracy(logs: Floats, labels: Ids) -> float:
    """How often the most probable value is the right one, of texts whose value is not missing."""
    known = labels < logs.shape[1]
    return float((logs.argmax(1) == labels)[known].mean()) if known.any() else math.nan


def _described(column: LabelColumn, counts: Ids) -> Row:
    """How many values there are and how the texts are shared out among them; `counts` (K,) are of those that count."""
    rare = counts[0] if column.values[0] == RARE else 0
    named = counts[1:] if column.values[0] == RARE else counts
    missing = float((column.labels == len(column.values)).mean())
    return {
        "values": len(named),
        "rare_values": column.rare,
        "texts_per_value": float(np.median(named)) if len(named) else 0.0,
        "rare": float(rare / max(1, counts.sum())),
        "missing": missing,
    }


def _together(split: Split, models: Sequence[tuple[LabelColumn, ValueNGram]], rows: Sequence[Row], step: Step) -> Row:
    """The columns one after the other: what each adds to the stronger ones is kept in its row. All in the end.

    Their ratios are multiplied, with exponents fitted anew; then the longer histories of each have their say in turn.
    """
    gained = _nats(rows[0]["most"])
    rows[0]["added"] = rows[0]["most"]
    tunes, tests = zip(*(split.labels(column)[1:] for column, _ in models), strict=True)
    for count in range(2, len(rows) + 1):
        some = [model for _, model in models[:count]]
        tables = [model.ratios() for model in some]
        beta = exponents(split.model, split.tune, tables, tunes[:count], step)
        tune = np.exp(tilted(split.model, split.tune, tables, tunes[:count], beta, step))
        test = np.exp(tilted(split.model, split.test, tables, tests[:count], beta, step))
        for model, fits, judges in zip(some, tunes, tests, strict=False):
            tune = model.fit_longer(split.tune, fits, tune)
            test = model.lengthen(split.test, judges, test)
        nats = float((np.log(test) - split.nothing).mean())
        rows[count - 1]["added"] = min(_gain(nats - gained), rows[count - 1]["most"])
        gained = nats
    for row, (column, _) in zip(rows, models, strict=True):
        told = [(_told(other.labels, column.labels), other.name) for other, _ in models if other is not column]
        row["told"], row["told_by"] = max(told, default=(None, None))
    alone = sum(_nats(row["most"]) for row in rows)
    known = [_nats(row["least"]) for row in rows]
    overlap = min(1.0, max(0.0, gained) / alone) if alone > 0 else 0.0
    most = max(0.0, _gain(gained))
    least = min(most, _gain(max(overlap * sum(known), *known)))
    names = [row["column"] for row in rows]
    return {"columns": names, "least": least, "expected": expected(least, most), "most": most}


def _told(first: Ids, second: Ids) -> float:
    """The share of the entropy of `second` that `first` tells, on the half of the rows that was not counted."""
    half = np.arange(len(first)) % 2 == 0
    pairs, wide = first * (second.max() + 1) + second, int(second.max()) + 1
    plain = (np.bincount(second[half], minlength=wide) + 0.5) / (half.sum() + 0.5 * wide)
    together = np.bincount(pairs[half], minlength=(int(first.max()) + 1) * wide)
    alone = np.bincount(first[half], minlength=int(first.max()) + 1)
    given = (together[pairs[~half]] + plain[second[~half]]) / (alone[first[~half]] + 1)
    entropy = -np.log(plain[second[~half]]).mean()
    return float(max(0.0, 1 + np.log(given).mean() / entropy)) if entropy > 0 else 1.0


def measured(advice: Row, folders: Sequence[Path]) -> list[Row]:
    """What trained runs gained over an unadapted one of the same vocabulary, beside what was expected of their columns.

    All that was expected is None where a run has some of the columns only. Perplexities are the best of development.
    `UserError` where a run was not evaluated, or has no unadapted one to be compared with.
    """
    runs = [(run, _best(run)) for run in (Run.open(folder, trained=False) for folder in folders)]
    plain = [(run, best) for run, best in runs if not _adapted(run)]
    rows = []
    for run, best in runs:
        if not _adapted(run):
            continue
        bases = [base for other, base in plain if other.tokenizer.tokens == run.tokenizer.tokens]
        if not bases:
            raise UserError(f"{run.folder}: name an unadapted run of the same vocabulary too, to compare it with")
        names = [variable.name for variable in run.schema.variables]
        of_all = {"columns": advice["all"]["columns"], **advice["all"]}
        rated = [of_all, *({**row, "columns": [row["column"]]} for row in advice["columns"])]
        found: Row = next((row for row in rated if sorted(row["columns"]) == sorted(names)), {})
        estimates = {key: found.get(key) for key in ("least", "expected", "most")}
        gain = {"perplexity": best, "perplexity_unadapted": min(bases), "measured": 1 - best / min(bases)}
        rows.append({"run": str(run.folder), "columns": names, **gain, **estimates})
    if not rows:
        raise UserError("no run that is adapted; name one beside the unadapted one")
    return rows


def _adapted(run: Run) -> bool:
    return bool(run.config.model.adapt or run.config.model.output_bias)


def _best(run: Run) -> float:
    best = run.best()
    if best is None or best["perplexity"] is None:
        raise UserError(f"{run.folder}: has no perplexity yet; finish its training first")
    return float(best["perplexity"])


def _exp(nats: float) -> float:
    return float(np.exp(nats))


def _gain(nats: float) -> float:
    """By what share the perplexity falls if every target costs so many nats less."""
    return float(1 - np.exp(-nats))


def _nats(gain: float) -> float:
    return -math.log1p(-gain)


def _error(gains: Floats, starts: Ids) -> float:
    """Standard error of the mean of `gains` (T,), whole texts drawn."""
    sums, sizes = np.add.reduceat(gains, starts[:-1]), np.diff(starts)
    left = sums - gains.mean() * sizes
    return float(np.sqrt((left**2).sum()) / sizes.sum())


def expected(least: float, most: float) -> float:
    """The gain to expect of a trained model, `SHARE` of the way from `least` to `most`."""
    return least + SHARE * (most - least)


def recommend(row: Row) -> tuple[str, str]:
    """What to do with a column, "use", "softmax bias" or "leave out", and why, in a sentence."""
    gain, most = f"{row['expected']:.1%}", f"{row['most']:.1%}"
    if row["rare"] > SCARCE and row["most"] < max(WORTH, 2 * row["most_error"]):
        rare = f"{row['rare']:.1%} of the texts have one of {row['rare_values']:,} rare values"
        return "leave out", f"too few rows of each value were read to tell what it saves: {rare}"
    if row["values"] < 2:
        return "leave out", "it has not two values with enough texts each, so it says nothing"
    if row["most"] < max(WORTH, 2 * row["most_error"]):
        return "leave out", f"it saves at most {most}, no more than chance"
    if row["added"] < min(NEW * row["most"], PLENTY):
        return (
            "leave out",
            f"stronger columns say the same: of {most} it adds {max(0.0, row['added']):.1%} to them",
        )
    if row["expected"] < WORTH:
        given = f"{row['information'] / row['entropy']:.0%} of it can be read off the text"
        return "leave out", f"it saves about {gain}, for {given}"
    if row["expected"] < PLENTY and row["most_by_bias"] > 0.8 * row["most"]:
        return "softmax bias", f"about {gain}, nearly all of it which words are frequent, not what follows what"
    what = (
        "and what follows what changes too" if row["most_by_bias"] <= 0.8 * row["most"] else "mostly by frequent words"
    )
    return "use", f"about {gain}, {what}"
