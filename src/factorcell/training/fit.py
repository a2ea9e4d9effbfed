"""One training from a table to a run folder: read the table, train, and keep what the run was trained on."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from factorcell import files, lock
from factorcell.config import Config, UserError
from factorcell.data.cache import prepare
from factorcell.data.columns import check_columns
from factorcell.data.corpus import Corpus, is_known_target, target_frequencies
from factorcell.data.counts import POPULARITY, TextCounts
from factorcell.data.tables import table_name
from factorcell.evaluation.run_warnings import format_context_gain, measure_context_gain
from factorcell.evaluation.text_figures import texts_digest
from factorcell.finite import format_number
from factorcell.model import model_card
from factorcell.model.run import Run, initial_files
from factorcell.training.loop import train
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

HELD_OUT = 0.05  # share of the training rows that are held out without a development table
OUTLIER = 15.0  # standard deviations between a column's largest number and its mean that are remarked on
UNKNOWN = 0.2  # share of out-of-vocabulary targets that is remarked on

Notify = Callable[[str], None]


def fit(
    source: Any,
    dev: Any,
    config: ConfigLike,
    folder: str | Path,
    *,
    budget: Budget | None = None,
    resume: bool = False,
    notify: Notify | None = None,
) -> Run:
    """Train a run in `folder` on a table and return it with its best weights.

    A `config` that is a mapping, `{"data": {"context": ["hotel"]}}`, sets some options, and the others follow from the
    table and the `budget`. A `Config` sets all options.

    Args:
        source: The training table: a file, rows, or several of them.
        dev: The development table. Without it, 5 % of the rows are held out (their words count for the vocabulary).
        config: A `Config`, or a mapping of some options by section: `{"data": {"context": ["hotel"]}}`.
        folder: The run folder to write.
        budget: The time or work of the training.
        resume: Whether to resume in a folder that exists; its config must be the same.
        notify: A function that takes lines about the progress; progress bars go to standard error.

    Raises:
        UserError: If the folder exists, a table or option is not valid, or the loss is not finite.
    """
    folder = Path(folder)
    with locked_run_folder(folder, resume, notify) as resumes:
        corpus, held = read_corpora(source, dev, config_with_defaults(config), progress=notify is not None)
        if resumes:
            run = Run.open(folder, trained=False)
            check_resumable(run, resumed_plan(config, run.config).config, corpus)
        else:
            made = plan(config, corpus, held, budget)
            for line in () if isinstance(config, Plan) else made.notices():  # a Plan was reported where it was made
                emit_notice(notify, line)
            run = Run.create(folder, made.config, corpus.tokenizer, corpus.schema)
        train_with_notices(run, corpus, held, resume=resumes, notify=notify)
        write_training_facts(run, corpus, held, source, chosen=unspecified_options(config))
    return run


@contextmanager
def locked_run_folder(folder: Path, resume: bool, notify: Notify | None = None) -> Iterator[bool]:
    """Lock `folder` for one training; yield whether to resume the run there.

    A run that has learned nothing yet is replaced by a new one. `UserError` if the folder holds anything else.
    """
    _resumes(folder, resume)  # before it waits for the lock
    with lock.training_lock(folder, notify):
        resumes = _resumes(folder, resume)  # another training may have ended before the lock was free
        if not resumes:
            files.new_folder(folder, initial_files(), resumable=True)
        yield resumes


def _resumes(folder: Path, resume: bool) -> bool:
    if files.is_new(folder, initial_files()):
        return False
    if not (resume and (folder / "config.json").exists()):
        raise files.folder_exists_error(folder, resumable=True)
    return True


def train_with_notices(run: Run, corpus: Corpus, dev: Corpus, *, resume: bool, notify: Notify | None) -> None:
    """Train a run to its end; report what it reads, and why it ended early if it did."""
    emit_notice(
        notify, f"{len(corpus):,} texts, {corpus.target_count:,} targets; {len(dev):,} texts held for development"
    )
    emit_notice(notify, f"{len(run.tokenizer):,} tokens in the vocabulary ({run.config.tokenizer.kind})")
    for variable in run.schema.variables:
        emit_notice(notify, variable.describe())
    emit_notice(notify, f"{run.model.parameter_count():,} parameters")
    for line in data_warnings(corpus, dev):
        emit_notice(notify, line)
    ended = resume and (run.folder / "training.json").exists()
    if ended:
        emit_notice(notify, f"{run.folder}: nothing to do, its training has come to its end before")
    for _ in train(run, corpus, dev, resume=resume, progress=notify is not None):
        pass
    if notify is not None and not ended and (last := run.log()[-1])["step"] < last["steps"]:
        of = f"step {last['step']:,} of {last['steps']:,}"
        in_vain = f"none of the last evaluations ({run.config.training.patience}) brought a lower perplexity"
        notify(f"patience ended it at {of}: {in_vain}")


def data_warnings(corpus: Corpus, dev: Corpus) -> Iterator[str]:
    """Yield a line for each property of the tables that makes a training less useful."""
    if np.array_equal(corpus.tokens, dev.tokens):
        yield "the development texts are the training texts: their perplexity says nothing of new ones; give others"
    unknown = 1 - float(is_known_target(dev).mean())
    if unknown > UNKNOWN and not corpus.tokenizer.is_character_level:
        yield (
            f"{unknown:.0%} of the development targets are out of vocabulary; "
            "a model of characters knows all: --tokenizer char"
        )
    for variable in corpus.schema.numbers:
        if variable.low >= 0 and variable.high > variable.mean + OUTLIER * variable.deviation:
            yield (
                f"{variable.name}: a few values are far larger than all others, up to {variable.high:.4g} "
                f"where the mean is {variable.mean:.4g}; a column of their logarithms says more"
            )
    for variable in corpus.schema.categories:
        if not variable.rare_count and len(variable.values) == 2:
            yield f"{variable.name} says nothing: all texts have {variable.values[1]!r}, or no value"
        if variable.rare_count and len(variable.values) == 1:
            least = f"{variable.min_count} texts, the minimum (--min-context-count or --min-user-count)"
            yield f"{variable.name} says nothing: no value has {least}"


def read_corpora(source: Any, dev: Any, config: Config, *, progress: bool) -> tuple[Corpus, Corpus]:
    """Read training and development texts; without `dev` the latter are held out."""
    if dev is not None:
        check_columns(dev, config.data)
    corpus = prepare(source, config, progress=progress)
    if dev is None:
        return corpus.split(HELD_OUT, config.training.seed)
    return corpus, prepare(dev, config, tokenizer=corpus.tokenizer, schema=corpus.schema, unknown="group")


def write_training_facts(
    run: Run,
    corpus: Corpus,
    held: Corpus,
    source: Any,
    *,
    finetuned: files.Row | None = None,
    chosen: Sequence[str] = (),
) -> None:
    """Write into the folder of a trained run what it was trained on, what its context gains, and its card.

    `held` are the development texts, `chosen` the options that followed from the table, `finetuned` the facts of a
    fine-tuning.
    """
    kept: files.Row = {"texts": len(corpus), "targets": corpus.target_count, "source": table_name(source)}
    kept |= {"development_key": texts_digest(held), "context": measure_context_gain(run, held)}
    if chosen:
        kept["chosen"] = list(chosen)
    if finetuned:
        kept["finetuned"] = finetuned
    if bias := sparse_bias_of(run):
        kept["sparse_bias"] = bias.count_nonzero()
    files.write_json(run.folder / "training.json", kept)
    run.save_unigram_counts(target_frequencies(corpus))
    data = run.config.data
    if len(corpus.users) and corpus.tokenizer.is_character_level:
        TextCounts.of_corpus(corpus, data.min_text_count, data.min_text_users).save(run.folder / POPULARITY)
    model_card.write(run)


def emit_notice(notify: Notify | None, text: str) -> None:
    """Report a line of progress, unless `say` is None."""
    if notify is not None:
        notify(text)


def check_resumable(run: Run, config: Config, corpus: Corpus) -> None:
    """Refuse to resume with other options or other data."""
    old, new = run.config.to_dict(), config.to_dict()
    for section in old:
        for key, value in old[section].items():
            if (now := new[section][key]) != value and key not in ("threads", "device"):
                raise UserError(f"{run.folder} was begun with {key} = {value!r}, not {now!r}; nothing resumed")
    if run.tokenizer.tokens != corpus.tokenizer.tokens or run.schema != corpus.schema:
        raise UserError(f"{run.folder} was begun with other training data; nothing resumed")


def summary(run: Run) -> str:
    """Return the best development figures of a run in one line."""
    best = run.best_evaluation()
    assert best is not None  # a training ends with an evaluation
    perplexity, known = (format_number(best[name], ".2f") for name in ("perplexity", "perplexity_known"))
    return (
        f"development perplexity {perplexity} ({known} without out-of-vocabulary targets) at step {best['step']} of "
        f"{best['steps']}, {run.training_minutes():.1f} minutes{format_context_gain(run)}"
    )
