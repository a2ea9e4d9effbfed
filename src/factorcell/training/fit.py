"""One training from a table to a run folder: read the table, train, and complete the folder."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, Unpack

from factorcell.completion.blend import save_settings
from factorcell.completion.online import distinguishes_users, user_variable
from factorcell.completion.replay import Stream, read_streams
from factorcell.completion.texts import is_valid_text
from factorcell.completion.tuning import fit_settings
from factorcell.config import Config, Options, options_by_section
from factorcell.data.cache import prepare
from factorcell.data.columns.columns import check_columns
from factorcell.data.corpus import Corpus, target_frequencies, text_hashes
from factorcell.data.counts import POPULARITY, TextCounts
from factorcell.data.tables.tables import open_table, table_name
from factorcell.errors import UserError
from factorcell.evaluation.baselines import save_baselines, save_priors
from factorcell.evaluation.diagnostics import report_run, table_findings
from factorcell.evaluation.linear_classifier import possible_targets
from factorcell.evaluation.perplexity import measure_context_effect
from factorcell.evaluation.text_figures import DEVELOPMENT_RESULT, texts_digest
from factorcell.io import files, lock, pretrained
from factorcell.io.findings import LOG, log_facts, report, show
from factorcell.nn.language_model import with_identified_base
from factorcell.options.option_fields import HuggingFaceOptions, PretrainedTokenizerOptions
from factorcell.runs import model_card, saved_results, summary
from factorcell.runs.run import Run, initial_files, relative_path, training_facts
from factorcell.runs.saved_results import FIGURES, UNKNOWN_CONTEXT_GAIN
from factorcell.runs.used_options import used_options
from factorcell.training.loop import train
from factorcell.training.mixture_fit import fit_mixture, limit_targets
from factorcell.training.plan import (
    PLAN_ARGUMENTS,
    Budget,
    ConfigLike,
    config_with_defaults,
    plan,
    resumed_plan,
    unspecified_options,
)
from factorcell.training.proximal import sparse_bias_of
from factorcell.training.rules import (
    COUNTED_TARGETS_PER_MINUTE,
    TARGETS_PER_MINUTE,
    classifier_cost,
    completed_texts,
    completion_seconds,
)
from factorcell.training.schedule import TimeLimit

HELD_OUT_SHARE = 0.05  # share of the training rows that become development texts if there is no development table
MIN_USERS = 20  # with fewer users, single texts are held out instead of all texts of some users


def fit(
    source: Any,
    *,
    out: str | Path,
    dev: Any = None,
    minutes: float | None = None,
    preset: str | None = None,
    resume: bool = False,
    **options: Unpack[Options],
) -> Run:
    """Train a run on a table.

        fit("reviews.csv", out="runs/reviews", text="review", context=["stars", Number("nights")], rank=4, minutes=10)

    Args:
        source: The training table: a path, rows, a data frame, a data set or any other table.
        out: The run folder to write.
        dev: The development table, on which the best weights are selected. If it is None, 5 % of the training rows
            are held out; the vocabulary still includes their tokens.
        minutes: The longest duration; None sets no limit.
        preset: "quick", "good" or "best", which determines the number of passes; "best" also mixes the model with
            n-gram counts, except in a training with users. The default is "good", or "best" with `minutes`.
        resume: Whether to resume a stopped training in `out`; it must have had the same options and data.
        **options: The options of the command `train` by name, such as `rank`; those that are not specified are chosen
            from the table. `config` is a file of options or a `Config`, which the other options override, and `model`
            is the name of a model of the papers.

    Returns:
        The run with its best weights.

    Raises:
        UserError: If the folder exists and `resume` is false, a table or an option is not valid, or the loss is not
            finite.
    """
    specified = options_by_section(options, PLAN_ARGUMENTS)
    return train_run(source, dev, specified, out, budget=Budget(minutes, preset), resume=resume)


def train_run(
    source: Any,
    dev: Any,
    config: ConfigLike,
    folder: str | Path,
    *,
    budget: Budget | None = None,
    resume: bool = False,
    compare_ngram: bool = False,
) -> Run:
    """Train a run on a table, as `fit` does, from a `Config`, a `Plan` or a mapping of some options by section.

    With `compare_ngram`, the run is compared with an n-gram model of the same texts, even if the option `ngram_mixture`
    is false.
    """
    start, folder, minutes = perf_counter(), Path(folder), None if budget is None else budget.minutes
    with locked_run_folder(folder, resume) as should_resume:
        saved_run = Run.open(folder, trained=False) if should_resume else None
        tables_config = resumed_plan(config, saved_run.config).config if saved_run else config_with_defaults(config)
        corpus, dev_corpus = read_corpora(source, dev, tables_config)
        if saved_run:
            run = saved_run
            prepare_to_resume(run, with_identified_base(tables_config), corpus)
            if not training_facts(folder):
                saved_results.clear(folder)
        else:
            new_plan = plan(config, corpus, dev_corpus, budget)
            minutes = new_plan.minutes
            run = Run.create(folder, new_plan.config, corpus.tokenizer, corpus.schema)
        held_out, dev_corpus = dev_corpus, dev_sample(dev_corpus, run.config)
        limit, chosen = TimeLimit.of_command(minutes, start), unspecified_options(config)
        streams = completion_streams(run, source, dev, held_out)  # before the training, as they may have errors
        train_and_log(run, corpus, dev_corpus, resume=should_resume, limit=limit, chosen=chosen)
        counted = corpus if minutes is None else limit_targets(corpus, round(minutes * COUNTED_TARGETS_PER_MINUTE))
        ngram = mix_with_ngrams(run, counted, dev_corpus, compare_ngram)
        facts = {"ngram": ngram, **save_other_models(run, corpus, held_out, streams, minutes)}
        write_training_facts(run, corpus, dev_corpus, source, facts, chosen=chosen)
    if minutes is not None:
        log_facts(("time", f"{(perf_counter() - start) / 60:.1f} of {minutes:g} minutes"))
    report_run(run, run.schema.columns())
    return run


def dev_sample(dev: Corpus, config: Config) -> Corpus:
    """Return the development texts that evaluations read: all, or a random part with `max_dev_targets` targets."""
    return limit_targets(dev, config.training.max_dev_targets) if config.training.max_dev_targets else dev


@contextmanager
def locked_run_folder(folder: Path, resume: bool) -> Iterator[bool]:
    """Lock `folder` for one training, and yield whether to resume the run in it.

    If the folder contains only the initial files of a training (`initial_files`), a new run replaces them.

    Raises:
        UserError: If the folder contains other files, and there is no run or `resume` is false.
    """
    _should_resume(folder, resume)  # raises the error about an unusable folder before the folder is locked
    with lock.training_lock(folder):
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


def train_and_log(
    run: Run,
    corpus: Corpus,
    dev: Corpus,
    *,
    resume: bool,
    limit: TimeLimit | None = None,
    chosen: Sequence[str] = (),
) -> None:
    """Train a run to its end, within the time limit; log the data, the model, its `chosen` options and the training."""
    LOG.info("%s", run.folder)
    log_facts(*summary.data_facts(corpus, dev), *summary.model_facts(run))
    if used := used_options(chosen, run.config, run.schema):
        log_facts(("options", run.config.format_options(used)), level=logging.DEBUG)
    report(*table_findings(corpus, dev))
    show()
    was_complete = resume and (run.folder / "training.json").exists()
    for _row in train(run, corpus, dev, resume=resume, limit=limit):
        pass  # `train` writes the rows into the log
    label, text = summary.steps_fact(run)
    log_facts((label, f"already complete: {text}" if was_complete else text))


def mix_with_ngrams(run: Run, corpus: Corpus, dev: Corpus, compare_ngram: bool) -> files.Row | None:
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
    return {**fitted.to_row(), "is_saved": is_saved}


def check_tokenizer(config: Config) -> None:
    """Raise `UserError` if a pretrained base would read the tokens of another tokenizer than its own."""
    backbone, tokenizer = config.backbone, config.tokenizer
    is_pretrained = isinstance(backbone, HuggingFaceOptions) and backbone.is_pretrained
    if is_pretrained and not isinstance(tokenizer, PretrainedTokenizerOptions):
        problem = "expected pretrained, whose tokens a pretrained base knows"
        raise UserError(f"tokenizer: {problem}, got {tokenizer.kind}")


def read_corpora(source: Any, dev: Any, config: Config) -> tuple[Corpus, Corpus]:
    """Read training and development texts; if `dev` is None, hold out `HELD_OUT_SHARE` of the training texts.

    If the model will complete what users type, these are all texts of some users, as new users will use it.
    """
    check_tokenizer(config)
    if isinstance(config.backbone, HuggingFaceOptions) and config.backbone.is_pretrained:
        pretrained.download_if_missing(config.backbone)
    if dev is not None:
        check_columns(dev, config.data)
    corpus = prepare(source, config)
    if dev is None:
        return hold_out(corpus, config)
    return corpus, prepare(dev, config, tokenizer=corpus.tokenizer, schema=corpus.schema, unknown="group")


def hold_out(corpus: Corpus, config: Config) -> tuple[Corpus, Corpus]:
    """Split off development texts: of some users if the corpus has texts of many that can be completed, or any."""
    seed = config.training.seed
    if corpus.tokenizer.restores_texts and int(corpus.users.max(initial=0)) >= MIN_USERS:
        return corpus.split_users(HELD_OUT_SHARE, seed, config.data.user)
    return corpus.split(HELD_OUT_SHARE, seed)


def completion_streams(run: Run, source: Any, dev: Any, held_out: Corpus) -> list[Stream]:
    """Return the development texts of each user in order of time; empty if the run does not complete texts of users.

    Args:
        run: The run.
        source: The training table, which is read if there is no development table.
        dev: The development table, or None.
        held_out: The development texts.
    """
    if not (distinguishes_users(run) and run.tokenizer.restores_texts):
        return []
    data, user_column = run.config.data, user_variable(run).source_column
    columns, time_column = run.schema.columns(without=user_column), data.time or None
    names = dict.fromkeys((data.text, user_column, *([time_column] if time_column else []), *columns))
    table = open_table(source if dev is None else dev)
    selected = set(held_out.source_rows[held_out.users > 0].tolist())  # a missing user has the id 0
    rows, index = list[files.Row](), 0
    for chunk in table.chunks([name for name in names if name in table.columns]):
        for values in zip(*chunk.values(), strict=True):
            row = dict(zip(chunk, values, strict=True))
            if index in selected and is_valid_text(row[data.text]):
                rows.append(row)
            index += 1
    return read_streams(rows, run.config, user_column=user_column, time_column=time_column, context_columns=columns)


def save_other_models(
    run: Run, corpus: Corpus, held_out: Corpus, streams: Sequence[Stream] = (), minutes: float | None = None
) -> files.Row:
    """Fit what a run has next to its language model, at a cost that fits the minutes of its training.

    These are the conditional priors and the linear baselines of its columns. A run whose texts can be completed and
    have users gets counts of popular texts, and the settings with which it completes and learns texts of users.

    Args:
        run: The trained run.
        corpus: The training texts.
        held_out: The development texts.
        streams: The development texts of each user (`completion_streams`).
        minutes: The duration of the training; by default an estimate from its steps.

    Returns:
        Entries for training.json: the columns of the held-out texts that other columns predict, and the effects of the
        completion settings.
    """
    minutes = minutes or run.log()[-1]["tokens"] / TARGETS_PER_MINUTE
    max_cost = classifier_cost(minutes, len(possible_targets(run)))
    save_baselines(run, corpus, max_cost)
    facts: files.Row = {"dependences": save_priors(run, corpus, held_out, max_cost)}
    if len(corpus.users) and corpus.tokenizer.restores_texts:
        data = run.config.data
        TextCounts.of_corpus(corpus, data.min_text_users).save(run.folder / POPULARITY)
    max_texts, seconds = completed_texts(minutes, run.config), completion_seconds(minutes)
    if settings := fit_settings(run, streams, max_texts, seconds):
        rule, weights, facts["completion"] = settings
        save_settings(run, rule, weights)
    return facts


def write_training_facts(
    run: Run, corpus: Corpus, dev: Corpus, source: Any, facts: Mapping[str, Any], *, chosen: Sequence[str] = ()
) -> None:
    """Write the files that complete the folder of a trained run, such as training.json, and log its results.

    Args:
        run: The trained run.
        corpus: The training texts.
        dev: The development texts.
        source: The training table, whose name and path are recorded.
        facts: Further entries of training.json, such as `dependences`; empty entries are left out.
        chosen: The names of the options that were chosen automatically; the run may not use all of them.
    """
    row: files.Row = {"texts": len(corpus), "targets": corpus.target_count, "source": table_name(source)}
    row |= {"development_key": texts_digest(dev), "context": measure_context_effect(run, dev)}
    if path := relative_path(source, run.folder):
        row["path"] = path
    if used := used_options(chosen, run.config, run.schema):
        row["chosen"] = used
    row |= {name: value for name, value in facts.items() if value}
    if bias := sparse_bias_of(run):
        row["sparse_bias"] = bias.count_nonzero()
    files.write_json(run.folder / "training.json", row)
    run.save_unigram_counts(target_frequencies(corpus))
    if not run.config.data.user:  # the hashes would show whether a person wrote a text
        run.save_text_hashes(text_hashes(corpus))
    _save_results(run, dev, row)
    model_card.write(run)
    log_facts(*summary.result_facts(run))


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
