"""Findings about runs: what makes their predictions, or figures of them, misleading.

Training measures the facts and writes them to training.json; `run_findings` turns them into sentences.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.bootstrap import Interval
from factorcell.data.columns.schema import UNKNOWN_VALUE
from factorcell.data.corpus import Corpus, is_empty_text, is_known_target, text_hashes
from factorcell.data.tokenizers.tokenizer import SPECIAL_TOKENS
from factorcell.errors import UserError
from factorcell.io.arrays import blocks, mapped
from factorcell.io.findings import LOG, Finding, ranked, report
from factorcell.nn.scoring import Scorer
from factorcell.runs.run import MAX_TEXT_HASHES, Run, describe_unfinished, training_facts
from factorcell.runs.saved_results import UNKNOWN_CONTEXT_GAIN, format_difference

# A finding reports a context whose relative gain over an unknown context is certainly smaller, and a model whose
# relative gain in completion over known texts is.
MIN_GAIN = 0.02
# Fall of the perplexity in the second half of a training from which on the model is undertrained. It was 14 % in
# trainings of hotel reviews for 1 and 8 minutes, 22 % in 0.6 minutes, and 29 % on AG News in 2 minutes.
MIN_FALL = 0.2
TRAINING_QUALITY = ("undertrained", "weak model")  # names of findings that the training has reported
REMEDIES = {False: "train longer (--minutes, --epochs)", True: "train on more texts"}  # by `stopped_improving`
MIN_REPEATED_SHARE = 0.05  # share of repeated texts that is reported
MAX_DEVIATIONS = 15.0  # standard deviations between the largest number of a column and its mean
MAX_UNKNOWN_SHARE = 0.2  # share of out-of-vocabulary targets among the development targets

Row = dict[str, Any]


def report_run(run: Scorer | None, columns: Collection[str] | None = None) -> None:
    """Report the findings of `run_findings`."""
    report(*run_findings(run, columns))


def report_use(run: Scorer | None, columns: Collection[str] | None = None) -> None:
    """Report the findings of `run_findings`, and log those of `TRAINING_QUALITY` as details."""
    for finding in run_findings(run, columns):
        if finding.name in TRAINING_QUALITY:
            LOG.debug("%s", finding.text)
        else:
            report(finding)


def describe_quality(run: Scorer) -> str:
    """Return the names of the findings of `TRAINING_QUALITY` in brackets; empty text if there are none."""
    names = [finding.name for finding in run_findings(run) if finding.name in TRAINING_QUALITY]
    return f" ({', '.join(names)})" if names else ""


def run_findings(run: Scorer | None, columns: Collection[str] | None = None) -> list[Finding]:
    """Return what is doubtful about a run, and about the context `columns` of a request if there is one, ranked."""
    if not isinstance(run, Run):
        return []
    try:
        facts = training_facts(run.folder)
        findings = [*_training_findings(run, facts), *_context_findings(run, facts, columns)]
    except UserError as error:
        findings = [Finding("unfinished", f"{run.folder}: its records cannot be read ({error.message})")]
    return ranked(findings)


def _training_findings(run: Run, facts: Row) -> Iterator[Finding]:
    unfinished = describe_unfinished(run.folder)
    if unfinished:
        yield Finding("unfinished", f"{run.folder}: {unfinished}")
        return
    log = [row for row in run.log() if row["split"] == "dev"]
    remedy = REMEDIES[run.stopped_improving()]
    perplexities = facts.get("ngram", {}).get("perplexity", {})
    perplexities = {name: math.inf if value is None else value for name, value in perplexities.items()}  # diverged
    if {"ngram", "neural"} <= perplexities.keys() and perplexities["ngram"] < perplexities["neural"]:
        comparison = "predicts worse than n-gram counts of the same texts"
        figures = f"development perplexity {perplexities['neural']:.2f} and {perplexities['ngram']:.2f}"
        yield Finding("undertrained", f"{run.folder}: its neural model {comparison} ({figures}); {remedy}")
    elif log and not run.stopped_improving():
        half = max(range(len(log)), key=lambda index: (log[index]["step"] <= log[-1]["step"] / 2, index))
        earlier, last = (row["perplexity"] or math.inf for row in (log[half], log[-1]))  # None: not finite
        fall = 1 - last / earlier
        if log[half]["step"] < log[-1]["step"] and fall > MIN_FALL:
            problem = f"undertrained: its perplexity fell by {fall:.0%} in the second half of the training"
            yield Finding("undertrained", f"{run.folder}: {problem}; {remedy}")
    ranks = facts.get("completion", {})
    gain = Interval.from_row(ranks, "gain_over_known")
    if gain and gain.high is not None and gain.high < MIN_GAIN * ranks["mrr_known"]:
        problem = "its suggestions are hardly better than the user's own and popular texts, without a model"
        figures = f"mean reciprocal rank {ranks['mrr']:.3f} and {ranks['mrr_known']:.3f}"
        yield Finding("weak model", f"{run.folder}: {problem} ({figures})")


def _context_findings(run: Run, facts: Row, columns: Collection[str] | None) -> Iterator[Finding]:
    """Yield findings about the effect of the context, and of those `columns` that a request specifies."""
    if columns and not run.model.is_adapted:
        problem = "no context: this is an unadapted model"
        if run.schema.variables:
            problem = f"an unadapted model: it does not read the context columns {', '.join(run.schema.columns())}"
        yield Finding("unread context", f"{run.folder}: {problem}")
    total = facts.get("context") or {}
    if total.get("only_unknown_users"):
        if "completion" not in facts:  # otherwise training has measured the gain from learning users
            yield unknown_users_finding(run, "development text")
    elif _is_insignificant(total) and (columns is None or columns):
        remedy = f"choose other columns, or {REMEDIES[run.stopped_improving()]}"
        yield Finding("no effect", f"{run.folder}: the context {_effect(total)}; {remedy}")
    else:
        for column, row in total.get("columns", {}).items():
            if column in (columns or ()) and _is_insignificant(row):
                problem = f"{column} alone {_effect(row)}; add other columns"
                yield Finding("column without effect", f"{run.folder}: {problem}")


def _effect(row: Row) -> str:
    verb = "raises" if row[f"{UNKNOWN_CONTEXT_GAIN}_high"] < 0 else "does not significantly lower"
    return f"{verb} its perplexity ({format_difference(row, UNKNOWN_CONTEXT_GAIN)}, {row['texts']:,} development texts)"


def _is_insignificant(row: Row) -> bool:
    """Return whether a gain over an unknown context is not significant, and certainly below `MIN_GAIN`."""
    low, high = row.get(f"{UNKNOWN_CONTEXT_GAIN}_low"), row.get(f"{UNKNOWN_CONTEXT_GAIN}_high")
    return low is not None and high is not None and low <= 0 and high < MIN_GAIN


def differing_columns(contexts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the columns in which contexts differ."""
    names = dict.fromkeys(name for context in contexts for name in context)
    return [name for name in names if any(context.get(name) != contexts[0].get(name) for context in contexts)]


def unknown_users_finding(run: Scorer, kind_of_text: str) -> Finding:
    """Return the finding that no text is by a known user; `kind_of_text` names the texts, such as "text"."""
    # `replay` completes texts, which tokens of words do not restore.
    command = "replay {} TABLE --out FOLDER" if run.tokenizer.restores_texts else "tune-online {} TABLE"
    remedy = f"`factorcell {command.format(run.folder)}` measures the gain from learning users"
    return Finding("unknown users", f"no {kind_of_text} is by a known user; {remedy}")


def training_table_findings(train: Corpus, dev: Corpus) -> Iterator[Finding]:
    """Yield what makes a model that is trained on `train` and evaluated on `dev` less useful."""
    if not len(train.users) and (repeated := repeated_texts(dev, text_hashes(train), "development texts")):
        yield repeated
    unknown_share = 1 - float(is_known_target(dev).mean())
    if unknown_share > MAX_UNKNOWN_SHARE and not train.tokenizer.is_character_level:
        problem = f"{unknown_share:.0%} of the development targets are out of vocabulary"
        yield Finding("unknown words", f"{problem}; a character model avoids this (--tokenizer char)")
    for variable, numbers in zip(train.schema.numbers, train.numbers.T, strict=True):
        distances = mapped(partial(_distances, mean=variable.mean), numbers)
        row = int(distances.argmax())
        if not variable.period and distances[row] > MAX_DEVIATIONS * variable.deviation:
            value, place = f"{numbers[row]:,.8g}", f"row {int(train.source_rows[row]) + 1:,}"
            problem = f"{variable.name} is {value} in {place}, far from all others (mean {variable.mean:,.6g})"
            yield Finding("outlier", f"{problem}; correct mistakes, or use a column of logarithms")
    if words := sorted({*train.unknown_names} & {*SPECIAL_TOKENS}):
        listing = ", ".join(words)
        problem = f"the texts have the words {listing}, which name special tokens and are read as out of vocabulary"
        yield Finding("reserved names", f"{problem}; replace or remove them")
    for variable in train.schema.categories:
        if variable.unknown_count:
            problem = f"{variable.name} is {UNKNOWN_VALUE!r} in {variable.unknown_count:,} texts, read as a rare value"
            yield Finding("reserved names", f"{problem}; rename this value, or leave these cells empty")
        has_one_value = len(variable.values) == 2 and not (variable.rare_count or variable.unknown_count)
        if has_one_value or variable.is_all_rare:
            rare = f"no value has {variable.min_count} texts (--min-context-count; for users, --min-user-count)"
            problem = "all texts have the same value" if has_one_value else rare
            yield Finding("uninformative column", f"{variable.name}: {problem}, so that the column is useless")


def _distances(numbers: NDArray[np.float32], mean: float) -> NDArray[np.float32]:
    distances: NDArray[np.float32] = np.nan_to_num(np.abs(numbers - mean))
    return distances


def repeated_texts(corpus: Corpus, hashes: NDArray[np.uint64], name: str) -> Finding | None:
    """Return a finding if more than 5 % of the texts of `corpus` have one of the `hashes` of training texts."""
    text_hash = text_hashes(corpus)
    is_compared = ~is_empty_text(corpus)
    if len(hashes) >= MAX_TEXT_HASHES:
        is_compared &= text_hash <= hashes.max()
    compared = text_hash[is_compared]
    is_repeated = np.zeros(len(compared), bool)
    for block in blocks(len(hashes)):
        is_repeated |= np.isin(compared, hashes[block])
    repeated = int(is_repeated.sum())
    share = repeated / max(1, is_compared.sum())
    if share <= MIN_REPEATED_SHARE:
        return None
    problem = f"{share:.0%} of the {name} also occur in the training table"
    return Finding("repeated texts", f"{problem}, so that figures are too good; remove repeats before a table is split")


def report_evaluation(run: Scorer, corpus: Corpus) -> None:
    """Report findings about a run, apart from its quality, which figures show, and texts that are training texts."""
    hashes = run.text_hashes() if isinstance(run, Run) and not run.config.data.user else None
    if hashes is not None and (finding := repeated_texts(corpus, hashes, "texts")):
        report(finding)
    report_use(run)
