"""A training or fine-tuning from a table to a run folder: read the table, train, and complete the folder."""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, ParamSpec, Unpack

import torch

from factorcell.completion.blend import save_settings
from factorcell.completion.online import distinguishes_users, user_variable
from factorcell.completion.replay import Stream, read_streams
from factorcell.completion.tuning import fit_settings
from factorcell.config import (
    Config,
    HuggingFaceOptions,
    Options,
    PretrainedTokenizerOptions,
    TrainingConfig,
    TrainingOptions,
    option_fields,
    options_by_section,
)
from factorcell.data.columns.columns import check_columns
from factorcell.data.columns.values import is_missing
from factorcell.data.corpus import Corpus, target_frequencies, text_hashes
from factorcell.data.counts import POPULARITY, TextCounts, target_counts_by_value
from factorcell.data.preparation import prepare
from factorcell.data.tables.tables import open_table, table_name
from factorcell.data.text_folds import is_valid_text
from factorcell.errors import UserError, check_choice
from factorcell.evaluation.diagnostics import repeated_texts, report_run, training_table_findings
from factorcell.evaluation.linear_classifier import possible_targets, save_classifiers
from factorcell.evaluation.perplexity import measure_context_effect
from factorcell.evaluation.text_figures import DEVELOPMENT_RESULT, texts_digest
from factorcell.io import files, lock, pretrained
from factorcell.io.findings import LOG, log_facts, report, show
from factorcell.io.torchrun import process_count
from factorcell.nn.kernels import library
from factorcell.nn.language_model import with_identified_base
from factorcell.options import limits
from factorcell.options.limits import PRESETS, SMALL_DATA_DEFAULTS, check_unknown
from factorcell.runs import saved_results, summary
from factorcell.runs.run import Run, initial_files, training_facts
from factorcell.runs.saved_results import FIGURES, UNKNOWN_CONTEXT_GAIN
from factorcell.training.mixture import fit_mixture, limit_targets
from factorcell.training.proximal import ALL, StartingPoint, select_parts, sparse_bias_of
from factorcell.training.rules import (
    COUNTED_TARGETS_PER_MINUTE,
    MIN_FINETUNING_STEPS,
    TARGETS_PER_MINUTE,
    Budget,
    SpecifiedOptions,
    batch_tokens,
    classifier_cost,
    completion_effort,
    minutes_after_steps,
    ordinary_target_seconds,
    plan,
    resumed_config,
    seconds_after_steps,
    unspecified_options,
)
from factorcell.training.schedule import TimeLimit
from factorcell.training.trainer import train

Parameters = ParamSpec("Parameters")

HELD_OUT_SHARE = 0.05  # share of the training rows that become development texts if there is no development table
MAX_HELD_OUT = 50_000  # texts that are held out of a table with more than a million texts
ALL_PASSES = 0.99  # a training that has made more of its passes ends because of them, not because of its time limit
MIN_USERS = 20  # with fewer users, single texts are held out instead of all texts of some users
# Parameters of `fit` and `compare`, which the error about an unknown option may suggest.
PARAMETERS = ("dev", "minutes", "out", "preset", "resume", "test", "models", "seeds", "target", "ngram")


def shared_by_processes(train: Callable[Parameters, Run]) -> Callable[Parameters, Run]:
    """Let the first process of torchrun call a function, whose training all share; the others then open the run."""

    @wraps(train)
    def train_together(*args: Parameters.args, **options: Parameters.kwargs) -> Run:
        if process_count() == 1:
            return train(*args, **options)
        from factorcell.training.processes import together
        from factorcell.training.sharding import is_divided

        def open_run() -> Run:
            return Run.open(str(options["out"]))

        run = together(lambda: train(*args, **options), open_run)
        return open_run() if is_divided(run) else run  # a divided model computes only while all processes train

    return train_together


@shared_by_processes
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
    specified = options_by_section(options, PARAMETERS, minutes)
    return train_run(source, dev, specified, out, minutes=minutes, preset=preset, resume=resume)


def train_run(
    source: Any,
    dev: Any,
    config: Config | SpecifiedOptions,
    folder: str | Path,
    *,
    resume: bool = False,
    compare_ngram: bool = False,
    **budget: Unpack[Budget],
) -> Run:
    """Train a run on a table, as `fit` does, from a `Config` or from a mapping of some options by section.

    With `compare_ngram`, the run is compared with an n-gram model, even if the option `ngram_mixture` is false.
    """
    start, folder = budget.get("start", perf_counter()), Path(folder)
    [minutes], preset = limits.check(minutes=budget.get("minutes")), budget.get("preset")
    if preset is not None:
        check_choice("preset", preset, PRESETS)
    specified = config.to_dict() if isinstance(config, Config) else config
    chosen = unspecified_options(specified)
    with locked_run_folder(folder, resume) as should_resume:
        run = Run.open(folder, trained=False) if should_resume else None
        is_limited = minutes is not None
        reading_config = resumed_config(specified, run.config, is_limited) if run else Config.from_dict(specified)
        corpus, held_out = read_corpora(source, dev, reading_config)
        if run:
            prepare_to_resume(run, with_identified_base(reading_config), corpus)
        else:
            run_config = plan(specified, corpus, held_out, minutes, preset)
            run = Run.create(folder, run_config, corpus.tokenizer, corpus.schema)
        max_dev_targets, max_passes = run.config.training.max_dev_targets, run.config.training.epochs
        dev_corpus = limit_targets(held_out, max_dev_targets) if max_dev_targets else held_out
        # Before the training, as the texts of users may have errors:
        streams = completion_streams(run, source if dev is None else dev, held_out)
        counts_ngrams, count = compare_ngram or run.config.training.ngram_mixture, len(held_out)
        limit = None if minutes is None else time_limit(run, corpus, minutes, start, counts_ngrams, bool(streams))
        train_and_log(run, corpus, dev_corpus, resume=should_resume, limit=limit, chosen=chosen, held_out=count)
        if is_new := not training_facts(folder):
            effort = None if minutes is None else minutes_after_steps(minutes, run.config, target_seconds(run))
            counted = corpus if effort is None else limit_targets(corpus, round(effort * COUNTED_TARGETS_PER_MINUTE))
            ngram = mix_with_ngrams(run, counted, dev_corpus) if counts_ngrams else None
            facts = {"ngram": ngram, **save_other_models(run, corpus, streams, effort)}
            write_training_facts(run, corpus, dev_corpus, source, facts, chosen=chosen)
        else:
            run.load_mixture()
        log_facts(*summary.result_facts(run))
    if minutes is not None and is_new:
        # The config of a resumed training has the passes that were made, and `steps` limits the passes too.
        is_known = not should_resume and not specified.get("training", {}).get("steps")
        has_all_passes = is_known and run.log()[-1]["tokens"] > ALL_PASSES * max_passes * corpus.target_count
        reason = f"; all {max_passes:g} passes are made (--epochs)" if has_all_passes else ""
        log_facts(("time", f"{(perf_counter() - start) / 60:.1f} of {minutes:g} minutes{reason}"))
    report_run(run, run.schema.columns() if run.model.is_adapted else ())
    return run


@shared_by_processes
def finetune(
    run: Run | str | Path,
    source: Any,
    *,
    out: str | Path,
    dev: Any = None,
    parts: Sequence[str] = (ALL,),
    l1: float = 0.0,
    unknown: str = "group",
    resume: bool = False,
    **options: Unpack[TrainingOptions],
) -> Run:
    """Fine-tune a run: train some of its parts further on another table.

    Args:
        run: The run to start from, or its folder; it is not changed.
        source: The training table.
        out: The run folder to write.
        dev: The development table; if None, 5 % of the training rows are held out.
        parts: The parts to train: "embedding", "context", "backbone", "output_bias", "projection", or "all".
        l1: The penalty on the distance of a weight from its starting value, in nats per unit of distance.
        unknown: The policy for values that training never saw: "group", "expected" or "error".
        resume: Whether to resume a stopped fine-tuning in `out`.
        **options: Options of the section `training`, such as `epochs`. The other options have the values in
            `limits.SMALL_DATA_DEFAULTS`; options that are not in it have those of `run`.

    Returns:
        The new run with its best weights.

    Raises:
        UserError: If the folder exists and `resume` is false, a table or an option is not valid, or the loss is not
            finite.
    """
    base_run = run if isinstance(run, Run) else Run.open(run)
    folder, base_config = Path(out), base_run.config
    [l1] = limits.check(l1=l1)
    check_unknown(unknown)
    starting_values = {name: tensor.detach().cpu().clone() for name, tensor in base_run.model.saved_tensors().items()}
    start = StartingPoint(starting_values, select_parts(base_run.model, parts), l1)
    for name in options:
        check_choice("option of fine-tuning", name, [field.name for field in option_fields(TrainingConfig)])
    with locked_run_folder(folder, resume) as should_resume:
        training = replace(base_config.training, **{**SMALL_DATA_DEFAULTS, **options})
        corpus = base_run.prepare(source, unknown=unknown)
        if dev is None:
            corpus, dev_corpus = hold_out(corpus, replace(base_config, training=training), keeps_schema=True)
        else:
            dev_corpus = base_run.prepare(dev, unknown=unknown)
        if "batch_tokens" not in options:
            epochs = SMALL_DATA_DEFAULTS["epochs"]
            tokens_per_batch = batch_tokens(corpus.target_count, epochs, MIN_FINETUNING_STEPS, training.batch_tokens)
            training = replace(training, batch_tokens=tokens_per_batch)
        config = replace(base_config, training=training)
        if should_resume:
            tuned = Run.open(folder, trained=False)
            prepare_to_resume(tuned, config, corpus)
            _check_start(folder, start)
        else:
            tuned = Run.create(folder, config, corpus.tokenizer, corpus.schema)
            start.write(folder)
        streams = completion_streams(tuned, source if dev is None else dev, dev_corpus)  # before, as in `train_run`
        train_and_log(tuned, corpus, dev_corpus, resume=should_resume)
        if not training_facts(folder):
            moved = start.count_moved(tuned.model)
            facts = {"from": str(base_run.folder), "parts": start.parts, "l1": l1, "moved": moved}
            other_facts = save_other_models(tuned, corpus, streams, base=base_run)
            write_training_facts(tuned, corpus, dev_corpus, source, {"finetuned": facts, **other_facts})
        log_facts(*summary.result_facts(tuned))
    report_run(tuned, tuned.schema.columns() if tuned.model.is_adapted else ())
    return tuned


def _check_start(folder: Path, start: StartingPoint) -> None:
    """Raise a `UserError` if the stopped fine-tuning in `folder` had other starting weights, parts or penalty."""
    saved = StartingPoint.read(folder)
    if saved is None:
        raise UserError(f"{folder}: cannot resume; expected a fine-tuning, got a training; choose another folder")
    check_equal_options(folder, {"parts": saved.parts, "l1": saved.l1}, {"parts": start.parts, "l1": start.l1})
    if not all(torch.equal(value, start.values[name]) for name, value in saved.values.items()):
        raise UserError(f"{folder}: cannot resume with other starting weights; choose another folder")


@contextmanager
def locked_run_folder(folder: Path, resume: bool) -> Iterator[bool]:
    """Lock `folder` for one training, and yield whether to resume the run in it; a new run replaces `initial_files`."""

    def can_resume() -> bool:
        if resume and (folder / "config.json").exists() and not files.is_new(folder, initial_files()):
            return True
        files.check_new(folder, initial_files(), resumable=True)
        return False

    can_resume()  # an unusable folder is not locked
    with lock.training_lock(folder):
        should_resume = can_resume()  # another training may have ended before the lock was free
        if not should_resume:
            files.create_new_folder(folder, initial_files(), resumable=True)
        yield should_resume


def train_and_log(
    run: Run,
    corpus: Corpus,
    dev: Corpus,
    *,
    resume: bool,
    limit: TimeLimit | None = None,
    chosen: Sequence[str] = (),
    held_out: int = 0,
) -> None:
    """Train a run and log facts about it; `dev` has some of `held_out` development texts."""
    LOG.info("%s", run.folder)
    columns = summary.column_facts(corpus, run.config.data.user)
    log_facts(*summary.data_facts(corpus, dev, held_out), *columns, *summary.model_facts(run))
    if used := summary.used_options(chosen, run.config, run.schema):
        log_facts(("options", run.config.format_options(used)), level=logging.DEBUG)
    report(*training_table_findings(corpus, dev))
    show()
    note = "already complete: " if training_facts(run.folder) else ""
    for _row in train(run, corpus, dev, resume=resume, limit=limit):
        pass  # `train` writes the rows into the log
    label, text = summary.steps_fact(run)
    log_facts((label, note + text))


def time_limit(
    run: Run, corpus: Corpus, minutes: float, start: float, counts_ngrams: bool, completes: bool
) -> TimeLimit:
    """Return the limit of a command that may take `minutes` from the time `start`, with its reserves."""
    counted_targets = min(corpus.target_count, round(minutes * COUNTED_TARGETS_PER_MINUTE)) if counts_ngrams else 0
    is_character_level, categories = run.tokenizer.is_character_level, possible_targets(run)
    reserve, bounded = seconds_after_steps(minutes, counted_targets, is_character_level, len(categories))
    reserves = {"reserve": reserve, "bounded_reserve": bounded}
    reserves["fixed_reserve"] = completion_effort(minutes, run.config)[1] if completes else 0.0
    return TimeLimit(60 * minutes, start, {**reserves, "ordinary_target_seconds": ordinary_target_seconds(run.config)})


def target_seconds(run: Run) -> float:
    """Return the seconds of a step of the training per target: the median over the log, or 0 without steps."""
    speeds = [row["tokens_per_second"] for row in run.log() if row["split"] == "train"]
    return 1 / median(speeds) if speeds else 0.0


def mix_with_ngrams(run: Run, corpus: Corpus, dev: Corpus) -> files.Row:
    """Mix a run with n-gram counts, save the mixture if this is requested and it is better, and return the facts."""
    mixture, row = fit_mixture(run, corpus, dev)
    is_saved = run.config.training.ngram_mixture and (row["gain_low"] or 0) > 0
    if is_saved:
        mixture.save(run.folder)
        run.mixture = mixture
    return {**row, "is_saved": is_saved}


def check_tokenizer(config: Config) -> None:
    """Raise `UserError` if a pretrained base would read the tokens of another tokenizer than its own."""
    if not isinstance(config.tokenizer, PretrainedTokenizerOptions):
        problem = "expected pretrained, whose tokens a pretrained base knows"
        raise UserError(f"tokenizer: {problem}, got {config.tokenizer.kind}")


def read_corpora(source: Any, dev: Any, config: Config) -> tuple[Corpus, Corpus]:
    """Read training and development texts; if `dev` is None, hold out `HELD_OUT_SHARE` of the training texts."""
    if isinstance(config.backbone, HuggingFaceOptions) and config.backbone.is_pretrained:
        check_tokenizer(config)
        pretrained.download_if_missing(config.backbone.base)
    if dev is not None:
        check_columns(dev, config.data)
    corpus = prepare(source, config)
    if dev is None:
        return hold_out(corpus, config)
    return corpus, prepare(dev, config, tokenizer=corpus.tokenizer, schema=corpus.schema, unknown="group")


def hold_out(corpus: Corpus, config: Config, *, keeps_schema: bool = False) -> tuple[Corpus, Corpus]:
    """Split off development texts: all texts of some users if the model will complete texts of new users, or any.

    The schema has no held-out users, unless `keeps_schema`: that of a fine-tuning is the schema of its base.
    """
    seed, share = config.training.seed, min(HELD_OUT_SHARE, MAX_HELD_OUT / len(corpus))
    if corpus.tokenizer.restores_texts and int(corpus.users.max(initial=0)) >= MIN_USERS:
        return corpus.split_users(share, seed, config.data.user, keeps_schema=keeps_schema)
    return corpus.split(share, seed)


def completion_streams(run: Run, table: Any, held_out: Corpus) -> list[Stream]:
    """Return the texts `held_out` of `table` by user in order of time; empty if the run completes no texts of users.

    It completes none without the compiled code, which learns the users.
    """
    if not (distinguishes_users(run) and run.tokenizer.restores_texts and library.library()):
        return []
    data, user_column = run.config.data, user_variable(run).source_column
    columns, time_column = run.schema.columns(without=user_column), data.time or None
    table, names = open_table(table), {data.text, user_column, data.time, *columns}
    selected = set(held_out.source_rows[held_out.users > 0].tolist())  # a missing user has the id 0
    all_rows = (
        dict(zip(chunk, values, strict=True))
        for chunk in table.chunks([name for name in table.columns if name in names])
        for values in zip(*chunk.values(), strict=True)
    )
    rows = [row for index, row in enumerate(all_rows) if index in selected and is_valid_text(row[data.text])]
    # A text without a time has no place among those of its user.
    rows = [row for row in rows if data.time not in row or not is_missing(row[data.time])]
    if not rows:
        return []
    return read_streams(rows, run.config, user_column=user_column, time_column=time_column, context_columns=columns)


def save_other_models(
    run: Run, corpus: Corpus, streams: Sequence[Stream] = (), minutes: float | None = None, base: Run | None = None
) -> files.Row:
    """Save priors, linear baselines, counts and the settings of completion; return the facts.

    The cost is for these `minutes`; by default, it follows from the targets that training read, and no result depends
    on the clock. `base` is the run that a fine-tuning started from.
    """
    save_token_counts(run, corpus, base)
    affordable = minutes or run.log()[-1]["tokens"] / TARGETS_PER_MINUTE
    save_classifiers(run, corpus, classifier_cost(affordable, len(possible_targets(run))))
    facts: files.Row = {}
    if len(corpus.users) and corpus.tokenizer.restores_texts:
        TextCounts.of_corpus(corpus, run.config.data.min_text_users).save(run.folder / POPULARITY)
    max_texts, seconds = completion_effort(affordable, run.config)
    if settings := fit_settings(run, streams, max_texts, seconds if minutes else math.inf):
        rule, weights, facts["completion"] = settings
        save_settings(run, rule, weights)
    return facts


def write_training_facts(
    run: Run, corpus: Corpus, dev: Corpus, source: Any, facts: Mapping[str, Any], *, chosen: Sequence[str] = ()
) -> None:
    """Write training.json, with the options `chosen` automatically, and all files that complete a run."""
    row: files.Row = {"texts": len(corpus), "targets": corpus.target_count, "source": table_name(source)}
    row |= {"development_key": texts_digest(dev), "context": measure_context_effect(run, dev)}
    if used := summary.used_options(chosen, run.config, run.schema):
        row["chosen"] = used
    row |= {name: value for name, value in facts.items() if value}
    if bias := sparse_bias_of(run):
        row["sparse_bias"] = bias.count_nonzero()
    if not run.config.data.user:  # the hashes would show whether a person wrote a text
        hashes = text_hashes(corpus)
        run.save_text_hashes(hashes)
        if repeated := repeated_texts(dev, hashes, "development texts"):
            row["repeated_texts"] = repeated.text
    files.write_json(run.folder / "training.json", row)
    _save_results(run, dev, row["context"] or {})
    summary.write_card(run)


def save_token_counts(run: Run, corpus: Corpus, base: Run | None = None) -> None:
    """Save how often each token is a target, also by value of a category; those of the run `base` are added."""
    # With users, such counts would show which words one of them wrote.
    targets = () if run.config.data.user else possible_targets(run)
    columns = {variable.name: index for index, variable in enumerate(corpus.schema.categories)}
    by_value = {name: target_counts_by_value(corpus, columns[name]) for name in targets}
    counts = target_frequencies(corpus)
    if base is not None:
        earlier = {name: base.unigram_counts_by_value(name) for name in targets}
        by_value = {name: by_value[name] + matrix for name, matrix in earlier.items() if matrix is not None}
        counts += base.unigram_counts().numpy() if base.has_unigram_counts else 0
    run.save_unigram_counts(counts, by_value)


def _save_results(run: Run, dev: Corpus, context: files.Row) -> None:
    """Save the development figures of a run: those of the neural model, and those of the mixture if there is one."""
    shared = {**DEVELOPMENT_RESULT, "unit": run.tokenizer.unit, "texts": len(dev)}
    best = run.best_evaluation() or {}
    rows = [{**shared, **{name: best[name] for name in FIGURES if name in best}}]
    if (mixed := summary.mixture_perplexity(run)) is not None:
        count = training_facts(run.folder)["ngram"]["texts"]
        rows.append({**shared, "texts": count, "predictor": "mixture", "perplexity": mixed})
    if not context.get("only_unknown_users"):
        rows[-1] |= {name: value for name, value in context.items() if name.startswith(UNKNOWN_CONTEXT_GAIN)}
    for row in rows:
        saved_results.append(run.folder, row)


def prepare_to_resume(run: Run, config: Config, corpus: Corpus) -> None:
    """Give a stopped training the device and the threads of `config`, and delete the results of weights that change.

    Raises:
        UserError: Other options or the texts differ.
    """
    for saved, values in zip(run.config.to_dict().values(), config.to_dict().values(), strict=True):
        check_equal_options(run.folder, saved, values)
    if run.tokenizer.tokens != corpus.tokenizer.tokens or run.schema != corpus.schema:
        raise UserError(f"{run.folder}: cannot resume with other training data; choose another folder")
    devices = {name: getattr(config.training, name) for name in ("device", "threads")}
    run.config = replace(run.config, training=replace(run.config.training, **devices))
    if not training_facts(run.folder):
        (run.folder / saved_results.FILE).unlink(missing_ok=True)  # of weights that change


def check_equal_options(where: Path | str, saved: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Raise a `UserError` if `options` with which work resumes differ from the `saved` ones."""
    for name in {**saved, **options}:
        expected, value = saved.get(name), options.get(name)
        if value != expected and name.rpartition(".")[2] not in ("threads", "device"):
            raise UserError(f"{where}: cannot resume; expected {name} = {expected!r} as before, got {value!r}")
