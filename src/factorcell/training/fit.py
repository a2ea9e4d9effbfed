"""One training from a table to a run folder: read the table, train, and complete the folder."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from factorcell import files, lock, pretrained
from factorcell.config import Config, UserError
from factorcell.data.cache import prepare
from factorcell.data.columns import check_columns
from factorcell.data.corpus import Corpus, is_known_target, target_frequencies
from factorcell.data.counts import POPULARITY, TextCounts
from factorcell.data.tables import table_name
from factorcell.evaluation import conditional_prior
from factorcell.evaluation.combination import relative_path
from factorcell.evaluation.context_notices import effect_notices
from factorcell.evaluation.repeated_texts import repeated_notices
from factorcell.evaluation.run_warnings import (
    format_context_effect,
    measure_context_effect,
)
from factorcell.evaluation.text_figures import DEVELOPMENT_RESULT, texts_digest
from factorcell.finite import format_number
from factorcell.model import model_card, saved_results
from factorcell.model.language_model import with_identified_base
from factorcell.model.run import Run, initial_files, training_facts
from factorcell.model.saved_results import FIGURES, UNKNOWN_CONTEXT_GAIN
from factorcell.model.used_options import unused_options, used_options
from factorcell.option_fields import HuggingFaceOptions, PretrainedTokenizerOptions
from factorcell.training.loop import train
from factorcell.training.mixture_fit import fit_mixture, limit_targets
from factorcell.training.plan import (
    Budget,
    ConfigLike,
    Plan,
    config_with_defaults,
    plan,
    resumed_plan,
    unspecified_options,
)
from factorcell.training.proximal import sparse_bias_of
from factorcell.training.rules import COUNTED_TARGETS_PER_MINUTE
from factorcell.training.schedule import TimeLimit

HELD_OUT_SHARE = 0.05  # share of the training rows that become development texts if there is no development table
# Thresholds of warnings about the data:
MAX_DEVIATIONS = 15.0  # standard deviations between the largest number of a column and its mean
MAX_UNKNOWN_SHARE = 0.2  # share of out-of-vocabulary targets among the development targets

Notify = Callable[[str], None]  # receives one-line notices


def fit(
    source: Any,
    dev: Any,
    config: ConfigLike,
    folder: str | Path,
    *,
    budget: Budget | None = None,
    resume: bool = False,
    compare_ngram: bool = False,
    notify: Notify | None = None,
) -> Run:
    """Train a run on a table.

    Args:
        source: The training table: a path, rows, a data frame, a data set or any other table that `prepare` reads.
        dev: The development table, on which the best weights are selected. If it is None, 5 % of the training rows
            are held out; the vocabulary still includes their tokens.
        config: A `Config`, which sets all options, or a mapping of some options by section, such as
            `{"data": {"context": ["hotel"]}}`; the other options are chosen from the table and the `budget`.
        folder: The run folder to write.
        budget: The time or work of the training; only allowed if `config` is a mapping.
        resume: Whether to resume a stopped training in `folder`; it must have had the same config and data.
        compare_ngram: Whether to compare the run with an n-gram model of the same texts, even if the option
            `ngram_mixture` is false.
        notify: A function that receives one-line notices; with it, progress bars go to standard error.

    Returns:
        The run with its best weights.

    Raises:
        UserError: If the folder exists and `resume` is false, a table or an option is not valid, or the loss is not
            finite.
    """
    start, folder, minutes = perf_counter(), Path(folder), None if budget is None else budget.minutes
    with locked_run_folder(folder, resume, notify) as should_resume:
        saved_run = Run.open(folder, trained=False) if should_resume else None
        tables_config = resumed_plan(config, saved_run.config).config if saved_run else config_with_defaults(config)
        corpus, dev_corpus = read_corpora(source, dev, tables_config, progress=notify is not None)
        if saved_run:
            run = saved_run
            prepare_to_resume(run, with_identified_base(tables_config), corpus)
            if not training_facts(folder):
                saved_results.clear(folder)
        else:
            new_plan = plan(config, corpus, dev_corpus, budget)
            minutes = new_plan.minutes
            run = Run.create(folder, new_plan.config, corpus.tokenizer, corpus.schema)
            if not isinstance(config, Plan):  # the caller has already emitted the notices of a Plan
                for line in new_plan.notices(unused_options(new_plan.config, corpus.schema)):
                    emit_notice(notify, line)
            if not (run.model.is_adapted or isinstance(config, Plan)):
                emit_notice(notify, model_card.describe_missing_context(run))
        dev_corpus = dev_sample(dev_corpus, run.config)
        limit = TimeLimit.of_command(minutes, start)
        train_with_notices(run, corpus, dev_corpus, resume=should_resume, notify=notify, limit=limit)
        counted = corpus if minutes is None else limit_targets(corpus, round(minutes * COUNTED_TARGETS_PER_MINUTE))
        ngram = mix_with_ngrams(run, counted, dev_corpus, compare_ngram, notify)
        write_training_facts(run, corpus, dev_corpus, source, chosen=unspecified_options(config), ngram=ngram)
        for line in (*conditional_prior.training_notices(run), *effect_notices(run, run.schema.columns())):
            emit_notice(notify, line)
    if minutes is not None:
        training = f"{run.training_minutes():.1f} for training"
        resumed = ", including the time before it was resumed" if should_resume else ""
        emit_notice(notify, f"took {(perf_counter() - start) / 60:.1f} of {minutes:g} minutes, {training}{resumed}")
    return run


def dev_sample(dev: Corpus, config: Config) -> Corpus:
    """Return the development texts that evaluations read: all, or a random part with `max_dev_targets` targets."""
    return limit_targets(dev, config.training.max_dev_targets) if config.training.max_dev_targets else dev


@contextmanager
def locked_run_folder(folder: Path, resume: bool, notify: Notify | None = None) -> Iterator[bool]:
    """Lock `folder` for one training, and yield whether to resume the run in it.

    If the folder contains only the initial files of a training (`initial_files`), a new run replaces them.

    Raises:
        UserError: If the folder contains other files, and there is no run or `resume` is false.
    """
    _should_resume(folder, resume)  # raises the error about an unusable folder before the folder is locked
    with lock.training_lock(folder, notify):
        should_resume = _should_resume(folder, resume)  # another training may have ended before the lock was free
        if not should_resume:
            files.create_new_folder(folder, initial_files(), resumable=True)
        yield should_resume


def _should_resume(folder: Path, resume: bool) -> bool:
    """Return whether to resume the run in `folder`; raise a `UserError` if the folder cannot be used."""
    if files.is_new(folder, initial_files()):
        return False
    if not (resume and (folder / "config.json").exists()):
        raise files.folder_exists_error(folder, resumable=True)
    return True


def train_with_notices(
    run: Run, corpus: Corpus, dev: Corpus, *, resume: bool, notify: Notify | None, limit: TimeLimit | None = None
) -> None:
    """Train a run to its end, within the time limit, and emit notices about the data and about an early stop."""
    emit_notice(notify, f"{len(corpus):,} texts, {corpus.target_count:,} targets; {len(dev):,} development texts")
    emit_notice(notify, f"{len(run.tokenizer):,} tokens in the vocabulary ({run.config.tokenizer.kind})")
    for variable in run.schema.variables:
        emit_notice(notify, variable.describe())
    emit_notice(notify, run.model.describe_size())
    if run.model.names is not None:
        emit_notice(notify, run.model.names.describe())
    if isinstance(run.config.backbone, HuggingFaceOptions) and run.config.backbone.is_frozen_in_bfloat16:
        emit_notice(notify, "the frozen base is stored in bfloat16; --base-precision sets it")
    for line in data_warnings(corpus, dev):
        emit_notice(notify, line)
    was_complete = resume and (run.folder / "training.json").exists()
    if was_complete:
        emit_notice(notify, f"{run.folder}: the training is already complete")
    for _row in train(run, corpus, dev, resume=resume, progress=notify is not None, limit=limit):
        pass  # `train` writes the rows into the log
    if notify is None or was_complete:
        return
    if run.stopped_early():
        last_row = run.log()[-1]
        reason = f"no lower perplexity in the last {run.config.training.patience} evaluations"
        notify(f"stopped early at step {last_row['step']:,} of {last_row['steps']:,}: {reason}")


def mix_with_ngrams(
    run: Run, corpus: Corpus, dev: Corpus, compare_ngram: bool, notify: Notify | None
) -> files.Row | None:
    """Compare a trained run with n-gram counts of its texts, and mix them if the option `ngram_mixture` is set.

    The mixture is saved only if it is significantly better on the development texts.

    Returns:
        The row of the comparison for training.json; None if there was no comparison.
    """
    is_requested = run.config.training.ngram_mixture
    if not (is_requested or compare_ngram):
        return None
    fitted = fit_mixture(run, corpus, dev)
    is_saved = is_requested and fitted.is_better
    if is_saved:
        fitted.mixture.save(run.folder)
        run.mixture = fitted.mixture
    for line in fitted.notices(
        _passes_made(run, corpus), run.config, is_saved=is_saved, stopped_improving=run.stopped_improving()
    ):
        emit_notice(notify, line)
    return {**fitted.to_row(), "is_saved": is_saved}


def _passes_made(run: Run, corpus: Corpus) -> float:
    """Return the number of passes of a training over its texts, rounded to two significant digits."""
    return float(f"{run.log()[-1]['tokens'] / max(1, corpus.target_count):.2g}")


def data_warnings(corpus: Corpus, dev: Corpus) -> Iterator[str]:
    """Yield a warning for each property of the tables that makes the trained model less useful."""
    if np.array_equal(corpus.tokens, dev.tokens):
        yield (
            "the development texts are the training texts, so their perplexity does not measure how well the model "
            "predicts new texts; use other development texts"
        )
    else:
        yield from repeated_notices(dev, corpus, "development texts")
    unknown_share = 1 - float(is_known_target(dev).mean())
    if unknown_share > MAX_UNKNOWN_SHARE and not corpus.tokenizer.is_character_level:
        yield (
            f"{unknown_share:.0%} of the development targets are out of vocabulary; "
            "a character model avoids this (--tokenizer char)"
        )
    for variable, numbers in zip(corpus.schema.numbers, corpus.numbers.T, strict=True):
        for extreme, word, find in ((variable.high, "larger", np.nanargmax), (variable.low, "smaller", np.nanargmin)):
            if not variable.period and abs(extreme - variable.mean) > MAX_DEVIATIONS * variable.deviation:
                row = int(corpus.source_rows[find(numbers)]) + 1
                can_be_logarithm = word == "larger" and variable.low > 0
                logarithms = ", otherwise use a column of their logarithms" if can_be_logarithm else ""
                yield (
                    f"{variable.name}: a few values are far {word} than all others, such as {extreme:,.8g} (mean "
                    f"{variable.mean:,.6g}) in row {row:,}; correct them if they are mistakes{logarithms}"
                )
    for variable in corpus.schema.categories:
        if not variable.rare_count and len(variable.values) == 2:
            yield f"{variable.name}: uninformative, because all texts have the same value or no value"
        if variable.is_all_rare:
            minimum = f"{variable.min_count} texts, the minimum (--min-context-count or --min-user-count)"
            yield f"{variable.name}: uninformative, because no value has {minimum}"


def check_tokenizer(config: Config) -> None:
    """Raise `UserError` if a pretrained base would read the tokens of another tokenizer than its own."""
    backbone, tokenizer = config.backbone, config.tokenizer
    is_pretrained = isinstance(backbone, HuggingFaceOptions) and backbone.is_pretrained
    if is_pretrained and not isinstance(tokenizer, PretrainedTokenizerOptions):
        problem = "expected pretrained, whose tokens a pretrained base knows"
        raise UserError(f"tokenizer: {problem}, got {tokenizer.kind}")


def read_corpora(source: Any, dev: Any, config: Config, *, progress: bool) -> tuple[Corpus, Corpus]:
    """Read training and development texts; if `dev` is None, hold out `HELD_OUT_SHARE` of the training texts."""
    check_tokenizer(config)
    if isinstance(config.backbone, HuggingFaceOptions) and config.backbone.is_pretrained:
        pretrained.download_if_missing(config.backbone)
    if dev is not None:
        check_columns(dev, config.data)
    corpus = prepare(source, config, progress=progress)
    if dev is None:
        return corpus.split(HELD_OUT_SHARE, config.training.seed)
    return corpus, prepare(dev, config, tokenizer=corpus.tokenizer, schema=corpus.schema, unknown="group")


def write_training_facts(
    run: Run,
    corpus: Corpus,
    dev: Corpus,
    source: Any,
    *,
    finetuned: files.Row | None = None,
    ngram: files.Row | None = None,
    chosen: Sequence[str] = (),
) -> None:
    """Write the files that complete the folder of a trained run: training.json, counts, priors, and the model card.

    A run with users, whose tokenizer has characters or pieces of words, also gets counts of its popular texts.

    Args:
        run: The trained run.
        corpus: The training texts.
        dev: The development texts.
        source: The training table, whose name and path are recorded.
        finetuned: The description of a fine-tuning, which training.json stores with the key `finetuned`.
        ngram: The row `ngram` of training.json, which compares the run with an n-gram model.
        chosen: The names of the options that were chosen automatically; the run may not use all of them.
    """
    row: files.Row = {"texts": len(corpus), "targets": corpus.target_count, "source": table_name(source)}
    row |= {"development_key": texts_digest(dev), "context": measure_context_effect(run, dev)}
    if path := relative_path(source, run.folder):
        row["path"] = path
    if used := used_options(chosen, run.config, run.schema):
        row["chosen"] = used
    if finetuned:
        row["finetuned"] = finetuned
    if ngram:
        row["ngram"] = ngram
    if bias := sparse_bias_of(run):
        row["sparse_bias"] = bias.count_nonzero()
    conditional_prior.save_priors(run, corpus, dev)
    files.write_json(run.folder / "training.json", row)
    run.save_unigram_counts(target_frequencies(corpus))
    data = run.config.data
    _save_results(run, dev, row)
    if len(corpus.users) and corpus.tokenizer.restores_texts:
        TextCounts.of_corpus(corpus, data.min_text_count, data.min_text_users).save(run.folder / POPULARITY)
    model_card.write(run)


def _save_results(run: Run, dev: Corpus, facts: files.Row) -> None:
    """Save the development figures of a run: those of the neural model, and those of the mixture if there is one."""
    shared = {**DEVELOPMENT_RESULT, "unit": run.tokenizer.unit, "texts": len(dev)}
    best = run.best_evaluation() or {}
    rows = [{**shared, **{name: best[name] for name in FIGURES if name in best}}]
    if (mixed := model_card.mixture_perplexity(run)) is not None:
        rows.append({**shared, "predictor": "mixture", "perplexity": mixed})
    context = facts["context"] or {}
    if not context.get("only_unknown_users"):
        rows[-1] |= {name: value for name, value in context.items() if name.startswith(UNKNOWN_CONTEXT_GAIN)}
    for row in rows:
        saved_results.append(run.folder, row)


def emit_notice(notify: Notify | None, text: str) -> None:
    """Pass a one-line notice to `notify`, or do nothing if `notify` is None."""
    if notify is not None:
        notify(text)


def prepare_to_resume(run: Run, config: Config, corpus: Corpus) -> None:
    """Let `run`, a stopped training, compute on the device of `config`.

    Raises:
        UserError: If other options or the data of the training differ from `config` or `corpus`.
    """
    new_options = config.to_dict()
    for section, saved_options in run.config.to_dict().items():
        for name, saved_value in saved_options.items():
            new_value = new_options[section][name]
            if new_value != saved_value and name not in ("threads", "device"):
                raise not_resumable_error(run.folder, name, saved_value, new_value)
    if run.tokenizer.tokens != corpus.tokenizer.tokens or run.schema != corpus.schema:
        raise UserError(f"{run.folder}: cannot resume with other training data; choose another folder")
    run.config = replace(run.config, training=replace(run.config.training, device=config.training.device))


def not_resumable_error(folder: Path, name: str, expected: Any, value: Any) -> UserError:
    """Return the error for resuming with an option that differs from that of the stopped training."""
    return UserError(f"{folder}: cannot resume; expected {name} = {expected!r} as before, got {value!r}")


def summary(run: Run) -> str:
    """Return one line: the development perplexity of a run, its step, the duration, the gain over an unknown context.

    If the run predicts with a mixture, the line has the perplexities of the mixture and of the neural model.
    """
    best = run.best_evaluation()
    assert best is not None  # every training ends with an evaluation
    perplexity = format_number(best["perplexity"], ".2f")
    perplexity_known = format_number(best["perplexity_known"], ".2f")
    if run.tokenizer.is_subword and "bits_per_byte" in best:
        neural = f"{perplexity} ({format_number(best['bits_per_byte'], '.3f')} bits per byte) at step {best['step']:,}"
    else:
        neural = f"{perplexity} ({perplexity_known} without out-of-vocabulary targets) at step {best['step']:,}"
    minutes = f"{run.training_minutes():.1f} minutes of training"
    steps_and_minutes = f" of {best['steps']:,}, {minutes}{format_context_effect(run)}"
    mixed = model_card.mixture_perplexity(run)
    if mixed is None:
        return f"development perplexity {neural}{steps_and_minutes}"
    mixture = f"development perplexity {format_number(mixed, '.2f')} of the mixture with which the run predicts"
    return f"{mixture}; its neural model alone: {neural}{steps_and_minutes}"
