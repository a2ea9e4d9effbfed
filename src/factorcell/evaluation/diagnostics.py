"""Findings about runs: what makes their predictions, or figures of them, misleading.

Training measures the facts once and writes them to training.json, so that commands that read a run do not repeat this.
`run_findings` turns these facts into sentences. Each function that shows figures or texts of a run reports them, except
`Run.score`.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.data.columns.schema import UNKNOWN_VALUE
from factorcell.data.corpus import Corpus, is_empty_text, is_known_target, text_hashes
from factorcell.data.tokenizers.tokenizer import SPECIAL_TOKENS
from factorcell.errors import UserError
from factorcell.io.findings import Finding, ranked, report
from factorcell.nn.scoring import Scorer
from factorcell.runs.run import MAX_TEXT_HASHES, Run, describe_unfinished, training_facts
from factorcell.runs.saved_results import UNKNOWN_CONTEXT_GAIN, format_difference
from factorcell.runs.summary import used_options

# Fall of the perplexity in the second half of a training from which on the model is undertrained. It was 14 % in
# trainings of 1 and 8 minutes on hotel reviews, and of 2 and 10 minutes on clothing reviews; 22 % in 0.6 minutes on
# hotel reviews; and 29 % in 2 minutes on AG News.
MIN_GAIN = 0.02  # a finding reports a context whose relative gain over an unknown context is certainly smaller
MIN_FALL = 0.2
MIN_REPEATED_SHARE = 0.05  # share of repeated texts that is reported
MAX_DEVIATIONS = 15.0  # standard deviations between the largest number of a column and its mean
MAX_UNKNOWN_SHARE = 0.2  # share of out-of-vocabulary targets among the development targets

Row = dict[str, Any]


def report_run(run: Scorer | None, columns: Collection[str] = (), specified: Collection[str] = ()) -> None:
    """Report the findings of `run_findings`."""
    report(*run_findings(run, columns, specified))


def run_findings(run: Scorer | None, columns: Collection[str] = (), specified: Collection[str] = ()) -> list[Finding]:
    """Return what is doubtful about a run and a request, ranked.

    Args:
        run: The model; there are no findings about other models than runs.
        columns: The context columns that a request specifies, or in which its contexts differ.
        specified: Further columns that all contexts of the request specify.
    """
    if not isinstance(run, Run):
        return []
    try:
        facts = training_facts(run.folder)
        findings = [*_training_findings(run, facts), *_context_findings(run, facts, columns, specified)]
    except UserError as error:
        findings = [Finding("unfinished", f"{run.folder}: its records cannot be read ({error.message})")]
    return ranked(findings)


def _training_findings(run: Run, facts: Row) -> Iterator[Finding]:
    """Yield a finding if the training has not ended, or ended too early."""
    unfinished = describe_unfinished(run.folder)
    if unfinished:
        yield Finding("unfinished", f"{run.folder}: {unfinished}")
        return
    log = [row for row in run.log() if row["split"] == "dev"]
    remedy = "train on more texts" if run.stopped_improving() else "train longer (--minutes, --epochs)"
    perplexities = facts.get("ngram", {}).get("perplexity", {})
    perplexities = {name: math.inf if value is None else value for name, value in perplexities.items()}  # diverged
    if {"ngram", "neural"} <= perplexities.keys() and perplexities["ngram"] < perplexities["neural"]:
        comparison = "predicts worse than n-gram counts of the same texts"
        figures = f"development perplexity {perplexities['neural']:.2f} and {perplexities['ngram']:.2f}"
        yield Finding("undertrained", f"{run.folder}: its neural model {comparison} ({figures}); {remedy}")
    elif log and not run.stopped_improving():
        half = max(range(len(log)), key=lambda index: (log[index]["step"] <= log[-1]["step"] / 2, index))
        fall = 1 - log[-1]["perplexity"] / log[half]["perplexity"]
        if log[half]["step"] < log[-1]["step"] and fall > MIN_FALL:
            problem = f"undertrained: its perplexity fell by {fall:.0%} in the second half of the training"
            yield Finding("undertrained", f"{run.folder}: {problem}; {remedy}")
    ranks = facts.get("completion", {})
    if ranks.get("mrr_model") is not None and ranks["mrr_model"] < ranks["mrr_popularity"]:
        problem = "the model alone suggests worse than counts of popular texts"
        figures = f"mean reciprocal rank {ranks['mrr_model']:.3f} and {ranks['mrr_popularity']:.3f}"
        yield Finding("weak model", f"{run.folder}: {problem} ({figures}); {remedy}")


def _context_findings(run: Run, facts: Row, columns: Collection[str], specified: Collection[str]) -> Iterator[Finding]:
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
    elif _is_insignificant(total):
        effect = f"{format_difference(total, UNKNOWN_CONTEXT_GAIN)}, {total['texts']:,} development texts"
        problem = f"the context does not significantly lower its perplexity ({effect})"
        yield Finding("no effect", f"{run.folder}: {problem}; choose other columns, or train longer")
    else:
        for column, row in total.get("columns", {}).items():
            if column in columns and _is_insignificant(row):
                effect = f"{format_difference(row, UNKNOWN_CONTEXT_GAIN)}, {row['texts']:,} development texts"
                problem = f"{column} alone does not significantly lower its perplexity ({effect})"
                yield Finding("column without effect", f"{run.folder}: {problem}; specify other columns too")
    for dependence in facts.get("dependences", ()):
        column, target = dependence["column"], dependence["target"]
        if target in columns and column not in {*columns, *specified}:
            accuracy = f"accuracy {dependence['accuracy']:.2f} without the text"
            problem = f"{column} predicts {target} ({accuracy}), but the context does not specify it"
            yield Finding("dependent columns", f"{run.folder}: {problem}; specify {column} too")


def _is_insignificant(row: Row) -> bool:
    """Return whether a gain over an unknown context is not significant, and certainly below `MIN_GAIN`."""
    low, high = row.get(f"{UNKNOWN_CONTEXT_GAIN}_low"), row.get(f"{UNKNOWN_CONTEXT_GAIN}_high")
    return low is not None and high is not None and low <= 0 and high < MIN_GAIN


def differing_columns(contexts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the columns in which contexts differ."""
    names = dict.fromkeys(name for context in contexts for name in context)
    return [name for name in names if any(context.get(name) != contexts[0].get(name) for context in contexts)]


def common_columns(contexts: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the columns of which all contexts have a value."""
    return set.intersection(*map(set, contexts))


def unknown_users_finding(run: Scorer, kind_of_text: str) -> Finding:
    """Return the finding that no text is by a known user; `kind_of_text` names the texts, such as "text"."""
    # `replay` completes texts, which tokens of words do not restore.
    command = "replay {} TABLE --out FOLDER" if run.tokenizer.restores_texts else "tune-online {} TABLE"
    remedy = f"`factorcell {command.format(run.folder)}` measures the gain from learning users"
    return Finding("unknown users", f"no {kind_of_text} is by a known user; {remedy}")


def table_findings(train: Corpus, dev: Corpus) -> Iterator[Finding]:
    """Yield what makes a model that is trained on `train` and evaluated on `dev` less useful."""
    if not len(train.users) and (repeated := repeated_texts(dev, text_hashes(train), "development texts")):
        yield repeated
    unknown_share = 1 - float(is_known_target(dev).mean())
    if unknown_share > MAX_UNKNOWN_SHARE and not train.tokenizer.is_character_level:
        problem = f"{unknown_share:.0%} of the development targets are out of vocabulary"
        yield Finding("unknown words", f"{problem}; a character model avoids this (--tokenizer char)")
    for variable, numbers in zip(train.schema.numbers, train.numbers.T, strict=True):
        distances = np.nan_to_num(np.abs(numbers - variable.mean))
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
            problem = "all texts have the same value" if has_one_value else "all values are rare"
            remedy = "" if has_one_value else f" (fewer than {variable.min_count} texts; --min-context-count)"
            yield Finding("uninformative column", f"{variable.name}: {problem}{remedy}, so that the column is useless")


def repeated_texts(corpus: Corpus, hashes: NDArray[np.uint64], name: str) -> Finding | None:
    """Return a finding if more than 5 % of the texts of `corpus`, which `name` names, are training texts.

    `hashes` are those of all training texts (`text_hashes`), or the smallest `MAX_TEXT_HASHES` of them.
    """
    text_hash = text_hashes(corpus)
    is_compared = ~is_empty_text(corpus)
    if len(hashes) >= MAX_TEXT_HASHES:
        is_compared &= text_hash <= hashes.max()
    repeated = int(np.isin(text_hash[is_compared], hashes).sum())
    share = repeated / max(1, is_compared.sum())
    if share <= MIN_REPEATED_SHARE:
        return None
    problem = f"{share:.0%} of the {name} also occur in the training table"
    return Finding("repeated texts", f"{problem}, so that their figures are too good; evaluate on other texts")


def report_repeated_texts(run: Scorer, corpus: Corpus, name: str = "texts") -> None:
    """Report if texts to evaluate are training texts of a run; the texts of users repeat those of others."""
    hashes = run.text_hashes() if isinstance(run, Run) and not run.config.data.user else None
    if hashes is not None and (finding := repeated_texts(corpus, hashes, name)):
        report(finding)


def classification_findings(run: Run, target: str) -> Iterator[Finding]:
    """Yield a finding if the other columns predict the target of a classification."""
    for dependence in training_facts(run.folder).get("dependences", ()):
        if dependence["target"] == run.schema.variable(target).source_column:
            problem = f"{dependence['column']} predicts {target} without the text"
            remedy = f"to classify by the text alone, train a run whose only context column is {target}"
            yield Finding("dependent columns", f"{problem}; {remedy}")


def training_difference(run: Scorer, baseline: Scorer) -> str | None:
    """Return a sentence about differences between two trainings that a gain includes, in addition to the context.

    These are n-gram counts, the numbers of training texts that the models read, the backbones, and the sizes of
    embeddings and layers. The result is None without such a difference.
    """
    if not (isinstance(run, Run) and isinstance(baseline, Run)):
        return None
    facts, baseline_facts = _compared_facts(run), _compared_facts(baseline)
    texts = [row["training texts"] for row in (facts, baseline_facts) if "training texts" in row]
    names = [name for name in facts if baseline_facts.get(name, facts[name]) != facts[name]]
    if not differ(texts):
        names = [name for name in names if name != "training texts"]
    if not names:
        return None
    differences = "; ".join(f"{name}: {facts[name]}, the baseline {baseline_facts[name]}" for name in names)
    return f"the trainings differ in more than the context ({differences}), which the difference includes"


def _compared_facts(run: Run) -> Row:
    """Return what `training_difference` compares, by names."""
    options: Row = {"embedding_size": run.config.model.embedding_size, **asdict(run.config.backbone)}
    names = [name for name in ("embedding_size", "layers", "hidden_size", "base", "architecture") if name in options]
    texts = training_texts(run)
    return {
        "n-gram counts": "yes" if run.mixture is not None else "no",
        **({"training texts": texts} if texts else {}),
        "backbone": run.config.backbone.kind,
        **{name: options[name] for name in used_options(names, run.config, run.schema)},
    }


def differ(text_counts: Sequence[int]) -> bool:
    """Return whether the numbers of training texts of several models differ by more than 1 %."""
    return max(text_counts, default=0) > 1.01 * min(text_counts, default=0)


def training_texts(run: Run) -> int | None:
    """Return the number of texts that training read; None if unknown, or if the run was fine-tuned from another.

    A text that was read in two passes counts twice. Texts are comparable between tokenizers, targets are not.
    """
    log, facts = run.log(), training_facts(run.folder)
    if not log or not facts.get("targets") or facts.get("finetuned"):
        return None
    passes = float(log[-1]["tokens"]) / int(facts["targets"])
    return round(passes * int(facts["texts"]))
