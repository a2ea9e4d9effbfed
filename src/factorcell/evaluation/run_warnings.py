"""Warnings about runs whose outputs may mislead: training has not ended, or the context does not help.

The gain over an unknown context is how much lower the perplexity of the run is with the context of each text than
with the expected context, relative to the latter. It is measured at the end of training, on up to `MAX_TEXTS`
development texts, and by `evaluate`, on other tables. The measurement with the most texts counts, except that one is
ignored if unknown users wrote all of its texts; if there is no other one, a warning says so.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from factorcell.config import UserError
from factorcell.data.corpus import Corpus
from factorcell.evaluation import perplexity, text_figures
from factorcell.evaluation.text_figures import TextSums
from factorcell.model import saved_results, training_state
from factorcell.model.run import Run, training_facts
from factorcell.model.saved_results import UNKNOWN_CONTEXT_GAIN, format_difference, gain_title
from factorcell.model.scoring import Scorer
from factorcell.model.used_options import used_options

MAX_TEXTS = 1000  # development texts on which the effect is measured
MAX_COLUMN_TARGETS = 20_000  # about the number of development targets on which the effect of a column is measured
EFFECT = gain_title(UNKNOWN_CONTEXT_GAIN)
GAIN_DIFFERS = "the gain over an unadapted run may be smaller"

Row = dict[str, Any]


def measure_context_effect(run: Run, held_out: Corpus) -> Row | None:
    """Measure the gain over an unknown context on held-out texts, with its interval; None for an unadapted run.

    The row also has `only_unknown_users` (true) if the run distinguishes users but no known user wrote any of the
    texts. If the run has several columns, `columns` has the gain of each column without the others.
    """
    if not run.model.is_adapted:
        return None
    indices = np.sort(np.random.default_rng(run.config.training.seed).permutation(len(held_out))[:MAX_TEXTS])
    sample = held_out.select(indices)
    saved_sums = None
    if run.mixture is None:  # training saved the figures of the neural model alone
        saved_sums = text_figures.load(run.folder, text_figures.DEVELOPMENT_RESULT).get("perplexity")
    if saved_sums is None or saved_sums.key != text_figures.texts_digest(held_out):
        adapted_sums = text_figures.figures_from_nats(run.nats(sample), sample)["perplexity"]
    else:
        adapted_sums = saved_sums.select(indices)
    baseline_sums = perplexity.without_context(run, sample)["perplexity"]
    # Both figures have the same texts, but the key of selected texts differs from that of the sample.
    effect = perplexity.gain(adapted_sums._replace(key=baseline_sums.key), baseline_sums)
    row: Row = {"texts": len(sample), **effect.to_row(UNKNOWN_CONTEXT_GAIN)}
    if columns := _measure_columns(run, sample, baseline_sums):
        row["columns"] = columns
    return {**row, "only_unknown_users": True} if perplexity.has_only_unknown_users(run, held_out) else row


def _measure_columns(run: Run, sample: Corpus, baseline_sums: TextSums) -> dict[str, Row]:
    """Measure the gain of each column of a run with several columns, while the others have their expected values.

    Prompts, and columns of which no text has a known value, are left out. `baseline_sums` are the figures of the texts
    with the expected context.
    """
    if len(run.schema.columns()) < 2:
        return {}
    count = min(len(sample), len(sample) * MAX_COLUMN_TARGETS // sample.target_count + 1)
    rows = np.linspace(0, len(sample) - 1, count).astype(np.int64)
    texts, baseline_sums = sample.select(rows), baseline_sums.select(rows)
    effects, categories = {}, {variable.source_column for variable in run.schema.categories}
    for column in run.schema.embedded.columns():
        corpus = _keep_column(texts, column)
        if column not in categories or (corpus.categories > 0).any():  # 0 is the unknown value
            sums = text_figures.figures_from_nats(run.nats(corpus), texts)["perplexity"]
            effect = perplexity.gain(sums._replace(key=baseline_sums.key), baseline_sums)
            effects[column] = {"texts": len(texts), **effect.to_row(UNKNOWN_CONTEXT_GAIN)}
    return effects


def _keep_column(corpus: Corpus, column: str) -> Corpus:
    """Return a corpus with the same texts, in which all variables except those of a column are missing."""
    schema, empty = corpus.schema, corpus.without_context(corpus.schema)
    is_category_kept, is_number_kept, is_vector_kept, is_text_kept = (
        np.array([variable.source_column == column for variable in variables], dtype=bool)
        for variables in (schema.categories, schema.numbers, schema.vectors, schema.texts)
    )
    vectors, words = zip(corpus.vectors, empty.vectors, strict=True), zip(corpus.words, empty.words, strict=True)
    return replace(
        empty,
        categories=np.where(is_category_kept, corpus.categories, empty.categories),
        numbers=np.where(is_number_kept, corpus.numbers, empty.numbers),
        vectors=tuple(pair[0] if is_kept else pair[1] for pair, is_kept in zip(vectors, is_vector_kept, strict=True)),
        words=tuple(pair[0] if is_kept else pair[1] for pair, is_kept in zip(words, is_text_kept, strict=True)),
    )


def format_context_effect(run: Run) -> str:
    """Return text with the gain over an unknown context, to be appended to the summary of a training.

    The text is empty for an unadapted run.
    """
    row = training_facts(run.folder).get("context") or {}
    effect = format_difference(row, UNKNOWN_CONTEXT_GAIN)
    if effect is None:
        return ""
    text = f"; {EFFECT}: {effect}"
    if not row.get("only_unknown_users"):
        return f"{text}; {GAIN_DIFFERS}" if row[UNKNOWN_CONTEXT_GAIN] > 0 else text
    effect_of_other_columns = text if run.schema.columns(without=run.config.data.user) else ""
    return f"{effect_of_other_columns}; {unknown_users_notice(run, 'development text')}"


def unknown_users_notice(run: Scorer, kind_of_text: str) -> str:
    """Return a notice that no text is by a known user, with the command that measures the gain from learning users.

    `kind_of_text` names the texts, such as "development text".
    """
    if run.tokenizer.restores_texts:
        command = f"factorcell replay {run.folder} TABLE --out FOLDER"
    else:  # `replay` completes texts, which tokens of words do not restore
        command = f"factorcell tune-online {run.folder} TABLE"
    return f"no {kind_of_text} is by a known user; `{command}` measures the gain from learning users"


def mixed_comparison_notices(runs: Sequence[Run]) -> list[str]:
    """Return a notice if only some of the compared `runs` predict with a mixture of their model and n-gram counts."""
    mixed = [str(run.folder) for run in runs if run.mixture is not None]
    if len(mixed) in (0, len(runs)):
        return []
    return [f"only {', '.join(mixed)} predicts with n-gram counts; the difference is not the effect of a context alone"]


def mixture_notice(run: Scorer) -> list[str]:
    """Return a notice that a run predicts with its n-gram mixture, with the perplexity of its neural model alone."""
    if not isinstance(run, Run) or run.mixture is None:
        return []
    figures = training_facts(run.folder).get("ngram", {}).get("perplexity", {})
    alone = ""
    if {"mixture", "neural"} <= figures.keys():
        alone = f" (development perplexity {figures['mixture']:.2f}; the neural model alone {figures['neural']:.2f})"
    return [f"{run.folder}: predicts with the mixture of its neural model and n-gram counts{alone}"]


def training_difference(run: Scorer, baseline: Scorer) -> str | None:
    """Return a sentence about differences between two trainings that a gain includes, in addition to the context.

    These are the number of training texts that each model read (only of runs without fine-tuning, if they differ by
    more than 1 %), the backbones, the sizes of embeddings and layers, and changes of the number of steps during a
    training. The result is None without such a difference.
    """
    if not (isinstance(run, Run) and isinstance(baseline, Run)):
        return None
    differences = []
    texts, baseline_texts = training_texts(run), training_texts(baseline)
    if texts and baseline_texts and differ([texts, baseline_texts]):
        stopped = [name for name, model in (("the baseline", baseline), ("this run", run)) if model.stopped_early()]
        reason = f"; {' and '.join(stopped)} stopped early, which --patience 0 prevents" if stopped else ""
        differences.append(f"the baseline read {baseline_texts:,} training texts, this run {texts:,}{reason}")
    sizes, baseline_sizes = _sizes(run), _sizes(baseline)
    for name, size in sizes.items():
        if baseline_sizes.get(name, size) != size:
            differences.append(f"the baseline has {name} {baseline_sizes[name]}, this run {size}")
    if not differences:
        return None
    return (
        f"the trainings differ in more than the context ({'; '.join(differences)}), so their difference in perplexity "
        "and bits per byte is not the effect of the context alone"
    )


def differ(text_counts: Sequence[int]) -> bool:
    """Return whether the numbers of training texts of several models differ by more than 1 %."""
    return max(text_counts) > 1.01 * min(text_counts)


def training_texts(run: Run) -> int | None:
    """Return the number of texts that training read; None if unknown, or if the run was fine-tuned from another.

    A text that was read in two passes counts twice. Texts are comparable between tokenizers, targets are not.
    """
    log, facts = run.log(), training_facts(run.folder)
    if not log or not facts.get("targets") or facts.get("finetuned"):
        return None
    passes = float(log[-1]["tokens"]) / int(facts["targets"])
    return round(passes * int(facts["texts"]))


def _sizes(run: Run) -> Row:
    """Return the kind of the backbone of a run, its Transformer, and the sizes of its layers, by names of options."""
    options: Row = {"embedding_size": run.config.model.embedding_size, **asdict(run.config.backbone)}
    names = [name for name in ("embedding_size", "layers", "hidden_size", "base", "architecture") if name in options]
    sizes = {name: options[name] for name in used_options(names, run.config, run.schema)}
    return {"backbone": run.config.backbone.kind, **sizes}


def find_warnings(runs: Iterable[Run]) -> list[str]:
    """Return a warning for each run whose training has not ended, or whose context has no significant effect."""
    return _warnings(runs, checks_effect=True, advice="interpret its use of contexts with caution")


def training_warnings(runs: Iterable[Run]) -> list[str]:
    """Return a warning for each run whose training has not ended."""
    return _warnings(runs, checks_effect=False, advice="interpret its figures with caution")


def _warnings(runs: Iterable[Run], checks_effect: bool, advice: str) -> list[str]:
    """Return a line for each run with a reason for a warning; the line ends with `advice`."""
    lines = []
    for run in runs:
        try:
            patience = run.config.training.patience
            unfinished = training_state.describe_unfinished(run.folder, patience, run.was_training)
            reasons = [*filter(None, [unfinished]), *(_insignificant_effect_reasons(run) if checks_effect else ())]
        except UserError as error:
            reasons = [f"its records cannot be read ({error.message})"]
        if reasons:
            lines.append(f"{run.folder}: {' and '.join(reasons)}; {advice}")
    return lines


def _insignificant_effect_reasons(run: Run) -> Iterator[str]:
    """Yield a reason if the effect was measured only on texts of unknown users, or if it is not above zero.

    An effect is above zero if the lower end of its interval is.
    """
    measurements = [training_facts(run.folder).get("context") or {}]
    results = saved_results.read(run.folder)
    measurements += [result for result in results if result["kind"] == "evaluate"]
    measured = [row for row in measurements if row.get(f"{UNKNOWN_CONTEXT_GAIN}_low") is not None]
    valid_measurements = [row for row in measured if not row.get("only_unknown_users")]
    if measured and not valid_measurements:
        yield "the effect of its context is measured only on texts of unknown users"
    latest_first = reversed(valid_measurements)  # in case of ties, `max` returns the first one
    measurement = max(latest_first, key=lambda row: float(row["texts"]), default=None)
    if measurement and measurement[f"{UNKNOWN_CONTEXT_GAIN}_low"] <= 0:
        effect = format_difference(measurement, UNKNOWN_CONTEXT_GAIN)
        description = f"{EFFECT}: {effect}, {measurement['texts']:,} texts"
        yield f"its context does not significantly lower the perplexity ({description})"
